//! Relays of one table claim in one way, and a transaction pooler is no obstacle.

use std::time::{Duration, Instant};

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Standing, Verdict};
use postbox_core::{Code, Store as _};
use postbox_stores::postgres::{PgStore, PgStoreBuilder, Strategy};
use postbox_testkit::eventually;
use postbox_testkit::suite::{Subject as _, claim, enqueue, events, request, state};

use crate::common::settle_all;
use crate::subject::{Shape, Table};

const SOON: Duration = Duration::from_secs(20);

fn store(table: &Table, change: impl FnOnce(PgStoreBuilder) -> PgStoreBuilder) -> PgStore {
    change(PgStore::builder(table.relay.clone(), table.name.clone()).leader_ttl(Duration::from_secs(3)))
        .build()
}

fn strategy(table: &Table) -> String {
    table.db.psql("SELECT strategy FROM postbox_relay")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrated_table_is_owned_and_a_shared_one_leased() {
    let table = Table::new(Shape::Migrated).await;
    let alone = store(&table, |builder| builder);
    enqueue(&table, events(1)).await;
    let rows = claim(&alone, 10).await.rows;
    assert_eq!((strategy(&table).as_str(), rows.len()), ("owner", 1));
    assert_eq!(
        table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL"),
        "0",
        "no claim is written"
    );
    alone.close().await;
    let shared = store(&table, |builder| builder.single_active(false));
    let rows = claim(&shared, 10).await.rows;
    assert_eq!(rows.len(), 1, "what the owner had in flight is free after its stop");
    assert_eq!(table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_of_different_strategies_refuse_to_start() {
    let table = Table::new(Shape::Migrated).await;
    let owner = store(&table, |builder| builder);
    assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    for (change, who) in [
        ((|b| b.single_active(false)) as fn(PgStoreBuilder) -> PgStoreBuilder, "shared"),
        (|b| b.strategy(Strategy::Lease), "a lease"),
    ] {
        let error = store(&table, change).open().await.unwrap_err();
        assert_eq!(error.code(), Code::StrategyMismatch, "{who}: {error}");
        assert!(error.message().contains("claim = \"owner\""), "{error}");
    }
    // Another owner stands by.
    let other = store(&table, |builder| builder);
    assert_eq!(claim(&other, 1).await.standing, Standing::Standby);
    other.close().await;
    owner.close().await;

    let shared = store(&table, |builder| builder.single_active(false));
    assert_eq!(claim(&shared, 1).await.standing, Standing::Active);
    let error = store(&table, |builder| builder).open().await.unwrap_err();
    assert_eq!(error.code(), Code::StrategyMismatch, "{error}");
    shared.close().await;
    store(&table, |builder| builder).open().await.unwrap();
}

/// Both looked before the other was there: the owner waits until nobody shares, those who share wait while there is an owner.
#[tokio::test(flavor = "multi_thread")]
async fn two_strategies_that_start_at_once_do_not_work_at_once() {
    let table = Table::new(Shape::Migrated).await;
    let (owner, shared) = (store(&table, |b| b), store(&table, |b| b.single_active(false)));
    owner.open().await.unwrap();
    shared.open().await.unwrap();
    assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    assert_eq!(claim(&shared, 1).await.standing, Standing::Standby);
    owner.close().await;
    assert_eq!(claim(&shared, 1).await.standing, Standing::Active);
    assert_eq!(claim(&owner, 1).await.standing, Standing::Standby);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_owned_is_refused_in_words() {
    for (shape, single) in [(Shape::Bare, true), (Shape::Migrated, false)] {
        let table = Table::new(shape).await;
        let refused =
            store(&table, |b| b.strategy(Strategy::Owner).single_active(single)).open().await.unwrap_err();
        assert_eq!(refused.code(), Code::ConfigUnsupported, "{refused}");
    }
}

/// The settle of a relay that was taken over changes nothing, also while it waits for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_1_an_owner_that_was_taken_over_settles_nothing() {
    let table = Table::new(Shape::Pooled).await;
    let (old, new) = (store(&table, |b| b), store(&table, |b| b));
    enqueue(&table, events(2)).await;
    let claimed = claim(&old, 10).await;
    assert_eq!(claimed.rows.len(), 2);
    table.db.psql("UPDATE postbox_relay SET expires_at = now() - interval '1 second'");
    eventually("the take-over", SOON, async || claim(&new, 10).await.standing == Standing::Active).await;
    // What was in the old window is charged, and waits to be tried alone.
    assert_eq!(table.db.psql("SELECT DISTINCT attempts, locked_by FROM org_outbox"), "1|left behind");
    for again in [false, true] {
        if again {
            // As rows are after a replay: only the owner's row tells that this is not the attempt which the old one made.
            table.db.psql("UPDATE org_outbox SET attempts = 0, locked_at = NULL, locked_by = NULL");
        }
        let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
        let retry = Verdict::Retry { after: Duration::from_mins(1), reason };
        for verdict in [Verdict::Delivered, retry] {
            let settled = old.settle(&settle_all(&claimed, &verdict), 0).await.unwrap();
            assert_eq!(settled.lost.len(), 2, "both are another's: {verdict:?}");
        }
        let touched =
            "SELECT count(*) FROM org_outbox WHERE published_at IS NOT NULL OR last_error IS NOT NULL";
        assert_eq!(table.db.psql(touched), "0");
    }
}

/// A take-over waits for a settle that is under way, and then knows what that did.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_take_over_waits_for_a_settle() {
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    for verdict in [Verdict::Delivered, Verdict::Retry { after: Duration::from_hours(1), reason }] {
        let mut tries = 0;
        while !a_take_over_during_a_settle(&verdict).await {
            tries += 1;
            assert!(tries < 20, "a machine that is never quick enough");
        }
    }
}

/// False if it came to nothing: relays wait for a lock for half a second, and a busy machine may need longer until both wait.
async fn a_take_over_during_a_settle(verdict: &Verdict) -> bool {
    let table = Table::new(Shape::Pooled).await;
    let (old, new) = (table.store(true), table.store(true));
    let ids = enqueue(&table, events(2)).await;
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.db.psql("UPDATE postbox_relay SET expires_at = now() - interval '1 second'");
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(ids[1].0);
    lock.fetch_one(&mut *tx).await.unwrap();
    let wait = Waiting::begin(&table);
    let settlements = settle_all(&claimed, verdict);
    let settle = tokio::spawn(async move { old.settle(&settlements, 0).await });
    wait.until(1).await;
    let takes_over = tokio::spawn(async move { new.claim(request(ClaimMode::Waiting, 10)).await });
    wait.until(2).await;
    let both_wait = wait.in_time();
    assert!(!both_wait || !takes_over.is_finished());
    tx.rollback().await.unwrap();
    let (settled, next) = (settle.await.unwrap(), takes_over.await.unwrap());
    if both_wait {
        assert!(settled.unwrap().lost.is_empty(), "it was in time");
        let next = next.unwrap();
        let nothing_left = (next.standing, next.suspects) == (Standing::Active, false);
        assert!(nothing_left, "nothing was left behind: {next:?}");
        for id in ids {
            let row = state(&table, id).await;
            assert!(row.published == (*verdict == Verdict::Delivered) && row.attempts == 1, "{row:?}");
        }
    }
    both_wait
}

/// A settle that begins while another takes over waits for that, and is too late then: also where somebody has made the rows look as
/// they did before it gets to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_settle_does_not_slip_in_behind_a_take_over() {
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    for verdict in [Verdict::Delivered, Verdict::Retry { after: Duration::from_hours(1), reason }] {
        let mut tries = 0;
        while !a_settle_during_a_take_over(&verdict).await {
            tries += 1;
            assert!(tries < 20, "a machine that is never quick enough");
        }
    }
}

/// False if it came to nothing, as above.
async fn a_settle_during_a_take_over(verdict: &Verdict) -> bool {
    let table = Table::new(Shape::Pooled).await;
    let (old, new) = (table.store(true), table.store(true));
    let id = enqueue(&table, events(1)).await[0];
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.db.psql("UPDATE postbox_relay SET expires_at = now() - interval '1 second'");
    let mut tx = table.owner.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM org_outbox FOR UPDATE").fetch_one(&mut *tx).await.unwrap();
    let wait = Waiting::begin(&table);
    let takes_over = tokio::spawn(async move { new.claim(request(ClaimMode::Waiting, 10)).await });
    wait.until(1).await;
    let pool = table.owner.clone();
    let replay = tokio::spawn(async move {
        let replay = "UPDATE org_outbox SET attempts = 0, locked_at = NULL, locked_by = NULL";
        sqlx::query(replay).execute(&pool).await
    });
    wait.until(2).await;
    let settlements = settle_all(&claimed, verdict);
    let settle = tokio::spawn(async move { old.settle(&settlements, 0).await });
    wait.until(3).await;
    let all_wait = wait.in_time();
    tx.rollback().await.unwrap();
    let (next, settled) = (takes_over.await.unwrap(), settle.await.unwrap());
    replay.await.unwrap().unwrap();
    if all_wait {
        assert_eq!(next.unwrap().standing, Standing::Active);
        assert_eq!(settled.unwrap().lost.len(), 1, "it is another's");
        let row = state(&table, id).await;
        assert!(!row.published && row.last_error.is_none(), "{row:?}");
    }
    all_wait
}

/// Waits until others wait for locks, for less than relays do.
struct Waiting {
    began: Instant,
    pool: sqlx::PgPool,
}

impl Waiting {
    fn begin(table: &Table) -> Self {
        Self { began: Instant::now(), pool: table.owner.clone() }
    }

    fn in_time(&self) -> bool {
        self.began.elapsed() < Duration::from_millis(350)
    }

    async fn until(&self, others: i64) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let count = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(&self.pool).await.unwrap();
        while self.in_time() && count().await < others {}
    }
}
