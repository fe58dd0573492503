//! Vacuum: room that settled rows have left becomes usable before the table has grown by it.
//!
//! The server's own looks once a minute by default (`autovacuum_naptime`), whatever the table says of itself; at 50,000 events a second
//! that is a gigabyte. Whoever does not own the table leaves it to the server; and so does whoever reaches it through a pooler, one of
//! whose few server processes would be busy with it for as long as it takes.

use postbox_core::StoreError;
use postbox_core::cleaner::Tidied;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Row as _};

use super::admin::PgAdmin;
use super::ask::{self, ask};
use super::error::classify;
use super::history;

/// A table is worth it from so many dead rows on, and one of these for so many live ones.
const LEAST: i64 = 50_000;
const LIVE_FOR_ONE_DEAD: i64 = 5;

/// How long a vacuum may take.
const LONGEST: &str = "5min";

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
        let needy = ask::all(&self.pool, needy).await?;
        if needy.is_empty() || self.is_pooled().await? {
            return Ok(tidied);
        }
        for row in needy {
            let (name, dead): (String, i64) = (row.get(0), row.get(1));
            vacuum(&self.pool, &name).await?;
            let left = ask("SELECT coalesce(pg_stat_get_dead_tuples(to_regclass($1)), 0)").bind(&name);
            let left: i64 = ask::one(&self.pool, left).await?.get(0);
            tracing::debug!(table = name, dead, left, "vacuumed");
            if left > dead / 2 {
                tidied = Tidied::Held;
            } else if tidied == Tidied::Nothing {
                tidied = Tidied::Done;
            }
        }
        Ok(tidied)
    }

    async fn is_pooled(&self) -> Result<bool, StoreError> {
        let [mut one, mut other] = [connect(&self.pool).await?, connect(&self.pool).await?];
        ask::is_pooled([&mut one, &mut other]).await.map_err(classify)
    }
}

/// Where the server is at it already, nothing happens. The file is not made shorter: that needs a lock which stops all others, and
/// the room is needed again. On a connection of its own, which ends with this: nobody waits for the vacuum, neither at a stop nor for
/// a connection of the pool; and not without a limit, since changes of the table wait for it.
async fn vacuum(pool: &PgPool, table: &str) -> Result<(), StoreError> {
    let mut connection = connect(pool).await?;
    for sql in [
        format!("SET statement_timeout = '{LONGEST}'"),
        format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {table}"),
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map_err(classify)?;
    }
    connection.close().await.map_err(classify)
}

async fn connect(pool: &PgPool) -> Result<PgConnection, StoreError> {
    let options = pool.connect_options().as_ref().clone().statement_cache_capacity(0);
    options.connect().await.map_err(classify)
}
