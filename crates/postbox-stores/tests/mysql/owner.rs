//! A relay that owns its rows, on MariaDB: the suite, what cannot be owned, and what take-overs wait for.

use std::net::SocketAddr;
use std::time::Duration;

use postbox_core::store::{Claim, ClaimMode, Order, Standing, Tenants, Verdict};
use postbox_core::{Code, Store as _};
use postbox_stores::mysql::{MySqlStore, MySqlStoreBuilder, Strategy, connect_options, migrate};
use postbox_testkit::suite::owner::{Claimer, OwnerSubject};
use postbox_testkit::suite::{
    PATIENCE, Subject as _, claim, claim_in_turn, enqueue, events, request, settle_all, state,
};
use postbox_testkit::{Proxy, eventually};

use crate::subject::{Shape, Table};

postbox_testkit::owner_suite!(migrated, Table::new(Shape::Migrated));

// What is different where rows leave the table.
postbox_testkit::store_suite! { @mod moving, Table::new(Shape::Moving) =>
    owner: hazard_1_an_owner_that_was_taken_over_settles_nothing,
    owner_window: what_an_owner_has_in_flight_is_publishing,
    owner_window: hazard_25_a_repeated_settle_does_not_undo_a_replay,
}

impl OwnerSubject for Table {
    fn claimer(&self, how: Claimer) -> MySqlStore {
        let through = |proxy| connect_options(&self.db.url_through(proxy)).unwrap();
        let options = how.through.map_or_else(|| self.options.clone(), through);
        let strategy = if how.leases { Strategy::Lease } else { Strategy::Auto };
        let store = MySqlStore::builder(options, self.name.clone()).history(self.history());
        store.single_active(!how.shared).strategy(strategy).leader_ttl(how.leader_ttl).build()
    }

    fn addr(&self) -> SocketAddr {
        self.db.addr()
    }

    fn words_of_settle(&self, _: &Claim) -> Vec<u8> {
        b"COMMIT".to_vec()
    }

    fn words_of_journal(&self) -> Vec<u8> {
        b"[[".to_vec()
    }

    async fn sql(&self, sql: &'static str) {
        self.db.sql(sql);
    }

    async fn count(&self, condition: &'static str) -> i64 {
        self.number(&format!("SELECT COUNT(*) FROM org_outbox WHERE {condition}")).await
    }

    async fn end_reign(&self) {
        self.db.sql("UPDATE postbox_relay SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND");
    }

    /// All but the one that asks; those of an idle pool are made anew.
    async fn end_sessions(&self) {
        let kill = "SELECT GROUP_CONCAT('KILL ', id SEPARATOR '; ') FROM information_schema.processlist
                    WHERE id <> CONNECTION_ID() AND db = DATABASE()";
        for one in self.db.sql(kill).split("; ").filter(|one| one.starts_with("KILL")) {
            self.db.try_sql(one).ok();
        }
    }
}

fn store(table: &Table, change: impl FnOnce(MySqlStoreBuilder) -> MySqlStoreBuilder) -> MySqlStore {
    let builder = MySqlStore::builder(table.options.clone(), table.name.clone());
    change(builder.leader_ttl(Duration::from_secs(3))).build()
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

/// A take-over waits for a settle that is under way, and then knows what that did.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_take_over_waits_for_a_settle() {
    let table = Table::new(Shape::Migrated).await;
    let (old, new) = (table.store(true), table.store(true));
    let ids = enqueue(&table, events(2)).await;
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.end_reign().await;
    let mut tx = table.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = ? FOR UPDATE").bind(ids[1].0);
    lock.fetch_one(&mut *tx).await.unwrap();
    let settle = tokio::spawn(async move { old.settle(&settle_all(&claimed, &Verdict::Delivered)).await });
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

/// Nobody knows that the table was taken over, and its successor finds its place as it left it.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_whose_answer_was_lost_charges_once() {
    let table = Table::new(Shape::Migrated).await;
    let old = table.store(true);
    let ids = enqueue(&table, events(2)).await;
    assert_eq!(claim(&old, 1).await.rows.len(), 1);
    let proxy = Proxy::start(table.db.addr());
    let new = table.claimer(Claimer { through: Some(proxy.addr()), ..Claimer::default() });
    assert_eq!(claim(&new, 1).await.standing, Standing::Standby);
    table.end_reign().await;
    let mut cut = proxy.cut_replies_after_requests_containing("COMMIT");
    new.claim(request(ClaimMode::Waiting, 10)).await.unwrap_err();
    cut.fired().await;
    assert_eq!(table.number("SELECT epoch FROM postbox_relay").await, 2);
    let rows = claim_in_turn(&new, 10).await.rows;
    assert_eq!(rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(table.number("SELECT epoch FROM postbox_relay").await, 2, "it is the same reign");
    assert_eq!(state(&table, ids[0]).await.attempts, 1);
}
