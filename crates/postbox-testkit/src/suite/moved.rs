//! What is promised of events that were moved to a history: they are found, cleaned and sent again as if they were in the
//! table, and what is not kept is not made up.

use postbox_core::cleaner::{Due, SweepCount as _, SweepRequest};
use postbox_core::{
    Browse as _, Cleaner, Direction, EventFilter, EventId, EventStatus, History, Inspect as _, Json,
    ListRequest, Published, Record, TenantId,
};

use super::history::{HOUR, deliver, is_where_it_belongs, ready};
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, enqueue, event, events};
use crate::eventually;

/// Events of every fate, in the order of their sequences.
struct Fates {
    /// Of a tenant of its own.
    moved: Vec<EventId>,
    kept: Vec<EventId>,
    dead: Vec<EventId>,
    waiting: Vec<EventId>,
    /// Deleted.
    gone: Vec<EventId>,
}

impl Fates {
    async fn of<S: Subject>(subject: &S) -> Self {
        let gone = enqueue(subject, events(5)).await;
        deliver(subject, true, History::None, &Scripted::ok()).await;
        let first = event(TOPIC, 1).tenant(TenantId::from_name("acme")).build().unwrap();
        let moved = enqueue(subject, [vec![first], events(9)].concat()).await;
        deliver(subject, true, History::Move, &Scripted::ok()).await;
        let kept = enqueue(subject, events(3)).await;
        deliver(subject, true, History::Keep, &Scripted::ok()).await;
        let dead = enqueue(subject, events(1)).await;
        deliver(subject, true, History::Move, &Scripted::new(|_| Act::Reject)).await;
        let waiting = enqueue(subject, events(2)).await;
        Self { moved, kept, dead, waiting, gone }
    }

    fn all(&self) -> Vec<EventId> {
        [&self.moved[..], &self.kept, &self.dead, &self.waiting].concat()
    }
}

/// Page by page and from both ends, by every filter, bounded and not.
pub async fn what_was_moved_is_listed<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let fates = Fates::of(subject).await;
    let (admin, all, tenant) = (subject.admin(), fates.all(), TenantId::from_name("acme"));
    let Fates { moved, kept, dead, .. } = &fates;
    for (direction, depth) in [
        (Direction::NewestFirst, Some(1_000)),
        (Direction::OldestFirst, Some(1_000)),
        (Direction::NewestFirst, None),
    ] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = admin
                .list(&ListRequest { direction, after, limit: 4, depth, ..ListRequest::default() })
                .await
                .unwrap();
            assert!(!page.bounded);
            found.extend(page.events.iter().map(|event| event.event_id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if direction == Direction::NewestFirst {
            found.reverse();
        }
        assert_eq!(found, all, "{direction:?} {depth:?}");
    }
    let list = async |filter: EventFilter| {
        let page = admin
            .list(&ListRequest { filter, direction: Direction::OldestFirst, ..ListRequest::default() })
            .await;
        page.unwrap().events.iter().map(|event| event.event_id).collect::<Vec<_>>()
    };
    let sent = EventFilter { status: Some(EventStatus::Sent), ..EventFilter::default() };
    assert_eq!(list(sent.clone()).await, [&moved[..], kept].concat());
    assert_eq!(list(EventFilter { tenant_id: Some(tenant), ..EventFilter::default() }).await, moved[..1]);
    assert_eq!(list(EventFilter { tenant_id: Some(tenant), ..sent.clone() }).await, moved[..1]);
    let of_dead = EventFilter { status: Some(EventStatus::Dead), ..EventFilter::default() };
    assert_eq!(&list(of_dead).await, dead);
    // A list that did not look at all of the history says so.
    let nowhere = EventFilter { error: Some("nowhere".into()), ..sent.clone() };
    let short = ListRequest { filter: nowhere, depth: Some(2), limit: 1, ..ListRequest::default() };
    let page = admin.list(&short).await.unwrap();
    assert!(page.bounded && page.events.is_empty(), "{page:?}");
}

/// What has become of them, and how fast they leave; where nothing is kept that is not known, and said so.
pub async fn what_was_moved_is_counted<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let admin = subject.admin();
    let gone = enqueue(subject, events(5)).await;
    deliver(subject, true, History::None, &Scripted::ok()).await;
    assert_eq!(admin.counts().await.unwrap().published_per_second, None);
    assert!(admin.show(gone[0], true).await.unwrap().is_none());
    let fates = Fates::of(subject).await;
    let (all, Fates { dead, waiting, gone, .. }) = (fates.all(), &fates);
    let asked: Vec<EventId> = all.iter().chain(gone).copied().collect();
    let mut found = admin.statuses(&asked).await.unwrap();
    found.sort_by_key(|(id, _)| asked.iter().position(|asked| asked == id));
    let status = |id: &EventId| match id {
        id if dead.contains(id) => EventStatus::Dead,
        id if waiting.contains(id) => EventStatus::New,
        _ => EventStatus::Sent,
    };
    assert_eq!(found, all.iter().map(|id| (*id, status(id))).collect::<Vec<_>>());
    let rate = admin.counts().await.unwrap().published_per_second.expect("a rate");
    assert!(rate > 0.0, "{rate}");
}

/// Every column moves with its row.
pub async fn what_was_moved_is_shown_with_all_that_it_had<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let admin = subject.admin();
    let whole = Record::builder(TOPIC)
        .json(&serde_json::json!({ "n": 12_345 }))
        .tenant(TenantId::from_name("acme"))
        .aggregate("thing", "42")
        .header("k", "v")
        .schema("s", 3)
        .routing_key("key")
        .metadata(&serde_json::json!({ "m": 1 }))
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b".into()));
    let bytes = Record::builder(TOPIC).bytes([0_u8, 159, 146, 150], "application/x-test");
    let moved = enqueue(subject, vec![whole.build().unwrap(), bytes.build().unwrap()]).await;
    let failing = moved[0];
    let sink =
        Scripted::new(
            move |d| {
                if d.meta.event_id == failing && d.meta.attempts < 2 { Act::Retry } else { Act::Ok }
            },
        );
    let before = admin.show(failing, true).await.unwrap().expect("before");
    deliver(subject, true, History::Move, &sink).await;
    eventually("the one that failed to arrive", PATIENCE, async || {
        deliver(subject, true, History::Move, &sink).await;
        subject.moved(failing).await.is_some()
    })
    .await;
    let shown = admin.show(failing, true).await.unwrap().expect("from the history");
    assert_eq!((shown.summary.status, shown.summary.attempts), (EventStatus::Sent, 2));
    assert_eq!(shown.summary.sequence, before.summary.sequence);
    assert_eq!(shown.summary.created_at, before.summary.created_at);
    assert!(shown.summary.published_at.is_some() && shown.locked_by.is_none() && shown.locked_at.is_none());
    let text = |json: &Option<Json>| json.as_ref().map(|json| json.as_str().to_owned());
    assert_eq!(
        (
            text(&shown.headers),
            shown.schema_id,
            shown.schema_version,
            shown.routing_key,
            shown.traceparent,
            shown.tracestate
        ),
        (
            text(&before.headers),
            before.schema_id,
            before.schema_version,
            before.routing_key,
            before.traceparent,
            before.tracestate
        )
    );
    assert_eq!(
        (shown.summary.aggregate_type.as_deref(), shown.summary.aggregate_id.as_deref()),
        (Some("thing"), Some("42"))
    );
    assert!(shown.attempts_log.is_some() && shown.occurred_at == before.occurred_at);
    let (content, had) = (shown.content.expect("its content"), before.content.expect("its content"));
    assert_eq!(
        (content.payload.as_str(), text(&content.metadata)),
        (had.payload.as_str(), text(&had.metadata))
    );
    let shown = admin.show(moved[1], true).await.unwrap().expect("from the history");
    assert_eq!(shown.content_type.as_deref(), Some("application/x-test"));
    assert_eq!(shown.content.and_then(|content| content.payload_raw), Some(vec![0, 159, 146, 150]));
}

/// Also counted beforehand, a batch at a time, and nothing else.
pub async fn what_was_moved_is_cleaned_after_its_retention<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let kept = enqueue(subject, events(3)).await;
    deliver(subject, true, History::Keep, &Scripted::ok()).await;
    let moved = enqueue(subject, events(9)).await;
    deliver(subject, true, History::Move, &Scripted::ok()).await;
    let waiting = enqueue(subject, events(1)).await[0];
    for id in moved[..7].iter().chain(&kept[..2]).chain([&waiting]) {
        subject.make_older(*id, 10 * HOUR).await;
    }
    let admin = subject.admin();
    let request = SweepRequest {
        retention: 5 * HOUR,
        dead_retention: None,
        batch: 2,
        max_attempts: 25,
        dead_letters: false,
    };
    assert_eq!(admin.due(&request).await.unwrap(), Due { published: 9, dead: 0 });
    let cleaner = Cleaner::new(admin.clone()).retention(5 * HOUR).batch(4);
    assert_eq!(cleaner.run_once().await.unwrap(), 9, "as was said");
    assert_eq!(cleaner.run_once().await.unwrap(), 0);
    for id in &moved {
        assert_eq!(subject.moved(*id).await.is_some(), moved[7..].contains(id));
    }
    assert!(subject.row(kept[2]).await.is_some() && subject.row(waiting).await.is_some());
}

/// The oldest first, wherever they are, with their old ids and sequences; nothing else is touched.
pub async fn what_was_moved_is_sent_again_by_id_and_by_time<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let kept = enqueue(subject, events(3)).await;
    deliver(subject, true, History::Keep, &Scripted::ok()).await;
    let moved = enqueue(subject, events(4)).await;
    deliver(subject, true, History::Move, &Scripted::ok()).await;
    // Kept and moved in turns: 1 h, 2 h, … ago.
    let order = [moved[0], kept[0], moved[1], kept[1], moved[2], kept[2]];
    for (hours, id) in (1..).zip(&order) {
        subject.make_older(*id, hours * HOUR).await;
    }
    let admin = subject.admin();
    let lines = subject.audit_lines().await;
    let before = admin.show(moved[3], true).await.unwrap().expect("it is there");
    let by_id = Published::Events { event_ids: vec![moved[3], EventId::new()] };
    assert_eq!(admin.count_published(&by_id).await.unwrap(), 1);
    assert_eq!(admin.replay_published(&by_id, 5, "tester").await.unwrap(), [moved[3]]);
    assert_eq!(admin.replay_published(&by_id, 5, "tester").await.unwrap(), []);
    let row = subject.row(moved[3]).await.expect("it is back");
    assert!(
        !row.published && row.attempts == 0 && row.due && !row.locked && row.last_error.is_none(),
        "{row:?}"
    );
    assert!(subject.moved(moved[3]).await.is_none());
    let after = admin.show(moved[3], true).await.unwrap().expect("it is there");
    assert_eq!(
        (after.summary.sequence, after.summary.created_at),
        (before.summary.sequence, before.summary.created_at)
    );
    let now = admin.now().await.unwrap();
    let between =
        Published::Between { since: now - 5 * HOUR - HOUR / 2, until: now - HOUR - HOUR / 2, topic: None };
    assert_eq!(admin.count_published(&between).await.unwrap(), 4);
    assert_eq!(admin.replay_published(&between, 1, "tester").await.unwrap(), [moved[2]], "the oldest");
    assert_eq!(admin.replay_published(&between, 1, "tester").await.unwrap(), [kept[1]], "wherever it is");
    let mut rest = admin.replay_published(&between, 10, "tester").await.unwrap();
    rest.sort_unstable();
    let mut wanted = vec![moved[1], kept[0]];
    wanted.sort_unstable();
    assert_eq!(rest, wanted);
    assert_eq!(admin.replay_published(&between, 10, "tester").await.unwrap(), []);
    assert_eq!(subject.audit_lines().await - lines, 4, "one for each change, none for nothing");
    let well = Scripted::ok();
    deliver(subject, true, History::Move, &well).await;
    let mut again = well.arrived();
    again.sort_unstable();
    let mut wanted = vec![moved[1], moved[2], moved[3], kept[0], kept[1]];
    wanted.sort_unstable();
    assert_eq!(again, wanted, "those and no others");
    for id in wanted {
        is_where_it_belongs(subject, id, History::Move, 1).await;
    }
    assert!(subject.row(kept[2]).await.expect("untouched").published);
}

/// An event that was enqueued again after it was moved: it is not sent twice, and neither is lost.
pub async fn what_was_written_again_stays_in_the_history<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let ids = enqueue(subject, events(3)).await;
    deliver(subject, true, History::Move, &Scripted::ok()).await;
    subject.make_older(ids[0], 2 * HOUR).await;
    enqueue(subject, vec![event(TOPIC, 9).event_id(ids[0]).build().unwrap()]).await;
    let admin = subject.admin();
    let all = Published::Events { event_ids: ids.clone() };
    assert_eq!(admin.count_published(&all).await.unwrap(), 3);
    // One at a time: what cannot come back must not keep the others from it.
    let mut back = Vec::new();
    for _ in 0..3 {
        back.extend(admin.replay_published(&all, 1, "tester").await.unwrap());
    }
    back.sort_unstable();
    assert_eq!(back, ids[1..]);
    assert!(subject.moved(ids[0]).await.is_some_and(|row| row.published), "it is where it was");
    let mut seen = subject.view(ids[0]).await;
    seen.sort_unstable();
    assert_eq!(seen, ["NEW", "SENT"]);
    let shown = admin.show(ids[0], false).await.unwrap().expect("the one that waits");
    assert_eq!(shown.summary.status, EventStatus::New);
    assert_eq!(admin.statuses(&ids[..1]).await.unwrap(), [(ids[0], EventStatus::New)]);
}
