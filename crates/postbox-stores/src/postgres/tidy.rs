//! Vacuum: room that settled rows have left becomes usable before the table has grown by it.
//!
//! The server's own looks once a minute by default (`autovacuum_naptime`), whatever the table says of itself; at 50,000 events a second
//! that is a gigabyte. Whoever does not own the table leaves it to the server.

use postbox_core::StoreError;
use postbox_core::cleaner::Tidied;
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use super::admin::PgAdmin;
use super::ask::{self, ask};
use super::error::classify;
use super::history;

/// A table is worth it from so many dead rows on, and one of these for so many live ones.
const LEAST: i64 = 50_000;
const LIVE_FOR_ONE_DEAD: i64 = 5;

/// The table and its history, if they are this role's and have many dead rows: their names, and how many.
const NEEDY: &str = "SELECT format('%I.%I', s.schemaname, s.relname), s.n_dead_tup
    FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
    WHERE c.oid = ANY (ARRAY[to_regclass($1), to_regclass($2)]::oid[]) AND pg_has_role(c.relowner, 'USAGE')
      AND s.n_dead_tup > $3 + s.n_live_tup / $4";

impl PgAdmin {
    pub(super) async fn vacuum(&self) -> Result<Tidied, StoreError> {
        let (table, history) = (self.table().quoted('"'), history::quoted(self.table()));
        let needy = ask(NEEDY).bind(table).bind(history).bind(LEAST).bind(LIVE_FOR_ONE_DEAD);
        let mut tidied = Tidied::Nothing;
        for row in ask::all(&self.pool, needy).await? {
            let (name, dead): (String, i64) = (row.get(0), row.get(1));
            vacuum(&self.pool, &name).await?;
            let left = ask("SELECT coalesce(pg_stat_get_dead_tuples(to_regclass($1)), 0)").bind(&name);
            let left: i64 = ask::one(&self.pool, left).await?.get(0);
            tracing::debug!(table = name, dead, left, "vacuumed");
            tidied = if left > dead / 2 { Tidied::Held } else { Tidied::Done };
        }
        Ok(tidied)
    }
}

/// Where the server is at it already, nothing happens. The file is not made shorter: that needs a lock which stops all others, and
/// the room is needed again.
async fn vacuum(pool: &PgPool, table: &str) -> Result<(), StoreError> {
    let sql = format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {table}");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop).map_err(classify)
}
