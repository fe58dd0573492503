//! For tests: how SQLite would run a statement, whatever it has been told of the table.

use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection};

use super::migrate::{Extras, Format, print_up_with};
use super::schema::names;
use crate::table::Template;

/// A table after each of several lives, with the statistics of each: new and never counted, all waiting, most of it
/// published, all of it published, all of it dead. None of them tells what the table will be like tomorrow.
pub(super) async fn lives() -> Vec<(&'static str, SqliteConnection, Template)> {
    let table = "org_outbox".parse().unwrap();
    let mut lives = Vec::new();
    for (life, sql) in [
        ("new", "SELECT 1"),
        ("waiting", "ANALYZE"),
        ("mostly published", "UPDATE org_outbox SET published_at = sequence WHERE sequence < 2900; ANALYZE"),
        ("published", "UPDATE org_outbox SET published_at = sequence; ANALYZE"),
        ("dead", "UPDATE org_outbox SET dead_at = sequence; ANALYZE"),
    ] {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let extras = Extras { tenants: true, ..Extras::default() };
        let ddl = print_up_with(&table, Format::Sql, extras).unwrap();
        let rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 3000)
            INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
            SELECT zeroblob(16), 't', '{}', randomblob(16) FROM n";
        for sql in [&ddl, rows, sql] {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        }
        let names = names(&mut connection, &table).await.unwrap();
        lives.push((life, connection, names));
    }
    lives
}

/// The plan of a statement, a line for each step.
pub(super) async fn plan(connection: &mut SqliteConnection, sql: &str) -> String {
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    let rows = sqlx::query(explain).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(3) + "\n").collect()
}
