//! The commands of operators: what is there, what died, what to do about it.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};

use super::{option, switch};
use crate::config::{args, args_for};

/// The settings that every command about one table takes.
fn settings() -> Vec<Arg> {
    args_for(&["database_url", "relay.tables", "relay.max_attempts"])
}

fn group(name: &'static str, about: &'static str, commands: impl IntoIterator<Item = Command>) -> Command {
    Command::new(name)
        .about(about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(commands)
}

fn ids(help: &'static str) -> Arg {
    Arg::new("id").value_name("EVENT_ID").action(ArgAction::Append).num_args(1..).help(help)
}

fn yes() -> Arg {
    switch("yes", "Does not ask; needed where there is no terminal")
}

fn limit() -> Arg {
    option("limit", "NUMBER", "Shows at most this many").default_value("50")
}

/// The flags that every filter has.
fn filters() -> Vec<Arg> {
    vec![
        option("topic", "TOPIC", "Only those of this topic"),
        option("tenant", "TENANT", "Only those of this tenant: a UUID, or a name"),
        option("aggregate", "TYPE[/ID]", "Only those of this aggregate type, or of this one aggregate"),
        option("error", "TEXT", "Only those whose last error contains this text"),
    ]
}

fn event_filters() -> Vec<Arg> {
    let mut flags = filters();
    flags.push(
        option("status", "STATUS", "Only those in this status")
            .value_parser(PossibleValuesParser::new(["new", "publishing", "failed", "sent", "dead"]))
            .ignore_case(true),
    );
    flags.push(option(
        "since",
        "TIME",
        "Only those written since: how long ago, such as 2h, or a time as in RFC 3339",
    ));
    flags
}

fn dead_filters() -> Vec<Arg> {
    let mut flags = filters();
    flags.extend([
        option("since", "DURATION", "Only those that have been dead for at most this long, such as 2m"),
        option("older-than", "DURATION", "Only those that have been dead for at least this long"),
        option(
            "cause",
            "NUMBER",
            "Only those of this cause: its number or id in `postbox dead list` with the same filter",
        ),
    ]);
    flags
}

/// How a replay goes.
fn pace() -> [Arg; 4] {
    [
        option("first", "NUMBER", "Replays only this many, oldest first, for a careful start"),
        option("rate", "RATE", "How many to replay per second or minute, such as 50/s or 100/m"),
        option("watch", "DURATION", "How long to watch what becomes of them; 0 does not watch")
            .default_value("10s"),
        yes(),
    ]
}

pub(super) fn status() -> Command {
    let beyond = |name, value, help| option(name, value, help).requires("check");
    Command::new("status")
        .about("Shows who works on a table and what it holds")
        .after_help(
            "With --check it exits with 3 when a limit is exceeded: events wait too long, too many wait, or too many are dead.\n\
             With --format nagios it exits like a plugin: 0 ok, 1 warning (from a third of --max-age), 2 critical, 3 unknown.",
        )
        .args(settings())
        .arg(switch("check", "Compares what it sees with limits, for monitoring"))
        .arg(beyond("max-age", "DURATION", "How long the oldest event may wait").default_value("30s"))
        .arg(beyond("max-dead", "NUMBER", "How many events may be dead").default_value("0"))
        .arg(beyond("max-pending", "NUMBER", "How many events may wait; without it, any number"))
        .arg(
            beyond("format", "FORMAT", "How the result of --check is printed")
                .value_parser(PossibleValuesParser::new(["text", "nagios"]))
                .default_value("text"),
        )
}

pub(super) fn events() -> Command {
    let list = Command::new("list")
        .about("Lists events, newest first")
        .args(settings())
        .args(event_filters())
        .arg(limit())
        .arg(option("after", "SEQUENCE", "Starts after this event: the next page of a list"))
        .arg(switch("oldest", "Lists the oldest first"))
        .arg(switch("deep", "Looks through the whole table, however long that takes"));
    let show = Command::new("show")
        .about("Shows everything about events; their payload only if asked for")
        .args(settings())
        .arg(ids("The events").required(true))
        .arg(switch("payload", "Shows payload and metadata too"));
    let tail = Command::new("tail")
        .about("Follows new events and what becomes of them, until Ctrl-C")
        .args(settings())
        .args(event_filters())
        .arg(option("for", "DURATION", "Ends by itself after this long"));
    let replay = Command::new("replay")
        .about("Delivers published events once more, under their old ids")
        .after_help(
            "Receivers see these events a second time. The table must be named by --table.\n\
             An event that has failed and waits for its next attempt can be named too: it is tried at once, and its attempts stay.",
        )
        .args(settings())
        .arg(ids("The events; or give a time range"))
        .arg(option("since", "TIME", "Those published since: how long ago, such as 2h, or a time as in RFC 3339"))
        .arg(option("until", "TIME", "Those published before; by default now"))
        .arg(option("topic", "TOPIC", "Only those of this topic, in the time range"))
        .args(pace());
    group("events", "Looks at events, and sends published ones again", [list, show, tail, replay])
}

pub(super) fn dead() -> Command {
    let list = Command::new("list")
        .about("Lists what events died of, the most frequent first; with --cause, the events")
        .args(settings())
        .args(dead_filters())
        .arg(option("limit", "NUMBER", "With --cause: shows at most this many events").default_value("50"));
    let show = Command::new("show")
        .about("Shows everything about dead events; their payload only if asked for")
        .args(settings())
        .arg(ids("The events").required(true))
        .arg(switch("payload", "Shows payload and metadata too"));
    let all = || switch("all", "All dead events of the table");
    let replay = Command::new("replay")
        .about("Delivers dead events again, with all their attempts, and says what became of them")
        .after_help(
            "The table must be named by --table, the events by id, by a filter or by --all.\n\
             Exits with 3 when some are dead again, or were left alone because others had changed them.",
        )
        .args(settings())
        .arg(ids("The events; or give a filter"))
        .args(dead_filters())
        .arg(all())
        .args(pace());
    let discard = Command::new("discard")
        .about("Deletes dead events for good")
        .after_help(
            "The table must be named by --table, the events by id, by a filter or by --all.\n\
             Exits with 3 when some were left alone because others had changed or held them.",
        )
        .args(settings())
        .arg(ids("The events; or give a filter"))
        .args(dead_filters())
        .arg(all())
        .arg(yes());
    group("dead", "Looks at dead events, replays them or deletes them", [list, show, replay, discard])
}

pub(super) fn inbox() -> Command {
    let filters = || {
        [
            option("consumer", "NAME", "Only those of this consumer"),
            option("message", "ID", "The message with this id; may be repeated").action(ArgAction::Append),
            option(
                "since",
                "TIME",
                "Only those recorded since: how long ago, such as 2h, or a time as in RFC 3339",
            ),
            option("until", "TIME", "Only those recorded before"),
        ]
    };
    let list = Command::new("list")
        .about("Lists messages that were recorded, the latest first")
        .args(settings())
        .args(filters())
        .arg(limit())
        .arg(option(
            "after",
            "PLACE",
            "Starts after this message: the next page of a list, which says what to give",
        ));
    let forget = Command::new("forget")
        .about("Forgets messages: they have their effect again if they come again")
        .after_help(
            "The table must be named by --table, the messages by a filter or by --all.\n\
             Exits with 3 when some were left alone because others held them.",
        )
        .args(settings())
        .args(filters())
        .arg(switch("all", "All messages of the inbox"))
        .arg(yes());
    group("inbox", "Looks at the messages that consumers have handled, and forgets them", [list, forget])
}

pub(super) fn top() -> Command {
    Command::new("top")
        .about("Shows all tables live: what waits, for how long, what comes in and goes out, who relays")
        .after_help(
            "Keys: q ends, p holds the picture, d shows what events died of, j and k scroll.\n\
             Without a terminal, or with --once, it shows one picture. With --json it prints a line for each look.",
        )
        .args(settings())
        .arg(option("every", "DURATION", "How long to wait between two looks").default_value("2s"))
        .arg(switch("once", "Prints one picture, after two looks, and ends"))
}

pub(super) fn clean() -> Command {
    Command::new("clean")
        .about("Deletes events, received messages and calls whose retention is over, once")
        .args(args_for(&["database_url", "relay.tables", "relay.max_attempts"]))
        .args(
            args_for(&[
                "cleaner.tables",
                "cleaner.retention",
                "cleaner.dead_retention",
                "cleaner.idempotency_retention",
                "inbox",
            ])
            .into_iter()
            .filter(|arg| arg.get_id() != "config"),
        )
        .arg(switch("dry-run", "Counts what would be deleted and changes nothing"))
}

pub(super) fn doctor() -> Command {
    Command::new("doctor")
        .about("Looks for what keeps events from being delivered, and says what to do")
        .after_help(
            "Exits with 3 when something is wrong (✗) or doubtful (!); with --fail-on wrong, only for the first.\n\
             Every finding has a code that `postbox explain` explains. It connects to sinks and sends nothing.",
        )
        .args(args())
        .arg(
            option("max-transaction", "DURATION", "Reports transactions that have been open for longer")
                .default_value("1m"),
        )
        .arg(
            option("between", "DURATION", "How long to wait between two looks, if events wait")
                .default_value("2s"),
        )
        .arg(
            option("fail-on", "LEVEL", "The lowest level at which it exits with 3")
                .value_parser(PossibleValuesParser::new(["doubtful", "wrong"]))
                .default_value("doubtful"),
        )
}

pub(super) fn completions() -> Command {
    Command::new("completions")
        .about("Prints completions for a shell")
        .after_help("bash: postbox completions bash > ~/.local/share/bash-completion/completions/postbox")
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(PossibleValuesParser::new(["bash", "zsh", "fish"]))
                .help("The shell"),
        )
}
