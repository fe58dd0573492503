//! What an owner has in flight, as others see it, and what becomes of it when its session ends.

use std::collections::HashSet;
use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Standing, Verdict};
use postbox_core::{
    Browse as _, EventFilter, EventId, EventStatus, History, Inspect as _, ListRequest, Published, Settings,
    Store as _,
};
use postbox_stores::postgres::{PgStore, connect_options, migrate};
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{PATIENCE, Subject as _, claim, enqueue, events, quick, request, state};
use postbox_testkit::{Proxy, eventually};
use sqlx::ConnectOptions as _;

use crate::common::{run, settle_all};
use crate::subject::{Shape, Table};

/// What a table says of its events, in all the ways it can be asked.
async fn statuses(table: &Table, ids: &[EventId]) -> Vec<EventStatus> {
    let admin = table.admin();
    let mut found = Vec::new();
    for id in ids {
        let shown = admin.show(*id, false).await.unwrap().unwrap().summary.status;
        let told = admin.statuses(&[*id]).await.unwrap();
        assert_eq!(told, [(*id, shown)]);
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

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_has_in_flight_is_publishing() {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    for shape in [Shape::Migrated, Shape::Moving, Shape::Pooled, Shape::Grants] {
        let table = Table::new(shape).await;
        let ids = enqueue(&table, events(5)).await;
        let store = table.store(true);
        let claimed = claim(&store, 4).await;
        assert_eq!(table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL"), "0");
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
    let store = PgStore::builder(table.relay.clone(), table.name.clone())
        .leader_ttl(Duration::from_millis(1500))
        .build();
    let claimed = claim(&store, 3).await;
    table.db.psql("UPDATE postbox_relay SET paused_at = now()");
    store.settle(&settle_all(&claimed, &Verdict::Release { after: None, reason: None }), 0).await.unwrap();
    eventually("the window to be cleared", PATIENCE, async || {
        assert_eq!(claim(&store, 3).await.standing, Standing::Paused);
        locked(&table).await == 0
    })
    .await;
    assert_eq!(statuses(&table, &ids).await, [EventStatus::New; 3]);
    table.db.psql("UPDATE postbox_relay SET paused_at = NULL");
    eventually("all to be read again", PATIENCE, async || claim(&store, 3).await.rows.len() == 3).await;
    assert_eq!(locked(&table).await, 3);
    // One that died is missed when its time is over.
    table.db.psql("UPDATE postbox_relay SET expires_at = now() - interval '1 second'");
    assert_eq!(locked(&table).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_knows_no_owners_is_replaced() {
    for history in [false, true] {
        let table = Table::new(if history { Shape::Moving } else { Shape::Migrated }).await;
        let columns = "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, 'NEW'::text AS status, attempts, created_at,
            available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error";
        table.db.psql(&format!(
            "CREATE OR REPLACE VIEW org_outbox_status AS SELECT {columns} FROM org_outbox{moved}",
            moved = if history {
                format!(" UNION ALL SELECT {columns} FROM org_outbox_history")
            } else {
                String::new()
            }
        ));
        let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
        let plan = migrate::plan(&mut connection, &table.name).await.unwrap();
        assert_eq!(plan.steps.iter().map(|step| &*step.what).collect::<Vec<_>>(), ["+ status view"]);
        migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
        let left = migrate::plan(&mut connection, &table.name).await.unwrap().steps;
        assert!(left.is_empty(), "{left:?}");
    }
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
        let history = table.history();
        assert_eq!(history == History::Move, shape == Shape::Moving);
        let store = PgStore::builder(options, table.name.clone()).history(history).name("settler").build();
        let claimed = claim(&store, 1).await;
        // The row's id: whoever reads on beside the claim does not name it.
        let mut cut = proxy.cut_replies_after_requests_containing(*claimed.rows[0].lease.row.as_bytes());
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

const KILL: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// It comes back to its own place, and its window is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_10_an_owner_whose_session_was_killed_repeats_nothing_if_it_comes_back() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2_000)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let relay = run(table.store(true), sink.clone(), quick());
    for _ in 0..5 {
        eventually("a leader to kill", PATIENCE, async || table.db.psql(KILL) == "1").await;
    }
    eventually("everything to be settled", PATIENCE, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), ids.len(), "nothing is repeated");
    assert_eq!(table.db.psql("SELECT max(attempts) FROM org_outbox"), "1", "and nothing charged twice");
}

/// Where another is quicker, it repeats what was in flight: not more than the window for each time.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_10_a_take_over_repeats_no_more_than_the_window() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2_000)).await;
    let settings = Settings { batch_size: 10, ..quick() };
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let start = |sink: &Scripted| run(table.store(true), sink.clone(), settings.clone());
    let (first, second) = (start(&a), start(&b));
    for _ in 0..5 {
        eventually("a leader to kill", PATIENCE, async || table.db.psql(KILL) == "1").await;
    }
    eventually("everything to be settled", PATIENCE, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
    let all = [a.arrived(), b.arrived()].concat();
    let distinct: HashSet<EventId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len());
    // Four batches are in flight at most.
    let repeated = all.len() - ids.len();
    assert!(repeated <= 5 * 4 * settings.batch_size, "{repeated} were repeated");
}

/// An orderly stop gives back the lock before it says that it is over; the end of the session comes when the server gets to it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_relay_leads_at_once_after_an_orderly_stop() {
    for shape in [Shape::Migrated, Shape::Bare] {
        let table = Table::new(shape).await;
        let proxy = Proxy::start(table.db.addr());
        let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
        let (first, next) = (PgStore::builder(options, table.name.clone()).build(), table.store(true));
        assert_eq!(claim(&first, 1).await.standing, Standing::Active);
        assert_eq!(claim(&next, 1).await.standing, Standing::Standby);
        // The server hears of the end of the sessions long after the relay has gone.
        proxy.delay(Duration::from_millis(300));
        first.close().await;
        assert_eq!(claim(&next, 1).await.standing, Standing::Active);
    }
}
