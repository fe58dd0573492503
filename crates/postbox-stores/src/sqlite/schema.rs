//! What a table looks like: read once from the catalogue before anything is done to it.

use std::collections::BTreeMap;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{Row as _, SqliteConnection};

use super::error::classify;
use super::history::INDEX;
use super::migrate::{TENANTS, is_right};
use crate::history::name_of;
use crate::schema::{problems, refuse};
use crate::table::{Template, missing};

/// The twelve standard columns with their types.
pub(super) const STANDARD: [(&str, &str); 12] = [
    ("sequence", "INTEGER"),
    ("id", "BLOB"),
    ("tenant_id", "BLOB"),
    ("topic", "TEXT"),
    ("payload", "TEXT"),
    ("event_id", "BLOB"),
    ("created_at", "INTEGER"),
    ("published_at", "INTEGER"),
    ("attempts", "INTEGER"),
    ("available_at", "INTEGER"),
    ("locked_at", "INTEGER"),
    ("last_error", "TEXT"),
];

/// The extension columns with their types.
pub(super) const EXTENSION: [(&str, &str); 18] = [
    ("aggregate_type", "TEXT"),
    ("aggregate_id", "TEXT"),
    ("headers", "TEXT"),
    ("occurred_at", "INTEGER"),
    ("schema_id", "TEXT"),
    ("schema_version", "INTEGER"),
    ("routing_key", "TEXT"),
    ("metadata", "TEXT"),
    ("traceparent", "TEXT"),
    ("tracestate", "TEXT"),
    ("locked_by", "TEXT"),
    ("dead_at", "INTEGER"),
    ("dlq_at", "INTEGER"),
    ("payload_raw", "BLOB"),
    ("content_type", "TEXT"),
    ("attempts_log", "TEXT"),
    ("sinks_done", "TEXT"),
    ("redrives", "INTEGER"),
];

/// A table as it is.
#[derive(Debug, Clone)]
pub(super) struct TableShape {
    name: TableName,
    columns: BTreeMap<String, String>,
    /// Other tables hold anything in any column.
    strict: bool,
    /// Other sequences may be used again.
    autoincrement: bool,
}

/// The table's name without a schema. Here a schema is a file: the main one, or others that a connection attaches,
/// which a relay cannot know of.
pub(super) fn in_main(table: &TableName) -> Result<TableName, StoreError> {
    match table.schema() {
        None => Ok(table.clone()),
        Some("main") => table.table().parse().map_err(|error: postbox_core::TableNameError| {
            StoreError::new(Code::TableNameInvalid, StoreErrorKind::Refused, error)
        }),
        Some(schema) => {
            let message = format!("SQLite has no schema {schema:?}: name the table {}", table.table());
            Err(StoreError::new(Code::TableNameInvalid, StoreErrorKind::Refused, message))
        }
    }
}

/// The names for the statements about a table. They name the indexes that they are made for, as far as these are there:
/// whatever ANALYZE and `PRAGMA optimize` have counted is soon no longer true (an outbox is full now and empty then), and
/// would make the planner read all that waits for every claim.
pub(super) async fn names(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Template, StoreError> {
    let indexes = sqlx::query_as::<_, (String, String)>(
        "SELECT name, coalesce(sql, '') FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?1",
    );
    let indexes = indexes.bind(table.table()).fetch_all(&mut *connection).await.map_err(classify)?;
    let by = |place: &'static str, end: &str| {
        let name = format!("{}_{end}", table.table());
        let there = indexes.iter().any(|(index, sql)| *index == name && is_right(end, sql));
        (place, if there { format!("INDEXED BY \"{name}\"") } else { String::new() })
    };
    let history =
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = ?1");
    let history_index = format!("{}_{}", name_of(table), INDEX.0);
    let there = history.bind(&history_index).fetch_one(connection).await.map_err(classify)? > 0;
    let by_history = if there { format!("INDEXED BY \"{history_index}\"") } else { String::new() };
    let places = [
        ("by_history", by_history),
        by("by_pending", "pending_by_available"),
        by("by_published", "published_by_time"),
        by("by_dead", "dead_by_time"),
        by("by_letters", "letters_waiting"),
        by("by_tenant", "tenant_published"),
        by("by_sequence", "unpublished_by_sequence"),
        by("by_dead_aggregate", "dead_by_aggregate"),
    ];
    let (place, by_tenants) = by("by_tenants_waiting", TENANTS.0);
    let names =
        places.into_iter().fold(Template::of(table, '"'), |names, (place, text)| names.with(place, text));
    let names = names.with(place, by_tenants);
    // Without the indexes nothing is kept in order, and to find out what is blocked would mean to read all of the table.
    let ordered = is_ordered(&names);
    let (blocked, kept) = (include_str!("sql/blocked.sql"), include_str!("sql/kept.sql"));
    let (blocked, kept) =
        if ordered { (names.fill(blocked), names.fill(kept)) } else { ("0".into(), "0".into()) };
    Ok(names.with("blocked", blocked).with("kept", kept))
}

/// Whether a table has what delivery in order needs.
pub(super) fn is_ordered(names: &Template) -> bool {
    ["{{by_sequence}}", "{{by_dead_aggregate}}"].iter().all(|place| !names.fill(place).is_empty())
}

impl TableShape {
    /// Reads the table's shape; none if it does not exist.
    pub(super) async fn read(
        connection: &mut SqliteConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let found = sqlx::query(
            "SELECT l.strict, upper(s.sql) LIKE '%AUTOINCREMENT%' FROM sqlite_schema s
             JOIN pragma_table_list l ON l.schema = 'main' AND l.name = s.name
             WHERE s.type = 'table' AND s.name = ?1",
        )
        .bind(table.table())
        .fetch_optional(&mut *connection)
        .await?;
        let Some(found) = found else { return Ok(None) };
        let columns = sqlx::query("SELECT name, upper(type) FROM pragma_table_info(?1)")
            .bind(table.table())
            .fetch_all(&mut *connection)
            .await?;
        let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        Ok(Some(Self {
            name: table.clone(),
            columns: columns.collect::<Result<_, sqlx::Error>>()?,
            strict: found.try_get(0)?,
            autoincrement: found.try_get(1)?,
        }))
    }

    /// Reads the shape of a table that must be there, whole.
    pub(super) async fn expect(
        connection: &mut SqliteConnection,
        table: &TableName,
    ) -> Result<Self, StoreError> {
        if let Some(shape) = Self::read(connection, table).await.map_err(classify)? {
            shape.check()?;
            let missing = shape.missing();
            let system = sqlx::query_scalar::<_, i64>(
                "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('postbox_relay', 'postbox_audit')",
            );
            let system = system.fetch_one(connection).await.map_err(classify)?;
            if missing.is_empty() && system == 2 {
                return Ok(shape);
            }
            let lacking =
                if missing.is_empty() { "postbox_relay or postbox_audit".into() } else { missing.join(", ") };
            let message = format!("{table} lacks {lacking}: run `postbox migrate up` on it");
            return Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message));
        }
        let others = sqlx::query_scalar::<_, String>(
            "SELECT s.name FROM sqlite_schema s JOIN pragma_table_info(s.name) c ON c.name = 'published_at'
             WHERE s.type = 'table'",
        );
        Err(missing(table, others.fetch_all(connection).await.map_err(classify)?))
    }

    /// Whether the columns that are there have the right types, and the standard ones are all there.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut problems = problems(&self.columns, &STANDARD, &EXTENSION);
        if !self.strict {
            problems.push("the table is not STRICT".to_owned());
        }
        if !self.autoincrement {
            problems.push("sequence is not INTEGER PRIMARY KEY AUTOINCREMENT".to_owned());
        }
        refuse(&self.name, &problems)
    }

    /// Extension columns that are not there: no relay works without them.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let columns = EXTENSION.iter().map(|(column, _)| *column);
        columns.filter(|column| !self.columns.contains_key(*column)).collect()
    }
}
