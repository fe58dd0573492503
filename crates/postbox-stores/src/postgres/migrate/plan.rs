//! What has to be done to a table, found out by looking at it.

use std::collections::BTreeMap;

use postbox_core::{StoreError, TableName};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::{INDEXES, Ordered, history, idempotency, inbox, index_sql, names, view_sql};
use crate::history::name_of as history_name;
use crate::plan::{Extras, Plan, Step, StepLock};
use crate::postgres::ask::ask;
use crate::postgres::error::classify;
use crate::postgres::order;
use crate::postgres::schema::TableShape;
use crate::postgres::tenants;
use crate::postgres::wake;
use crate::table::Template;

/// Finds out what `up` would do.
///
/// # Errors
/// When the table exists with columns of other types, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn plan(connection: &mut PgConnection, table: &TableName) -> Result<Plan, StoreError> {
    plan_with(connection, table, Extras::default()).await
}

/// Finds out what `up_with` would do.
///
/// # Errors
/// As [`plan`]; also when something else stands where an extra table would be.
///
/// # Cancel safety
/// As [`plan`].
pub async fn plan_with(
    connection: &mut PgConnection,
    table: &TableName,
    extras: Extras,
) -> Result<Plan, StoreError> {
    // One transaction: behind a pooler, nothing else is one session.
    let mut tx = connection.begin().await.map_err(classify)?;
    let plan = look(&mut tx, table, extras).await?;
    tx.commit().await.map_err(classify)?;
    Ok(plan)
}

async fn look(connection: &mut PgConnection, table: &TableName, extras: Extras) -> Result<Plan, StoreError> {
    let schema = ask("SELECT current_schema()::text").fetch_one(&mut *connection).await.map_err(classify)?;
    let schema = schema.try_get::<Option<String>, _>(0).map_err(classify)?.unwrap_or_else(|| "public".into());
    let shape = TableShape::read(connection, table).await.map_err(classify)?;
    let table = match &shape {
        Some(shape) => shape.name.clone(),
        None => table.clone().or_schema(&schema),
    };
    let template = names(&table);
    let mut steps = Vec::new();
    match &shape {
        None => {
            steps.push(Step::new(
                format!("+ table {table}"),
                template.fill(include_str!("../migrations/table.sql")),
                StepLock::None,
            ));
            steps.push(Step::new(
                "+ extension columns",
                template.fill(include_str!("../migrations/columns.sql")),
                StepLock::None,
            ));
        }
        Some(shape) => {
            shape.check()?;
            let missing = shape.missing();
            if !missing.is_empty() {
                steps.push(Step::new(
                    format!("+ columns {}", missing.join(", ")),
                    template.fill(include_str!("../migrations/columns.sql")),
                    StepLock::Short,
                ));
            }
        }
    }
    let found = Catalogue::read(connection, &table).await.map_err(classify)?;
    constraints(&table, shape.is_some(), &found, &mut steps);
    for (end, columns, predicate) in INDEXES {
        let marks = Marks { columns: &[columns], predicate };
        index(&table, shape.is_some(), &found, (end, columns), &marks, &mut steps);
    }
    let ordered = extras.ordered.max(found.ordered(&table));
    if ordered >= Ordered::Index {
        for (end, predicate) in order::INDEXES {
            let marks = Marks { columns: &order::INDEX_MARKS, predicate };
            index(&table, shape.is_some(), &found, (end, &order::index_columns()), &marks, &mut steps);
        }
    }
    let (end, columns, predicate) = tenants::INDEX;
    if extras.tenants || found.indexes.contains_key(&format!("{}_{end}", table.table())) {
        let marks = Marks { columns: &[columns], predicate };
        index(&table, shape.is_some(), &found, (end, columns), &marks, &mut steps);
    }
    if !found.storage {
        let sql = template.fill(include_str!("../migrations/storage.sql"));
        steps.push(Step::new("~ storage: fillfactor, autovacuum", sql, StepLock::Short));
    }
    let history = history::steps(connection, &table, shape.as_ref(), extras.history, &mut steps).await?;
    let view = !found.view_has_windows || (history && !found.view_has_history);
    for (missing, what, sql) in [
        (!found.relay, "+ table postbox_relay", include_str!("../migrations/relay.sql")),
        (!found.audit, "+ table postbox_audit", include_str!("../migrations/audit.sql")),
        (
            !found.registered,
            "+ row in postbox_relay",
            "INSERT INTO {{relay}} (tbl) VALUES ({{key}}) ON CONFLICT DO NOTHING",
        ),
        (view, "+ status view", view_sql(history)),
        (!found.function, "+ function postbox_enqueue", include_str!("../migrations/enqueue.sql")),
    ] {
        if missing {
            // Who reads a view that is there holds up its change, and that all others.
            let lock = if found.view && what.ends_with("view") { StepLock::Short } else { StepLock::None };
            steps.push(Step::new(what, template.fill(sql), lock));
        }
    }
    inbox::steps(connection, &table, extras.inbox, &mut steps).await?;
    idempotency::steps(connection, &table, extras.idempotency, &mut steps).await?;
    let wakes = extras.wake_trigger || found.wake_trigger;
    triggers(&template, ordered == Ordered::Writers, wakes, &found, &mut steps);
    Ok(Plan { table, steps })
}

/// What fires when a row is written, on tables that are to have it.
fn triggers(template: &Template, orders: bool, wakes: bool, found: &Catalogue, steps: &mut Vec<Step>) {
    for (missing, what, sql, lock) in [
        (
            orders && !found.ordered_function,
            "+ function postbox_ordered",
            include_str!("../migrations/ordered.sql"),
            StepLock::None,
        ),
        // Waits for those who are writing: what they drew without a lock is committed before it.
        (
            orders && !found.fires,
            "+ trigger postbox_ordered",
            include_str!("../migrations/ordered_trigger.sql"),
            StepLock::Short,
        ),
        (
            wakes && !found.wake_function,
            "+ function postbox_wake",
            include_str!("../migrations/wake.sql"),
            StepLock::None,
        ),
        (
            wakes && !found.wake_trigger,
            "+ trigger postbox_wake",
            include_str!("../migrations/wake_trigger.sql"),
            StepLock::Short,
        ),
    ] {
        if missing {
            steps.push(Step::new(what, template.fill(sql), lock));
        }
    }
}

/// Constraints that an older table may lack.
fn constraints(table: &TableName, exists: bool, found: &Catalogue, steps: &mut Vec<Step>) {
    if !exists {
        return;
    }
    let (quoted, name) = (table.quoted('"'), table.table());
    if !found.unique_event_id {
        let index = format!("{name}_event_id_key");
        let build = format!("CREATE UNIQUE INDEX CONCURRENTLY \"{index}\" ON {quoted} (event_id)");
        drop_invalid(table, &index, found, steps);
        if found.indexes.get(&index).is_none_or(|index| !index.valid) {
            steps.push(Step::new(format!("+ unique index {index}"), build, StepLock::Concurrent));
        }
        let adopt = format!("ALTER TABLE {quoted} ADD CONSTRAINT \"{index}\" UNIQUE USING INDEX \"{index}\"");
        steps.push(Step::new(format!("+ constraint {index}"), adopt, StepLock::Short));
    }
    let check = format!("{name}_attempts_nonnegative");
    if !found.constraints.contains_key(&check) {
        let add = format!("ALTER TABLE {quoted} ADD CONSTRAINT \"{check}\" CHECK (attempts >= 0) NOT VALID");
        steps.push(Step::new(format!("+ constraint {check}"), add, StepLock::Short));
    }
    if !found.constraints.get(&check).copied().unwrap_or(false) {
        let validate = format!("ALTER TABLE {quoted} VALIDATE CONSTRAINT \"{check}\"");
        steps.push(Step::new(format!("~ validate {check}"), validate, StepLock::Concurrent));
    }
}

/// By what an index is known to be the right one.
struct Marks<'a> {
    columns: &'a [&'a str],
    predicate: &'a str,
}

impl Marks<'_> {
    fn are_in(&self, index: &Index) -> bool {
        let columns = self.columns.iter().all(|part| index.definition.contains(part));
        let mut predicate = self.predicate.split(" AND ");
        index.valid && columns && predicate.all(|part| index.definition.contains(part))
    }
}

fn index(
    table: &TableName,
    exists: bool,
    found: &Catalogue,
    (end, columns): (&str, &str),
    marks: &Marks<'_>,
    steps: &mut Vec<Step>,
) {
    let quoted = |name: &str| table.quoted_sibling(name, '"');
    let predicate = marks.predicate;
    let name = format!("{}_{end}", table.table());
    if !exists {
        let sql = index_sql(table, end, columns, predicate, "IF NOT EXISTS");
        steps.push(Step::new(format!("+ index {name}"), sql, StepLock::None));
        return;
    }
    // An index of the same name with another condition (the seed's, which holds dead rows) is replaced: ours is
    // built beside it, then the old one goes.
    let right = |index: &Index| marks.are_in(index);
    if found.indexes.get(&name).is_some_and(right) {
        return;
    }
    // Shorter than the name itself, which may already be as long as PostgreSQL allows.
    let kind = end.split('_').next().unwrap_or(end);
    let beside_end =
        if end.ends_with("aggregate") { format!("{kind}_agg_new") } else { format!("{kind}_new") };
    let beside = format!("{}_{beside_end}", table.table());
    let old_is_useful = found.indexes.get(&name).is_some_and(|index| index.valid);
    let half_done = found.indexes.contains_key(&beside);
    if old_is_useful || half_done {
        drop_invalid(table, &beside, found, steps);
        if !found.indexes.get(&beside).is_some_and(right) {
            let sql = index_sql(table, &beside_end, columns, predicate, "CONCURRENTLY");
            steps.push(Step::new(format!("+ index {beside} CONCURRENTLY"), sql, StepLock::Concurrent));
        }
        if found.indexes.contains_key(&name) {
            let drop = format!("DROP INDEX CONCURRENTLY {}", quoted(&name));
            steps.push(Step::new(format!("- index {name} (other condition)"), drop, StepLock::Concurrent));
        }
        let rename = format!("ALTER INDEX {} RENAME TO \"{name}\"", quoted(&beside));
        steps.push(Step::new(format!("~ index {beside} → {name}"), rename, StepLock::Short));
    } else {
        drop_invalid(table, &name, found, steps);
        let sql = index_sql(table, end, columns, predicate, "CONCURRENTLY");
        steps.push(Step::new(format!("+ index {name} CONCURRENTLY"), sql, StepLock::Concurrent));
    }
}

/// What an interrupted concurrent build leaves behind is in the way and of no use.
fn drop_invalid(table: &TableName, name: &str, found: &Catalogue, steps: &mut Vec<Step>) {
    if found.indexes.get(name).is_some_and(|index| !index.valid) {
        let drop = format!("DROP INDEX CONCURRENTLY {}", table.quoted_sibling(name, '"'));
        steps.push(Step::new(format!("- invalid index {name}"), drop, StepLock::Concurrent));
    }
}

struct Index {
    valid: bool,
    definition: String,
}

/// What else is there.
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of the catalogue")]
struct Catalogue {
    indexes: BTreeMap<String, Index>,
    /// Constraints by name, and whether they are valid.
    constraints: BTreeMap<String, bool>,
    unique_event_id: bool,
    storage: bool,
    relay: bool,
    audit: bool,
    registered: bool,
    view: bool,
    view_has_history: bool,
    /// It tells what owners have in flight.
    view_has_windows: bool,
    function: bool,
    ordered_function: bool,
    /// The trigger is there, and whether it fires.
    trigger: bool,
    fires: bool,
    wake_function: bool,
    wake_trigger: bool,
}

impl Catalogue {
    async fn read(connection: &mut PgConnection, table: &TableName) -> Result<Self, sqlx::Error> {
        let (schema, name) = (table.schema().unwrap_or("public"), table.table());
        let rows = sqlx::query(
            "SELECT i.relname::text, x.indisvalid, pg_get_indexdef(x.indexrelid)
             FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = to_regclass($1)",
        )
        .bind(table.quoted('"'))
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
        let mut indexes = BTreeMap::new();
        for row in rows {
            indexes.insert(row.try_get(0)?, Index { valid: row.try_get(1)?, definition: row.try_get(2)? });
        }
        let rows = sqlx::query(
            "SELECT conname::text, convalidated FROM pg_constraint WHERE conrelid = to_regclass($1)",
        )
        .bind(table.quoted('"'))
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
        let constraints = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let constraints = constraints.collect::<Result<_, sqlx::Error>>()?;
        let facts = sqlx::query(
            "SELECT
                EXISTS (SELECT 1 FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
                        WHERE x.indrelid = to_regclass($1) AND x.indisunique AND x.indisvalid AND x.indnatts = 1
                          AND x.indpred IS NULL AND a.attname = 'event_id'
                          AND EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = x.indexrelid)),
                -- Whatever they are: an operator may know better ones.
                coalesce((SELECT array_to_string(reloptions, ',') LIKE '%autovacuum_vacuum_scale_factor=%' FROM pg_class
                          WHERE oid = to_regclass($1)), false),
                to_regclass($2) IS NOT NULL, to_regclass($3) IS NOT NULL, to_regclass($4) IS NOT NULL,
                -- One that an earlier version made wakes nobody.
                EXISTS (SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                        WHERE n.nspname = $5 AND p.proname = 'postbox_enqueue' AND p.prosrc LIKE '%pg_notify%'),
                EXISTS (SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                        WHERE n.nspname = $5 AND p.proname = $6),
                EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $6),
                EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $6 AND tgenabled <> 'D'),
                coalesce(strpos(pg_get_viewdef(to_regclass($4)), $7) > 0, false),
                coalesce(strpos(pg_get_viewdef(to_regclass($4)), 'win_to') > 0, false),
                EXISTS (SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                        WHERE n.nspname = $5 AND p.proname = $8),
                EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $8)",
        )
        .bind(table.quoted('"'))
        .bind(table.quoted_sibling("postbox_relay", '"'))
        .bind(table.quoted_sibling("postbox_audit", '"'))
        .bind(table.quoted_sibling(&format!("{name}_status"), '"'))
        .bind(schema)
        .bind(order::TRIGGER)
        .bind(history_name(table))
        .bind(wake::TRIGGER)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
        let relay: bool = facts.try_get(2)?;
        let mut registered = false;
        if relay {
            let sql = names(table).fill("SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = {{key}})");
            registered = ask(sql).fetch_one(&mut *connection).await?.try_get(0)?;
        }
        Ok(Self {
            indexes,
            constraints,
            unique_event_id: facts.try_get(0)?,
            storage: facts.try_get(1)?,
            relay,
            audit: facts.try_get(3)?,
            registered,
            view: facts.try_get(4)?,
            view_has_history: facts.try_get(9)?,
            view_has_windows: facts.try_get(10)?,
            function: facts.try_get(5)?,
            ordered_function: facts.try_get(6)?,
            trigger: facts.try_get(7)?,
            fires: facts.try_get(8)?,
            wake_function: facts.try_get(11)?,
            wake_trigger: facts.try_get(12)?,
        })
    }

    /// What the table has for order, or was about to get: it keeps that.
    fn ordered(&self, table: &TableName) -> Ordered {
        let begun = |(end, _)| self.indexes.contains_key(&format!("{}_{end}", table.table()));
        if self.trigger {
            Ordered::Writers
        } else if order::INDEXES.into_iter().any(begun) {
            Ordered::Index
        } else {
            Ordered::AsItIs
        }
    }
}
