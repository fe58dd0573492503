//! Makes, upgrades and removes outbox tables: as a plan that is shown, carried out, or printed for another tool.
//!
//! Every step can be repeated. A run that was interrupted is finished by the next one, and no step makes anybody else
//! wait for longer than a fraction of a second: short locks are asked for with a time limit and tried again, indexes on
//! existing tables are built concurrently.

mod apply;
mod history;
mod idempotency;
mod inbox;
mod plan;
mod print;

pub use crate::plan::{Extras, Held, Ordered, Plan, Step, StepLock};
// For `any`, which is there where all databases are.
#[cfg(all(feature = "sqlite", feature = "mysql"))]
pub(crate) use apply::expect_sessions;
pub use apply::{down, down_by, held, up, up_with};
pub use history::has_history;
pub use idempotency::has_idempotency;
pub use inbox::has_inbox;
pub use plan::{plan, plan_with};
pub use print::{
    Format, Grants, print_down, print_down_with, print_grants, print_grants_with, print_up, print_up_with,
};

use postbox_core::TableName;

use super::{order, wake};
use crate::table::Template;

/// The indexes of a table: the end of the name, the columns, and what the predicate must hold.
pub(super) const INDEXES: [(&str, &str, &str); 5] = [
    ("pending_by_available", "(available_at, sequence)", "published_at IS NULL AND dead_at IS NULL"),
    ("published_by_time", "(published_at, sequence)", "published_at IS NOT NULL"),
    ("tenant_published", "(tenant_id, published_at, sequence)", ""),
    // Not in the seeds: without it, counting and listing dead events reads the whole history. It holds dead rows
    // alone, so events that live never touch it.
    ("dead_by_time", "(dead_at, sequence)", "dead_at IS NOT NULL"),
    // What still has to go to the dead-letter route: few rows, however many dead ones have gone there.
    ("letters_waiting", "(available_at, sequence)", "dead_at IS NOT NULL AND dlq_at IS NULL"),
];

/// Names for the statements of a migration. A table without a schema is looked for where the session looks.
fn names(table: &TableName) -> Template {
    let key = match table.schema() {
        Some(_) => format!("'{table}'"),
        None => format!("(current_schema() || '.{table}')"),
    };
    // A view outlives the session that makes it, and what that one's search path is.
    let view_key = match table.schema() {
        Some(_) => key.clone(),
        None => format!(
            "(SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = '{}'::regclass)",
            table.quoted('"')
        ),
    };
    Template::of(table, '"')
        .with("view_key", view_key)
        .with("name", table.table())
        .with("inbox_name", table.inbox())
        .with("idempotency_name", table.idempotency())
        .with("status_view", table.quoted_sibling(&format!("{}_status", table.table()), '"'))
        .with("enqueue", table.quoted_sibling("postbox_enqueue", '"'))
        .with("ordered", table.quoted_sibling(order::TRIGGER, '"'))
        .with("wake", table.quoted_sibling(wake::TRIGGER, '"'))
        .with("wake_lock", wake::LOCK.to_string())
        .with("new_lock", order::writers_lock("NEW.", "TG_RELID"))
        .with("key", key)
}

/// The statement that makes the status view: of a table, or of one with a history.
fn view_sql(history: bool) -> &'static str {
    if history {
        concat!(include_str!("migrations/view.sql"), include_str!("migrations/view_history.sql"))
    } else {
        include_str!("migrations/view.sql")
    }
}

/// The statement that makes an index.
fn index_sql(table: &TableName, end: &str, columns: &str, predicate: &str, how: &str) -> String {
    let name = format!("{}_{end}", table.table());
    let condition = if predicate.is_empty() { String::new() } else { format!(" WHERE {predicate}") };
    format!("CREATE INDEX {how} \"{name}\" ON {} {columns}{condition}", table.quoted('"'))
}
