//! Nothing is delivered that a crash of the server can take back, however its writer committed (hazard 33).

use std::time::Duration;

use postbox_core::store::{Standing, Verdict};
use postbox_core::{Store as _, TableName};
use postbox_stores::postgres::{PgStore, Strategy, connect_options, migrate};
use postbox_testkit::suite::claim;
use postbox_testkit::{PgBouncer, PgServer, TestDb, eventually};
use sqlx::ConnectOptions as _;

use crate::common::{SOON, settle_all};

/// Writes an event whose commit is not on disk yet, and answers how far the log has to be there. The server's own writer comes
/// every ten seconds, and may come just now.
async fn write_without_waiting(db: &TestDb) -> String {
    eventually("a commit that is not on disk", SOON, async || {
        db.psql(
            "BEGIN; SET LOCAL synchronous_commit = off;
             INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
             VALUES (gen_random_uuid(), 'a.b.c.v1', '{}', gen_random_uuid()); COMMIT",
        );
        let end = db.psql("SELECT pg_current_wal_insert_lsn()");
        (db.psql(&format!("SELECT pg_current_wal_flush_lsn() < '{end}'")) == "t").then_some(end)
    })
    .await
}

async fn claimed_is_on_disk(strategy: Strategy, behind: bool) {
    let server = PgServer::with(&["fsync=on", "wal_writer_delay=10s", "autovacuum=off"]);
    let db = server.database();
    let name: TableName = "public.org_outbox".parse().unwrap();
    let direct = connect_options(&db.url).unwrap();
    migrate::up(&mut direct.connect().await.unwrap(), &name, |_| {}).await.unwrap();
    let pooler = behind.then(|| PgBouncer::in_front_of(&server).unwrap());
    let options = match &pooler {
        Some(pooler) => connect_options(&db.url_through(pooler.addr())).unwrap(),
        None => direct,
    };
    let store = PgStore::builder(options, name).strategy(strategy).build();
    // Whoever comes first takes the table over, which is on disk in any case; what is meant is the claim of one that has it.
    eventually("the table", Duration::from_secs(30), async || {
        claim(&store, 10).await.standing == Standing::Active
    })
    .await;
    for _ in 0..3 {
        let end = write_without_waiting(&db).await;
        let claimed = claim(&store, 10).await;
        assert!(!claimed.rows.is_empty(), "{claimed:?}");
        let on_disk = db.psql(&format!("SELECT pg_current_wal_flush_lsn() >= '{end}'"));
        assert_eq!(on_disk, "t", "it may be delivered from now on");
        store.settle(&settle_all(&claimed, &Verdict::Delivered), 0).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_33_what_an_owner_claims_is_on_disk() {
    Box::pin(claimed_is_on_disk(Strategy::Owner, false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_33_what_an_owner_claims_is_on_disk_behind_a_pooler() {
    Box::pin(claimed_is_on_disk(Strategy::Owner, true)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_33_what_is_leased_is_on_disk() {
    Box::pin(claimed_is_on_disk(Strategy::Lease, false)).await;
}
