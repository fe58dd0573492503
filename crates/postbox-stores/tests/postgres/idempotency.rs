//! Calls by idempotency key: the suite, also with least privilege and behind a pooler, and the table's migration.

use std::time::Duration;

use postbox_core::idempotency::{Begun, Call, FinishError, IdempotencyStore as _};
use postbox_core::{Code, Outbox, StoredResponse, TableName};
use postbox_stores::postgres::migrate::{self, Extras, Grants};
use postbox_stores::postgres::{PgIdempotency, PgOutboxTransaction, connect_options};
use postbox_testkit::suite::idempotency::{CallsSubject, call};
use postbox_testkit::{PgBouncer, PgServer, TestDb};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::subject::role;

postbox_testkit::idempotency_suite!(migrated, Calls::new(Kind::Plain));
postbox_testkit::idempotency_suite!(least_privilege, Calls::new(Kind::Grants));
postbox_testkit::idempotency_suite!(pooled, Calls::new(Kind::Pooled));
postbox_testkit::idempotency_suite!(serializable, Calls::new(Kind::Serializable));

fn with_calls() -> Extras {
    Extras { idempotency: true, ..Extras::default() }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Grants,
    Pooled,
    /// Every transaction is, unless it says otherwise.
    Serializable,
}

struct Calls {
    name: TableName,
    owner: PgPool,
    service: PgPool,
    cleaner: PgPool,
    kind: Kind,
    /// Gone when the test is.
    _db: TestDb,
}

impl Calls {
    async fn new(kind: Kind) -> Self {
        let db = PgServer::shared().database();
        let name: TableName = "public.org_outbox".parse().unwrap();
        let mut connection = PgConnection::connect(&db.url).await.unwrap();
        migrate::up_with(&mut connection, &name, with_calls(), |_| {}).await.unwrap();
        db.psql("CREATE TABLE effect (n int)");
        let pool = |url: &str, role: Option<&str>| {
            let options = connect_options(url).unwrap();
            let options = role.map_or(options.clone(), |role| options.username(role));
            PgPoolOptions::new().max_connections(8).connect_lazy_with(options)
        };
        let (mut service, mut cleaner) = (pool(&db.url, None), pool(&db.url, None));
        match kind {
            Kind::Plain => {}
            Kind::Grants => {
                let [writer, relay] = ["writer", "relay"].map(|kind| role(&db, kind));
                let grants: Grants = format!("writer={writer},relay={relay}").parse().unwrap();
                db.psql(&format!("CREATE ROLE \"{writer}\" LOGIN; CREATE ROLE \"{relay}\" LOGIN"));
                db.psql("REVOKE ALL ON SCHEMA public FROM PUBLIC");
                db.psql(&migrate::print_grants_with(&name, &grants, with_calls()));
                db.psql(&format!("GRANT INSERT ON effect TO \"{writer}\""));
                service = pool(&db.url, Some(&writer));
                cleaner = pool(&db.url, Some(&relay));
            }
            Kind::Pooled => service = pool(&db.url_through(PgBouncer::shared().addr()), None),
            Kind::Serializable => {
                let database = &db.name;
                db.psql(&format!(
                    "ALTER DATABASE \"{database}\" SET default_transaction_isolation = serializable"
                ));
            }
        }
        Self { name, owner: pool(&db.url, None), service, cleaner, kind, _db: db }
    }

    async fn change(&self, sql: &'static str, call: &Call, by: Duration) {
        let change = sqlx::query(sql).bind(call.key()).bind(by.as_secs_f64());
        assert_eq!(change.execute(&self.owner).await.unwrap().rows_affected(), 1);
    }
}

impl CallsSubject for Calls {
    type Calls = PgIdempotency;

    fn calls(&self) -> PgIdempotency {
        let calls = PgIdempotency::new(self.service.clone(), self.name.clone());
        if self.kind == Kind::Pooled { calls.unprepared() } else { calls }
    }

    fn sweep(&self) -> PgIdempotency {
        PgIdempotency::new(self.cleaner.clone(), self.name.clone())
    }

    fn outbox(&self) -> Outbox {
        let outbox = Outbox::new(self.name.clone());
        if self.kind == Kind::Pooled { outbox.unprepared() } else { outbox }
    }

    fn writers_overlap(&self) -> bool {
        // Where everything is serializable, who was overtaken fails with the database's own error.
        self.kind != Kind::Serializable
    }

    async fn expire(&self, call: &Call) {
        let sql = "UPDATE org_idempotency SET lease_until = now() - make_interval(hours => 1)
                   WHERE idempotency_key = $1 AND $2::float8 = 0";
        self.change(sql, call, Duration::ZERO).await;
    }

    async fn make_older(&self, call: &Call, by: Duration) {
        let sql = "UPDATE org_idempotency SET created_at = created_at - make_interval(secs => $2) WHERE idempotency_key = $1";
        self.change(sql, call, by).await;
    }

    async fn effect(&self, tx: &mut PgOutboxTransaction) {
        sqlx::query("INSERT INTO effect VALUES (1)").persistent(false).execute(&mut ***tx).await.unwrap();
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM org_outbox)";
        sqlx::query_as(books).fetch_one(&self.owner).await.unwrap()
    }
}

/// After an error that nobody looked at, the server answers COMMIT with ROLLBACK, which drivers take for success. To store the answer,
/// the last statement before it, fails then; and nothing but the end of the session ends such a transaction by itself.
#[tokio::test]
async fn an_error_that_was_ignored_comes_to_light() {
    let calls = Calls::new(Kind::Plain).await;
    let call = call("ignored");
    let Begun::Run(ticket) = calls.calls().begin(&call, Duration::from_mins(1)).await.unwrap() else {
        panic!("it is the first")
    };
    let mut tx = calls.calls().transaction().await.unwrap();
    calls.effect(&mut tx).await;
    sqlx::query("SELECT 1 / 0").execute(&mut **tx).await.unwrap_err();
    let error = ticket.finish_in(&mut tx, &StoredResponse::new(201).body("done")).await.unwrap_err();
    assert!(matches!(error, FinishError::Database(_)), "{error}");
    tx.rollback().await.unwrap();
    assert_eq!(calls.books().await, (0, 0));
    let again = calls.calls().begin(&call, Duration::from_mins(1)).await.unwrap();
    assert!(matches!(again, Begun::Busy { .. }), "{again:?}");
}

#[tokio::test]
async fn the_table_is_made_kept_and_removed() {
    let db = PgServer::shared().database();
    let table: TableName = "public.org_outbox".parse().unwrap();
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    migrate::up(&mut connection, &table, |_| {}).await.unwrap();
    assert!(!migrate::has_idempotency(&mut connection, &table).await.unwrap());
    let pool = PgPool::connect(&db.url).await.unwrap();
    let error = PgIdempotency::new(pool, table.clone()).begin(&call("k"), Duration::from_secs(1)).await;
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::IdempotencyMissing);
    assert!(error.message().contains("migrate up --idempotency --table public.org_outbox"), "{error}");
    let mut up = async |extras| {
        let plan = migrate::up_with(&mut connection, &table, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect::<Vec<_>>()
    };
    assert_eq!(up(with_calls()).await, ["+ table org_idempotency", "+ index org_idempotency_by_time"]);
    assert!(up(with_calls()).await.is_empty(), "a second run has nothing to do");
    db.psql("DROP INDEX org_idempotency_by_time");
    assert!(up(Extras::default()).await.last().unwrap().starts_with("+ index org_idempotency_by_time"));
    assert!(up(Extras::default()).await.is_empty(), "what is there is kept without being asked for");
    migrate::down(&mut connection, &table, false).await.unwrap();
    assert_eq!(db.psql("SELECT to_regclass('org_idempotency') IS NULL"), "t");
    // As printed, up and down and up again.
    for _ in 0..2 {
        for sql in [
            migrate::print_up_with(&table, migrate::Format::Sql, with_calls()),
            migrate::print_down_with(&table, with_calls()),
        ] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        }
    }
    assert_eq!(db.psql("SELECT to_regclass('org_idempotency') IS NULL"), "t");
}

#[tokio::test]
async fn anothers_table_is_left_alone() {
    let db = PgServer::shared().database();
    let table: TableName = "public.org_outbox".parse().unwrap();
    db.psql("CREATE TABLE org_idempotency (principal int)");
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    let error = migrate::up_with(&mut connection, &table, with_calls(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.message().contains("no principal text"), "{error}");
    migrate::up(&mut connection, &table, |_| {}).await.unwrap();
    migrate::down(&mut connection, &table, false).await.unwrap();
    assert_eq!(db.psql("SELECT count(*) FROM org_idempotency"), "0");
}

/// Nothing that changes is indexed, and a page has room: to finish a call writes no index.
#[tokio::test]
async fn to_finish_a_call_writes_no_index() {
    let calls = Calls::new(Kind::Plain).await;
    for n in 0..20 {
        let call = call(&format!("call {n}"));
        let Begun::Run(ticket) = calls.calls().begin(&call, Duration::from_mins(1)).await.unwrap() else {
            panic!("it is the first")
        };
        let answer = StoredResponse::new(201).body("done");
        assert!(calls.calls().finish(&ticket, &answer).await.unwrap());
    }
    postbox_testkit::eventually("the statistics", Duration::from_secs(30), async || {
        let updates =
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'org_idempotency'";
        let (all, hot): (i64, i64) = sqlx::query_as(updates).fetch_one(&calls.owner).await.unwrap();
        assert_eq!(all, hot, "every update stays on its page");
        all == 20
    })
    .await;
}
