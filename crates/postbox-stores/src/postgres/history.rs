//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index. Nothing in it is unique: an event that was moved,
//! enqueued again and moved again is there twice, and a settle must never fail over what was delivered long ago.

use postbox_core::{Code, History, Layout, StoreError, StoreErrorKind, TableName};
use sqlx::{PgConnection, Row as _};

use super::error::classify;
use super::schema::{STANDARD, TableShape};
use super::window::may_be_settled;

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(published_at, sequence)");

/// The history's name, in the schema of its table.
pub(super) fn name_of(table: &TableName) -> String {
    format!("{}_history", table.table())
}

/// The same for SQL.
pub(super) fn quoted(table: &TableName) -> String {
    table.quoted_sibling(&name_of(table), '"')
}

/// A column of the table.
#[derive(Debug, Clone)]
struct Column {
    /// For SQL.
    quoted: String,
    name: String,
    kind: String,
    /// The database works it out by itself, and lets nobody write it.
    generated: bool,
    /// Its type in the history; none if it is not there.
    there: Option<String>,
}

impl Column {
    /// Whether it is written when a row comes back.
    fn comes_back(&self) -> bool {
        self.there.is_some() && !self.generated
    }
}

/// A history as it is, beside its table.
#[derive(Debug, Clone)]
pub(super) struct HistoryShape {
    /// With its schema.
    name: String,
    columns: Vec<Column>,
    /// It has a key: an outbox table has one, a history has none.
    has_key: bool,
    /// The valid indexes on it.
    indexes: Vec<String>,
}

impl HistoryShape {
    /// Reads what stands where the history of a table would be; none if nothing does.
    pub(super) async fn read(
        connection: &mut PgConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let facts = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisprimary),
                    ARRAY(SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = c.oid AND indisvalid)
             FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')",
        );
        let facts = facts.bind(quoted(table)).persistent(false).fetch_optional(&mut *connection).await?;
        let Some(facts) = facts else { return Ok(None) };
        let rows = sqlx::query(
            "SELECT quote_ident(t.attname), t.attname::text, format_type(t.atttypid, t.atttypmod), t.attgenerated <> '',
                    (SELECT format_type(h.atttypid, h.atttypmod) FROM pg_attribute h
                     WHERE h.attrelid = to_regclass($2) AND h.attname = t.attname AND h.attnum > 0 AND NOT h.attisdropped)
             FROM pg_attribute t
             WHERE t.attrelid = to_regclass($1) AND t.attnum > 0 AND NOT t.attisdropped ORDER BY t.attnum",
        );
        let rows = rows.bind(table.quoted('"')).bind(quoted(table)).persistent(false);
        let mut columns = Vec::new();
        for row in rows.fetch_all(&mut *connection).await? {
            columns.push(Column {
                quoted: row.try_get(0)?,
                name: row.try_get(1)?,
                kind: row.try_get(2)?,
                generated: row.try_get(3)?,
                there: row.try_get(4)?,
            });
        }
        let schema = table.schema().map(|schema| format!("{schema}.")).unwrap_or_default();
        let name = format!("{schema}{}", name_of(table));
        Ok(Some(Self { name, columns, has_key: facts.try_get(0)?, indexes: facts.try_get(1)? }))
    }

    /// The same where it is one; another's table of this name is none, and is left alone.
    pub(super) async fn find(
        connection: &mut PgConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        Ok(Self::read(connection, table).await?.filter(|found| found.check().is_ok()))
    }

    /// Whether it is a history, and of this table.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut problems = Vec::new();
        if self.columns.is_empty() {
            problems.push("its table does not exist".to_owned());
        }
        if self.has_key {
            problems.push("it has a primary key, as outbox tables have and histories have not".to_owned());
        }
        for column in &self.columns {
            match &column.there {
                None if STANDARD.iter().any(|(name, _)| *name == column.name) => {
                    problems.push(format!("{} is missing", column.name));
                }
                Some(there) if *there != column.kind => {
                    problems.push(format!("{} is {there}, not {}", column.name, column.kind));
                }
                None | Some(_) => {}
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("{} is no history of its table: {}", self.name, problems.join("; "));
        Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
    }

    /// Columns of the table that it lacks, for SQL, with their types.
    pub(super) fn missing(&self) -> Vec<(&str, &str)> {
        let missing = self.columns.iter().filter(|column| column.there.is_none());
        missing.map(|column| (column.quoted.as_str(), column.kind.as_str())).collect()
    }

    /// Whether its index is there.
    pub(super) fn has_index(&self) -> bool {
        self.indexes.iter().any(|index| index.contains(INDEX.1) && !index.contains(" WHERE "))
    }

    /// The statement's part that brings rows here: from `gone`, which has the table's columns. Owners write attempts at the settle.
    pub(super) fn arrive(&self, table: &TableName, attempts: &str) -> String {
        let value = |column: &Column| match column.name.as_str() {
            "published_at" => "now()".to_owned(),
            "locked_at" | "locked_by" | "last_error" => "NULL".to_owned(),
            "attempts" => attempts.to_owned(),
            _ => format!("g.{}", column.quoted),
        };
        let values: Vec<String> = self.columns.iter().map(value).collect();
        let history = quoted(table);
        format!(
            "INSERT INTO {history} ({})\n    SELECT {}\n    FROM gone g",
            self.list(|_| true),
            values.join(", ")
        )
    }

    /// The statement's part that brings rows back into the table, as a replay wants them: from `moved`, which has the
    /// history's columns. An event that was enqueued again meanwhile stays where it is.
    pub(super) fn come_back(&self, table: &TableName, condition: &str) -> String {
        // As every replay does it: what an owner may still settle is left for a lease.
        let unsettled = may_be_settled(table, "m.");
        let value = |column: &Column| match column.name.as_str() {
            "attempts" => "0".to_owned(),
            "available_at" => "now()".to_owned(),
            "locked_at" => format!("CASE WHEN {unsettled} THEN to_timestamp(0) END"),
            "locked_by" => format!("CASE WHEN {unsettled} THEN 'replayed' END"),
            "published_at" | "last_error" | "dead_at" | "dlq_at" | "sinks_done" => "NULL".to_owned(),
            _ => format!("m.{}", column.quoted),
        };
        let values: Vec<String> =
            self.columns.iter().filter(|column| column.comes_back()).map(value).collect();
        format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM moved m WHERE {condition} ON CONFLICT DO NOTHING",
            table.quoted('"'),
            self.list(Column::comes_back),
            values.join(", ")
        )
    }

    fn list(&self, which: impl Fn(&Column) -> bool) -> String {
        let columns = self.columns.iter().filter(|column| which(column)).map(|column| column.quoted.as_str());
        columns.collect::<Vec<_>>().join(", ")
    }
}

/// What a settle does with the rows of delivered events.
#[derive(Debug, Clone)]
pub(super) enum Sent {
    /// They stay, with the time.
    Kept,
    /// They move there.
    Moved(HistoryShape),
    /// They go.
    Deleted,
}

impl Sent {
    /// Makes sure, before anything is claimed, that delivered rows can go where they are to go: a settle that fails would
    /// have every event delivered again and again.
    pub(super) async fn look(
        connection: &mut PgConnection,
        shape: &TableShape,
        history: History,
    ) -> Result<Self, StoreError> {
        if history == History::Keep {
            return Ok(Self::Kept);
        }
        let table = &shape.name;
        if shape.layout() == Layout::Bare {
            let message = format!(
                "{table} has only the standard columns, and history = {history} needs all of them: run `postbox migrate up \
                 --table {table}`, or leave history at keep"
            );
            return Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message));
        }
        let sent = if history == History::None {
            Self::Deleted
        } else {
            let missing = |why: String| StoreError::new(Code::HistoryMissing, StoreErrorKind::Refused, why);
            let next = format!("run `postbox migrate up --history move --table {table}`");
            let Some(found) = HistoryShape::read(connection, table).await.map_err(classify)? else {
                return Err(missing(format!("{table} has no {}: {next}", name_of(table))));
            };
            found.check()?;
            let lacking: Vec<&str> = found.missing().into_iter().map(|(column, _)| column).collect();
            if !lacking.is_empty() {
                let lacking = lacking.join(", ");
                return Err(missing(format!("{} lacks {lacking}, which {table} has: {next}", found.name)));
            }
            Self::Moved(found)
        };
        expect_grants(connection, table, history).await?;
        history.warn_of_duplicates(&table.to_string());
        Ok(sent)
    }
}

/// Whether the relay's user may do what this history asks of every settle.
async fn expect_grants(
    connection: &mut PgConnection,
    table: &TableName,
    history: History,
) -> Result<(), StoreError> {
    let missing = sqlx::query_scalar::<_, String>(
        "SELECT need.privilege || ' ON ' || need.tbl FROM (VALUES ('DELETE', $1, true), ('INSERT', $2, $3), ('SELECT', $2, $3))
             AS need (privilege, tbl, wanted)
         WHERE need.wanted AND NOT has_table_privilege(need.tbl, need.privilege)",
    );
    // Without one, a history is not asked about: it may not be there.
    let moves = history == History::Move;
    let place = if moves { quoted(table) } else { table.quoted('"') };
    let missing = missing.bind(table.quoted('"')).bind(place).bind(moves).persistent(false);
    let missing = missing.fetch_all(connection).await.map_err(classify)?;
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the database user lacks what history = {history} needs: {}; grant it with what `postbox migrate print --history \
         {history} --grants relay=<role> --table {table}` prints",
        missing.join(", ")
    );
    Err(StoreError::new(Code::DatabasePermission, StoreErrorKind::Refused, message))
}
