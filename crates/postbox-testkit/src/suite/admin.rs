//! What is promised to those who look after a table.

use std::time::Duration;

use postbox_core::cleaner::{Cleaner, Due, Sweep, SweepCount, SweepRequest, Swept};
use postbox_core::{DeadFilter, DeadLetters, Inspect, Relay, Settings, TenantId, Topic};

use super::script::{Act, Scripted};
use super::{Subject, TOPIC, claim, enqueue, event, events, quick, state};

const HOUR: Duration = Duration::from_hours(1);
const OTHER: Topic = Topic::from_static("crm.contact.added.v1");

pub(super) async fn run<S: Subject>(subject: &S, sink: &Scripted, concurrency: usize) {
    let settings = Settings { concurrency, ..quick() };
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(settings);
    let mut relay = relay.build().unwrap();
    while relay.run_once().await.unwrap().claimed > 0 {}
    relay.close().await;
}

/// Never what is neither published nor dead; dead rows only on request, counted from their death.
pub async fn the_cleaner_touches_only_what_it_may<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(1_203)).await;
    let (fresh, dying) = (ids[0], [ids[1], ids[2]]);
    let sink = Scripted::new(move |d| if dying.contains(&d.meta.event_id) { Act::Reject } else { Act::Ok });
    run(subject, &sink, 16).await;
    let waiting = enqueue(subject, events(1)).await[0];
    for id in ids[3..].iter().chain([&dying[0], &waiting]) {
        subject.make_older(*id, 10 * HOUR).await;
    }
    let cleaner = Cleaner::new(subject.admin()).retention(5 * HOUR);
    let (a, b) = tokio::join!(cleaner.run_once(), cleaner.run_once());
    let later = cleaner.run_once().await.unwrap();
    assert_eq!(a.unwrap() + b.unwrap() + later, 1_200, "in batches, one cleaner at a time");
    for id in [fresh, dying[0], dying[1], waiting] {
        assert!(subject.row(id).await.is_some());
    }
    let cleaner = Cleaner::new(subject.admin()).retention(5 * HOUR).dead_retention(5 * HOUR);
    assert_eq!(cleaner.run_once().await.unwrap(), 1, "the old dead one");
    assert!(subject.row(dying[0]).await.is_none() && subject.row(dying[1]).await.is_some());
    let request = SweepRequest {
        retention: Duration::ZERO,
        dead_retention: None,
        batch: 10,
        max_attempts: 25,
        dead_letters: false,
    };
    assert!(matches!(subject.admin().sweep(&request).await.unwrap(), Swept::Deleted(1)));
    assert!(subject.row(waiting).await.is_some(), "what waits is never cleaned");
    cleaner.close();
    assert_eq!(cleaner.run_once().await.unwrap_err().code(), postbox_core::Code::Closed);
}

/// Filters, causes, replay by id and by filter, discard, audit.
pub async fn dead_events_are_found_replayed_and_discarded<S: Subject>(subject: &S) {
    let (full, acme) = (subject.features().full, TenantId::from_name("acme"));
    let record = |n: usize| {
        let one = event(if n < 8 { TOPIC } else { OTHER }, n);
        let one = if n.is_multiple_of(2) { one.tenant(acme) } else { one };
        // A bare table has no place for aggregates.
        let kind = if n < 4 { "contact" } else { "order" };
        let one = if full { one.aggregate(kind, n % 4) } else { one };
        one.build().unwrap()
    };
    let ids = enqueue(subject, (0..12).map(record).collect()).await;
    let sink = Scripted::new(|_| Act::Reject);
    // One at a time, so that they die in order.
    run(subject, &sink, 1).await;
    let admin = subject.admin();
    let all = DeadFilter::default();
    assert_eq!(admin.count(&all).await.unwrap(), 12);
    let oldest = admin.query(&all, 5).await.unwrap();
    let everything = admin.query(&all, 100).await.unwrap();
    assert_eq!((oldest.len(), everything.len()), (5, 12));
    assert_eq!(oldest[..], everything[..5]);
    assert!(everything.is_sorted_by_key(|event| (event.dead_at, event.sequence)), "oldest first");
    assert_eq!(oldest[0].last_error.as_deref(), Some("OUTBOX_REJECTED: never"));
    let causes = admin.causes(&all).await.unwrap();
    assert_eq!(causes.iter().map(|cause| cause.events).collect::<Vec<_>>(), [8, 4]);
    assert!(causes.iter().all(|cause| cause.example == "OUTBOX_REJECTED: never"), "{causes:?}");
    let of_topic =
        DeadFilter { topic: Some(OTHER.to_string()), cause: Some(causes[1].cause.clone()), ..all.clone() };
    assert_eq!(admin.count(&of_topic).await.unwrap(), 4);
    let of_tenant = DeadFilter { tenant_id: Some(acme), ..all.clone() };
    let found = admin.query(&of_tenant, 100).await.unwrap();
    assert_eq!((found.len(), admin.count(&of_tenant).await.unwrap()), (6, 6));
    assert!(found.iter().all(|event| event.tenant_id == acme));
    assert_eq!(admin.count(&DeadFilter { tenant_id: Some(acme), ..of_topic.clone() }).await.unwrap(), 2);
    for (kind, events, of_acme) in [("contact", 4, 2), ("order", 8, 4), ("Order", 0, 0)] {
        let of_kind = DeadFilter { aggregate_type: Some(kind.into()), ..all.clone() };
        let found = admin.query(&of_kind, 100).await.unwrap();
        let kinds = found.iter().filter(|event| event.aggregate_type.as_deref() == Some(kind)).count();
        let (events, of_acme) = if full { (events, of_acme) } else { (0, 0) };
        assert_eq!((found.len(), kinds), (events, events), "{kind}");
        let both = DeadFilter { tenant_id: Some(acme), ..of_kind };
        assert_eq!(admin.count(&both).await.unwrap(), of_acme, "{kind}");
    }
    let by_error = DeadFilter { error: Some("nev".into()), older_than: Some(HOUR), ..all.clone() };
    assert_eq!(admin.count(&by_error).await.unwrap(), 0, "none is that old");
    let recent = DeadFilter { error: Some("nev".into()), newer_than: Some(HOUR), ..all.clone() };
    assert_eq!(admin.count(&recent).await.unwrap(), 12);
    if full {
        let of_type = DeadFilter { aggregate_type: Some("order".into()), ..all.clone() };
        let of_one = DeadFilter { aggregate_id: Some("3".into()), ..of_type.clone() };
        let found = admin.query(&of_one, 100).await.unwrap();
        assert_eq!(found.iter().map(|event| event.event_id).collect::<Vec<_>>(), [ids[7], ids[11]]);
        assert_eq!(admin.count(&of_type).await.unwrap(), 8);
        assert_eq!(admin.count(&of_one).await.unwrap(), 2);
        let causes = admin.causes(&of_one).await.unwrap();
        assert_eq!(causes.iter().map(|cause| cause.events).collect::<Vec<_>>(), [1, 1]);
    }

    assert!(admin.replay(ids[0], "tester").await.unwrap());
    assert!(!admin.replay(ids[0], "tester").await.unwrap(), "it is not dead any more");
    let row = state(subject, ids[0]).await;
    assert!(!row.dead && row.attempts == 0 && row.due && row.last_error.is_none());
    assert_eq!(admin.replay_all(&of_topic, 3, "tester").await.unwrap(), 4);
    let mut rest = 7;
    if full {
        let kind = Some("contact".into());
        let one = DeadFilter { aggregate_type: kind, aggregate_id: Some("2".into()), ..all.clone() };
        assert_eq!(admin.discard(&one, "tester").await.unwrap(), 1);
        assert!(subject.row(ids[2]).await.is_none());
        rest -= 1;
    }
    assert_eq!(
        admin.discard(&DeadFilter { topic: Some(TOPIC.to_string()), ..all.clone() }, "tester").await.unwrap(),
        rest
    );
    assert_eq!(subject.rows().await, 5);
    let well = Scripted::ok();
    run(subject, &well, 16).await;
    assert_eq!(well.arrived().len(), 5, "replayed events arrive, with their old ids");
    assert!(well.arrived().contains(&ids[0]));
    if full {
        assert_eq!(subject.audit_lines().await, 5, "one replay, two batches of three, two discards");
    }
}

/// Pending, in flight, scheduled, dead, and how old.
pub async fn counts_tell_what_waits<S: Subject>(subject: &S) {
    let mut records = events(5);
    records.push(event(TOPIC, 9).delay(HOUR).build().unwrap());
    let ids = enqueue(subject, records).await;
    subject.make_older(ids[0], HOUR).await;
    let claimed = claim(&subject.store(false), 2).await;
    assert_eq!(claimed.rows.len(), 2);
    let counts = subject.admin().counts().await.unwrap();
    assert_eq!((counts.pending, counts.locked, counts.scheduled, counts.dead), (5, 2, 1, 0));
    assert!(counts.oldest_pending_age >= HOUR && counts.oldest_pending_age < 2 * HOUR);
    assert!(!counts.estimated);
    let sink = Scripted::new(|_| Act::Reject);
    run(subject, &sink, 16).await;
    let counts = subject.admin().counts().await.unwrap();
    assert_eq!((counts.pending, counts.dead), (2, 3));
}

/// `clean --dry-run` tells the truth.
pub async fn what_is_due_is_what_sweeps_delete<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(12)).await;
    let dying = [ids[0], ids[1], ids[2]];
    let sink = Scripted::new(move |d| if dying.contains(&d.meta.event_id) { Act::Reject } else { Act::Ok });
    run(subject, &sink, 16).await;
    let waiting = enqueue(subject, events(1)).await[0];
    for id in ids[1..8].iter().chain([&waiting]) {
        subject.make_older(*id, 10 * HOUR).await;
    }
    let admin = subject.admin();
    let due = async |retention, dead_retention| {
        // The batch has no part in it.
        let request =
            SweepRequest { retention, dead_retention, batch: 2, max_attempts: 25, dead_letters: false };
        admin.due(&request).await.unwrap()
    };
    assert_eq!(due(20 * HOUR, Some(20 * HOUR)).await, Due { published: 0, dead: 0 });
    assert_eq!(due(5 * HOUR, None).await, Due { published: 5, dead: 0 }, "dead rows only on request");
    assert_eq!(due(Duration::ZERO, Some(Duration::ZERO)).await, Due { published: 9, dead: 3 });
    assert_eq!(due(5 * HOUR, Some(5 * HOUR)).await, Due { published: 5, dead: 2 });
    let cleaner = Cleaner::new(admin.clone()).retention(5 * HOUR).dead_retention(5 * HOUR).batch(2);
    assert_eq!(cleaner.run_once().await.unwrap(), 7, "as was said");
    assert_eq!(due(5 * HOUR, Some(5 * HOUR)).await, Due { published: 0, dead: 0 });
    assert_eq!(subject.rows().await, 6);
    assert!(subject.row(waiting).await.is_some());
}
