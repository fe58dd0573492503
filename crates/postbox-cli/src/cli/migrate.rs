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
            "Gives roles what they need and no more: writer=app,relay=postbox,viewer=ops; handler=app for the hot path",
        )
    };
    let extras = || {
        let writers = switch(
            "ordered",
            "Makes sequence the order of commits within an aggregate, by a trigger: its writers wait for each other. Adds the indexes for ordering = aggregate; a table keeps both",
        );
        let index = switch(
            "order-index",
            "Adds these indexes alone, for writers that lock their aggregates themselves",
        );
        let wake = switch(
            "wake-trigger",
            "Lets also a plain INSERT wake a relay that sleeps, by a trigger; a table keeps it. postbox_enqueue and the library do so by themselves; SQLite needs none",
        );
        let inbox = switch(
            "inbox",
            "Also makes the module's inbox, <module>_inbox beside <module>_outbox, for messages that it receives; a later up keeps it as it must be",
        );
        let calls = switch(
            "idempotency",
            "Also makes the module's table of calls by idempotency key, <module>_idempotency beside <module>_outbox; a later up keeps it as it must be",
        );
        [writers, index.conflicts_with("ordered"), wake, inbox, calls]
    };
    let up = Command::new("up")
        .about("Makes a table, upgrades it in place, or finishes what was interrupted; repeat it as you like")
        .after_help(
            "With --history move it also makes <table>_history, where such relays move what was published; a later up keeps it as\n\
             it must be. With --tenants or --fair-tenants it adds the index by tenant that such relays need. Also where the\n\
             configuration says so.",
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
        .about("Removes a table, its history, its inbox and its calls; refuses while it holds events that were not published")
        .args(args_for(&["database_url", "direct_url", "relay.tables"]))
        .arg(switch(
            "discard-unpublished",
            "Removes it together with events that were not published: they are lost",
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
                "For which database; that of DATABASE_URL unless given, else postgres",
            )
            .value_parser(PossibleValuesParser::new(["postgres", "sqlite", "mysql"])),
        )
        .arg(grants())
        .args(extras())
        .arg(
            option("format", "FORMAT", "The kind of file; goose has up and down in one")
                .value_parser(PossibleValuesParser::new(["sql", "goose"]))
                .default_value("sql"),
        )
        .arg(switch("down", "Prints the way back instead"));
    Command::new("migrate")
        .about("Makes, upgrades and removes outbox tables")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([up, down, print])
}
