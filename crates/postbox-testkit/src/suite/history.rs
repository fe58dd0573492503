//! What is promised of each history: `keep`, `move` and `none` deliver alike, and differ in what is left.

use std::time::Duration;

use postbox_core::cleaner::{Due, SweepCount as _, SweepRequest};
use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Claimed, Failure, Settlement, Verdict};
use postbox_core::{
    Browse as _, Cleaner, Code, Direction, Enqueued, EventFilter, EventId, EventStatus, History, HotPath,
    Inspect as _, ListRequest, Published, Record, Relay, Store as _, TenantId,
};

use super::script::{Act, Scripted};
use super::{
    OpenTransaction as _, PATIENCE, RowState, Subject, TOPIC, claim, enqueue, event, events, quick, request,
};
use crate::{eventually, skipped};

const ALL: [History; 3] = [History::Keep, History::Move, History::None];
const HOUR: Duration = Duration::from_hours(1);
const NONE: &str = "no history here";

/// Whether the subject can have a history; it has one then.
async fn ready<S: Subject>(subject: &S) -> bool {
    if subject.features().history {
        subject.make_history().await;
        return true;
    }
    skipped(NONE);
    false
}

/// Delivers all that waits, by a relay of its own.
async fn deliver<S: Subject>(subject: &S, single_active: bool, history: History, sink: &Scripted) {
    let store = subject.store_with(single_active, history);
    let mut relay = Relay::builder(store).dispatcher(sink.clone()).settings(quick()).build().unwrap();
    eventually("all to be settled", PATIENCE, async || relay.run_once().await.unwrap().claimed == 0).await;
    relay.close().await;
}

/// Whether a delivered event is where it belongs, and nowhere else.
async fn is_where_it_belongs<S: Subject>(subject: &S, event: EventId, history: History, attempts: i32) {
    let (moved, seen) = (subject.moved(event).await, subject.view(event).await);
    let arrived =
        |row: &RowState| row.published && !row.locked && row.attempts == attempts && row.last_error.is_none();
    match history {
        History::Keep => {
            let row = subject.row(event).await.expect("a row");
            assert!(moved.is_none() && arrived(&row), "{row:?} {moved:?}");
            assert_eq!(seen, ["SENT"]);
        }
        History::Move => {
            assert!(moved.as_ref().is_some_and(arrived), "{moved:?}");
            assert_eq!(seen, ["SENT"], "once, from the history");
        }
        History::None => {
            assert!(moved.is_none() && subject.row(event).await.is_none());
            assert_eq!(seen, [""; 0]);
        }
    }
}

/// By lease and by ownership, in batches and one by one.
pub async fn each_history_keeps_what_it_promises<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    for (single_active, history) in
        [false, true].into_iter().flat_map(|one| ALL.map(|history| (one, history)))
    {
        let ids = enqueue(subject, events(30)).await;
        // One that fails twice before it arrives: its log is kept with it.
        let failing = ids[7];
        let sink = Scripted::new(move |d| {
            if d.meta.event_id == failing && d.meta.attempts < 3 { Act::Retry } else { Act::Ok }
        });
        let sink = sink.in_batches(10);
        let relay = Relay::builder(subject.store_with(single_active, history))
            .dispatcher(sink.clone())
            .settings(quick());
        let relay = relay.build().unwrap().spawn();
        eventually("all to arrive", PATIENCE, async || sink.arrived().len() >= 30).await;
        relay.shutdown().await.unwrap();
        assert_eq!(sink.arrived().len(), 30, "each once");
        for id in &ids {
            is_where_it_belongs(subject, *id, history, if *id == failing { 3 } else { 1 }).await;
        }
        if history == History::Move {
            assert_eq!(subject.moved(failing).await.map(|row| row.log_lines), Some(2));
        }
    }
}

fn settlement(row: &Claimed, verdict: Verdict) -> Settlement {
    let failed = !matches!(verdict, Verdict::Delivered);
    let failure = Failure { relay: "r".into(), duration_ms: 1, outcome: "retry", error: "no".into() };
    Settlement {
        lease: row.lease.clone(),
        verdict,
        failure: failed.then_some(failure),
        sinks_done: Vec::new(),
    }
}

/// One settle of delivered, failed, released, dead and lost rows, whoever had claimed them.
pub async fn batches_of_every_verdict_are_settled_by_each_history<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let because = |text: &str| Summary::new(text, 2048);
    for (single_active, history) in
        [false, true].into_iter().flat_map(|one| ALL.map(|history| (one, history)))
    {
        let ids = enqueue(subject, events(8)).await;
        let store = subject.store_with(single_active, history);
        let mut rows = claim(&store, 8).await.rows;
        assert_eq!(rows.len(), 8);
        rows.sort_by_key(|row| row.delivery.meta.sequence);
        // What somebody else has by now.
        rows[6].lease.attempts += 3;
        rows[7].lease.attempts += 3;
        let verdicts = [
            Verdict::Delivered,
            Verdict::Retry { after: HOUR, reason: because("again") },
            Verdict::Release { after: Some(HOUR), reason: Some(because("down")) },
            Verdict::Dead { reason: because("never") },
            Verdict::Delivered,
            Verdict::Delivered,
            Verdict::Delivered,
            Verdict::Retry { after: HOUR, reason: because("again") },
        ];
        let settlements = rows.iter().zip(verdicts).map(|(row, verdict)| settlement(row, verdict)).collect();
        let mut lost = store.settle(settlements, 0).await.unwrap().lost;
        lost.sort_unstable();
        let mut wanted = vec![rows[6].lease.row, rows[7].lease.row];
        wanted.sort_unstable();
        assert_eq!(lost, wanted, "{history}");
        for id in [ids[0], ids[4], ids[5]] {
            is_where_it_belongs(subject, id, history, 1).await;
        }
        let (mut left, mut moved) = (Vec::new(), Vec::new());
        for id in [ids[1], ids[2], ids[3], ids[6], ids[7]] {
            left.push(subject.row(id).await.expect("what did not arrive is there"));
            moved.extend(subject.moved(id).await);
        }
        assert_eq!(moved, [], "and what did not arrive is not in the history");
        let [retry, release, dead, other, another] = <[RowState; 5]>::try_from(left).unwrap();
        assert!(
            !retry.published && !retry.due && !retry.locked && retry.attempts == 1 && retry.log_lines == 1
        );
        assert_eq!(retry.last_error.as_deref(), Some("again"));
        assert!(!release.published && !release.due && !release.locked && release.attempts == 0);
        assert_eq!(release.last_error.as_deref(), Some("down"));
        assert!(dead.dead && !dead.locked && dead.last_error.as_deref() == Some("never"), "{dead:?}");
        assert!(!other.published && !another.published && another.last_error.is_none());
        assert_eq!(subject.view(ids[3]).await, ["DEAD"]);
        store.close().await;
        // What was left alone is no part of the next round.
        deliver(subject, true, History::Keep, &Scripted::ok()).await;
        for id in [ids[6], ids[7]] {
            if !subject.row(id).await.expect("a row").published {
                subject.expire_lease(id).await;
            }
        }
        deliver(subject, true, History::Keep, &Scripted::ok()).await;
    }
}

/// A relay that was too slow neither deletes nor moves what another has claimed since (hazard 1).
pub async fn no_history_takes_what_is_anothers<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    for history in ALL {
        let id = enqueue(subject, events(1)).await[0];
        let slow = subject.store_with(false, history);
        let late: Vec<Settlement> =
            claim(&slow, 1).await.rows.iter().map(|row| settlement(row, Verdict::Delivered)).collect();
        subject.expire_lease(id).await;
        let quick = subject.store_with(false, history);
        let taken = quick.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
        assert_eq!(taken.rows.len(), 1);
        assert_eq!(slow.settle(late.clone(), 0).await.unwrap().lost.len(), 1, "{history}");
        let row = subject.row(id).await.expect("it is still there");
        assert!(row.locked && !row.published && row.attempts == 2, "{row:?}");
        assert!(subject.moved(id).await.is_none());
        let settled = taken.rows.iter().map(|row| settlement(row, Verdict::Delivered)).collect();
        assert!(quick.settle(settled, 0).await.unwrap().lost.is_empty());
        is_where_it_belongs(subject, id, history, 2).await;
        // And once it has gone, nothing is found.
        assert!(slow.settle(late, 0).await.unwrap().lost.len() <= 1);
        is_where_it_belongs(subject, id, history, 2).await;
    }
}

/// What was dispatched and not settled is dispatched again, under the same id; then it is where it belongs, once (hazard 20).
pub async fn a_death_before_the_settle_repeats_and_loses_nothing<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    for (single_active, history) in
        [false, true].into_iter().flat_map(|one| ALL.map(|history| (one, history)))
    {
        let ids = enqueue(subject, events(3)).await;
        let dying = subject.store_with(single_active, history);
        let claimed = claim(&dying, 3).await;
        let first: Vec<EventId> = claimed.rows.iter().map(|row| row.delivery.meta.event_id).collect();
        assert_eq!(first.len(), 3, "these are dispatched");
        // It dies here: nothing is settled or given back.
        let leased = subject.row(ids[0]).await.expect("a row").locked;
        drop((claimed, dying));
        if leased {
            for id in &ids {
                subject.expire_lease(*id).await;
            }
        }
        let sink = Scripted::ok();
        let relay = Relay::builder(subject.store_with(single_active, history))
            .dispatcher(sink.clone())
            .settings(quick());
        let relay = relay.build().unwrap().spawn();
        eventually("all to arrive again", PATIENCE, async || sink.arrived().len() >= 3).await;
        relay.shutdown().await.unwrap();
        for id in &ids {
            assert!(sink.arrived().contains(id));
            is_where_it_belongs(subject, *id, history, 2).await;
        }
    }
}

/// Before anything is claimed, with the next step.
pub async fn a_move_without_a_history_is_refused<S: Subject>(subject: &S) {
    if !subject.features().history {
        return skipped(NONE);
    }
    let id = enqueue(subject, events(1)).await[0];
    if let Err(error) = subject.store_with(false, History::Move).open().await {
        assert_eq!(error.code(), Code::HistoryMissing);
        assert!(error.message().contains("postbox migrate up --history move --table"), "{error}");
        // A table that holds events gets one in place.
        assert!(!subject.make_history().await.is_empty());
    }
    assert_eq!(subject.make_history().await, [""; 0], "the second time there is nothing to do");
    for history in ALL {
        subject.store_with(false, history).open().await.unwrap();
    }
    assert_eq!(subject.view(id).await, ["NEW"]);
}

/// A repeated event is recognised while its row is in the table.
pub async fn duplicates_are_recognised_as_long_as_the_row_is_there<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    for history in ALL {
        let id = EventId::new();
        let record = || vec![event(TOPIC, 1).event_id(id).build().unwrap()];
        let enqueued = async |records: Vec<Record>| {
            let open = subject.begin(records).await;
            let enqueued = open.receipts()[0].enqueued;
            open.commit().await;
            enqueued
        };
        assert!(matches!(enqueued(record()).await, Enqueued::Written(_)));
        assert!(matches!(enqueued(record()).await, Enqueued::Duplicate(_)), "while it waits");
        deliver(subject, true, history, &Scripted::ok()).await;
        let again = enqueued(record()).await;
        match history {
            History::Keep => assert!(matches!(again, Enqueued::Duplicate(_)), "{again:?}"),
            History::Move | History::None => assert!(matches!(again, Enqueued::Written(_)), "{again:?}"),
        }
        let sink = Scripted::ok();
        deliver(subject, true, history, &sink).await;
        assert_eq!(sink.arrived().len(), usize::from(!history.recognises_duplicates()));
        let seen = subject.view(id).await.len();
        assert_eq!(
            seen,
            match history {
                History::Keep => 1,
                History::Move => 2,
                History::None => 0,
            }
        );
    }
}

/// Wherever events are looked for, those of the history are found; what is not kept is not made up.
pub async fn what_was_moved_is_listed_shown_and_counted<S: Subject>(subject: &S) {
    if !ready(subject).await {
        return;
    }
    let admin = subject.admin();
    // Nothing that was published is kept: how fast they leave is not known, and said so.
    let gone = enqueue(subject, events(5)).await;
    deliver(subject, true, History::None, &Scripted::ok()).await;
    assert_eq!(admin.counts().await.unwrap().published_per_second, None);
    assert!(admin.show(gone[0], true).await.unwrap().is_none());
    let tenant = TenantId::from_name("acme");
    let whole = Record::builder(TOPIC)
        .json(&serde_json::json!({ "n": 12_345 }))
        .tenant(tenant)
        .aggregate("thing", "42")
        .header("k", "v")
        .schema("s", 3)
        .routing_key("key")
        .metadata(&serde_json::json!({ "m": 1 }))
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b".into()));
    let bytes = Record::builder(TOPIC).bytes([0_u8, 159, 146, 150], "application/x-test");
    let mut records = vec![whole.build().unwrap(), bytes.build().unwrap()];
    records.extend(events(8));
    let moved = enqueue(subject, records).await;
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
    let kept = enqueue(subject, events(3)).await;
    deliver(subject, true, History::Keep, &Scripted::ok()).await;
    let dead = enqueue(subject, events(1)).await;
    deliver(subject, true, History::Move, &Scripted::new(|_| Act::Reject)).await;
    let waiting = enqueue(subject, events(2)).await;
    let all: Vec<EventId> = [&moved[..], &kept, &dead, &waiting].concat();

    // Lists, page by page and from both ends, bounded and not.
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
    assert_eq!(list(sent.clone()).await, [&moved[..], &kept].concat());
    assert_eq!(list(EventFilter { tenant_id: Some(tenant), ..EventFilter::default() }).await, moved[..1]);
    assert_eq!(list(EventFilter { tenant_id: Some(tenant), ..sent.clone() }).await, moved[..1]);
    let of_dead = EventFilter { status: Some(EventStatus::Dead), ..EventFilter::default() };
    assert_eq!(list(of_dead).await, dead);
    // A list that did not look at all of the history says so.
    let nowhere = EventFilter { error: Some("nowhere".into()), ..sent.clone() };
    let short = ListRequest { filter: nowhere, depth: Some(2), limit: 1, ..ListRequest::default() };
    let page = admin.list(&short).await.unwrap();
    assert!(page.bounded && page.events.is_empty(), "{page:?}");

    // Shown with all that it had.
    let shown = admin.show(failing, true).await.unwrap().expect("from the history");
    assert_eq!((shown.summary.status, shown.summary.attempts), (EventStatus::Sent, 2));
    assert_eq!(shown.summary.sequence, before.summary.sequence);
    assert_eq!(shown.summary.created_at, before.summary.created_at);
    assert!(shown.summary.published_at.is_some() && shown.locked_by.is_none() && shown.locked_at.is_none());
    let text = |json: &Option<postbox_core::Json>| json.as_ref().map(|json| json.as_str().to_owned());
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

    // Statuses, and how fast they leave.
    let asked: Vec<EventId> = all.iter().chain(&gone).copied().collect();
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

/// Rows that are born leased are settled by lease, into whatever history there is.
pub async fn hot_events_go_where_the_others_go<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped("no hot path here");
    }
    if !ready(subject).await {
        return;
    }
    for history in ALL {
        let (path, sink) = (HotPath::new(), Scripted::ok());
        let relay = Relay::builder(subject.store_with(true, history)).hot(&path).dispatcher(sink.clone());
        let relay = relay.settings(quick()).build().unwrap().spawn();
        eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
        let outbox = subject.outbox().hot(&path);
        let mut tx = subject.open(&outbox).await;
        let receipts = outbox.enqueue_all(&mut tx, events(20)).await.unwrap();
        tx.commit().await.unwrap();
        eventually("all to arrive", PATIENCE, async || sink.arrived().len() >= 20).await;
        relay.shutdown().await.unwrap();
        assert_eq!(sink.arrived().len(), 20, "each once");
        for receipt in receipts {
            is_where_it_belongs(subject, receipt.event_id, history, 1).await;
        }
    }
}
