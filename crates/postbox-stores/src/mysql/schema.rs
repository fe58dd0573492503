//! What a table looks like: read once from the catalogue before anything is done to it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{MySqlConnection, Row as _};

use super::error::classify;
use super::migrate::{AGGREGATES, ORDER, PENDING, TENANTS, TIME};
use super::window;
use crate::history::name_of;
use crate::schema::refuse;
use crate::table::{Template, missing};

/// The kinds of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Sequence,
    Id,
    Text,
    Time,
    Number,
    Bytes,
}

impl Kind {
    /// In words of SQL.
    fn wanted(self) -> &'static str {
        match self {
            Self::Sequence => "BIGINT AUTO_INCREMENT",
            Self::Id => "BINARY(16)",
            Self::Text => "a text in utf8mb4",
            Self::Time => "DATETIME(6)",
            Self::Number => "INT",
            Self::Bytes => "LONGBLOB",
        }
    }

    fn fits(self, column: &Column) -> bool {
        match self {
            Self::Sequence => column.kind == "bigint" && column.counts,
            Self::Id => column.whole == "binary(16)",
            Self::Text => column.kind.ends_with("text") || column.kind == "varchar",
            Self::Time => column.whole == "datetime(6)",
            Self::Number => column.kind == "int" || column.kind == "bigint",
            Self::Bytes => column.kind.ends_with("blob"),
        }
    }
}

/// The twelve standard columns.
pub(super) const STANDARD: [(&str, Kind); 12] = [
    ("sequence", Kind::Sequence),
    ("id", Kind::Id),
    ("tenant_id", Kind::Id),
    ("topic", Kind::Text),
    ("payload", Kind::Text),
    ("event_id", Kind::Id),
    ("created_at", Kind::Time),
    ("published_at", Kind::Time),
    ("attempts", Kind::Number),
    ("available_at", Kind::Time),
    ("locked_at", Kind::Time),
    ("last_error", Kind::Text),
];

/// The extension columns, and how they are added.
pub(super) const EXTENSION: [(&str, Kind, &str); 18] = [
    ("aggregate_type", Kind::Text, "TEXT"),
    ("aggregate_id", Kind::Text, "TEXT"),
    ("headers", Kind::Text, "TEXT"),
    ("occurred_at", Kind::Time, "DATETIME(6)"),
    ("schema_id", Kind::Text, "TEXT"),
    ("schema_version", Kind::Number, "INT"),
    ("routing_key", Kind::Text, "TEXT"),
    ("metadata", Kind::Text, "LONGTEXT"),
    ("traceparent", Kind::Text, "TEXT"),
    ("tracestate", Kind::Text, "TEXT"),
    ("locked_by", Kind::Text, "VARCHAR(255)"),
    ("dead_at", Kind::Time, "DATETIME(6)"),
    ("dlq_at", Kind::Time, "DATETIME(6)"),
    ("payload_raw", Kind::Bytes, "LONGBLOB"),
    ("content_type", Kind::Text, "TEXT"),
    ("attempts_log", Kind::Text, "LONGTEXT"),
    ("sinks_done", Kind::Text, "LONGTEXT"),
    ("redrives", Kind::Number, "INT"),
];

/// A column as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its type without, and with, what stands in brackets.
    kind: String,
    pub(super) whole: String,
    /// It counts by itself.
    pub(super) counts: bool,
    /// The database works it out by itself, and lets nobody write it.
    pub(super) generated: bool,
    /// Text in another character set than utf8mb4.
    foreign: bool,
}

/// The columns of a table, in order; none if it does not exist.
pub(super) async fn columns(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &str,
) -> Result<Vec<Column>, sqlx::Error> {
    // The name is given for both: where it is not, the server opens every table of every database.
    let rows = sqlx::query(
        "SELECT CAST(c.column_name AS CHAR), LOWER(CAST(c.data_type AS CHAR)), LOWER(CAST(c.column_type AS CHAR)),
                c.extra LIKE '%auto_increment%',
                COALESCE(c.generation_expression, '') <> '',
                COALESCE(c.character_set_name, 'utf8mb4') <> 'utf8mb4'
         FROM information_schema.columns c, information_schema.tables t
         WHERE c.table_schema = ? AND c.table_name = ?
             AND t.table_schema = ? AND t.table_name = ? AND t.table_type = 'BASE TABLE'
         ORDER BY c.ordinal_position",
    );
    let rows = rows.bind(schema).bind(table).bind(schema).bind(table).fetch_all(connection).await?;
    let read = |row: &sqlx::mysql::MySqlRow| {
        Ok(Column {
            name: row.try_get(0)?,
            kind: row.try_get(1)?,
            whole: row.try_get(2)?,
            counts: row.try_get(3)?,
            generated: row.try_get(4)?,
            foreign: row.try_get(5)?,
        })
    };
    rows.iter().map(read).collect()
}

/// The indexes of a table: the columns of each, in order, by its name.
pub(super) async fn indexes(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &str,
) -> Result<BTreeMap<String, String>, sqlx::Error> {
    let rows = sqlx::query_as::<_, (String, String, Option<i64>)>(
        "SELECT CAST(index_name AS CHAR), CAST(column_name AS CHAR), CAST(sub_part AS SIGNED)
         FROM information_schema.statistics WHERE table_schema = ? AND table_name = ? ORDER BY index_name, seq_in_index",
    );
    let mut indexes: BTreeMap<String, String> = BTreeMap::new();
    for (name, column, part) in rows.bind(schema).bind(table).fetch_all(connection).await? {
        let columns = indexes.entry(name).or_default();
        if !columns.is_empty() {
            columns.push_str(", ");
        }
        columns.push_str(&column);
        if let Some(part) = part {
            let _ = write!(columns, "({part})");
        }
    }
    Ok(indexes)
}

/// A table's name with the database that it is in: a schema is one here.
pub(super) async fn locate(
    connection: &mut MySqlConnection,
    table: &TableName,
) -> Result<(String, TableName), StoreError> {
    if let Some(schema) = table.schema() {
        return Ok((schema.to_owned(), table.clone()));
    }
    let chosen = sqlx::query_scalar::<_, Option<String>>("SELECT CAST(DATABASE() AS CHAR)");
    let chosen = chosen.fetch_one(connection).await.map_err(classify)?.ok_or_else(|| {
        let message = format!("the URL names no database: add one, or name the table as database.{table}");
        StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, message)
    })?;
    // Statements go by the connection's own choice: its name may be one that needs no quoting of ours.
    Ok((chosen, table.clone()))
}

/// The names for the statements about a table. They name the indexes that they are made for, as far as these are there: what
/// the server has counted is soon no longer true, since an outbox is full now and empty then.
pub(super) async fn names(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<Template, StoreError> {
    let found = indexes(connection, schema, table.table()).await.map_err(classify)?;
    let history = indexes(connection, schema, &name_of(table)).await.map_err(classify)?;
    let by = |found: &BTreeMap<String, String>, table: &str, (end, columns): (&str, &str)| {
        let name = format!("{table}_{end}");
        let there = found.get(&name).is_some_and(|actual| actual == columns);
        if there { format!("FORCE INDEX (`{name}`)") } else { String::new() }
    };
    let ours = |index| by(&found, table.table(), index);
    let names = Template::of(table, '`')
        .with("by_pending", ours(PENDING))
        .with("by_tenants_waiting", ours(TENANTS))
        .with("by_sequence", ours(ORDER))
        .with("by_aggregate", ours(AGGREGATES))
        .with("by_history", by(&history, &name_of(table), TIME));
    // Without the index nothing is kept in order, and to find out what is blocked would mean to read all of the table.
    let ordered = is_ordered(&names);
    let (blocked, kept) = (include_str!("sql/blocked.sql"), include_str!("sql/kept.sql"));
    let (blocked, kept) =
        if ordered { (names.fill(blocked), names.fill(kept)) } else { ("0".into(), "FALSE".into()) };
    let names = names
        .with("in_flight", window::in_flight(table))
        .with("unsettled", window::may_be_settled(table, ""))
        .with("unsettled_moved", window::may_be_settled(table, "h."));
    Ok(names.with("blocked", blocked).with("kept", kept))
}

/// Whether a table has what delivery in order needs.
pub(super) fn is_ordered(names: &Template) -> bool {
    ["{{by_sequence}}", "{{by_aggregate}}"].iter().all(|place| !names.fill(place).is_empty())
}

/// A table as it is.
#[derive(Debug, Clone)]
pub(super) struct TableShape {
    name: TableName,
    columns: Vec<Column>,
}

impl TableShape {
    /// Reads the table's shape; none if it does not exist.
    pub(super) async fn read(
        connection: &mut MySqlConnection,
        schema: &str,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let columns = columns(connection, schema, table.table()).await?;
        Ok((!columns.is_empty()).then(|| Self { name: table.clone(), columns }))
    }

    /// Reads the shape of a table that must be there, whole.
    pub(super) async fn expect(
        connection: &mut MySqlConnection,
        schema: &str,
        table: &TableName,
    ) -> Result<Self, StoreError> {
        if let Some(shape) = Self::read(connection, schema, table).await.map_err(classify)? {
            shape.check()?;
            let mut lacking: Vec<&str> = shape.lacking();
            for system in ["postbox_relay", "postbox_audit", "postbox_window"] {
                let columns = columns(connection, schema, system).await.map_err(classify)?;
                if columns.is_empty() {
                    lacking.push(system);
                }
            }
            if lacking.is_empty() {
                return Ok(shape);
            }
            let message = format!("{table} lacks {}: run `postbox migrate up` on it", lacking.join(", "));
            return Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message));
        }
        let others = sqlx::query_scalar::<_, String>(
            "SELECT CAST(table_name AS CHAR) FROM information_schema.columns
             WHERE table_schema = ? AND column_name = 'published_at'",
        );
        let others = others.bind(schema).fetch_all(connection).await.map_err(classify)?;
        let others = others.into_iter().map(|other| match table.schema() {
            Some(schema) => format!("{schema}.{other}"),
            None => other,
        });
        Err(missing(table, others.collect()))
    }

    /// Whether the columns that are there have the right types, and the standard ones are all there.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut problems = Vec::new();
        let extension = EXTENSION.iter().map(|(name, kind, _)| (*name, *kind, false));
        for (name, kind, needed) in STANDARD.iter().map(|(name, kind)| (*name, *kind, true)).chain(extension)
        {
            match self.columns.iter().find(|column| column.name == name) {
                None if needed => problems.push(format!("{name} is missing")),
                Some(column) if !kind.fits(column) => {
                    problems.push(format!(
                        "{name} is {}, not {}",
                        column.whole.to_uppercase(),
                        kind.wanted()
                    ));
                }
                Some(column) if column.foreign => {
                    problems.push(format!("{name} is not in the character set utf8mb4"));
                }
                None | Some(_) => {}
            }
        }
        refuse(&self.name, &problems)
    }

    /// Extension columns that are not there: no relay works without them.
    pub(super) fn lacking(&self) -> Vec<&'static str> {
        self.missing().into_iter().map(|(name, _)| name).collect()
    }

    /// The same with what is to be added.
    pub(super) fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let is_there = |name: &str| self.columns.iter().any(|column| column.name == name);
        let missing = EXTENSION.iter().filter(|(name, ..)| !is_there(name));
        missing.map(|(name, _, kind)| (*name, *kind)).collect()
    }

    /// The columns that are somebody's own, with their types.
    pub(super) fn own_columns(&self) -> impl Iterator<Item = &Column> {
        let ours = |name: &str| {
            STANDARD.iter().any(|(column, _)| *column == name)
                || EXTENSION.iter().any(|(column, ..)| *column == name)
        };
        self.columns.iter().filter(move |column| !ours(&column.name))
    }

    /// All of them.
    pub(super) fn into_columns(self) -> Vec<Column> {
        self.columns
    }
}

/// A name for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}
