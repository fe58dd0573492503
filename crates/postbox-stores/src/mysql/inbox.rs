//! `<module>_inbox`: messages recorded in a transaction, whatever the driver; listed, forgotten and cleaned.

use std::time::Duration;

use postbox_core::cleaner::Swept;
use postbox_core::{
    InboxAdmin, InboxDriver, InboxEntry, InboxFilter, InboxPage, InboxRequest, InboxTrouble, InboxTx,
    Recording, StoreError, TableName,
};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, Transaction};
use uuid::Uuid;

use super::admin::{Looked, MySqlAdmin, audit, count};
use super::clause::Clause;
use super::clock::{at, span};
use super::error::{classify, error_number, within};
use super::idempotency::STILL_OPEN;
use super::link::{OPERATION_LIMIT, Tries};
use super::schema::{columns, indexes};
use super::session::{self, Value, text};
use super::tx::SqlxMySql;
use crate::audit::forgotten;
use crate::inbox::{FORGET_BATCH, InboxShape, missing};
use crate::row::Cells as _;
use crate::table::Template;
use crate::tx::{Session, Statement};

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "processed_at");

const COLUMNS: [(&str, &str); 4] = [
    ("consumer", "varbinary(127)"),
    ("message_id", "varbinary(1024)"),
    ("processed_at", "datetime(6)"),
    ("recorded_by", "binary(16)"),
];

/// So many messages are recorded by one statement.
const CHUNK: usize = 1000;

/// A message that is known changes nothing. That is said as a change of nothing, and not as `INSERT IGNORE`: of many who wait for one that
/// rolls back, the next then has the row to itself, where else two would share it and neither could go on.
const RECORD: &str = "INSERT INTO {{inbox}} (consumer, message_id, recorded_by) VALUES {{rows}}
                      ON DUPLICATE KEY UPDATE consumer = {{inbox}}.consumer";

/// Those that this batch has written.
const NEW: &str =
    "SELECT message_id FROM {{inbox}} WHERE consumer = ? AND message_id IN ({{list}}) AND recorded_by = ?";

/// Records messages.
pub(crate) async fn record<S: Session<MySql>>(
    session: &mut S,
    recording: Recording<'_>,
) -> Result<Vec<String>, S::Error> {
    let Recording { table, consumer, messages } = recording;
    let prepared = table.prepared();
    let mut new = Vec::new();
    for messages in messages.chunks(CHUNK) {
        let batch = Uuid::now_v7();
        let template = Template::default().with("inbox", table.quoted('`'));
        let rows = vec!["(?, ?, ?)"; messages.len()].join(", ");
        let sql = template.clone().with("rows", rows).fill(RECORD).into();
        let mut values = Vec::with_capacity(3 * messages.len());
        for message in messages {
            values.extend([consumer.as_bytes(), message.as_bytes(), batch.as_bytes()].map(bytes));
        }
        session.texts(Statement { sql, values, prepared }).await?;
        let list = vec!["?"; messages.len()].join(", ");
        let sql = template.with("list", list).fill(NEW).into();
        let mut values = Vec::with_capacity(messages.len() + 2);
        values.push(bytes(consumer.as_bytes()));
        values.extend(messages.iter().map(|message| bytes(message.as_bytes())));
        values.push(bytes(batch.as_bytes()));
        new.extend(session.texts(Statement { sql, values, prepared }).await?);
    }
    Ok(new)
}

/// Those that are recorded.
const THERE: &str = "SELECT message_id FROM {{inbox}} WHERE consumer = ? AND message_id IN ({{list}})";

/// Whether this transaction has recorded all of these messages, and goes on.
async fn is_recorded(
    connection: &mut MySqlConnection,
    recording: Recording<'_>,
) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql(STILL_OPEN).execute(&mut *connection).await?;
    let Recording { table, consumer, messages } = recording;
    for messages in messages.chunks(CHUNK) {
        let list = vec!["?"; messages.len()].join(", ");
        let template = Template::default().with("inbox", table.quoted('`')).with("list", list);
        let mut values = vec![bytes(consumer.as_bytes())];
        values.extend(messages.iter().map(|message| bytes(message.as_bytes())));
        let statement = Statement { sql: template.fill(THERE).into(), values, prepared: table.prepared() };
        if connection.texts(statement).await?.len() < messages.len() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(Some(bytes))
}

fn trouble(error: &sqlx::Error) -> InboxTrouble {
    error_number(error).map_or(InboxTrouble::Other, session::trouble)
}

impl InboxTx<SqlxMySql> for &mut Transaction<'_, MySql> {
    type Error = sqlx::Error;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **self, recording).await
    }

    fn trouble(error: &sqlx::Error) -> InboxTrouble {
        trouble(error)
    }
}

impl InboxDriver for SqlxMySql {
    async fn record(
        tx: &mut Transaction<'static, MySql>,
        recording: Recording<'_>,
    ) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **tx, recording).await
    }

    async fn is_recorded(
        tx: &mut Transaction<'static, MySql>,
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
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<Option<InboxShape>, sqlx::Error> {
    let name = table.inbox();
    let found = columns(connection, schema, &name).await?;
    if found.is_empty() {
        return Ok(None);
    }
    let keys = indexes(connection, schema, &name).await?;
    let indexed = keys.values().any(|columns| columns == INDEX.1);
    let problem = |(column, kind): (&str, &str)| match found.iter().find(|found| found.name == column) {
        Some(found) if found.whole.to_ascii_lowercase().starts_with(kind) => None,
        Some(found) => Some(format!("{column} is {}, not {kind}", found.whole)),
        None => Some(format!("{column} is missing")),
    };
    let mut problems: Vec<String> = COLUMNS.into_iter().filter_map(problem).collect();
    if !keys.values().any(|columns| columns == "consumer, message_id") {
        problems.push("its key is not (consumer, message_id)".to_owned());
    }
    Ok(Some(InboxShape { name, problems, indexed }))
}

/// Whether there is one that is ours; another's table of this name is none.
pub(super) async fn is_there(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<bool, StoreError> {
    let found = read_shape(connection, schema, table).await.map_err(classify)?;
    Ok(found.is_some_and(|found| found.check().is_ok()))
}

impl MySqlAdmin {
    /// Refuses where there is no inbox.
    async fn expect_inbox(&self) -> Result<&Looked, StoreError> {
        if self.has_inbox().await? { self.0.looked().await } else { Err(missing(self.table())) }
    }

    pub(super) async fn clean_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        // Each time: it may be made while a cleaner runs.
        if !self.has_inbox().await? {
            return Ok(Swept::Deleted(0));
        }
        let looked = self.0.looked().await?;
        let sql = "DELETE FROM {{inbox}} WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
                   ORDER BY processed_at LIMIT ?";
        let delete = Clause::new(looked.template.fill(sql)).with(span(retention)).with(i64::from(batch));
        Ok(Swept::Deleted(self.delete(looked, &delete, None).await?))
    }

    /// Deletes messages in one transaction; answers how many. What somebody did is written down with it.
    async fn delete(
        &self,
        looked: &Looked,
        delete: &Clause,
        done: Option<(&str, &serde_json::Value)>,
    ) -> Result<u64, StoreError> {
        let mut tries = Tries::new();
        loop {
            let mut link = self.0.link.take().await?;
            let once = async {
                link.begin().await?;
                let deleted = delete.query().execute(&mut link.connection);
                let rows = within(OPERATION_LIMIT, deleted).await?.rows_affected();
                if let Some((who, what)) = done.filter(|_| rows > 0) {
                    audit(&mut link.connection, looked, who, "forget", what, rows).await?;
                }
                link.commit().await?;
                Ok(rows)
            };
            match once.await {
                Ok(rows) => {
                    link.keep();
                    return Ok(rows);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }
}

/// The condition of a filter.
fn chosen(filter: &InboxFilter) -> Clause {
    let mut chosen = Clause::new("TRUE");
    chosen.and("consumer = ?", filter.consumer.as_deref());
    if !filter.message_ids.is_empty() {
        let list = vec!["?"; filter.message_ids.len()].join(", ");
        let ids = filter.message_ids.iter().map(|id| id.as_str().into());
        chosen.push(&format!(" AND message_id IN ({list})"), ids);
    }
    chosen.and("processed_at >= ?", filter.since.map(at));
    chosen.and("processed_at < ?", filter.until.map(at));
    chosen
}

/// A statement about what a filter finds.
fn about(looked: &Looked, sql: &str, filter: &InboxFilter) -> Clause {
    let mut clause = Clause::new(looked.template.fill(sql));
    clause.append(&chosen(filter));
    clause
}

fn entry(row: &MySqlRow) -> Result<InboxEntry, sqlx::Error> {
    Ok(InboxEntry { consumer: text(row, 0)?, message_id: text(row, 1)?, processed_at: row.known_time(2)? })
}

impl InboxAdmin for MySqlAdmin {
    async fn has_inbox(&self) -> Result<bool, StoreError> {
        let schema = &self.0.looked().await?.schema;
        let mut link = self.0.link.take().await?;
        let found = is_there(&mut link.connection, schema, self.table()).await?;
        link.keep();
        Ok(found)
    }

    async fn inbox_list(&self, request: &InboxRequest) -> Result<InboxPage, StoreError> {
        let looked = self.expect_inbox().await?;
        let sql = "SELECT consumer, message_id, processed_at FROM {{inbox}} WHERE ";
        let mut list = about(looked, sql, &request.filter);
        if let Some(after) = &request.after {
            let args = [
                at(after.processed_at).into(),
                after.consumer.as_str().into(),
                after.message_id.as_str().into(),
            ];
            list.push(" AND (processed_at, consumer, message_id) < (?, ?, ?)", args);
        }
        let order = " ORDER BY processed_at DESC, consumer DESC, message_id DESC LIMIT ?";
        list.push(order, [(i64::from(request.limit) + 1).into()]);
        let rows = self.0.rows(&list).await?;
        let entries = rows.iter().map(entry).collect::<Result<_, _>>().map_err(classify)?;
        Ok(InboxPage::of(entries, request.limit))
    }

    async fn inbox_count(&self, filter: &InboxFilter) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        count(&self.0.row(&about(looked, "SELECT COUNT(*) FROM {{inbox}} WHERE ", filter)).await?, 0)
    }

    async fn inbox_forget(&self, filter: &InboxFilter, who: &str) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        let what = forgotten(&self.table().inbox(), filter);
        let mut delete = about(looked, "DELETE FROM {{inbox}} WHERE ", filter);
        delete.push(" ORDER BY processed_at LIMIT ?", [i64::from(FORGET_BATCH).into()]);
        let mut total = 0;
        loop {
            let rows = self.delete(looked, &delete, Some((who, &what))).await?;
            total += rows;
            if rows < u64::from(FORGET_BATCH) {
                return Ok(total);
            }
        }
    }
}
