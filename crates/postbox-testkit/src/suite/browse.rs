//! What is promised to those who look at events one by one.

use std::time::Duration;

use postbox_core::store::{ClaimMode, Settlement, Verdict};
use postbox_core::{
    Backoff, Browse, Direction, EventFilter, EventId, EventStatus, ListRequest, Page, Published, Record,
    Relay, Settings, Store as _, TenantId, Topic,
};

use super::admin::run;
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, claim, enqueue, event, events, quick, request, state};
use crate::eventually;

const HOUR: Duration = Duration::from_hours(1);
const OTHER: Topic = Topic::from_static("crm.contact.added.v1");
const RARE: Topic = Topic::from_static("crm.contact.merged.v1");
const SECRET: &str = "only for those who ask";

fn ids(page: &Page) -> Vec<EventId> {
    page.events.iter().map(|event| event.event_id).collect()
}

/// Events of all statuses: published, dead, new, failed, in flight, two of each, in this order of their sequence.
async fn one_of_each<S: Subject>(subject: &S) -> Vec<(EventId, EventStatus)> {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    let sent = enqueue(subject, events(2)).await;
    run(subject, &Scripted::ok(), 16).await;
    let dead =
        enqueue(subject, vec![event(OTHER, 1).build().unwrap(), event(TOPIC, 2).build().unwrap()]).await;
    run(subject, &Scripted::new(|_| Act::Reject), 16).await;
    let later = |n| event(TOPIC, n).delay(HOUR).build().unwrap();
    let new = enqueue(subject, vec![later(1), later(2)]).await;
    let failed = enqueue(subject, events(2)).await;
    let store = subject.store(false);
    let because = postbox_core::redact::Summary::new("OUTBOX_DISPATCH_FAILED: not 100% now", 100);
    let rows = claim(&store, 10).await.rows;
    let retry = |row: &postbox_core::store::Claimed| {
        Settlement::new(row.lease.clone(), Verdict::Retry { after: 2 * HOUR, reason: because.clone() })
    };
    store.settle(&rows.iter().map(retry).collect::<Vec<_>>()).await.unwrap();
    let flying = enqueue(subject, events(2)).await;
    assert_eq!(store.claim(request(ClaimMode::Waiting, 10)).await.unwrap().rows.len(), 2);
    let kinds = [(sent, Sent), (dead, Dead), (new, New), (failed, Failed), (flying, Publishing)];
    kinds.into_iter().flat_map(|(ids, status)| ids.into_iter().map(move |id| (id, status))).collect()
}

/// Both ways, in pages of any size, each event once.
pub async fn lists_go_by_sequence_page_by_page<S: Subject>(subject: &S) {
    let all: Vec<EventId> = one_of_each(subject).await.into_iter().map(|(id, _)| id).collect();
    let admin = subject.admin();
    let list = async |direction, limit, after| {
        admin.list(&ListRequest { direction, limit, after, ..ListRequest::default() }).await.unwrap()
    };
    let newest: Vec<EventId> = all.iter().rev().copied().collect();
    for (direction, wanted) in [(Direction::NewestFirst, &newest), (Direction::OldestFirst, &all)] {
        for limit in [1, 3, 10, 11] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = list(direction, limit, after).await;
                assert!(page.events.len() <= limit as usize && !page.bounded, "{page:?}");
                found.extend(ids(&page));
                assert!(found.len() <= all.len(), "an event twice");
                after = page.next;
                if after.is_none() {
                    break;
                }
                assert_eq!(after, page.events.last().map(|event| event.sequence), "behind the last");
            }
            assert_eq!(found, *wanted, "{direction:?} by {limit}");
        }
    }
    // Sequences are never given again, so that a page can start behind an event that is gone.
    let gone = list(Direction::NewestFirst, 10, None).await.events[8].clone();
    assert_eq!(admin.discard_dead(&[all[2], all[3]], "tester").await.unwrap().len(), 2);
    assert_eq!(ids(&list(Direction::NewestFirst, 5, Some(gone.sequence)).await), [all[0]]);
}

/// Each condition alone, and together.
pub async fn every_filter_finds_its_events<S: Subject>(subject: &S) {
    let all = one_of_each(subject).await;
    let tenant = |n| event(OTHER, n).tenant_name("acme");
    let tenants = if subject.features().full {
        vec![tenant(1).aggregate("contact", 7).build().unwrap(), tenant(2).build().unwrap()]
    } else {
        let acme = TenantId::from_name("acme");
        vec![event(OTHER, 1).tenant(acme).build().unwrap(), event(OTHER, 2).tenant(acme).build().unwrap()]
    };
    let tenants = enqueue(subject, tenants).await;
    let admin = subject.admin();
    let none = EventFilter::default();
    let find = async |filter: &EventFilter| {
        // Where it looks must not change what it finds.
        let mut found = Vec::new();
        for depth in [Some(100_000), Some(100), None] {
            let request = ListRequest {
                filter: filter.clone(),
                direction: Direction::OldestFirst,
                depth,
                ..ListRequest::default()
            };
            let page = admin.list(&request).await.unwrap();
            assert!(!page.bounded && page.next.is_none());
            let now = ids(&page);
            assert!(depth == Some(100_000) || now == found, "{request:?}");
            found = now;
        }
        found
    };
    for status in EventStatus::ALL {
        let mut wanted: Vec<_> =
            all.iter().filter(|(_, actual)| *actual == status).map(|(id, _)| *id).collect();
        if status == EventStatus::New {
            wanted.extend(&tenants);
        }
        assert_eq!(find(&EventFilter { status: Some(status), ..none.clone() }).await, wanted, "{status}");
    }
    let of_topic = EventFilter { topic: Some(OTHER.to_string()), ..none.clone() };
    assert_eq!(find(&of_topic).await, [all[2].0, tenants[0], tenants[1]]);
    let dead_of_topic = EventFilter { status: Some(EventStatus::Dead), ..of_topic };
    assert_eq!(find(&dead_of_topic).await, [all[2].0]);
    let of_tenant = EventFilter { tenant_id: Some(TenantId::from_name("acme")), ..none.clone() };
    assert_eq!(find(&of_tenant).await, tenants);
    for status in EventStatus::ALL {
        let wanted = if status == EventStatus::New { &tenants[..] } else { &[] };
        assert_eq!(
            find(&EventFilter { status: Some(status), ..of_tenant.clone() }).await,
            wanted,
            "{status}"
        );
    }
    let nil = EventFilter { tenant_id: Some(TenantId::NIL), ..none.clone() };
    assert_eq!(find(&nil).await, all.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    let by_error = EventFilter { error: Some("100% now".into()), ..none.clone() };
    assert_eq!(find(&by_error).await, [all[6].0, all[7].0], "a text, not a pattern");
    assert_eq!(find(&EventFilter { error: Some("100_ now".into()), ..none.clone() }).await, []);
    subject.make_older(all[0].0, 10 * HOUR).await;
    subject.make_older(all[4].0, 10 * HOUR).await;
    let since = Some(admin.now().await.unwrap() - 5 * HOUR);
    assert_eq!(find(&EventFilter { since, ..none.clone() }).await.len(), 10, "all but the two old ones");
    let recent = EventFilter { since, status: Some(EventStatus::Sent), ..none.clone() };
    assert_eq!(find(&recent).await, [all[1].0]);
    if subject.features().full {
        let of_type = EventFilter { aggregate_type: Some("contact".into()), ..none.clone() };
        assert_eq!(find(&of_type).await, [tenants[0]]);
        let of_aggregate = EventFilter { aggregate_id: Some("7".into()), ..of_type.clone() };
        assert_eq!(find(&of_aggregate).await, [tenants[0]]);
        assert_eq!(find(&EventFilter { aggregate_id: Some("8".into()), ..of_type }).await, []);
    }
}

/// A bound is met, and whoever asks is told; without one everything is seen.
pub async fn a_list_that_did_not_look_at_everything_says_so<S: Subject>(subject: &S) {
    let rare = enqueue(subject, vec![event(RARE, 1).build().unwrap()]).await;
    run(subject, &Scripted::new(|_| Act::Reject), 16).await;
    // Published before the others, too: an index may go by that.
    let first = enqueue(subject, vec![event(OTHER, 1).build().unwrap()]).await;
    run(subject, &Scripted::ok(), 16).await;
    enqueue(subject, events(60)).await;
    run(subject, &Scripted::ok(), 16).await;
    let waiting = enqueue(subject, events(60)).await;
    enqueue(subject, vec![event(TOPIC, 1).tenant(TenantId::from_name("acme")).build().unwrap()]).await;
    let admin = subject.admin();
    let near = |topic: Topic, status| {
        let filter = EventFilter { topic: Some(topic.to_string()), status, ..EventFilter::default() };
        ListRequest { filter, limit: 5, depth: Some(20), ..ListRequest::default() }
    };
    for status in [None, Some(EventStatus::Sent)] {
        let near = near(OTHER, status);
        let page = admin.list(&near).await.unwrap();
        assert!(page.events.is_empty() && page.bounded, "too far away: {page:?}");
        let page = admin.list(&ListRequest { depth: None, ..near.clone() }).await.unwrap();
        assert_eq!((ids(&page), page.bounded), (first.clone(), false));
        let oldest = ListRequest { direction: Direction::OldestFirst, ..near };
        assert_eq!(ids(&admin.list(&oldest).await.unwrap()), first, "near, from the other end");
    }
    // The depth counts for each kind by itself: what is rare is found, however much stands before it.
    let page = admin.list(&near(RARE, Some(EventStatus::Dead))).await.unwrap();
    assert_eq!((ids(&page), page.bounded), (rare.clone(), false));
    let page = admin.list(&near(RARE, None)).await.unwrap();
    assert_eq!((ids(&page), page.bounded), (rare, true));
    // A page that is full is right, however much there is behind it.
    let mut of_tenant = near(TOPIC, None);
    of_tenant.filter.tenant_id = Some(TenantId::NIL);
    let newest: Vec<EventId> = waiting.iter().rev().take(5).copied().collect();
    assert_eq!(ids(&admin.list(&of_tenant).await.unwrap()), newest);
}

/// Everything but the content; the content digit for digit, and bytes as they are.
pub async fn an_event_is_shown_and_its_content_only_on_request<S: Subject>(subject: &S) {
    let text = format!(r#"{{"secret": "{SECRET}", "big": 12345678901234567890.5}}"#);
    let record = Record::builder(TOPIC).raw_json(&text);
    let record = if subject.features().full {
        record
            .header("k", "v")
            .aggregate("thing", 42)
            .schema("s", 3)
            .routing_key("key")
            .metadata(&serde_json::json!({ "m": SECRET }))
            .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b".into()))
    } else {
        record
    };
    let id = enqueue(subject, vec![record.build().unwrap()]).await[0];
    run(subject, &Scripted::new(|_| Act::Reject), 16).await;
    let admin = subject.admin();
    let shown = admin.show(id, false).await.unwrap().expect("the event");
    let page = admin.list(&ListRequest::default()).await.unwrap();
    assert_eq!(page.events.first(), Some(&shown.summary), "the same in a list");
    assert!(shown.content.is_none());
    for text in [format!("{shown:?}"), serde_json::to_string(&shown).unwrap(), format!("{page:?}")] {
        assert!(!text.contains("only for those"), "{text}");
    }
    let summary = &shown.summary;
    assert_eq!(
        (summary.event_id, summary.status, summary.topic.as_str()),
        (id, EventStatus::Dead, TOPIC.as_str())
    );
    assert_eq!((summary.tenant_id, summary.published_at), (TenantId::NIL, None));
    assert_eq!(summary.last_error.as_deref(), Some("OUTBOX_REJECTED: never"));
    let age = admin.now().await.unwrap() - summary.created_at;
    assert!(age >= Duration::ZERO && age < HOUR && summary.dead_at.is_some(), "by one clock: {age}");
    let content = admin.show(id, true).await.unwrap().and_then(|shown| shown.content).expect("its content");
    assert!(content.payload.as_str().contains("12345678901234567890.5"), "{:?}", content.payload);
    assert!(content.payload.as_str().contains(SECRET) && content.payload_raw.is_none());
    assert!(admin.show(EventId::new(), true).await.unwrap().is_none());
    if !subject.features().full {
        return;
    }
    assert_eq!(
        (summary.aggregate_type.as_deref(), summary.aggregate_id.as_deref()),
        (Some("thing"), Some("42"))
    );
    assert_eq!((shown.schema_id.as_deref(), shown.schema_version), (Some("s"), Some(3)));
    assert_eq!((shown.routing_key.as_deref(), shown.tracestate.as_deref()), (Some("key"), Some("a=b")));
    assert!(shown.traceparent.is_some() && shown.occurred_at.is_some() && shown.locked_by.is_none());
    let headers: serde_json::Value = shown.headers.expect("headers").decode().unwrap();
    assert_eq!(headers, serde_json::json!({ "k": "v" }));
    let log: serde_json::Value = shown.attempts_log.expect("a log").decode().unwrap();
    assert_eq!((log.as_array().map(Vec::len), &log[0]["outcome"]), (Some(1), &"reject".into()));
    assert!(content.metadata.expect("metadata").as_str().contains(SECRET));
    let bytes = Record::builder(TOPIC).bytes([0_u8, 159, 146, 150], "application/x-test").build().unwrap();
    let id = enqueue(subject, vec![bytes]).await[0];
    subject.spoil(id).await;
    let shown = admin.show(id, true).await.unwrap().expect("the event");
    assert_eq!(shown.content_type.as_deref(), Some("application/x-test"));
    let content = shown.content.expect("its content");
    assert_eq!((content.payload.as_str(), content.payload_raw), ("null", Some(vec![0, 159, 146, 150])));
    let headers = shown.headers.map(|headers| headers.decode::<serde_json::Value>().unwrap());
    assert_eq!(headers, Some(serde_json::json!([1, 2])), "as the table has them");
}

/// Also of those that are gone, which are left out.
pub async fn statuses_tell_what_became_of_events<S: Subject>(subject: &S) {
    let all = one_of_each(subject).await;
    let admin = subject.admin();
    let mut asked: Vec<EventId> = all.iter().map(|(id, _)| *id).collect();
    asked.extend((0..2_000).map(|_| EventId::new()));
    let mut found = admin.statuses(&asked).await.unwrap();
    found.sort_by_key(|(id, _)| asked.iter().position(|asked| asked == id));
    assert_eq!(found, all);
    assert_eq!(admin.statuses(&[]).await.unwrap(), []);
}

/// Oldest first, a batch at a time, with their old ids; nothing else is touched.
pub async fn published_events_are_sent_again_by_id_and_by_time<S: Subject>(subject: &S) {
    let all = one_of_each(subject).await;
    let sent = [all[0].0, all[1].0];
    let more = enqueue(subject, (0..4).map(|n| event(OTHER, n).build().unwrap()).collect()).await;
    run(subject, &Scripted::ok(), 16).await;
    for (hours, id) in (1..).zip(&more) {
        subject.make_older(*id, hours * HOUR).await;
    }
    let admin = subject.admin();
    let lines = async || if subject.features().full { subject.audit_lines().await } else { 0 };
    let before = lines().await;
    // By id: also one that waits, one that is dead and one that is unknown.
    let event_ids = vec![sent[0], sent[1], all[2].0, all[4].0, EventId::new()];
    let by_id = Published::Events { event_ids };
    assert_eq!(admin.count_published(&by_id).await.unwrap(), 2);
    let first = admin.replay_published(&by_id, 1, "tester").await.unwrap();
    let second = admin.replay_published(&by_id, 5, "tester").await.unwrap();
    let mut both = [first.clone(), second.clone()].concat();
    both.sort_unstable();
    assert_eq!((first.len(), both), (1, sent.to_vec()));
    assert_eq!(admin.replay_published(&by_id, 5, "tester").await.unwrap(), []);
    let row = state(subject, sent[0]).await;
    assert!(!row.published && row.attempts == 0 && row.due && !row.locked && row.last_error.is_none());
    // By time: what was published in it, the oldest first.
    let now = admin.now().await.unwrap();
    let between = |from: u32, until: u32, topic: Option<&str>| Published::Between {
        since: now - from * HOUR - HOUR / 2,
        until: now - until * HOUR - HOUR / 2,
        topic: topic.map(str::to_owned),
    };
    assert_eq!(admin.count_published(&between(9, 0, None)).await.unwrap(), 4);
    assert_eq!(admin.count_published(&between(9, 0, Some(TOPIC.as_str()))).await.unwrap(), 0);
    let three = between(3, 0, Some(OTHER.as_str()));
    assert_eq!(admin.count_published(&three).await.unwrap(), 3, "but not the one of four hours ago");
    assert_eq!(admin.replay_published(&three, 1, "tester").await.unwrap(), [more[2]]);
    let rest = admin.replay_published(&three, 10, "tester").await.unwrap();
    assert_eq!(rest.len(), 2);
    assert_eq!(admin.replay_published(&three, 10, "tester").await.unwrap(), []);
    if subject.features().full {
        assert_eq!(lines().await - before, 4, "one for each change, none for nothing");
    }
    let well = Scripted::ok();
    run(subject, &well, 16).await;
    let mut again = well.arrived();
    again.sort_unstable();
    let mut wanted = [&sent[..], &more[..3]].concat();
    wanted.sort_unstable();
    assert_eq!(again, wanted, "those and no others");
    assert_eq!(admin.count_published(&between(9, 0, None)).await.unwrap(), 1);
}

/// Only those that are named, and only if they are dead.
pub async fn chosen_dead_events_are_replayed_or_discarded<S: Subject>(subject: &S) {
    let all = one_of_each(subject).await;
    let dead = [all[2].0, all[3].0];
    let admin = subject.admin();
    let lines = async || if subject.features().full { subject.audit_lines().await } else { 0 };
    let before = lines().await;
    let others: Vec<EventId> =
        all.iter().filter(|(id, _)| !dead.contains(id)).map(|(id, _)| *id).chain([EventId::new()]).collect();
    assert_eq!(admin.replay_dead(&others, "tester").await.unwrap(), []);
    assert_eq!(admin.discard_dead(&others, "tester").await.unwrap(), []);
    let with_first = [&others[..], &dead[..1]].concat();
    assert_eq!(admin.replay_dead(&with_first, "tester").await.unwrap(), dead[..1]);
    assert_eq!(admin.replay_dead(&with_first, "tester").await.unwrap(), [], "it is not dead any more");
    let row = state(subject, dead[0]).await;
    assert!(!row.dead && row.attempts == 0 && row.due && row.last_error.is_none());
    let with_second = [&others[..], &dead[1..]].concat();
    assert_eq!(admin.discard_dead(&with_second, "tester").await.unwrap(), dead[1..]);
    assert!(subject.row(dead[1]).await.is_none());
    assert_eq!(subject.rows().await, 9, "nothing else is gone");
    if subject.features().full {
        assert_eq!(lines().await - before, 2);
    }
}

/// Their wait is cut short and nothing else: attempts stay, and what has not failed or is in hand is left alone.
pub async fn failed_events_are_tried_at_once_if_asked_for<S: Subject>(subject: &S) {
    let all = one_of_each(subject).await;
    let failed = [all[6].0, all[7].0];
    let admin = subject.admin();
    let lines = async || if subject.features().full { subject.audit_lines().await } else { 0 };
    let before = lines().await;
    let others: Vec<EventId> = all
        .iter()
        .filter(|(id, _)| !failed.contains(id))
        .map(|(id, _)| *id)
        .chain([EventId::new()])
        .collect();
    assert_eq!(admin.retry_now(&others, "tester").await.unwrap(), [], "published, dead, new or in flight");
    let with_first = [&others[..], &failed[..1]].concat();
    assert_eq!(admin.retry_now(&with_first, "tester").await.unwrap(), failed[..1]);
    assert_eq!(admin.retry_now(&with_first, "tester").await.unwrap(), [], "it is due already");
    let row = state(subject, failed[0]).await;
    assert!(row.due && row.attempts == 1 && !row.locked && row.last_error.is_some(), "{row:?}");
    assert!(!state(subject, failed[1]).await.due, "nobody asked for this one");
    assert_eq!(admin.statuses(&[failed[0]]).await.unwrap(), [(failed[0], EventStatus::Failed)]);
    if subject.features().full {
        assert_eq!(lines().await - before, 1);
    }
}

/// The relay that put it off takes it up again, with the attempts that it has used.
pub async fn a_relay_takes_up_what_is_to_be_tried_at_once<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(3)).await;
    let slow = Act::Slow(Duration::from_millis(500));
    let sink = Scripted::new(move |d| if d.meta.attempts == 1 { Act::Retry } else { slow });
    let settings = Settings { backoff: Backoff::fixed(HOUR), ..quick() };
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().unwrap().spawn();
    let failed = async |id| {
        let row = state(subject, id).await;
        row.attempts == 1 && !row.locked && !row.due
    };
    eventually("all to fail", PATIENCE, async || {
        failed(ids[0]).await && failed(ids[1]).await && failed(ids[2]).await
    })
    .await;
    let admin = subject.admin();
    assert_eq!(admin.retry_now(&ids[1..2], "tester").await.unwrap(), ids[1..2]);
    eventually("its second attempt", PATIENCE, async || sink.tries(ids[1]) == 2).await;
    assert_eq!(admin.retry_now(&ids[1..2], "tester").await.unwrap(), [], "the relay has it in hand");
    eventually("its arrival", PATIENCE, async || sink.arrived() == ids[1..2]).await;
    relay.shutdown().await.unwrap();
    let row = state(subject, ids[1]).await;
    assert!(row.published && row.attempts == 2, "{row:?}");
    assert!(failed(ids[0]).await && failed(ids[2]).await, "the others wait on");
}
