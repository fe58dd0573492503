//! Handlers whose transaction ends before its time, on a real PostgreSQL, a real MariaDB and a SQLite file: no message counts as done
//! without its effect.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use postbox_consumers::{Consumer, Handler, Message, Webhook};
use postbox_core::inbox::InboxDriver;
use postbox_core::{ConsumerName, HandlerResult, Inbox, OutboxTransaction, TableName};
use postbox_stores::mysql::{self, SqlxMySql};
use postbox_stores::postgres::{self, SqlxPostgres};
use postbox_stores::sqlite::{self, SqlxSqlite};
use postbox_testkit::{MariaDb, MariaDbServer};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{MySqlConnection, MySqlPool};

const EFFECTS: &str = "CREATE TABLE effects (message_id VARCHAR(100) NOT NULL)";
const EFFECT: &str = "INSERT INTO effects (message_id) VALUES ('m')";
const COUNT: &str = "SELECT COUNT(*) FROM effects";

static STOCK: ConsumerName = ConsumerName::from_static("stock");

fn table() -> TableName {
    "stock_outbox".parse().unwrap()
}

/// Has its effect, and at its first run ends the transaction.
#[derive(Default)]
struct EndsAtFirst(AtomicBool);

impl EndsAtFirst {
    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }
}

impl Handler<SqlxPostgres> for EndsAtFirst {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxPostgres>, _: &Message) -> HandlerResult {
        sqlx::query(EFFECT).execute(&mut ***tx).await?;
        if self.is_first() {
            sqlx::raw_sql("ROLLBACK").execute(&mut ***tx).await?;
        }
        Ok(())
    }
}

impl Handler<SqlxSqlite> for EndsAtFirst {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxSqlite>, _: &Message) -> HandlerResult {
        sqlx::query(EFFECT).execute(&mut ***tx).await?;
        if self.is_first() {
            sqlx::raw_sql("ROLLBACK").execute(&mut ***tx).await?;
        }
        Ok(())
    }
}

impl Handler<SqlxMySql> for EndsAtFirst {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxMySql>, _: &Message) -> HandlerResult {
        sqlx::query(EFFECT).execute(&mut ***tx).await?;
        if self.is_first() {
            sqlx::raw_sql("ROLLBACK").execute(&mut ***tx).await?;
        }
        Ok(())
    }
}

/// Meets somebody at its first run, and does not look at the error.
struct DeadlockAtFirst {
    ends: EndsAtFirst,
    others: MySqlPool,
}

impl Handler<SqlxMySql> for DeadlockAtFirst {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxMySql>, _: &Message) -> HandlerResult {
        sqlx::query(EFFECT).execute(&mut ***tx).await?;
        if self.ends.is_first() {
            meet(tx, &self.others).await;
        }
        Ok(())
    }
}

/// A deadlock, of which the server gives up the one that has changed less: ours.
async fn meet(ours: &mut MySqlConnection, others: &MySqlPool) {
    sqlx::query("UPDATE account SET n = 1 WHERE id = 1").execute(&mut *ours).await.unwrap();
    let mut other = others.begin().await.unwrap();
    sqlx::query("UPDATE account SET n = 2 WHERE id > 1").execute(&mut *other).await.unwrap();
    let (crossing, through) = tokio::join!(
        sqlx::query("UPDATE account SET n = 1 WHERE id = 2").execute(&mut *ours),
        sqlx::query("UPDATE account SET n = 2 WHERE id = 1").execute(&mut *other),
    );
    through.unwrap();
    let error = crossing.unwrap_err().into_database_error().unwrap();
    assert!(error.message().contains("Deadlock"), "{error}");
    other.commit().await.unwrap();
}

/// The sender is told to come again once, and then that it is done.
async fn is_done_at_the_second<D: InboxDriver>(hook: Webhook<D>) {
    let send = async || {
        let request = Request::post("/hooks").header("webhook-id", "m").body(Body::from("{}")).unwrap();
        hook.receive(request).await.status()
    };
    assert_eq!(send().await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send().await, StatusCode::NO_CONTENT);
    assert_eq!(send().await, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_rollback_of_the_handlers_own_loses_no_effect_on_postgres() {
    let db = postbox_testkit::postgres_or_skip!().database();
    let pool = PgPoolOptions::new().max_connections(1).connect(&db.url).await.unwrap();
    let extras = postgres::migrate::Extras { inbox: true, ..Default::default() };
    postgres::migrate::up_with(&mut pool.acquire().await.unwrap(), &table(), extras, |_| {}).await.unwrap();
    sqlx::query(EFFECTS).execute(&pool).await.unwrap();
    let consumer = Consumer::new(&pool, Inbox::new(table()), STOCK.clone(), EndsAtFirst::default());
    is_done_at_the_second(Webhook::unsigned(consumer)).await;
    assert_eq!(sqlx::query_scalar::<_, i64>(COUNT).fetch_one(&pool).await.unwrap(), 1);
}

#[tokio::test]
async fn a_rollback_of_the_handlers_own_loses_no_effect_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("stock.db").display());
    let options = sqlite::connect_options(&url).unwrap();
    // One: the connection on which it happened must be fit for the next try.
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let extras = sqlite::migrate::Extras { inbox: true, ..Default::default() };
    sqlite::migrate::up_with(&mut pool.acquire().await.unwrap(), &table(), extras, |_| {}).await.unwrap();
    sqlx::query(EFFECTS).execute(&pool).await.unwrap();
    let consumer = Consumer::new(&pool, Inbox::new(table()), STOCK.clone(), EndsAtFirst::default());
    is_done_at_the_second(Webhook::unsigned(consumer)).await;
    assert_eq!(sqlx::query_scalar::<_, i64>(COUNT).fetch_one(&pool).await.unwrap(), 1);
}

/// A stock on MariaDB.
async fn on_mariadb() -> (MariaDb, MySqlPool) {
    let db = MariaDbServer::shared().database();
    let options = mysql::connect_options(&db.url).unwrap();
    let pool = MySqlPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
    let extras = mysql::migrate::Extras { inbox: true, ..Default::default() };
    mysql::migrate::up_with(&mut pool.acquire().await.unwrap(), &table(), extras, |_| {}).await.unwrap();
    sqlx::query(EFFECTS).execute(&pool).await.unwrap();
    (db, pool)
}

#[tokio::test]
async fn a_rollback_of_the_handlers_own_loses_no_effect_on_mariadb() {
    let (_db, pool) = on_mariadb().await;
    let consumer = Consumer::new(&pool, Inbox::new(table()), STOCK.clone(), EndsAtFirst::default());
    is_done_at_the_second(Webhook::unsigned(consumer)).await;
    assert_eq!(sqlx::query_scalar::<_, i64>(COUNT).fetch_one(&pool).await.unwrap(), 1);
}

/// A deadlock rolls back everything, the memory of the message as well, and the session goes on without a transaction: whatever is written
/// then is committed at once.
#[tokio::test]
async fn a_deadlock_that_the_handler_ignores_loses_no_effect() {
    let (db, pool) = on_mariadb().await;
    db.sql(
        "CREATE TABLE account (id INT PRIMARY KEY, n INT) ENGINE = InnoDB; INSERT INTO account SELECT seq, 0 FROM seq_1_to_100",
    );
    let handler = DeadlockAtFirst { ends: EndsAtFirst::default(), others: pool.clone() };
    let consumer = Consumer::new(&pool, Inbox::new(table()), STOCK.clone(), handler);
    is_done_at_the_second(Webhook::unsigned(consumer)).await;
    assert_eq!(sqlx::query_scalar::<_, i64>(COUNT).fetch_one(&pool).await.unwrap(), 1);
}
