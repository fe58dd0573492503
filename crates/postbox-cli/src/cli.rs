//! The command line: what can be asked for, and how it gets to the commands.

mod bench;
mod migrate;
mod operate;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use postbox_core::Code;
use serde_json::Value;

use crate::cmd;
use crate::config::{Config, DATABASE, Flags, Inputs, Scope, args, args_for, environment, mask, parse_delay};
use crate::logs::{self, Format};
use crate::report::{Exit, Failure, Problem};
use crate::say::say;

/// What a command gets to work with.
pub(crate) struct Call<'a> {
    /// The flags of the command itself.
    pub(crate) matches: &'a ArgMatches,
    /// The configuration, checked; that of one database where the command is about one.
    pub(crate) config: Config,
    /// The configurations of the databases that the command is about, at least one.
    pub(crate) databases: Vec<Config>,
    /// Whether results are to be JSON.
    pub(crate) json: bool,
}

impl<'a> Call<'a> {
    /// The call for each database alone.
    pub(crate) fn each(&self) -> Vec<Call<'a>> {
        let alone = |config: &Config| Call {
            matches: self.matches,
            config: config.clone(),
            databases: vec![config.clone()],
            json: self.json,
        };
        self.databases.iter().map(alone).collect()
    }

    /// Writes a result to standard output, each line with the name of the database, if it has one.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        match &self.config.database {
            Some(name) => {
                let lines: Vec<String> = text.lines().map(|line| format!("{name}: {line}")).collect();
                say(&lines.join("\n"))
            }
            None => say(text),
        }
    }

    /// A result with the name of the database, if it has one.
    pub(crate) fn tagged(&self, mut value: Value) -> Value {
        if let Some(name) = &self.config.database {
            value["database"] = Value::from(name.as_str());
        }
        value
    }

    /// The value of a flag of the command.
    pub(crate) fn text(&self, flag: &str) -> Option<&str> {
        self.matches.try_get_one::<String>(flag).ok().flatten().map(String::as_str)
    }

    /// Whether a switch of the command is on.
    pub(crate) fn on(&self, switch: &str) -> bool {
        self.matches.try_get_one::<bool>(switch).ok().flatten().copied().unwrap_or(false)
    }
}

/// Runs the program.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // Before anything is parsed: an error of the parsing wants to be JSON as well.
    let json = arguments.iter().any(|argument| argument == "--json");
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error, &arguments, json).into(),
    };
    let logs_json = |(_, relay): (&str, &ArgMatches)| {
        relay.try_get_one::<String>("log-format").ok().flatten().is_some_and(|format| format == "json")
    };
    let json = json || matches.subcommand().is_some_and(logs_json);
    match dispatch(&matches, json) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.print(json);
            failure.exit().into()
        }
    }
}

fn dispatch(matches: &ArgMatches, json: bool) -> Result<Exit, Failure> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Usage) };
    if name == "explain" {
        return cmd::explain::run(matches.get_one::<String>("code").map(String::as_str), json);
    }
    if name == "demo" {
        return cmd::demo::run(demo_wanted(matches, json)?);
    }
    if name == "completions" {
        let shell = matches.get_one::<String>("shell").map(String::as_str);
        return cmd::completions::run(shell.unwrap_or_default(), json);
    }
    let (name, matches) = match matches.subcommand() {
        Some((inner, matches)) => (format!("{name} {inner}"), matches),
        None => (name.to_owned(), matches),
    };
    let format = match matches.try_get_one::<String>("log-format").ok().flatten().map(String::as_str) {
        Some("json") => Format::Json,
        _ => Format::Text,
    };
    // Commands speak for themselves; their log is for those who ask for it by RUST_LOG.
    // The client of RabbitMQ would log payloads; whatever it complains of is an error of ours too.
    logs::start(format, if name == "relay" { "info,sqlx=warn" } else { "off" });
    let env = environment(std::env::vars_os());
    let flags = Flags::from_matches(matches);
    let config = match Config::load(&Inputs { dir: Path::new(""), env: &env, flags: &flags }) {
        Err(errors) if name == "status" && cmd::status::is_plugin(matches, json) => {
            return cmd::status::unknown(&errors.into());
        }
        Err(errors) if name == "doctor" => return cmd::doctor::unusable(errors, json),
        loaded => loaded?,
    };
    let chosen = named_databases(matches);
    let databases = match config.choose(&chosen, scope(&name)) {
        Err(errors) if name == "status" && cmd::status::is_plugin(matches, json) => {
            return cmd::status::unknown(&errors.into());
        }
        chosen => chosen?,
    };
    let config = match databases.as_slice() {
        // Who asks for no one in particular wants to see that there are some.
        [_] if chosen.is_empty() && name.starts_with("config ") => config,
        [one] => one.clone(),
        _ => config,
    };
    let database = config.database.clone().filter(|_| name != "relay");
    let call = Call { matches, config, databases, json };
    run_command(&name, &call).map_err(|failure| failure.of_database(database.as_deref()))
}

/// Whether a command is about every database of the configuration, or about one.
fn scope(name: &str) -> Scope {
    match name {
        "relay" | "status" | "top" | "doctor" | "migrate up" | "clean" | "config check" | "config show" => {
            Scope::Every
        }
        _ => Scope::One,
    }
}

/// The databases that the command line names.
fn named_databases(matches: &ArgMatches) -> Vec<String> {
    matches.try_get_many::<String>(DATABASE).ok().flatten().into_iter().flatten().cloned().collect()
}

fn run_command(name: &str, call: &Call<'_>) -> Result<Exit, Failure> {
    match name {
        "migrate up" => cmd::migrate::up(call),
        "migrate down" => cmd::migrate::down(call),
        "migrate print" => cmd::migrate::print(call),
        "relay" => cmd::relay::run(call),
        "status" => cmd::status::run(call),
        "top" => cmd::top::run(call),
        "events list" => cmd::events::list(call),
        "events show" => cmd::events::show(call),
        "events tail" => cmd::tail::run(call),
        "events replay" => cmd::events::replay(call),
        "dead list" => cmd::dead::list(call),
        "dead show" => cmd::dead::show(call),
        "dead replay" => cmd::dead::replay(call),
        "dead discard" => cmd::dead::discard(call),
        "inbox list" => cmd::inbox::list(call),
        "inbox forget" => cmd::inbox::forget(call),
        "clean" => cmd::clean::run(call),
        "doctor" => cmd::doctor::run(call),
        "pause" => cmd::pause::pause(call),
        "resume" => cmd::pause::resume(call),
        "enqueue" => cmd::enqueue::run(call),
        "bench" => cmd::bench::run(call),
        "config check" => cmd::config::check(call),
        "config show" => cmd::config::show(call),
        other => {
            let problem = Problem::new(Code::ConfigUnknownKey, format!("postbox {other} has nothing to run"));
            Err(problem.next("postbox --help shows the commands").into())
        }
    }
}

/// Says what is wrong with the command line, in the form of all errors.
fn refuse(error: &clap::Error, arguments: &[OsString], json: bool) -> Exit {
    let code = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Help that nobody reads to its end is no failure.
            let _ = error.print();
            return Exit::Done;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return Exit::Usage;
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => Code::ConfigUnknownKey,
        ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand => Code::ConfigMissing,
        _ => Code::ConfigInvalid,
    };
    let rendered = error.render().to_string();
    // The first paragraph says what is wrong; tips and usage follow it.
    let paragraph = rendered.trim_start_matches("error: ").lines().take_while(|line| !line.trim().is_empty());
    let mut message = paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    let similar = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    for guess in similar.into_iter().filter_map(|kind| error.get(kind)) {
        message = format!("{message}. Did you mean {guess}?");
    }
    // What stands in the wrong place may be a URL with its password.
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(given)) = error.get(kind) {
            message = message.replace(given.as_str(), &mask(given));
        }
    }
    let next = format!("{} --help", asked_for(arguments));
    let failure = Failure::from(Problem::new(code, message).next(next));
    failure.print(json);
    failure.exit()
}

/// The command that the arguments name, as far as there is one.
fn asked_for(arguments: &[OsString]) -> String {
    let (mut path, root) = ("postbox".to_owned(), command());
    let mut at = &root;
    for argument in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        let Some(inner) = at.find_subcommand(argument) else { continue };
        path = format!("{path} {argument}");
        at = inner;
    }
    path
}

/// The whole command line.
pub(crate) fn command() -> Command {
    let json = Arg::new("json")
        .long("json")
        .global(true)
        .action(ArgAction::SetTrue)
        .help("Prints results and errors as JSON");
    Command::new("postbox")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Delivers the events that committed with your data, without losing one.")
        .after_help(
            "Start: postbox migrate up --table public.org_outbox\n       \
             postbox relay --table public.org_outbox --sink stdout:\n\n\
             DATABASE_URL names the database; `postbox config show` lists every setting.\n\
             Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 found problems, 130 stopped at once by a signal.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(json)
        .subcommands([demo(), migrate::migrate(), relay(), operate::status(), operate::top(), operate::events(), operate::dead(), operate::inbox()])
        .subcommands([pause(), resume()])
        .subcommands([operate::clean(), operate::doctor(), bench::bench(), enqueue(), config(), explain(), operate::completions()])
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    // -1 or -5s shall be refused as a value, and not as a flag that nobody knows. Not so with texts: one that was forgotten would
    // take the next flag for its own.
    let measured = matches!(value, "NUMBER" | "DURATION" | "TIME" | "RATE" | "SEQUENCE");
    Arg::new(name).long(name).value_name(value).help(help).allow_hyphen_values(measured)
}

fn relay() -> Command {
    Command::new("relay")
        .about("Delivers the events of tables, and cleans up after their retention")
        .after_help(
            "Any number of relays may run: one works on a table, the others take over when it ends.\n\
             SIGTERM or SIGINT stops in good order, a second one at once. RUST_LOG chooses what is logged.",
        )
        .args(args())
        .arg(
            option("log-format", "FORMAT", "How log lines look, on standard error")
                .value_parser(PossibleValuesParser::new(["text", "json"]))
                .default_value("text"),
        )
}

fn pause() -> Command {
    Command::new("pause")
        .about("Stops delivery of a table in every relay, until resume; outlives restarts")
        .args(args_for(&["database_url", "relay.tables"]))
        .arg(option("reason", "TEXT", "Why, for others to read").default_value(""))
}

fn resume() -> Command {
    Command::new("resume")
        .about("Starts delivery of a paused table again")
        .args(args_for(&["database_url", "relay.tables"]))
}

fn enqueue() -> Command {
    Command::new("enqueue")
        .about("Writes one event in a transaction of its own, to try things out")
        .after_help(
            "Services enqueue in the transaction that writes their data; that is what an outbox is for.\n\n\
             postbox enqueue --table public.org_outbox --topic org.organization.created.v1 --payload '{\"name\":\"Acme\"}'",
        )
        .args(args_for(&["database_url", "relay.tables", "default_tenant_id"]))
        .arg(option("topic", "TOPIC", "What happened: <module>.<aggregate>.<event>.vN").required(true))
        .arg(
            option("payload", "JSON", "The payload, or - to read it from standard input")
                .required(true)
                .allow_hyphen_values(true),
        )
        .arg(option("event-id", "UUID", "Its id; enqueueing the same id again writes nothing"))
        .arg(option("tenant", "TENANT", "Whose event it is: a UUID, or a name"))
        .arg(option("aggregate", "TYPE/ID", "What the event is about, such as organization/42"))
        .arg(option("header", "NAME=VALUE", "A header; may be repeated").action(ArgAction::Append))
        .arg(option("delay", "DURATION", "How long to wait before it is delivered, such as 5s"))
}

fn config() -> Command {
    let check = Command::new("check")
        .about("Says what is wrong with the configuration; connects to nothing")
        .after_help("Exits with 2 when something is wrong, with 3 when something is only doubtful.")
        .args(args());
    let show =
        Command::new("show").about("Shows every setting, its value and where it came from").args(args());
    Command::new("config")
        .about("Looks at the configuration")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([check, show])
}

fn demo() -> Command {
    Command::new("demo")
        .about("Runs a shop, its outbox and its relay, and shows that nothing gets lost; needs nothing installed")
        .after_help(
            "On a terminal it is a live view: k kills the relay, f fails the sink and mends it, q ends (so do Esc and Ctrl-C).\n\
             Until you press k or f, trouble comes by itself. Elsewhere it prints a line a second, and trouble always does. With --json it prints the account alone.\n\n\
             The account compares what the shop and the warehouse remember with what the database says. Exits with 0 only\n\
             if every order that was written was delivered or is dead, and no other was; with 130 if a second Ctrl-C ended it.\n\
             It keeps its file in TMPDIR while it runs, and ends by itself after two million orders.",
        )
        .args([
            Arg::new("for").long("for").value_name("DURATION").help("Ends by itself after this long, such as 10s"),
            Arg::new("rate").long("rate").value_name("N").default_value("50").help("Orders per second, 1 to 1000"),
        ])
}

fn demo_wanted(matches: &ArgMatches, json: bool) -> Result<cmd::demo::Wanted, Failure> {
    let wrong = |flag: &str, why: String| {
        Problem::new(Code::ConfigInvalid, format!("--{flag} {why}")).next("postbox demo --help")
    };
    let text = |flag: &str| matches.get_one::<String>(flag).map(String::as_str);
    let time = text("for").map(parse_delay).transpose().map_err(|why| wrong("for", why))?;
    let rate = text("rate").and_then(|rate| rate.parse().ok()).filter(|rate| (1..=1000).contains(rate));
    let rate = rate.ok_or_else(|| wrong("rate", "must be a number from 1 to 1000".to_owned()))?;
    Ok(cmd::demo::Wanted { time, rate, json })
}

fn explain() -> Command {
    Command::new("explain").about("Says what an error code means and what to do about it").arg(
        Arg::new("code")
            .value_name("CODE")
            .help("The code, such as OUTBOX_TABLE_MISSING; without one, lists all"),
    )
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn the_command_line_is_well_formed_and_every_command_has_a_help() {
        command().debug_assert();
        for outer in command().get_subcommands() {
            assert!(outer.get_about().is_some(), "{}", outer.get_name());
            for inner in outer.get_subcommands() {
                assert!(inner.get_about().is_some(), "{} {}", outer.get_name(), inner.get_name());
            }
        }
    }
}
