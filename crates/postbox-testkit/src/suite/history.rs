//! What is promised of each history: `keep`, `move` and `none` deliver alike, and differ in what is left.

use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Claimed, Failure, Settlement, Standing, Verdict};
use postbox_core::{Code, Enqueued, EventId, History, HotPath, Record, Relay, Store as _};

use super::script::{Act, Scripted};
use super::{
    OpenTransaction as _, PATIENCE, RowState, Subject, TOPIC, claim, claim_in_turn, enqueue, event, events,
    quick, request,
};
use crate::{eventually, skipped};

const ALL: [History; 3] = [History::Keep, History::Move, History::None];
pub(super) const HOUR: Duration = Duration::from_hours(1);
const NONE: &str = "no history here";

/// Whether the subject can have a history; it has one then.
pub(super) async fn ready<S: Subject>(subject: &S) -> bool {
    if subject.features().history {
        subject.make_history().await;
        return true;
    }
    skipped(NONE);
    false
}

/// Delivers all that waits, by a relay of its own.
pub(super) async fn deliver<S: Subject>(subject: &S, single_active: bool, history: History, sink: &Scripted) {
    let store = subject.store_with(single_active, history);
    let mut relay = Relay::builder(store).dispatcher(sink.clone()).settings(quick()).build().unwrap();
    let health = relay.health();
    eventually("all to be settled", PATIENCE, async || {
        // Nothing is claimed either while the relay before it is still on its way out.
        relay.run_once().await.unwrap().claimed == 0 && health.now().standing == Standing::Active
    })
    .await;
    relay.close().await;
}

/// Whether a delivered event is where it belongs, and nowhere else.
pub(super) async fn is_where_it_belongs<S: Subject>(
    subject: &S,
    event: EventId,
    history: History,
    attempts: i32,
) {
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
    let failure = failed.then(|| Box::new(failure));
    Settlement { failure, ..Settlement::new(row.lease.clone(), verdict) }
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
        let mut rows = claim_in_turn(&store, 8).await.rows;
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
        let settlements: Vec<_> =
            rows.iter().zip(verdicts).map(|(row, verdict)| settlement(row, verdict)).collect();
        let mut lost = store.settle(&settlements).await.unwrap().lost;
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
        assert_eq!(slow.settle(&late).await.unwrap().lost.len(), 1, "{history}");
        let row = subject.row(id).await.expect("it is still there");
        assert!(row.locked && !row.published && row.attempts == 2, "{row:?}");
        assert!(subject.moved(id).await.is_none());
        let settled: Vec<_> = taken.rows.iter().map(|row| settlement(row, Verdict::Delivered)).collect();
        assert!(quick.settle(&settled).await.unwrap().lost.is_empty());
        is_where_it_belongs(subject, id, history, 2).await;
        // And once it has gone, nothing is found.
        assert!(slow.settle(&late).await.unwrap().lost.len() <= 1);
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
        let claimed = claim_in_turn(&dying, 3).await;
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
