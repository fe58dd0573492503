//! `postbox migrate`.

use clap::Command;
use clap::builder::PossibleValuesParser;

use super::{option, switch};
use crate::config::args_for;

pub(super) fn migrate() -> Command {
    let grants = || {
        option(
            "grants",
            "KIND=ROLE,…",
            "Grants roles what they need and no more: writer=app,relay=postbox,viewer=ops; handler=app for the hot path",
        )
    };
    let extras = || {
        let writers = switch(
            "ordered",
            "Adds what ordering = aggregate needs: indexes, and a trigger that makes sequence the order of commits within an aggregate (its writers wait for each other). A table keeps both",
        );
        let index = switch(
            "order-index",
            "Adds only the indexes of --ordered, for writers that lock their aggregates themselves",
        );
        let wake = switch(
            "wake-trigger",
            "Adds a trigger by which a plain INSERT wakes a sleeping relay too (PostgreSQL); a table keeps it. postbox_enqueue and the library wake it without",
        );
        let inbox = switch(
            "inbox",
            "Also makes the inbox for received messages, <module>_inbox beside <module>_outbox; a later up keeps it up to date",
        );
        let calls = switch(
            "idempotency",
            "Also makes the table of calls by idempotency key, <module>_idempotency beside <module>_outbox; a later up keeps it up to date",
        );
        [writers, index.conflicts_with("ordered"), wake, inbox, calls]
    };
    let up = Command::new("up")
        .about("Makes a table, upgrades it in place, or finishes an interrupted migration; can be repeated at any time")
        .after_help(
            "With --history move it also makes <table>_history, to which relays with this setting move published events; a later up\n\
             keeps it up to date. With --tenants or --fair-tenants it adds the index by tenant that relays with these settings need.\n\
             The settings may also come from the configuration.",
        )
        .args(args_for(&[
            "database_url",
            "direct_url",
            "relay.tables",
            "relay.history",
            "relay.tenants",
            "relay.fair_tenants",
        ]))
        .arg(grants())
        .args(extras())
        .arg(switch("dry-run", "Shows the plan and changes nothing"));
    let down = Command::new("down")
        .about("Removes a table, its history, its inbox and its calls; refuses while it holds unpublished events")
        .args(args_for(&["database_url", "direct_url", "relay.tables"]))
        .arg(switch(
            "discard-unpublished",
            "Removes the table even if it holds unpublished events, which are then lost",
        ))
        .arg(switch("yes", "Does not ask; needed where there is no terminal"));
    let print = Command::new("print")
        .about("Prints the SQL for other tools, such as psql, Atlas, Flyway or Goose; needs no database")
        .args(args_for(&[
            "database_url",
            "relay.tables",
            "relay.history",
            "relay.tenants",
            "relay.fair_tenants",
        ]))
        .arg(
            option(
                "dialect",
                "DATABASE",
                "For which kind of database; by default that of DATABASE_URL, else postgres",
            )
            .value_parser(PossibleValuesParser::new(["postgres", "sqlite", "mysql"])),
        )
        .arg(grants())
        .args(extras())
        .arg(
            option("format", "FORMAT", "The kind of file; goose has up and down in one file")
                .value_parser(PossibleValuesParser::new(["sql", "goose"]))
                .default_value("sql"),
        )
        .arg(switch("down", "Prints the SQL that removes the table instead"));
    Command::new("migrate")
        .about("Makes, upgrades and removes outbox tables")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([up, down, print])
}
