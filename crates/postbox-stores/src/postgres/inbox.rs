//! `<module>_inbox`: messages recorded in a transaction, whatever the driver; listed, forgotten and cleaned.

use std::time::Duration;

use postbox_core::cleaner::Swept;
use postbox_core::{
    InboxAdmin, InboxDriver, InboxEntry, InboxFilter, InboxPage, InboxRequest, InboxTrouble, InboxTx,
    Recording, StoreError, TableName,
};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row as _, Transaction};

use super::admin::{Looked, PgAdmin, audit};
use super::ask::{self, Ask, ask};
use super::error::classify;
use super::list::in_range;
use super::session::{self, Value};
use super::tx::SqlxPostgres;
use crate::audit::forgotten;
use crate::inbox::{FORGET_BATCH, InboxShape, missing, name_of};
use crate::table::Template;
use crate::tx::{Session, Statement};

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(processed_at)");

/// The condition of a filter: `$1` to `$4`, each left out where it is null.
const CHOSEN: &str = "($1::text IS NULL OR consumer = $1) AND ($2::text[] IS NULL OR message_id = ANY ($2))
    AND ($3::timestamptz IS NULL OR processed_at >= $3) AND ($4::timestamptz IS NULL OR processed_at < $4)";

const COLUMNS: [(&str, &str); 3] =
    [("consumer", "text"), ("message_id", "text"), ("processed_at", "timestamp with time zone")];

/// Records messages. A statement for one alone is planned without an array.
pub(crate) async fn record<S: Session<Postgres>>(
    session: &mut S,
    recording: Recording<'_>,
) -> Result<Vec<String>, S::Error> {
    let Recording { table, consumer, messages } = recording;
    let (sql, messages) = match messages {
        [one] => (include_str!("sql/inbox_record_one.sql"), Value::Text(Some(one))),
        many => (
            include_str!("sql/inbox_record.sql"),
            Value::Texts(many.iter().map(|message| Some(*message)).collect()),
        ),
    };
    let sql = Template::default().with("inbox", table.quoted('"')).fill(sql);
    let values = vec![Value::Text(Some(consumer)), messages];
    session.texts(Statement { sql: sql.into(), values, prepared: table.prepared() }).await
}

/// Whether this transaction has recorded all of these messages, and goes on.
async fn is_recorded(connection: &mut PgConnection, recording: Recording<'_>) -> Result<bool, sqlx::Error> {
    let Recording { table, consumer, messages } = recording;
    let sql = Template::default().with("inbox", table.quoted('"')).fill(include_str!("sql/inbox_look.sql"));
    let texts = Value::Texts(messages.iter().map(|message| Some(*message)).collect());
    let values = vec![Value::Text(Some(consumer)), texts];
    let found = connection.texts(Statement { sql: sql.into(), values, prepared: table.prepared() }).await?;
    Ok(found.len() == messages.len())
}

fn trouble(error: &sqlx::Error) -> InboxTrouble {
    let state = error.as_database_error().and_then(DatabaseError::code);
    state.map_or(InboxTrouble::Other, |state| session::trouble(&state))
}

impl InboxTx<SqlxPostgres> for &mut Transaction<'_, Postgres> {
    type Error = sqlx::Error;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **self, recording).await
    }

    fn trouble(error: &sqlx::Error) -> InboxTrouble {
        trouble(error)
    }
}

impl InboxDriver for SqlxPostgres {
    async fn record(
        tx: &mut Transaction<'static, Postgres>,
        recording: Recording<'_>,
    ) -> Result<Vec<String>, sqlx::Error> {
        record(&mut **tx, recording).await
    }

    async fn is_recorded(
        tx: &mut Transaction<'static, Postgres>,
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
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<Option<InboxShape>, sqlx::Error> {
    let facts = ask(
            "SELECT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisunique AND indisvalid AND indpred IS NULL
                            AND pg_get_indexdef(indexrelid) LIKE '%(consumer, message\\_id)%'),
                    EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisvalid AND indpred IS NULL
                            AND pg_get_indexdef(indexrelid) LIKE '%(processed\\_at)%'),
                    ARRAY(SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
                          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
             FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')",
        );
    let facts = facts.bind(table.quoted_sibling(&table.inbox(), '"'));
    let Some(facts) = facts.fetch_optional(connection).await? else { return Ok(None) };
    let (keyed, indexed, columns): (bool, bool, Vec<String>) =
        (facts.try_get(0)?, facts.try_get(1)?, facts.try_get(2)?);
    let mut problems = Vec::new();
    for (column, kind) in COLUMNS {
        if !columns.contains(&format!("{column} {kind}")) {
            problems.push(format!("it has no column {column} of type {kind}"));
        }
    }
    if !keyed {
        problems.push("its key is not (consumer, message_id)".to_owned());
    }
    Ok(Some(InboxShape { name: name_of(table), problems, indexed }))
}

impl PgAdmin {
    /// Refuses where there is no inbox.
    async fn expect_inbox(&self) -> Result<&Looked, StoreError> {
        let looked = self.looked().await?;
        if self.has_inbox().await? { Ok(looked) } else { Err(missing(&looked.name)) }
    }

    pub(super) async fn clean_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        // Each time: it may be made while a cleaner runs.
        if !self.has_inbox().await? {
            return Ok(Swept::Deleted(0));
        }
        let looked = self.looked().await?;
        let query = ask(looked.template.fill(include_str!("sql/inbox_sweep.sql")))
            .bind(super::store::fnv1a(&format!("inbox-cleaner:{}", looked.key)))
            .bind(retention.as_secs_f64())
            .bind(i64::from(batch));
        let row = ask::one(&self.pool, query).await?;
        let free: bool = row.try_get(0).map_err(classify)?;
        let rows: i64 = row.try_get(1).map_err(classify)?;
        Ok(if free { Swept::Deleted(u64::try_from(rows).unwrap_or(0)) } else { Swept::Busy })
    }
}

/// A statement about what a filter finds.
fn about(looked: &Looked, sql: &str, filter: &InboxFilter) -> Ask<'static> {
    let messages = (!filter.message_ids.is_empty()).then(|| filter.message_ids.clone());
    ask(looked.template.clone().with("chosen", CHOSEN).fill(&in_range(sql)))
        .bind(filter.consumer.clone())
        .bind(messages)
        .bind(filter.since)
        .bind(filter.until)
}

fn entry(row: &PgRow) -> Result<InboxEntry, sqlx::Error> {
    Ok(InboxEntry { consumer: row.try_get(0)?, message_id: row.try_get(1)?, processed_at: row.try_get(2)? })
}

impl InboxAdmin for PgAdmin {
    async fn has_inbox(&self) -> Result<bool, StoreError> {
        let looked = self.looked().await?;
        let mut tx = ask::begin(&self.pool).await?;
        let found = read_shape(&mut tx, &looked.name).await.map_err(classify)?;
        ask::commit(tx).await?;
        Ok(found.is_some_and(|found| found.check().is_ok()))
    }

    async fn inbox_list(&self, request: &InboxRequest) -> Result<InboxPage, StoreError> {
        let looked = self.expect_inbox().await?;
        let sql = "SELECT consumer, message_id, {{time(processed_at)}} FROM {{inbox}}
             WHERE {{chosen}} AND ($5::timestamptz IS NULL OR (processed_at, consumer, message_id) < ($5, $6, $7))
             ORDER BY processed_at DESC, consumer DESC, message_id DESC LIMIT $8";
        let after = request.after.as_ref();
        let query = about(looked, sql, &request.filter)
            .bind(after.map(|key| key.processed_at))
            .bind(after.map(|key| key.consumer.clone()))
            .bind(after.map(|key| key.message_id.clone()))
            .bind(i64::from(request.limit) + 1);
        let rows = ask::all(&self.pool, query).await?;
        let entries = rows.iter().map(entry).collect::<Result<_, _>>().map_err(classify)?;
        Ok(InboxPage::of(entries, request.limit))
    }

    async fn inbox_count(&self, filter: &InboxFilter) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        let query = about(looked, "SELECT count(*) FROM {{inbox}} WHERE {{chosen}}", filter);
        let count: i64 = ask::one(&self.pool, query).await?.try_get(0).map_err(classify)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn inbox_forget(&self, filter: &InboxFilter, who: &str) -> Result<u64, StoreError> {
        let looked = self.expect_inbox().await?;
        let what = forgotten(&name_of(&looked.name), filter);
        let mut total = 0;
        loop {
            let mut tx = ask::begin(&self.pool).await?;
            let query = about(looked, include_str!("sql/inbox_forget.sql"), filter);
            let query = query.bind(i64::from(FORGET_BATCH)).execute(&mut *tx);
            let rows = query.await.map_err(classify)?.rows_affected();
            if rows > 0 {
                audit(&mut tx, looked, who, "forget", &what, rows).await?;
            }
            ask::commit(tx).await?;
            total += rows;
            if rows < u64::from(FORGET_BATCH) {
                return Ok(total);
            }
        }
    }
}
