//! What a table looks like: read once from the catalogue before anything is done to it.

use std::collections::BTreeMap;

use postbox_core::{Layout, StoreError, TableName};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::error::classify;
use crate::schema::{problems, refuse};
use crate::table::missing;

/// The twelve standard columns with their types, as the catalogue writes them.
pub(super) const STANDARD: [(&str, &str); 12] = [
    ("id", "uuid"),
    ("tenant_id", "uuid"),
    ("topic", "text"),
    ("payload", "jsonb"),
    ("event_id", "uuid"),
    ("sequence", "bigint"),
    ("created_at", "timestamp with time zone"),
    ("published_at", "timestamp with time zone"),
    ("attempts", "integer"),
    ("available_at", "timestamp with time zone"),
    ("locked_at", "timestamp with time zone"),
    ("last_error", "text"),
];

/// The extension columns with their types.
pub(super) const EXTENSION: [(&str, &str); 18] = [
    ("aggregate_type", "text"),
    ("aggregate_id", "text"),
    ("headers", "jsonb"),
    ("occurred_at", "timestamp with time zone"),
    ("schema_id", "text"),
    ("schema_version", "integer"),
    ("routing_key", "text"),
    ("metadata", "jsonb"),
    ("traceparent", "text"),
    ("tracestate", "text"),
    ("locked_by", "text"),
    ("dead_at", "timestamp with time zone"),
    ("dlq_at", "timestamp with time zone"),
    ("payload_raw", "bytea"),
    ("content_type", "text"),
    ("attempts_log", "jsonb"),
    ("sinks_done", "text[]"),
    ("redrives", "integer"),
];

/// Those of them that came later: a table that an earlier version migrated is whole without them, and only what needs one
/// of them is refused.
const LATER: [&str; 1] = ["redrives"];

/// A table as it is.
#[derive(Debug, Clone)]
pub(super) struct TableShape {
    /// Its name with its schema.
    pub(super) name: TableName,
    /// Its number, by which the server and locks know it.
    pub(super) oid: u32,
    /// Its columns and their types.
    pub(super) columns: BTreeMap<String, String>,
    /// Whether `postbox_relay` and `postbox_audit` stand beside it.
    pub(super) system_tables: bool,
    /// Whether policies may hide rows of it from this user: row-level security is at work, and none that shows all of them.
    pub(super) hides_rows: bool,
}

impl TableShape {
    /// Reads the table's shape; none if it does not exist.
    pub(super) async fn read(
        connection: &mut PgConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let found = sqlx::query(
            "SELECT n.nspname::text, c.oid, to_regclass(quote_ident(n.nspname) || '.postbox_relay') IS NOT NULL
                AND to_regclass(quote_ident(n.nspname) || '.postbox_audit') IS NOT NULL,
                row_security_active(c.oid) AND NOT EXISTS (
                    SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd = '*'
                      AND pg_get_expr(p.polqual, p.polrelid) = 'true'
                      AND EXISTS (SELECT 1 FROM unnest(p.polroles) AS r WHERE r = 0 OR pg_has_role(r, 'USAGE')))
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')",
        )
        .bind(table.quoted('"'))
        .persistent(false)
        .fetch_optional(&mut *connection)
        .await?;
        let Some(found) = found else { return Ok(None) };
        let (schema, oid): (String, sqlx::postgres::types::Oid) = (found.try_get(0)?, found.try_get(1)?);
        let columns = sqlx::query(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
             WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped",
        )
        .bind(oid)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
        let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        Ok(Some(Self {
            name: table.clone().or_schema(&schema),
            oid: oid.0,
            columns: columns.collect::<Result<_, sqlx::Error>>()?,
            system_tables: found.try_get(2)?,
            hides_rows: found.try_get(3)?,
        }))
    }

    /// Reads the table's shape; a missing table is an error that names the most similar one.
    pub(super) async fn expect(connection: &mut PgConnection, table: &TableName) -> Result<Self, StoreError> {
        if let Some(shape) = Self::read(connection, table).await.map_err(classify)? {
            shape.check()?;
            return Ok(shape);
        }
        let others = sqlx::query_scalar::<_, String>(AssertSqlSafe(
            "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'published_at' WHERE c.relkind = 'r'",
        ))
        .persistent(false)
        .fetch_all(connection)
        .await
        .map_err(classify)?;
        Err(missing(table, others))
    }

    /// Whether the columns that are there have the right types, and the standard ones are all there.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let problems = problems(&self.columns, &STANDARD, &EXTENSION);
        refuse(&self.name, &problems)
    }

    /// Extension columns that are not there.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        EXTENSION
            .iter()
            .map(|(column, _)| *column)
            .filter(|column| !self.columns.contains_key(*column))
            .collect()
    }

    /// How the table is relayed: with everything, or by what the standard columns allow.
    pub(super) fn layout(&self) -> Layout {
        let whole = self.missing().iter().all(|column| LATER.contains(column));
        if whole && self.system_tables { Layout::Full } else { Layout::Bare }
    }
}
