//! The command that measures.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};

use super::{option, switch};
use crate::config::args_for;

pub(super) fn bench() -> Command {
    let what = Arg::new("what")
        .value_name("WHAT")
        .value_parser(PossibleValuesParser::new(["all", "enqueue", "drain", "latency"]))
        .default_value("all")
        .help("What to measure: enqueue, drain, latency, or all of them");
    Command::new("bench")
        .about("Measures Postbox on your own database: enqueue, drain, and the time from commit to dispatch")
        .after_help(
            "It works the database as hard as it can: do not run it in the busy hour of a production server.\n\n\
             On PostgreSQL everything is in a schema of its own, postbox_bench_<8 hex digits>; beside a SQLite file in a folder of its\n\
             own. It makes them, and removes them at the end, on errors, and when it is stopped by Ctrl-C or SIGTERM (it then exits\n\
             with 1). It touches nothing else. What a killed bench has left behind is named by the next one.\n\n\
             The relay runs with the settings of your configuration, in the same process as the writers, and delivers to nowhere.",
        )
        .args(args_for(&[
            "database_url",
            "direct_url",
            "relay.batch_size",
            "relay.claim",
            "relay.history",
            "relay.ordering",
        ]))
        .arg(what)
        .arg(option("events", "NUMBER", "How many events to write in bulk, and to drain").default_value("100000"))
        .arg(
            option("seconds", "NUMBER", "How long to write single events, and how long to measure latency")
                .default_value("5"),
        )
        .arg(option("rate", "NUMBER", "Events per second while latency is measured").default_value("200"))
        .arg(
            option(
                "connections",
                "NUMBER,…",
                "On how many connections to write single events, one number after the other; latency uses the largest",
            )
            .default_value("1,8"),
        )
        .arg(option("payload-bytes", "NUMBER", "The size of each payload").default_value("300"))
        .arg(switch("clean-up", "Removes what killed benches have left behind, and measures nothing"))
}
