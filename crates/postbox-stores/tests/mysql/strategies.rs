//! Relays of one table claim in one way, and whoever was taken over settles nothing.

use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimMode, Order, Settlement, Standing, Tenants, Verdict};
use postbox_core::{Browse as _, Code, Store as _};
use postbox_stores::mysql::{MySqlStore, MySqlStoreBuilder, Strategy, migrate};
use postbox_testkit::eventually;
use postbox_testkit::suite::{PATIENCE, Subject as _, claim, claim_in_turn, enqueue, events, request, state};

use crate::subject::{Shape, Table};

pub(crate) fn store(
    table: &Table,
    change: impl FnOnce(MySqlStoreBuilder) -> MySqlStoreBuilder,
) -> MySqlStore {
    let builder = MySqlStore::builder(table.options.clone(), table.name.clone());
    change(builder.leader_ttl(Duration::from_secs(3))).build()
}

pub(crate) fn settle_all(claim: &Claim, verdict: &Verdict) -> Vec<Settlement> {
    claim.rows.iter().map(|row| Settlement::new(row.lease.clone(), verdict.clone())).collect()
}

const LOCKED: &str = "SELECT COUNT(*) FROM org_outbox WHERE locked_at IS NOT NULL";
const EXPIRE: &str = "UPDATE postbox_relay SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND";

#[tokio::test(flavor = "multi_thread")]
async fn a_migrated_table_is_owned_and_a_shared_one_leased() {
    let table = Table::new(Shape::Migrated).await;
    let alone = store(&table, |builder| builder);
    enqueue(&table, events(1)).await;
    let rows = claim(&alone, 10).await.rows;
    assert_eq!((table.db.sql("SELECT strategy FROM postbox_relay").as_str(), rows.len()), ("owner", 1));
    assert_eq!(table.number(LOCKED).await, 0, "no claim is written");
    alone.close().await;
    let shared = store(&table, |builder| builder.single_active(false));
    let rows = claim(&shared, 10).await.rows;
    assert_eq!(rows.len(), 1, "what the owner had in flight is free after its stop");
    assert_eq!((table.number(LOCKED).await, rows[0].lease.attempts), (1, 1), "and uncharged");
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_of_different_strategies_refuse_to_start() {
    let table = Table::new(Shape::Migrated).await;
    let owner = store(&table, |builder| builder);
    assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    for single in [true, false] {
        let lease = store(&table, |b| b.strategy(Strategy::Lease).single_active(single));
        let error = lease.open().await.unwrap_err();
        assert_eq!(error.code(), Code::StrategyMismatch, "{error}");
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
async fn what_cannot_be_owned_is_leased_or_refused_in_words() {
    type Change = fn(MySqlStoreBuilder) -> MySqlStoreBuilder;
    let table = Table::new(Shape::Ordered).await;
    let changes: [(Change, &str); 3] = [
        (|b| b.single_active(false), "single_active is off"),
        (|b| b.order(Order::Aggregate(postbox_core::OnDead::Block)), "leave claim at \"auto\""),
        (|b| b.tenants(Tenants { fair: true, ..Tenants::default() }), "leave claim at \"auto\""),
    ];
    let extras = migrate::Extras { tenants: true, ..migrate::Extras::default() };
    migrate::up_with(&mut table.pool.acquire().await.unwrap(), &table.name, extras, |_| {}).await.unwrap();
    for (change, says) in changes {
        let refused = store(&table, |b| change(b).strategy(Strategy::Owner)).open().await.unwrap_err();
        assert_eq!(refused.code(), Code::ConfigUnsupported, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
        let leases = store(&table, change);
        claim(&leases, 1).await;
        let owned = "SELECT COUNT(*) FROM postbox_relay WHERE holder IS NOT NULL AND strategy = 'owner'";
        assert_eq!(table.number(owned).await, 0);
        leases.close().await;
    }
}

/// The tables of relays are an earlier version's: rows are leased as before, until they are migrated.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_made_is_leased_until_it_is_migrated() {
    for spoil in ["drop table postbox_window", "alter table postbox_relay drop column shared_by"] {
        let table = Table::new(Shape::Migrated).await;
        let ids = enqueue(&table, events(2)).await;
        table.db.sql("drop view org_outbox_status");
        table.db.sql(spoil);
        let refused = store(&table, |b| b.strategy(Strategy::Owner)).open().await.unwrap_err();
        assert!(refused.message().contains("postbox migrate up"), "{refused}");
        for single in [true, false] {
            let leases = store(&table, |b| b.single_active(single));
            let claimed = claim(&leases, 1).await;
            assert_eq!((claimed.rows.len(), table.number(LOCKED).await), (1, 1), "{spoil}");
            assert!(
                leases.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await.unwrap().lost.is_empty()
            );
            leases.close().await;
        }
        assert_eq!(table.admin().replay_dead(&ids, "tester").await.unwrap(), []);
        migrate::up(&mut table.pool.acquire().await.unwrap(), &table.name, |_| {}).await.unwrap();
        let owner = store(&table, |b| b.strategy(Strategy::Owner));
        assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    }
}

/// The settle of a relay that was taken over changes nothing, also where rows look as they did.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_1_an_owner_that_was_taken_over_settles_nothing() {
    for shape in [Shape::Migrated, Shape::Moving] {
        let table = Table::new(shape).await;
        let (old, new) = (table.store(true), table.store(true));
        enqueue(&table, events(2)).await;
        let claimed = claim(&old, 10).await;
        assert_eq!(claimed.rows.len(), 2);
        table.db.sql(EXPIRE);
        let next = claim_in_turn(&new, 10).await;
        assert!(next.rows.is_empty() && next.suspects, "they wait to be tried alone: {next:?}");
        assert_eq!(table.db.sql("SELECT DISTINCT attempts, locked_by FROM org_outbox"), "1\tleft behind");
        assert_eq!(old.extend(vec![claimed.rows[0].lease.clone()]).await.unwrap().len(), 1, "it is lost");
        for again in [false, true] {
            if again {
                // As rows are after a replay: only the owner's row tells that this is not the attempt which the old one made.
                table.db.sql("UPDATE org_outbox SET attempts = 0, locked_at = NULL, locked_by = NULL");
            }
            let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
            let retry = Verdict::Retry { after: Duration::from_mins(1), reason };
            for verdict in [Verdict::Delivered, retry] {
                let settled = old.settle(&settle_all(&claimed, &verdict), 0).await.unwrap();
                assert_eq!(settled.lost.len(), 2, "both are another's: {verdict:?}");
            }
            let untouched =
                "SELECT COUNT(*) FROM org_outbox WHERE published_at IS NULL AND last_error IS NULL";
            assert_eq!(table.number(untouched).await, 2);
        }
        // Nor does it write down anything more.
        assert_eq!(claim(&old, 10).await.standing, Standing::Standby);
    }
}

/// A take-over waits for a settle that is under way, and then knows what that did.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_take_over_waits_for_a_settle() {
    let table = Table::new(Shape::Migrated).await;
    let (old, new) = (table.store(true), table.store(true));
    let ids = enqueue(&table, events(2)).await;
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.db.sql(EXPIRE);
    let mut tx = table.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = ? FOR UPDATE").bind(ids[1].0);
    lock.fetch_one(&mut *tx).await.unwrap();
    let settle = tokio::spawn(async move { old.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await });
    let waiting = |what: &str| {
        format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%{what}%'
             AND time_ms > 50 AND id <> CONNECTION_ID()"
        )
    };
    let (settles, takes) = (waiting("t.published_at = UTC_TIMESTAMP"), waiting("postbox_relay`%FOR UPDATE"));
    eventually("the settle to wait", PATIENCE, async || table.number(&settles).await > 0).await;
    let takes_over = tokio::spawn(async move { new.claim(request(ClaimMode::Waiting, 10)).await });
    eventually("the take-over to wait", PATIENCE, async || table.number(&takes).await > 0).await;
    assert!(!takes_over.is_finished());
    tx.rollback().await.unwrap();
    assert!(settle.await.unwrap().unwrap().lost.is_empty(), "it was in time");
    let next = takes_over.await.unwrap().unwrap();
    assert!(
        next.standing == Standing::Active && next.rows.is_empty() && !next.suspects,
        "nothing is left: {next:?}"
    );
    for id in ids {
        let row = state(&table, id).await;
        assert!(row.published && row.attempts == 1, "{row:?}");
    }
}

/// What a predecessor had in flight is tried one by one, charged; what it had settled or put off is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_finds_exactly_what_was_in_flight() {
    let table = Table::new(Shape::Migrated).await;
    let (old, new) = (table.store(true), table.store(true));
    let ids = enqueue(&table, events(6)).await;
    let claimed = claim(&old, 5).await;
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    let mut settlements = settle_all(&claimed, &Verdict::Delivered);
    settlements.truncate(2);
    settlements[1].verdict = Verdict::Retry { after: Duration::from_millis(1), reason };
    old.settle(&settlements, 0).await.unwrap();
    drop(old);
    table.db.sql(EXPIRE);
    let next = eventually("what was free", PATIENCE, async || {
        let next = claim_in_turn(&new, 10).await;
        (next.rows.len() == 2).then_some(next)
    })
    .await;
    let attempts = |rows: &[postbox_core::store::Claimed]| -> Vec<(bool, i32)> {
        rows.iter().map(|row| (row.lease.token.starts_with("own/"), row.lease.attempts)).collect()
    };
    assert_eq!(attempts(&next.rows), [(true, 2), (true, 1)], "one that was put off, one that was never read");
    assert!(next.suspects);
    new.settle(&settle_all(&next, &Verdict::Delivered), 0).await.unwrap();
    for _ in 0..3 {
        let alone = new.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
        assert_eq!(attempts(&alone.rows), [(false, 2)], "leased, and charged for the attempt that was lost");
        new.settle(&settle_all(&alone, &Verdict::Delivered), 0).await.unwrap();
    }
    for id in ids {
        assert!(state(&table, id).await.published);
    }
}
