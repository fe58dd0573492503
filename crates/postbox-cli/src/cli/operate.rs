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
    option("limit", "NUMBER", "Shows at most so many").default_value("50")
}

/// The flags that every filter has.
fn filters() -> Vec<Arg> {
    vec![
        option("topic", "TOPIC", "Of this topic"),
        option("tenant", "TENANT", "Of this tenant: a UUID, or a name"),
        option("aggregate", "TYPE[/ID]", "Of this aggregate type, or of this one aggregate"),
        option("error", "TEXT", "Whose last error contains this"),
    ]
}

fn event_filters() -> Vec<Arg> {
    let mut flags = filters();
    flags.push(
        option("status", "STATUS", "In this status")
            .value_parser(PossibleValuesParser::new(["new", "publishing", "failed", "sent", "dead"]))
            .ignore_case(true),
    );
    flags.push(option("since", "TIME", "Created since: how long ago, such as 2h, or a time as in RFC 3339"));
    flags
}

fn dead_filters() -> Vec<Arg> {
    let mut flags = filters();
    flags.extend([
        option("since", "DURATION", "Dead for at most this long, such as 2m"),
        option("older-than", "DURATION", "Dead for at least this long"),
        option("cause", "NUMBER", "Of this cause, by its number or its id in dead list with the same filter"),
    ]);
    flags
}

/// How a replay goes.
fn pace() -> [Arg; 4] {
    [
        option("first", "NUMBER", "Replays only so many, oldest first, for a careful start"),
        option("rate", "RATE", "Replays so many per second, such as 50/s; also 100/m"),
        option("watch", "DURATION", "Watches what becomes of them for so long; 0 does not")
            .default_value("10s"),
        yes(),
    ]
}

pub(super) fn status() -> Command {
    let beyond = |name, value, help| option(name, value, help).requires("check");
    Command::new("status")
        .about("Shows who works on a table and what it holds")
        .after_help(
            "With --check it exits with 3 when something is beyond: events wait for too long or are too many, or are dead.\n\
             With --format nagios it ends as a plugin: 0 ok, 1 warning (a third of the longest wait), 2 critical, 3 unknown.",
        )
        .args(settings())
        .arg(switch("check", "Judges what it sees, for monitoring"))
        .arg(beyond("max-age", "DURATION", "How long the oldest event may wait").default_value("30s"))
        .arg(beyond("max-dead", "NUMBER", "How many events may be dead").default_value("0"))
        .arg(beyond("max-pending", "NUMBER", "How many events may wait; any number if not given"))
        .arg(
            beyond("format", "FORMAT", "How the judgement looks")
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
        .arg(option("after", "SEQUENCE", "Goes on behind this event"))
        .arg(switch("oldest", "Oldest first"))
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
        .about("Has published events delivered once more, under their old ids")
        .after_help(
            "Receivers see these events a second time. The table must be named by --table.\n\
             An event that is named, has failed and waits for its next attempt is tried at once; its attempts stay.",
        )
        .args(settings())
        .arg(ids("The events; or give a time range"))
        .arg(option("since", "TIME", "Published since: how long ago, such as 2h, or a time as in RFC 3339"))
        .arg(option("until", "TIME", "Published before; now if not given"))
        .arg(option("topic", "TOPIC", "Of this topic, in the time range"))
        .args(pace());
    group("events", "Looks at events, and sends published ones again", [list, show, tail, replay])
}

pub(super) fn dead() -> Command {
    let list = Command::new("list")
        .about("Lists what events died of, the most frequent first; with --cause, the events")
        .args(settings())
        .args(dead_filters())
        .arg(limit());
    let show = Command::new("show")
        .about("Shows everything about dead events; their payload only if asked for")
        .args(settings())
        .arg(ids("The events").required(true))
        .arg(switch("payload", "Shows payload and metadata too"));
    let all = || switch("all", "All dead events of the table");
    let replay = Command::new("replay")
        .about("Gives dead events all their attempts again, and says what became of them")
        .after_help(
            "The table must be named by --table, the events by id, by a filter or by --all.\n\
             Exits with 3 when some are dead again, or were left alone since others changed or hold them.",
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
             Exits with 3 when some were left alone since others changed or hold them.",
        )
        .args(settings())
        .arg(ids("The events; or give a filter"))
        .args(dead_filters())
        .arg(all())
        .arg(yes());
    group("dead", "Looks at dead events, brings them back or deletes them", [list, show, replay, discard])
}

pub(super) fn inbox() -> Command {
    let filters = || {
        [
            option("consumer", "NAME", "Of this consumer"),
            option("message", "ID", "The message with this id; may be repeated").action(ArgAction::Append),
            option("since", "TIME", "Recorded since: how long ago, such as 2h, or a time as in RFC 3339"),
            option("until", "TIME", "Recorded before"),
        ]
    };
    let list = Command::new("list")
        .about("Lists messages that were recorded, the latest first")
        .args(settings())
        .args(filters())
        .arg(limit())
        .arg(option("after", "PLACE", "Goes on behind this message, as the page before says"));
    let forget = Command::new("forget")
        .about("Forgets messages, so that they have their effect again when they come again")
        .after_help(
            "The table must be named by --table, the messages by a filter or by --all.\n\
             Exits with 3 when some were left alone since others hold them.",
        )
        .args(settings())
        .args(filters())
        .arg(switch("all", "All messages of the inbox"))
        .arg(yes());
    group("inbox", "Looks at what consumers have seen, and has them forget it", [list, forget])
}

pub(super) fn top() -> Command {
    Command::new("top")
        .about("Shows all tables live: what waits, for how long, what comes in and goes out, who relays")
        .after_help(
            "Keys: q ends, p holds the picture, d shows what events died of, j and k scroll.\n\
             Without a terminal, or with --once, it shows one picture. With --json it prints a line for each look.",
        )
        .args(settings())
        .arg(option("every", "DURATION", "The time from one look to the next").default_value("2s"))
        .arg(switch("once", "Shows one picture, after two looks, and ends"))
}

pub(super) fn clean() -> Command {
    Command::new("clean")
        .about(
            "Deletes what was published longer ago than its retention, and forgets what was received, once",
        )
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
        .about("Looks for what is wrong between here and a delivered event, and says what to do")
        .after_help(
            "Exits with 3 when something is wrong (✗) or doubtful (!); with --fail-on wrong, only for the first.\n\
             Every finding has a code that `postbox explain` knows. Sinks are connected to, and nothing is sent.",
        )
        .args(args())
        .arg(
            option("max-transaction", "DURATION", "Names transactions that are open for longer")
                .default_value("1m"),
        )
        .arg(
            option("between", "DURATION", "How long to wait between two looks at what waits, if anything does")
                .default_value("2s"),
        )
        .arg(
            option("fail-on", "LEVEL", "From which level on it exits with 3")
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
