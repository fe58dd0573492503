//! A migration as SQL text, for tools that apply it themselves.

use std::str::FromStr;

use postbox_core::TableName;

use super::{INDEXES, Ordered, history, idempotency, inbox, index_sql, names, view_sql};
use crate::plan::Extras;
use crate::postgres::{order, tenants};
use crate::print::{goose, join};
use crate::table::Template;

pub use crate::print::Format;

/// Which roles get what: `writer=app,relay=postbox,viewer=ops`. A service that handles its own events right after their
/// commit is all of `writer=app,relay=app,handler=app`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grants {
    /// Enqueues.
    pub writer: Option<String>,
    /// Relays and cleans.
    pub relay: Option<String>,
    /// Looks, but at no payload.
    pub viewer: Option<String>,
    /// Writes rows that are born leased (the hot path), beside what it needs as writer and relay.
    pub handler: Option<String>,
}

impl FromStr for Grants {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut grants = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (kind, role) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not of the form kind=role"))?;
            let good = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
            if role.is_empty() || role.len() > 63 || !role.chars().all(good) {
                return Err(format!("{role:?} is not a role name"));
            }
            let place = match kind {
                "writer" => &mut grants.writer,
                "relay" => &mut grants.relay,
                "viewer" => &mut grants.viewer,
                "handler" => &mut grants.handler,
                _ => return Err(format!("{kind:?} is none of writer, relay, viewer, handler")),
            };
            if place.replace(role.to_owned()).is_some() {
                return Err(format!("{kind} is given twice"));
            }
        }
        Ok(grants)
    }
}

/// The statements that make a table, in order. No index is built concurrently: tools wrap this in a transaction.
fn up_statements(table: &TableName, extras: Extras) -> Vec<String> {
    let template = names(table);
    let mut statements = vec![
        template.fill(include_str!("../migrations/table.sql")),
        template.fill(include_str!("../migrations/columns.sql")),
    ];
    let index = |(end, columns, predicate): (&str, &str, &str)| {
        index_sql(table, end, columns, predicate, "IF NOT EXISTS")
    };
    statements.extend(INDEXES.map(index));
    if extras.ordered >= Ordered::Index {
        let columns = order::index_columns();
        statements.extend(order::INDEXES.map(|(end, predicate)| index((end, &columns, predicate))));
    }
    if extras.tenants {
        statements.push(index(tenants::INDEX));
    }
    if extras.history {
        let columns = include_str!("../migrations/columns.sql").replace("{{table}}", "{{history}}");
        statements.extend([
            template.fill(include_str!("../migrations/history.sql")),
            // Made for an earlier version of the table.
            template.fill(&columns),
            history::index_sql(table, "IF NOT EXISTS"),
        ]);
    }
    statements.extend(
        [
            include_str!("../migrations/storage.sql"),
            include_str!("../migrations/relay.sql"),
            include_str!("../migrations/audit.sql"),
            "INSERT INTO {{relay}} (tbl) VALUES ({{key}}) ON CONFLICT DO NOTHING",
            view_sql(extras.history),
            include_str!("../migrations/enqueue.sql"),
        ]
        .map(|sql| template.fill(sql)),
    );
    if extras.inbox {
        statements.push(template.fill(include_str!("../migrations/inbox.sql")));
        statements.push(inbox::index_sql(table, "IF NOT EXISTS"));
    }
    if extras.ordered == Ordered::Writers {
        let sql =
            [include_str!("../migrations/ordered.sql"), include_str!("../migrations/ordered_trigger.sql")];
        statements.extend(sql.map(|sql| template.fill(sql)));
    }
    if extras.wake_trigger {
        let sql = [include_str!("../migrations/wake.sql"), include_str!("../migrations/wake_trigger.sql")];
        statements.extend(sql.map(|sql| template.fill(sql)));
    }
    if extras.idempotency {
        statements.push(template.fill(include_str!("../migrations/idempotency.sql")));
        statements.push(idempotency::index_sql(table, "IF NOT EXISTS"));
    }
    statements
}

/// The table as SQL.
pub fn print_up(table: &TableName, format: Format) -> String {
    print_up_with(table, format, Extras::default())
}

/// The same, with what only some tables have.
pub fn print_up_with(table: &TableName, format: Format, extras: Extras) -> String {
    let up = up_statements(table, extras);
    match format {
        Format::Sql => join(&up),
        Format::Goose => goose(&up, &down_statements(table, extras)),
    }
}

/// The way back as SQL; it refuses by itself while unpublished events exist.
pub fn print_down(table: &TableName) -> String {
    print_down_with(table, Extras::default())
}

/// The same, with what only some tables have.
pub fn print_down_with(table: &TableName, extras: Extras) -> String {
    join(&down_statements(table, extras))
}

fn down_statements(table: &TableName, extras: Extras) -> Vec<String> {
    // Only where it is asked for: without a database, nobody can tell whether a table of that name is ours. All in one statement:
    // a tool that goes on after an error must not remove these beside a table that has refused.
    let others = [
        (extras.history, "\n    DROP TABLE IF EXISTS {{history}};"),
        (extras.inbox, "\n    DROP TABLE IF EXISTS {{inbox}};"),
        (extras.idempotency, "\n    DROP TABLE IF EXISTS {{idempotency}};"),
    ];
    let others: String = others.into_iter().filter(|(wanted, _)| *wanted).map(|(_, sql)| sql).collect();
    let template = Template::default().with("others", others).and(&names(table));
    vec![template.fill(include_str!("../migrations/down.sql"))]
}

/// Least privilege, by column.
pub fn print_grants(table: &TableName, grants: &Grants) -> String {
    print_grants_with(table, grants, Extras::default())
}

/// The same, with what is needed where published events are moved to the table's history, and for the module's inbox and calls.
pub fn print_grants_with(table: &TableName, grants: &Grants, extras: Extras) -> String {
    let template = names(table)
        .with("sequence", table.quoted_sibling(&format!("{}_sequence_seq", table.table()), '"'))
        .with("audit_sequence", table.quoted_sibling("postbox_audit_id_seq", '"'));
    let mut statements = Vec::new();
    for (role, sql, wanted) in [
        (&grants.writer, include_str!("../sql/grant_writer.sql"), true),
        (&grants.writer, include_str!("../sql/grant_writer_inbox.sql"), extras.inbox),
        (&grants.relay, include_str!("../sql/grant_relay.sql"), true),
        (&grants.relay, include_str!("../sql/grant_relay_history.sql"), extras.history),
        (&grants.relay, include_str!("../sql/grant_relay_inbox.sql"), extras.inbox),
        (&grants.viewer, include_str!("../sql/grant_viewer.sql"), true),
        (&grants.viewer, include_str!("../sql/grant_viewer_history.sql"), extras.history),
        (&grants.viewer, include_str!("../sql/grant_viewer_inbox.sql"), extras.inbox),
        (&grants.writer, include_str!("../sql/grant_writer_idempotency.sql"), extras.idempotency),
        (&grants.relay, include_str!("../sql/grant_relay_idempotency.sql"), extras.idempotency),
        (&grants.viewer, include_str!("../sql/grant_viewer_idempotency.sql"), extras.idempotency),
        (&grants.handler, include_str!("../sql/grant_handler.sql"), true),
    ] {
        let Some(role) = role.as_ref().filter(|_| wanted) else { continue };
        let mut template = template.clone().with("role", format!("\"{role}\""));
        template = match table.schema() {
            Some(schema) => {
                template.with("usage", format!("GRANT USAGE ON SCHEMA \"{schema}\" TO \"{role}\""))
            }
            None => template.with("usage", "SELECT 1"),
        };
        statements.push(template.fill(sql.trim_end()).trim_end_matches(';').to_owned());
    }
    join(&statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_parsed_and_hostile_roles_refused() {
        let grants: Grants = "writer=app,relay=postbox".parse().unwrap();
        assert_eq!((grants.writer.as_deref(), grants.viewer), (Some("app"), None));
        for bad in ["writer", "writer=", "boss=app", "writer=a,writer=b", "writer=a\"; drop table x; --"] {
            assert!(bad.parse::<Grants>().is_err(), "{bad}");
        }
    }

    #[test]
    fn printed_sql_can_run_inside_a_transaction() {
        let table = "public.org_outbox".parse().unwrap();
        let sql = print_up(&table, Format::Sql);
        assert!(!sql.contains("CONCURRENTLY") && !sql.contains("{{"));
        let goose = print_up(&table, Format::Goose);
        assert!(goose.starts_with("-- +goose Up") && goose.contains("-- +goose Down"));
        assert!(!goose.contains("org_inbox"));
        let extras = Extras { inbox: true, ..Extras::default() };
        let goose = print_up_with(&table, Format::Goose, extras);
        let (up, down) = goose.split_once("-- +goose Down").unwrap();
        assert!(
            up.contains("CREATE TABLE IF NOT EXISTS \"public\".\"org_inbox\"") && !up.contains("{{"),
            "{up}"
        );
        assert!(up.contains("CREATE INDEX IF NOT EXISTS \"org_inbox_by_time\""), "{up}");
        assert!(down.contains("DROP TABLE IF EXISTS \"public\".\"org_inbox\""), "{down}");
        let grants = "writer=app,relay=postbox,viewer=ops".parse().unwrap();
        assert_eq!(print_grants_with(&table, &grants, extras).matches("\"org_inbox\"").count(), 3);
        assert_eq!(print_grants(&table, &grants).matches("\"org_inbox\"").count(), 0);
        assert!(!goose.contains("org_idempotency"));
    }

    #[test]
    fn what_refuses_to_go_keeps_what_is_beside_it() {
        let table = "public.org_outbox".parse().unwrap();
        let extras = Extras { history: true, inbox: true, idempotency: true, ..Extras::default() };
        let down = print_down_with(&table, extras);
        assert_eq!(down.matches("DROP TABLE").count(), 4, "{down}");
        assert!(down.starts_with("DO $postbox$") && down.trim_end().ends_with("END\n$postbox$;"), "{down}");
        assert_eq!(down.matches("$postbox$").count(), 2, "one statement: {down}");
    }

    #[test]
    fn calls_have_a_table_where_one_is_asked_for() {
        let table = "public.org_outbox".parse().unwrap();
        let extras = Extras { idempotency: true, ..Extras::default() };
        let goose = print_up_with(&table, Format::Goose, extras);
        let (up, down) = goose.split_once("-- +goose Down").unwrap();
        assert!(
            up.contains("CREATE TABLE IF NOT EXISTS \"public\".\"org_idempotency\"") && !up.contains("{{")
        );
        assert!(up.contains("CREATE INDEX IF NOT EXISTS \"org_idempotency_by_time\""), "{up}");
        assert!(down.contains("DROP TABLE IF EXISTS \"public\".\"org_idempotency\""), "{down}");
        let grants = "writer=app,relay=postbox,viewer=ops".parse().unwrap();
        assert_eq!(print_grants_with(&table, &grants, extras).matches("\"org_idempotency\"").count(), 3);
        assert_eq!(print_grants(&table, &grants).matches("\"org_idempotency\"").count(), 0);
    }
}
