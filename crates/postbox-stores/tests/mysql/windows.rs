//! What an owner has in flight, as others see it, and what becomes of it when its sessions end or answers are lost.

use std::collections::HashSet;
use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Standing, Verdict};
use postbox_core::{
    Browse as _, EventFilter, EventId, EventStatus, Inspect as _, ListRequest, Published, Relay, RelayHandle,
    Settings, Store as _,
};
use postbox_stores::mysql::{MySqlStore, connect_options};
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{
    OpenTransaction as _, PATIENCE, Subject as _, claim, claim_in_turn, enqueue, events, quick, request,
    state,
};
use postbox_testkit::{Proxy, eventually};

use crate::strategies::{settle_all, store};
use crate::subject::{Shape, Table};

/// What a table says of its events, in all the ways it can be asked.
async fn statuses(table: &Table, ids: &[EventId]) -> Vec<EventStatus> {
    let admin = table.admin();
    let mut found = Vec::new();
    for id in ids {
        let shown = admin.show(*id, false).await.unwrap().unwrap().summary.status;
        assert_eq!(admin.statuses(&[*id]).await.unwrap(), [(*id, shown)]);
        assert_eq!(table.view(*id).await, [shown.as_str()], "the view says the same");
        let filter = EventFilter { status: Some(shown), ..EventFilter::default() };
        for depth in [Some(100), None] {
            let request = ListRequest { filter: filter.clone(), depth, ..ListRequest::default() };
            let page = admin.list(&request).await.unwrap();
            assert!(page.events.iter().any(|event| event.event_id == *id), "{shown:?} in {page:?}");
        }
        found.push(shown);
    }
    found
}

async fn locked(table: &Table) -> u64 {
    table.admin().counts().await.unwrap().locked
}

fn run(store: MySqlStore, sink: &Scripted, settings: Settings) -> RelayHandle {
    Relay::builder(store).dispatcher(sink.clone()).settings(settings).build().unwrap().spawn()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_has_in_flight_is_publishing() {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    for shape in [Shape::Migrated, Shape::Moving] {
        let table = Table::new(shape).await;
        let ids = enqueue(&table, events(5)).await;
        let store = table.store(true);
        let claimed = claim(&store, 4).await;
        assert_eq!(table.number("SELECT COUNT(*) FROM org_outbox WHERE locked_at IS NOT NULL").await, 0);
        assert_eq!(statuses(&table, &ids).await, [Publishing, Publishing, Publishing, Publishing, New]);
        assert_eq!(locked(&table).await, 4);
        let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
        let mut settlements = settle_all(&claimed, &Verdict::Delivered);
        settlements[1].verdict = Verdict::Retry { after: Duration::from_mins(1), reason: reason.clone() };
        settlements[2].verdict = Verdict::Dead { reason };
        let last = settlements.pop().unwrap();
        store.settle(&settlements, 0).await.unwrap();
        // The window is written when rows come into it: it still names those that have left.
        assert_eq!(statuses(&table, &ids).await, [Sent, Failed, Dead, Publishing, New]);
        assert_eq!(locked(&table).await, 1);
        store.settle(&[last], 0).await.unwrap();
        assert_eq!(locked(&table).await, 0);
        store.close().await;
    }
}

/// Nothing has to be settled of rows that were only read.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_gave_back_is_not_in_flight_for_long() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(3)).await;
    let store = store(&table, |builder| builder.leader_ttl(Duration::from_secs(6)));
    let claimed = claim(&store, 3).await;
    table.pause(true).await;
    store.settle(&settle_all(&claimed, &Verdict::Release { after: None, reason: None }), 0).await.unwrap();
    eventually("the window to be cleared", PATIENCE, async || {
        assert_ne!(claim(&store, 3).await.standing, Standing::Active);
        locked(&table).await == 0
    })
    .await;
    assert_eq!(statuses(&table, &ids).await, [EventStatus::New; 3]);
    table.pause(false).await;
    eventually("all to be read again", PATIENCE, async || claim(&store, 3).await.rows.len() == 3).await;
    assert_eq!(locked(&table).await, 3);
    // One that died is missed when its time is over.
    table.db.sql("UPDATE postbox_relay SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND");
    assert_eq!(locked(&table).await, 0);
}

/// Also where the next rows were read already.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_seen_by_every_claim() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(300)).await;
    let store = table.store(true);
    for _ in 0..5 {
        let claimed = claim(&store, 10).await;
        assert_eq!(claimed.rows.len(), 10);
        store.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await.unwrap();
    }
    table.pause(true).await;
    let paused = claim(&store, 10).await;
    assert!(paused.standing == Standing::Paused && paused.paused && paused.rows.is_empty(), "{paused:?}");
    table.pause(false).await;
    let mut seen = 50;
    eventually("all of them, each once", PATIENCE, async || {
        let claimed = claim(&store, 10).await;
        seen += claimed.rows.len();
        store.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await.unwrap();
        table.number("SELECT COUNT(*) FROM org_outbox WHERE published_at IS NULL").await == 0
    })
    .await;
    assert_eq!((seen, table.number("SELECT MAX(attempts) FROM org_outbox").await), (300, 1));
}

/// Hazard 12: sequences are drawn before they are committed, and others are read meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_behind_the_cursor_is_found() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(1)));
    let early = table.begin(events(3)).await;
    let others = enqueue(&table, events(3_000)).await;
    let relay = run(table.store(true), &sink, Settings { batch_size: 20, ..quick() });
    eventually("others to be read", PATIENCE, async || sink.arrived().len() > 500).await;
    let late: Vec<EventId> = early.receipts().iter().map(|receipt| receipt.event_id).collect();
    early.commit().await;
    eventually("everything to be settled", PATIENCE * 2, async || {
        table.number("SELECT COUNT(*) FROM org_outbox WHERE published_at IS NULL").await == 0
    })
    .await;
    relay.shutdown().await.unwrap();
    let arrived = sink.arrived();
    assert!(late.iter().all(|id| arrived.contains(id)));
    assert_eq!(arrived.len(), others.len() + late.len(), "each once");
}

/// The relay does not know that its settle was carried out, and repeats it. What an operator did in between stays.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_25_a_repeated_settle_does_not_undo_a_replay() {
    let dead = Verdict::Dead { reason: Summary::new("OUTBOX_REJECTED: never", 100) };
    for (shape, verdict) in [
        (Shape::Migrated, Verdict::Delivered),
        (Shape::Migrated, dead.clone()),
        (Shape::Moving, Verdict::Delivered),
        (Shape::Moving, dead),
    ] {
        let table = Table::new(shape).await;
        let id = enqueue(&table, events(1)).await[0];
        let proxy = Proxy::start(table.db.addr());
        let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
        let store = MySqlStore::builder(options, table.name.clone()).history(table.history()).build();
        let claimed = claim(&store, 1).await;
        // The connection is there: what is said to a new one has this word, too.
        assert!(store.extend(vec![claimed.rows[0].lease.clone()]).await.unwrap().is_empty());
        let mut cut = proxy.cut_replies_after_requests_containing("COMMIT");
        store.settle(&settle_all(&claimed, &verdict), 0).await.unwrap_err();
        cut.fired().await;
        eventually("the settle to have happened", PATIENCE, async || {
            let row = state(&table, id).await;
            row.published || row.dead
        })
        .await;
        let admin = table.admin();
        let replayed = if verdict == Verdict::Delivered {
            admin.replay_published(&Published::Events { event_ids: vec![id] }, 10, "tester").await
        } else {
            admin.replay_dead(&[id], "tester").await
        };
        assert_eq!(replayed.unwrap(), [id]);
        let settled = store.settle(&settle_all(&claimed, &verdict), 0).await.unwrap();
        assert!(settled.lost.is_empty(), "its own work is not a lost lease");
        let row = state(&table, id).await;
        assert!(!row.published && !row.dead && row.attempts == 0, "it is to be sent again: {row:?}");
        let again = store.claim(request(ClaimMode::Suspect, 10)).await.unwrap();
        assert_eq!(again.rows.len(), 1, "and it is");
        store.settle(&settle_all(&again, &Verdict::Delivered), 0).await.unwrap();
        assert!(state(&table, id).await.published);
    }
}

/// Nobody has been handed what was written down and not answered for: it is read again, uncharged.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_whose_answer_was_lost_costs_nothing() {
    let table = Table::new(Shape::Migrated).await;
    let proxy = Proxy::start(table.db.addr());
    let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
    let store = MySqlStore::builder(options, table.name.clone()).build();
    assert!(claim(&store, 10).await.rows.is_empty());
    enqueue(&table, events(2)).await;
    let mut cut = proxy.cut_replies_after_requests_containing("[[");
    store.claim(request(ClaimMode::Waiting, 10)).await.unwrap_err();
    cut.fired().await;
    let claimed = eventually("all to be read again", PATIENCE, async || {
        let claimed = store.claim(request(ClaimMode::Waiting, 10)).await.ok()?;
        (claimed.rows.len() == 2).then_some(claimed)
    })
    .await;
    assert!(claimed.rows.iter().all(|row| row.lease.attempts == 1));
    assert!(store.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await.unwrap().lost.is_empty());
}

/// Nobody knows that the table was taken over, and its successor finds its place as it left it.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_whose_answer_was_lost_charges_once() {
    let table = Table::new(Shape::Migrated).await;
    let old = table.store(true);
    let ids = enqueue(&table, events(2)).await;
    assert_eq!(claim(&old, 1).await.rows.len(), 1);
    let proxy = Proxy::start(table.db.addr());
    let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
    let new = MySqlStore::builder(options, table.name.clone()).build();
    assert_eq!(claim(&new, 1).await.standing, Standing::Standby);
    table.db.sql("UPDATE postbox_relay SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND");
    let mut cut = proxy.cut_replies_after_requests_containing("COMMIT");
    new.claim(request(ClaimMode::Waiting, 10)).await.unwrap_err();
    cut.fired().await;
    assert_eq!(table.number("SELECT epoch FROM postbox_relay").await, 2);
    let rows = claim_in_turn(&new, 10).await.rows;
    assert_eq!(rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(table.number("SELECT epoch FROM postbox_relay").await, 2, "it is the same reign");
    assert_eq!(state(&table, ids[0]).await.attempts, 1);
}

/// Ends every session but the one that asks; those of an idle pool are made anew.
fn kill_all(table: &Table) {
    let kill = "SELECT GROUP_CONCAT('KILL ', id SEPARATOR '; ') FROM information_schema.processlist
                WHERE id <> CONNECTION_ID() AND db = DATABASE()";
    let kill = table.db.sql(kill);
    for one in kill.split("; ").filter(|one| one.starts_with("KILL")) {
        table.db.try_sql(one).ok();
    }
}

fn unpublished(table: &Table) -> u64 {
    table.db.sql("SELECT COUNT(*) FROM org_outbox WHERE published_at IS NULL").parse().unwrap()
}

/// It comes back to its own place, and its window is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_10_an_owner_whose_sessions_were_killed_repeats_nothing_if_it_comes_back() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2_000)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let relay = run(table.store(true), &sink, quick());
    for kill in 1..=5 {
        eventually("deliveries to go on", PATIENCE, async || sink.arrived().len() > kill * 200).await;
        kill_all(&table);
    }
    eventually("everything to be settled", PATIENCE * 2, async || unpublished(&table) == 0).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), ids.len(), "nothing is repeated");
    assert_eq!(table.db.sql("SELECT MAX(attempts) FROM org_outbox"), "1", "and nothing charged twice");
}

/// Where another is quicker, it repeats what was in flight: not more than the window for each time.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_10_a_take_over_repeats_no_more_than_the_window() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2_000)).await;
    let settings = Settings { batch_size: 10, ..quick() };
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let start = |sink: &Scripted| run(table.store(true), sink, settings.clone());
    let (first, second) = (start(&a), start(&b));
    for kill in 1..=5 {
        eventually("deliveries to go on", PATIENCE, async || {
            a.arrived().len() + b.arrived().len() > kill * 200
        })
        .await;
        kill_all(&table);
    }
    eventually("everything to be settled", PATIENCE * 2, async || unpublished(&table) == 0).await;
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
    let all = [a.arrived(), b.arrived()].concat();
    let distinct: HashSet<EventId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len());
    // Four batches are in flight at most.
    let repeated = all.len() - ids.len();
    assert!(repeated <= 5 * 4 * settings.batch_size, "{repeated} were repeated");
}
