//! What makes a table fit for delivery in order: the number of a strand, the index by it, and the trigger that makes
//! `sequence` the order of commits within an aggregate.

use postbox_core::{Code, Layout, StoreError, StoreErrorKind};
use sqlx::{PgConnection, Row as _};

use super::error::classify;
use super::migrate::Ordered;
use super::schema::TableShape;
use crate::table::Template;

/// The trigger that draws `sequence` under the aggregate's lock.
pub(super) const TRIGGER: &str = "postbox_ordered";

/// The indexes: the end of the name, and what the predicate must hold. The second tells which strands wait behind a dead event;
/// the index by time (decision 6) would have to be read whole for each of them.
pub(super) const INDEXES: [(&str, &str); 2] = [
    ("pending_by_aggregate", "published_at IS NULL AND dead_at IS NULL"),
    ("dead_by_aggregate", "dead_at IS NOT NULL"),
];

/// By what an index of another making is told from ours: the catalogue writes expressions in its own way.
pub(super) const INDEX_MARKS: [&str; 4] =
    ["uuid_hash_extended(id", "hashtextextended(aggregate_id", "uuid_hash_extended(tenant_id", ", sequence)"];

/// The strand of an aggregate: a number for `(tenant_id, aggregate_type, aggregate_id)`. Where two aggregates share one, they
/// wait for each other and nothing else. `row` is what stands before the columns, such as `t.`.
pub(super) fn aggregate_strand(row: &str) -> String {
    format!(
        "hashtextextended({row}aggregate_id, hashtextextended(coalesce({row}aggregate_type, ''), \
         uuid_hash_extended({row}tenant_id, 0)))"
    )
}

/// The strand of a row; one without an aggregate is a strand of its own. The one home of this expression: index and statements
/// must hold the same one, or the index is of no use.
pub(super) fn strand(row: &str) -> String {
    let aggregate = aggregate_strand(row);
    format!("CASE WHEN {row}aggregate_id IS NULL THEN uuid_hash_extended({row}id, 0) ELSE {aggregate} END")
}

/// What the indexes are over.
pub(super) fn index_columns() -> String {
    format!("(({}), sequence)", strand(""))
}

/// The advisory lock of an aggregate's writers. `table` is the number of the table.
pub(super) fn writers_lock(row: &str, table: &str) -> String {
    format!("hashint8extended({}, {table}::bigint)", aggregate_strand(row))
}

/// Fills in the places that statements about order have: the strand of a row called `t`, `d`, `p`, or of the only one.
pub(super) fn with_strands(template: Template) -> Template {
    template
        .with("strand", strand(""))
        .with("t_strand", strand("t."))
        .with("d_strand", strand("d."))
        .with("p_strand", strand("p."))
}

/// What a table has for order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TableOrder {
    /// Both indexes are there and can be used.
    pub(super) indexed: bool,
    /// The trigger is there and fires.
    pub(super) triggered: bool,
}

impl TableOrder {
    pub(super) async fn read(connection: &mut PgConnection, shape: &TableShape) -> Result<Self, StoreError> {
        if shape.layout() == Layout::Bare {
            return Ok(Self::default());
        }
        let names = INDEXES.map(|(end, _)| format!("{}_{end}", shape.name.table()));
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                     WHERE x.indrelid = to_regclass($1) AND x.indisvalid AND i.relname = ANY ($2)) = 2,
                    EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $3 AND tgenabled <> 'D')",
        )
        .bind(shape.name.quoted('"'))
        .bind(&names[..])
        .bind(TRIGGER)
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(classify)?;
        let read = || Ok(Self { indexed: row.try_get(0)?, triggered: row.try_get(1)? });
        read().map_err(classify)
    }

    /// What the table was migrated for.
    pub(super) fn migrated(self) -> Ordered {
        match (self.indexed, self.triggered) {
            (true, true) => Ordered::Writers,
            (true, false) => Ordered::Index,
            (false, _) => Ordered::AsItIs,
        }
    }

    /// For people.
    pub(super) fn in_words(self) -> &'static str {
        match self.migrated() {
            Ordered::Writers => "ordered: sequence is the order of commits within an aggregate",
            Ordered::Index => {
                "index by aggregate, no trigger: in order as far as an aggregate's writers wait for each other"
            }
            Ordered::AsItIs => "not ordered: migrate up --ordered adds what ordering = \"aggregate\" needs",
        }
    }

    /// Whether events can be delivered in order from this table.
    pub(super) fn check(self, shape: &TableShape) -> Result<(), StoreError> {
        let table = &shape.name;
        let why = match (shape.layout(), self.indexed) {
            (Layout::Full, true) => return Ok(()),
            (Layout::Bare, _) => format!(
                "{table} has only the standard columns, and so no aggregates: `postbox migrate up --ordered --table {table}` \
                 adds them"
            ),
            (Layout::Full, false) => format!(
                "{table} has no index by aggregate: add it with `postbox migrate up --ordered --table {table}`, or with \
                 --order-index where writers lock their aggregates themselves"
            ),
        };
        Err(StoreError::new(Code::OrderUnsupported, StoreErrorKind::Refused, why))
    }
}
