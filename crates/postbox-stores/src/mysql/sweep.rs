//! The cleaner's work: what is past its retention is found without a lock, and deleted if nobody has it.

use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::admin::{Looked, MySqlAdmin, count};
use super::clause::Clause;
use super::clause::{bind_list, with_list};
use super::clock::span;
use super::error::{classify, within};
use super::leader::lock_name;
use super::link::{OPERATION_LIMIT, Taken, Tries};

/// What was published before. ? microseconds
const PUBLISHED: &str = "published_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";

/// What has been dead since before, unless it holds back others. ? microseconds
const DEAD: &str = "t.published_at IS NULL AND t.dead_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";

impl Sweep for MySqlAdmin {
    fn table(&self) -> &str {
        &self.0.label
    }

    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let looked = self.0.looked().await?;
        let name = lock_name("clean", &looked.schema, self.table());
        let mut tries = Tries::new();
        loop {
            let mut link = self.0.link.take().await?;
            // One cleaner at a time. The end of the session gives the lock back, too.
            let alone = sqlx::query_scalar::<_, Option<bool>>("SELECT GET_LOCK(?, 0) = 1").bind(&name);
            let alone = within(OPERATION_LIMIT, alone.fetch_one(&mut link.connection)).await?;
            if alone != Some(true) {
                link.keep();
                return Ok(Swept::Busy);
            }
            let swept = async {
                let deleted = sweep(&mut link, looked, request).await?;
                // All: it may have been taken once more for each try.
                let unlock = sqlx::query("DO RELEASE_ALL_LOCKS()").execute(&mut link.connection);
                within(OPERATION_LIMIT, unlock).await?;
                Ok::<_, StoreError>(deleted)
            };
            let swept = swept.await;
            match swept {
                Ok(deleted) => {
                    link.keep();
                    return Ok(Swept::Deleted(deleted));
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    async fn sweep_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        self.clean_inbox(retention, batch).await
    }
}

async fn sweep(link: &mut Taken<'_>, looked: &Looked, request: &SweepRequest) -> Result<u64, StoreError> {
    let mut found = published(looked, "{{table}}", "{{by_pending}}", request, request.batch);
    let mut deleted = delete(link, looked, "{{table}}", &found).await?;
    let room = |deleted: u64| request.batch.saturating_sub(u32::try_from(deleted).unwrap_or(u32::MAX));
    if let Some(dead) = dead(looked, request, "t.sequence", room(deleted)) {
        deleted += delete(link, looked, "{{table}}", &dead).await?;
    }
    if looked.history.is_some() && room(deleted) > 0 {
        found = published(looked, "{{history}}", "{{by_history}}", request, room(deleted));
        deleted += delete(link, looked, "{{history}}", &found).await?;
    }
    Ok(deleted)
}

/// Finds what was published long enough ago.
fn published(looked: &Looked, table: &str, index: &str, request: &SweepRequest, rows: u32) -> Clause {
    let sql = format!("SELECT sequence FROM {table} {index} WHERE {PUBLISHED} ORDER BY published_at LIMIT ?");
    Clause::new(looked.template.fill(&sql)).with(span(request.retention)).with(i64::from(rows))
}

/// Finds, or counts, what has been dead for long enough; none if dead rows are kept, or there is no room.
fn dead(looked: &Looked, request: &SweepRequest, what: &str, rows: u32) -> Option<Clause> {
    let retention = request.dead_retention.filter(|_| rows > 0)?;
    let sent = if request.dead_letters { " AND t.dlq_at IS NOT NULL" } else { "" };
    let mut clause = Clause::new(looked.template.fill(&format!(
        "SELECT {what} FROM {{{{table}}}} AS t {{{{by_pending}}}} WHERE {DEAD} AND NOT {{{{kept}}}}{sent}"
    )))
    .with(span(retention));
    if what == "t.sequence" {
        clause.push(" ORDER BY t.dead_at LIMIT ?", [i64::from(rows).into()]);
    }
    Some(clause)
}

/// Deletes what was found, if it is still so and nobody has it locked; answers how many rows.
async fn delete(
    link: &mut Taken<'_>,
    looked: &Looked,
    table: &str,
    found: &Clause,
) -> Result<u64, StoreError> {
    let mut sequences = sequences(&mut link.connection, found).await?;
    if sequences.is_empty() {
        return Ok(0);
    }
    sequences.sort_unstable();
    link.begin().await?;
    // What was replayed meanwhile is neither published nor dead any more.
    let sql = format!(
        "SELECT sequence FROM {table} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)
           AND (published_at IS NOT NULL OR dead_at IS NOT NULL) FOR UPDATE SKIP LOCKED"
    );
    let lock = sqlx::query(AssertSqlSafe(with_list(&looked.template.fill(&sql), sequences.len())));
    let rows = bind_list(lock, &sequences).fetch_all(&mut link.connection);
    let rows = within(OPERATION_LIMIT, rows).await?;
    let had: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)?;
    let mut deleted = 0;
    if !had.is_empty() {
        let sql = looked.template.fill(&format!("DELETE FROM {table} WHERE sequence IN (<in>)"));
        let delete = sqlx::query(AssertSqlSafe(with_list(&sql, had.len())));
        let delete = bind_list(delete, &had).execute(&mut link.connection);
        deleted = within(OPERATION_LIMIT, delete).await?.rows_affected();
    }
    link.commit().await?;
    Ok(deleted)
}

async fn sequences(connection: &mut MySqlConnection, found: &Clause) -> Result<Vec<i64>, StoreError> {
    let rows = within(OPERATION_LIMIT, found.query().fetch_all(connection)).await?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)
}

impl SweepCount for MySqlAdmin {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let looked = self.0.looked().await?;
        let mut due = Due::default();
        let mut tables = vec![("{{table}}", "{{by_pending}}")];
        if looked.history.is_some() {
            tables.push(("{{history}}", "{{by_history}}"));
        }
        for (table, index) in tables {
            let sql =
                looked.template.fill(&format!("SELECT COUNT(*) FROM {table} {index} WHERE {PUBLISHED}"));
            due.published += count(&self.0.row(&Clause::new(sql).with(span(request.retention))).await?, 0)?;
        }
        if let Some(dead) = dead(looked, request, "COUNT(*)", u32::MAX) {
            due.dead = count(&self.0.row(&dead).await?, 0)?;
        }
        Ok(due)
    }
}
