//! `<module>_inbox`: messages recorded in a transaction, whatever the driver; listed, forgotten and cleaned.

use std::time::Duration;

use postbox_core::cleaner::Swept;
use postbox_core::{
    InboxAdmin, InboxDriver, InboxEntry, InboxFilter, InboxPage, InboxRequest, InboxTrouble, InboxTx,
    Recording, StoreError, TableName,
};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection, Transaction};

use super::admin::{Looked, SqliteAdmin, audit};
use super::clock::{from_micros, micros, now, span};
use super::error::{classify, is_busy, within};
use super::idempotency::still_open;
use super::link::OPERATION_LIMIT;
use super::schema::in_main;
use super::session::Value;
use super::tx::SqlxSqlite;
use crate::audit::forgotten;
use crate::inbox::{FORGET_BATCH, InboxShape, missing};
use crate::table::Template;
use crate::tx::{Session, Statement};

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(processed_at)");

const COLUMNS: [(&str, &str, i64); 3] =
    [("consumer", "TEXT", 1), ("message_id", "TEXT", 2), ("processed_at", "INTEGER", 0)];

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Records messages.
pub(crate) async fn record<S: Session<Sqlite>>(
    session: &mut S,
    recording: Recording<'_>,
) -> Result<Vec<String>, S::Error> {
    let Recording { table, consumer, messages } = recording;
    let sql = Template::default().with("inbox", table.quoted('"')).fill(include_str!("sql/inbox_record.sql"));
    // Texts have no reason to fail.
    let messages = serde_json::to_string(messages).unwrap_or_default();
    let values = vec![Value::Text(Some(consumer)), Value::Text(Some(&messages)), Value::Int(now())];
    session.texts(Statement { sql: sql.into(), values, prepared: table.prepared() }).await
}

/// Whether this transaction has recorded all of these messages, and goes on.
async fn is_recorded(
    connection: &mut SqliteConnection,
    recording: Recording<'_>,
) -> Result<bool, sqlx::Error> {
    still_open(&mut *connection).await?;
    let Recording { table, consumer, messages } = recording;
    let sql = Template::default().with("inbox", table.quoted('"')).fill(include_str!("sql/inbox_look.sql"));
    let wanted = messages.len();
    let messages = serde_json::to_string(messages).unwrap_or_default();
    let values = vec![Value::Text(Some(consumer)), Value::Text(Some(&messages))];
    let found = connection.texts(Statement { sql: sql.into(), values, prepared: table.prepared() }).await?;
    Ok(found.len() == wanted)
}

/// What an error means to whoever records a message.
pub(crate) fn trouble(error: &sqlx::Error) -> InboxTrouble {
    if is_busy(error) {
        // Somebody has written since this transaction read, or holds the lock for too long (hazard 42).
        return InboxTrouble::Conflict;
    }
    match error.as_database_error() {
        Some(database) if database.message().starts_with("no such table") => InboxTrouble::Missing,
        _ => InboxTrouble::Other,
    }
}

impl InboxTx<SqlxSqlite> for &mut Transaction<'_, Sqlite> {
    type Error = sqlx::Error;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **self, recording).await
    }

    fn trouble(error: &sqlx::Error) -> InboxTrouble {
        trouble(error)
    }
}

impl InboxDriver for SqlxSqlite {
    async fn record(
        tx: &mut Transaction<'static, Sqlite>,
        recording: Recording<'_>,
    ) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **tx, recording).await
    }

    async fn is_recorded(
        tx: &mut Transaction<'static, Sqlite>,
        recording: Recording<'_>,
    ) -> Result<bool, sqlx::Error> {
        is_recorded(&mut *tx, recording).await
    }

    fn trouble(error: &sqlx::Error) -> InboxTrouble {
        trouble(error)
    }
}

/// Reads what stands where the inbox of a module would be; none if nothing does.
pub(super) async fn read_shape(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Option<InboxShape>, sqlx::Error> {
    let name = table.inbox();
    let indexed = sqlx::query_scalar::<_, bool>(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema i WHERE i.type = 'index' AND i.tbl_name = ?1
                              AND instr(i.sql, '(processed_at)') > 0 AND instr(upper(i.sql), 'WHERE') = 0)
             FROM sqlite_schema WHERE type = 'table' AND name = ?1",
    );
    let Some(indexed) = indexed.bind(&name).fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let columns =
        sqlx::query_as::<_, (String, String, i64)>("SELECT name, upper(type), pk FROM pragma_table_info(?1)");
    let columns = columns.bind(&name).fetch_all(connection).await?;
    let mut problems = Vec::new();
    for (column, kind, key) in COLUMNS {
        match columns.iter().find(|(name, ..)| name == column) {
            Some((_, actual, place)) if actual == kind && *place == key => {}
            Some((_, actual, _)) if actual != kind => {
                problems.push(format!("{column} is {actual}, not {kind}"));
            }
            Some(_) => problems.push("its key is not (consumer, message_id)".to_owned()),
            None => problems.push(format!("{column} is missing")),
        }
    }
    problems.dedup();
    Ok(Some(InboxShape { name, problems, indexed }))
}

/// Whether there is one that is ours; another's table of this name is none.
pub(super) async fn is_there(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<bool, StoreError> {
    let found = read_shape(connection, &in_main(table)?).await.map_err(classify)?;
    Ok(found.is_some_and(|found| found.check().is_ok()))
}

impl SqliteAdmin {
    /// Refuses where there is no inbox.
    async fn expect_inbox(&self) -> Result<&Looked, StoreError> {
        let looked = self.0.looked().await?;
        if self.has_inbox().await? { Ok(looked) } else { Err(missing(&in_main(self.table())?)) }
    }

    pub(super) async fn clean_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        // Each time: it may be made while a cleaner runs.
        if !self.has_inbox().await? {
            return Ok(Swept::Deleted(0));
        }
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(include_str!("sql/inbox_sweep.sql"));
        let mut link = self.0.link.begin().await?;
        let until = now().saturating_sub(span(retention));
        let delete = sqlx::query(AssertSqlSafe(sql)).bind(until).bind(i64::from(batch));
        let deleted = delete.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
        link.commit().await?;
        Ok(Swept::Deleted(deleted))
    }
}

/// The condition of a filter, with only the parts that it has: the planner cannot see through what might be null.
fn chosen(filter: &InboxFilter) -> String {
    let parts = [
        filter.consumer.as_ref().map(|_| "consumer = ?1"),
        (!filter.message_ids.is_empty()).then_some("message_id IN (SELECT value FROM json_each(?2))"),
        filter.since.map(|_| "processed_at >= ?3"),
        filter.until.map(|_| "processed_at < ?4"),
    ];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") }
}

/// A statement about what a filter finds.
fn about(looked: &Looked, sql: &str, filter: &InboxFilter) -> Bound<'static> {
    let sql = looked.template.clone().with("chosen", chosen(filter)).fill(sql);
    sqlx::query(AssertSqlSafe(sql))
        .bind(filter.consumer.clone())
        .bind(serde_json::json!(filter.message_ids).to_string())
        .bind(filter.since.map(micros))
        .bind(filter.until.map(micros))
}

fn entry(row: &SqliteRow) -> Result<InboxEntry, sqlx::Error> {
    let processed_at = from_micros(row.try_get(2)?);
    Ok(InboxEntry { consumer: row.try_get(0)?, message_id: row.try_get(1)?, processed_at })
}

impl InboxAdmin for SqliteAdmin {
    async fn has_inbox(&self) -> Result<bool, StoreError> {
        self.0.looked().await?;
        let mut link = self.0.reader().await?;
        let found = is_there(&mut link.connection, self.table()).await?;
        link.keep();
        Ok(found)
    }

    async fn inbox_list(&self, request: &InboxRequest) -> Result<InboxPage, StoreError> {
        let looked = self.expect_inbox().await?;
        let behind = match request.after {
            Some(_) => " AND (processed_at, consumer, message_id) < (?5, ?6, ?7)",
            None => "",
        };
        let sql = format!(
            "SELECT consumer, message_id, processed_at FROM {{{{inbox}}}} WHERE {{{{chosen}}}}{behind}
             ORDER BY processed_at DESC, consumer DESC, message_id DESC LIMIT ?8"
        );
        let after = request.after.as_ref();
        let query = about(looked, &sql, &request.filter)
            .bind(after.map(|key| micros(key.processed_at)))
            .bind(after.map(|key| key.consumer.clone()))
            .bind(after.map(|key| key.message_id.clone()))
            .bind(i64::from(request.limit) + 1);
        let mut link = self.0.reader().await?;
        let rows = within(OPERATION_LIMIT, query.fetch_all(&mut link.connection)).await?;
        link.keep();
        let entries = rows.iter().map(entry).collect::<Result<_, _>>().map_err(classify)?;
        Ok(InboxPage::of(entries, request.limit))
    }

    async fn inbox_count(&self, filter: &InboxFilter) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        let query = about(looked, "SELECT count(*) FROM {{inbox}} WHERE {{chosen}}", filter);
        let mut link = self.0.reader().await?;
        let row = query.fetch_one(&mut link.connection).await.map_err(classify)?;
        link.keep();
        Ok(u64::try_from(row.try_get::<i64, _>(0).map_err(classify)?).unwrap_or(0))
    }

    async fn inbox_forget(&self, filter: &InboxFilter, who: &str) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        let what = forgotten(&in_main(self.table())?.inbox(), filter);
        let mut total = 0;
        loop {
            let mut link = self.0.link.begin().await?;
            let query = about(looked, include_str!("sql/inbox_forget.sql"), filter).bind(FORGET_BATCH);
            let rows = query.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
            if rows > 0 {
                audit(&mut link.connection, looked, who, "forget", &what, rows).await?;
            }
            link.commit().await?;
            total += rows;
            if rows < u64::from(FORGET_BATCH) {
                return Ok(total);
            }
        }
    }
}
