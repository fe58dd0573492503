//! Nothing is delivered that a crash of the server can take back, however its writer committed (hazard 33).

use std::time::Duration;

use postbox_core::store::{Standing, Verdict};
use postbox_core::{Store as _, TableName};
use postbox_stores::postgres::{PgStore, Strategy, connect_options, migrate};
use postbox_testkit::suite::{claim, settle_all};
use postbox_testkit::{PgBouncer, PgServer, TestDb, eventually};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};

use crate::common::SOON;

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

/// A server whose own writer of the log comes late.
fn lazy_server() -> PgServer {
    PgServer::with(&LAZY)
}

const LAZY: [&str; 3] = ["fsync=on", "wal_writer_delay=10s", "autovacuum=off"];

/// A store that has the table: whoever comes first takes it over, which is on disk in any case; what is meant are the claims after
/// that.
async fn has_the_table(store: &PgStore) {
    eventually("the table", Duration::from_secs(30), async || {
        claim(store, 10).await.standing == Standing::Active
    })
    .await;
}

async fn claimed_is_on_disk(strategy: Strategy, behind: bool) {
    let server = lazy_server();
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
    has_the_table(&store).await;
    for _ in 0..3 {
        let end = write_without_waiting(&db).await;
        let claimed = claim(&store, 10).await;
        assert!(!claimed.rows.is_empty(), "{claimed:?}");
        let on_disk = db.psql(&format!("SELECT pg_current_wal_flush_lsn() >= '{end}'"));
        assert_eq!(on_disk, "t", "it may be delivered from now on");
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
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

/// A writer who has waited for the disk has done so for the relay, too.
async fn claimed_without_a_wait(server: PgServer) -> bool {
    let db = server.database();
    let name: TableName = "public.org_outbox".parse().unwrap();
    let options = connect_options(&db.url).unwrap();
    migrate::up(&mut options.connect().await.unwrap(), &name, |_| {}).await.unwrap();
    let store = PgStore::builder(options, name).strategy(Strategy::Owner).build();
    has_the_table(&store).await;
    // The server notes something in its log now and then by itself, and its own writer of the log may come just now.
    for _ in 0..20 {
        db.psql(
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
             VALUES (gen_random_uuid(), 'a.b.c.v1', '{}', gen_random_uuid())",
        );
        let claimed = claim(&store, 10).await;
        assert!(!claimed.rows.is_empty(), "{claimed:?}");
        let waited = db.psql("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()") == "t";
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        if !waited {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_writer_has_waited_for_is_claimed_without_another_wait() {
    assert!(Box::pin(claimed_without_a_wait(lazy_server())).await);
}

/// The disk of this server says nothing about that of another. (Nobody waits for the one that is not there: commits are local.)
#[tokio::test(flavor = "multi_thread")]
async fn where_a_standby_has_to_have_it_every_claim_waits() {
    let standby = ["synchronous_standby_names=other", "synchronous_commit=local"];
    let server = PgServer::with(&[LAZY.as_slice(), &standby].concat());
    assert!(!Box::pin(claimed_without_a_wait(server)).await);
}

/// Some servers do not say how far their log has come. Behind a pooler, where each operation is a transaction, that the question fails
/// must not fail more.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_tell_is_waited_for() {
    let server = lazy_server();
    let db = server.database();
    db.psql("REVOKE EXECUTE ON FUNCTION pg_current_wal_flush_lsn() FROM PUBLIC");
    db.psql("CREATE ROLE reticent LOGIN; GRANT ALL ON SCHEMA public TO reticent");
    let name: TableName = "public.org_outbox".parse().unwrap();
    let pooler = PgBouncer::in_front_of(&server).unwrap();
    for url in [db.url.clone(), db.url_through(pooler.addr())] {
        let options = connect_options(&url).unwrap().username("reticent");
        let mut connection = options.clone().connect().await.unwrap();
        migrate::up(&mut connection, &name, |_| {}).await.unwrap();
        let store = PgStore::builder(options, name.clone()).strategy(Strategy::Owner).build();
        has_the_table(&store).await;
        let end = write_without_waiting(&db).await;
        let claimed = claim(&store, 10).await;
        assert!(!claimed.rows.is_empty(), "{claimed:?}");
        assert_eq!(db.psql(&format!("SELECT pg_current_wal_flush_lsn() >= '{end}'")), "t");
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        store.close().await;
    }
}

/// An owner reads ahead and does not wait for the disk where others have done so since: while writers who do not wait go on writing.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_33_what_an_owner_has_read_ahead_is_on_disk_when_it_is_claimed() {
    const ROUNDS: i64 = 60;
    let server = lazy_server();
    let db = server.database();
    let name: TableName = "public.org_outbox".parse().unwrap();
    let options = connect_options(&db.url).unwrap();
    let mut writer = options.connect().await.unwrap();
    migrate::up(&mut writer, &name, |_| {}).await.unwrap();
    sqlx::query("SET synchronous_commit = off").execute(&mut writer).await.unwrap();
    let store = PgStore::builder(options, name).strategy(Strategy::Owner).build();
    has_the_table(&store).await;
    // How far the log has to be on disk for events up to a sequence.
    let mut ends: Vec<(i64, i64)> = Vec::new();
    let mut claimed = 0;
    while claimed < 10 * ROUNDS {
        if i64::try_from(ends.len()).unwrap() < ROUNDS {
            let last = sqlx::query_scalar(
                "WITH new AS (INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
                              SELECT gen_random_uuid(), 'a.b.c.v1', '{}', gen_random_uuid() FROM generate_series(1, 10)
                              RETURNING sequence)
                 SELECT max(sequence) FROM new",
            );
            let last: i64 = last.fetch_one(&mut writer).await.unwrap();
            ends.push((last, position(&mut writer, "insert").await));
        }
        let batch = claim(&store, 5).await;
        let on_disk = position(&mut writer, "flush").await;
        for row in &batch.rows {
            let sequence = row.delivery.meta.sequence;
            let (_, end) = ends.iter().find(|(last, _)| *last >= sequence).unwrap();
            assert!(on_disk >= *end, "{sequence} may be delivered from now on");
        }
        claimed += i64::try_from(batch.rows.len()).unwrap();
        store.settle(&settle_all(&batch, &Verdict::Delivered)).await.unwrap();
    }
}

/// Where the log ends, in memory or on disk.
async fn position(connection: &mut PgConnection, of: &str) -> i64 {
    let position = format!("SELECT (pg_current_wal_{of}_lsn() - '0/0')::bigint");
    sqlx::query_scalar(AssertSqlSafe(position)).fetch_one(connection).await.unwrap()
}
