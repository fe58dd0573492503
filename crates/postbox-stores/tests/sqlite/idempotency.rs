//! Calls by idempotency key: the suite, and the table's migration.

use std::time::Duration;

use postbox_core::idempotency::{Begun, Call, IdempotencyStore as _, StoredResponse};
use postbox_core::{Code, Outbox};
use postbox_stores::sqlite::migrate::{self, Extras};
use postbox_stores::sqlite::{SqliteIdempotency, SqliteOutboxTransaction};
use postbox_testkit::suite::idempotency::{CallsSubject, call};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqlitePoolOptions;

use crate::subject::Table;

postbox_testkit::idempotency_suite!(migrated, Calls::new());

const LEASE: Duration = Duration::from_mins(1);

struct Calls(Table);

fn with_calls() -> Extras {
    Extras { idempotency: true, ..Extras::default() }
}

impl Calls {
    async fn new() -> Self {
        let table = Table::new().await;
        let mut connection = table.pool.acquire().await.unwrap();
        migrate::up_with(&mut connection, &table.name, with_calls(), |_| {}).await.unwrap();
        drop(connection);
        table.sql("CREATE TABLE effect (n INTEGER)").await.unwrap();
        Self(table)
    }

    async fn change(&self, sql: &'static str, call: &Call, by: Duration) {
        let change = sqlx::query(sql).bind(call.key()).bind(i64::try_from(by.as_micros()).unwrap());
        assert_eq!(change.execute(&self.0.pool).await.unwrap().rows_affected(), 1);
    }
}

impl CallsSubject for Calls {
    type Calls = SqliteIdempotency;

    fn calls(&self) -> SqliteIdempotency {
        SqliteIdempotency::new(self.0.pool.clone(), self.0.name.clone())
    }

    fn outbox(&self) -> Outbox {
        self.0.outbox()
    }

    fn writers_overlap(&self) -> bool {
        false
    }

    async fn expire(&self, call: &Call) {
        let sql = "UPDATE org_idempotency SET lease_until = lease_until - ?2 WHERE idempotency_key = ?1";
        self.change(sql, call, Duration::from_hours(1)).await;
    }

    async fn make_older(&self, call: &Call, by: Duration) {
        let sql = "UPDATE org_idempotency SET created_at = created_at - ?2 WHERE idempotency_key = ?1";
        self.change(sql, call, by).await;
    }

    async fn effect(&self, tx: &mut SqliteOutboxTransaction) {
        sqlx::query("INSERT INTO effect VALUES (1)").execute(&mut ***tx).await.unwrap();
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM org_outbox)";
        sqlx::query_as(books).fetch_one(&self.0.pool).await.unwrap()
    }
}

/// A handler that has ended its transaction, or ignored that SQLite did, stores no answer; and its connection is fit for others.
#[tokio::test]
async fn in_a_transaction_that_has_ended_no_answer_is_stored() {
    let subject = Calls::new().await;
    let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(subject.0.options.clone());
    let (calls, call) = (SqliteIdempotency::new(pool, subject.0.name.clone()), call("ended"));
    let Begun::Run(ticket) = calls.begin(&call, LEASE).await.unwrap() else { panic!("it is new") };
    let mut tx = calls.transaction().await.unwrap();
    subject.effect(&mut tx).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await.unwrap();
    let error = ticket.finish_in(&mut tx, &StoredResponse::new(201)).await.unwrap_err();
    assert!(!error.is_lost(), "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(subject.books().await, (0, 0));
    assert!(matches!(calls.begin(&call, LEASE).await.unwrap(), Begun::Busy { .. }), "it is not done");
    let mut tx = calls.transaction().await.unwrap();
    subject.effect(&mut tx).await;
    ticket.finish_in(&mut tx, &StoredResponse::new(201)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(subject.books().await, (1, 0));
}

#[tokio::test]
async fn the_table_is_made_kept_and_removed() {
    let table = Table::new().await;
    let mut connection = table.pool.acquire().await.unwrap();
    assert!(!migrate::has_idempotency(&mut connection, &table.name).await.unwrap());
    let calls = SqliteIdempotency::new(table.pool.clone(), "main.org_outbox".parse().unwrap());
    let error = calls.begin(&call("k"), Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::IdempotencyMissing);
    assert!(error.message().contains("migrate up --idempotency --table org_outbox"), "{error}");
    let mut up = async |extras| {
        let plan = migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect::<Vec<_>>()
    };
    assert_eq!(up(with_calls()).await, ["+ table org_idempotency", "+ index org_idempotency_by_time"]);
    assert!(up(with_calls()).await.is_empty(), "a second run has nothing to do");
    table.sql("DROP INDEX org_idempotency_by_time").await.unwrap();
    assert_eq!(up(Extras::default()).await.last().unwrap(), "+ index org_idempotency_by_time");
    assert!(up(Extras::default()).await.is_empty(), "what is there is kept without being asked for");
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    let there = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'org_idempotency%'";
    assert_eq!(table.number(there).await, 0);
    // As printed, up and down and up again.
    for _ in 0..2 {
        for sql in [
            migrate::print_up_with(&table.name, migrate::Format::Sql, with_calls()).unwrap(),
            migrate::print_down_with(&table.name, with_calls()).unwrap(),
        ] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
        }
    }
    assert_eq!(table.number(there).await, 0);
}

#[tokio::test]
async fn anothers_table_is_left_alone() {
    let table = Table::new().await;
    table.sql("CREATE TABLE org_idempotency (principal INTEGER)").await.unwrap();
    let mut connection = table.pool.acquire().await.unwrap();
    let error = migrate::up_with(&mut connection, &table.name, with_calls(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    assert_eq!(table.number("SELECT count(*) FROM org_idempotency").await, 0);
}
