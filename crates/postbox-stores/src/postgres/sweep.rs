//! The cleaner's work: what is past its retention is deleted, a batch at a time, and the room that rows have left becomes usable.
//!
//! The server's own vacuum looks once a minute by default (`autovacuum_naptime`), whatever the table says of itself; at 50,000 events a
//! second that is a gigabyte. Whoever does not own the table leaves it to the server; and so does whoever reaches it through a pooler,
//! one of whose few server processes would be busy with it for as long as it takes.

use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept, Tidied};
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

impl Sweep for PgAdmin {
    fn table(&self) -> &str {
        &self.label
    }

    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let looked = self.looked().await?;
        let sql = looked.template.fill(match looked.history {
            Some(_) => include_str!("sql/sweep_history.sql"),
            None => include_str!("sql/sweep.sql"),
        });
        let query = ask(sql)
            .bind(super::store::fnv1a(&format!("outbox-cleaner:{}", looked.key)))
            .bind(request.retention.as_secs_f64())
            .bind(request.dead_retention.map(|retention| retention.as_secs_f64()))
            .bind(i64::from(request.batch))
            .bind(request.dead_letters);
        let row = ask::one(&self.pool, query).await?;
        let free: bool = row.try_get(0).map_err(classify)?;
        let rows: i64 = row.try_get(1).map_err(classify)?;
        Ok(if free { Swept::Deleted(u64::try_from(rows).unwrap_or(0)) } else { Swept::Busy })
    }

    async fn sweep_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        self.clean_inbox(retention, batch).await
    }

    async fn tidy(&self) -> Result<Tidied, StoreError> {
        self.vacuum().await
    }
}

impl SweepCount for PgAdmin {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let looked = self.looked().await?;
        let moved = match looked.history {
            Some(_) => {
                " + (SELECT count(*) FROM {{history}} WHERE published_at < now() - make_interval(secs => $1))"
            }
            None => "",
        };
        let sql =
            "SELECT (SELECT count(*) FROM {{table}} WHERE published_at < now() - make_interval(secs => $1)){{moved}},
                    (SELECT count(*) FROM {{table}} t
                     WHERE {{dead}} AND {{dead_since}} < now() - make_interval(secs => $2) AND {{holds_nobody}}
                       AND NOT ($3 AND {{letter}}))";
        let sql = looked.template.fill(&sql.replace("{{moved}}", moved));
        let query = ask(sql)
            .bind(request.retention.as_secs_f64())
            .bind(request.dead_retention.map(|retention| retention.as_secs_f64()))
            .bind(request.dead_letters);
        let row = ask::one(&self.pool, query).await?;
        let number = |place| -> Result<u64, StoreError> {
            Ok(u64::try_from(row.try_get::<i64, _>(place).map_err(classify)?).unwrap_or(0))
        };
        Ok(Due { published: number(0)?, dead: number(1)? })
    }
}

impl PgAdmin {
    async fn vacuum(&self) -> Result<Tidied, StoreError> {
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
