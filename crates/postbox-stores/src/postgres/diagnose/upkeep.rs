//! What the server does for the table behind everybody's back: vacuum, and indexes that only cost.

use postbox_core::{Code, Finding, StoreError, TableName};
use sqlx::Row as _;
use sqlx::postgres::PgPool;

use super::room::size;
use crate::postgres::ask::{self, ask};
use crate::postgres::error::classify;
use crate::postgres::migrate::INDEXES;
use crate::postgres::{order, tenants};

/// From so many dead row versions on the cleaner vacuums by itself (ADR 18): as many, and more than live ones, are too many.
const MANY_DEAD: i64 = 50_000;
const FAR_TOO_MANY_DEAD: i64 = 1_000_000;

/// The row of a relay is written with every batch: its table is tiny, and a thousandth of that many hurts each claim.
const MANY_DEAD_OF_RELAY: i64 = 10_000;

/// A smaller index that nobody uses costs too little to speak of.
const LARGE_INDEX: i64 = 16 << 20;

/// Whether vacuum comes, and how much it has left behind.
pub(super) async fn vacuum(pool: &PgPool, table: &TableName) -> Result<Vec<Finding>, StoreError> {
    let asked = ask(
        "SELECT c.oid::regclass::text, s.n_live_tup, s.n_dead_tup,
                extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::bigint,
                coalesce((SELECT bool_or(o.option_value IN ('false', 'off', 'no', '0'))
                          FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled'), false),
                current_setting('autovacuum') = 'off' OR current_setting('track_counts') = 'off',
                c.oid = to_regclass($1)
         FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
         WHERE c.oid = ANY (ARRAY[to_regclass($1), to_regclass($2)]::oid[]) ORDER BY c.oid <> to_regclass($1)",
    );
    let asked = asked.bind(table.quoted('"')).bind(table.quoted_sibling("postbox_relay", '"'));
    let mut findings = Vec::new();
    for row in ask::all(pool, asked).await? {
        let read = || -> Result<Vec<Finding>, sqlx::Error> {
            let name: String = row.try_get(0)?;
            let (live, dead): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
            let (ago, own): (Option<i64>, bool) = (row.try_get(3)?, row.try_get(6)?);
            let mut found = Vec::new();
            if row.try_get(5)? && own {
                let what = "autovacuum or track_counts is off for the whole server".to_owned();
                let fix = "set autovacuum = on and track_counts = on, and reload the server";
                found.push(Finding::wrong("vacuum", Code::AutovacuumOff, what, fix));
            }
            if row.try_get(4)? {
                let what =
                    format!("autovacuum is off for {name}, where every event leaves dead row versions");
                let fix = format!("ALTER TABLE {name} RESET (autovacuum_enabled)");
                found.push(Finding::wrong("vacuum", Code::AutovacuumOff, what, fix));
            }
            let since = match ago {
                Some(seconds) => format!("last vacuumed {seconds}s ago"),
                None => "never vacuumed".to_owned(),
            };
            let what = format!("{name} has {dead} dead row versions beside {live} live rows, {since}");
            let fix = format!("VACUUM {name}; if they stay, somebody holds an old snapshot");
            let many = if own { MANY_DEAD.max(live) } else { MANY_DEAD_OF_RELAY };
            if dead > FAR_TOO_MANY_DEAD.max(live) {
                found.push(Finding::wrong("vacuum", Code::TableBloated, what, fix));
            } else if dead > many {
                found.push(Finding::doubtful("vacuum", Code::TableBloated, what, fix));
            } else if own && found.is_empty() {
                found.push(Finding::good("vacuum", what));
            }
            Ok(found)
        };
        findings.extend(read().map_err(classify)?);
    }
    Ok(findings)
}

/// Large indexes that nothing has read by. Those that a relay, a cleaner or a count goes by are needed sooner or later.
pub(super) async fn unused_indexes(pool: &PgPool, table: &TableName) -> Result<Vec<Finding>, StoreError> {
    let ends = INDEXES.iter().map(|(end, ..)| *end).filter(|end| *end != "tenant_published");
    let ends = ends.chain(order::INDEXES.iter().map(|(end, _)| *end)).chain([tenants::INDEX.0]);
    let needed: Vec<String> = ends.map(|end| format!("{}_{end}", table.table())).collect();
    let asked = ask(
        "SELECT s.indexrelid::regclass::text, pg_relation_size(s.indexrelid),
                coalesce(to_char((SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()), 'YYYY-MM-DD'), '')
         FROM pg_stat_user_indexes s JOIN pg_index x ON x.indexrelid = s.indexrelid
         WHERE s.relid = to_regclass($1) AND s.idx_scan = 0 AND x.indisvalid AND NOT x.indisunique
           AND NOT s.indexrelname = ANY ($2) AND pg_relation_size(s.indexrelid) >= $3
         ORDER BY 2 DESC LIMIT 10",
    );
    let rows = ask::all(pool, asked.bind(table.quoted('"')).bind(needed).bind(LARGE_INDEX)).await?;
    let read = |row: &sqlx::postgres::PgRow| -> Result<Finding, sqlx::Error> {
        let (name, bytes, since): (String, i64, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let since = if since.is_empty() { String::new() } else { format!(" since {since}") };
        let what = format!("index {name} was never used{since} ({})", size(bytes));
        Ok(Finding::doubtful("indexes", Code::IndexUnused, what, format!("DROP INDEX CONCURRENTLY {name}")))
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
}
