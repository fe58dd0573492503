//! The layer command line: one flag per setting, made from the table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::kind::Shape;
use super::settings::{SETTINGS, Setting};

/// The id and name of the flag that names the configuration file.
const CONFIG: &str = "config";

/// The id and name of the flag that names one of several databases.
pub(crate) const DATABASE: &str = "database";

/// The variable that names the configuration file.
pub(crate) const CONFIG_ENV: &str = "POSTBOX_CONFIG";

/// What the command line gave, by a setting's path. Without `Debug`: it may hold secrets.
#[derive(Clone, Default)]
pub(crate) struct Flags {
    /// The file of `--config`.
    pub(crate) config: Option<PathBuf>,
    /// The values as they were given.
    pub(crate) values: BTreeMap<&'static str, Vec<String>>,
}

impl Flags {
    /// What `matches` has of the settings; a command may have taken some of the flags only.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let values = SETTINGS.iter().filter_map(|setting| {
            let given = matches.try_get_many::<String>(setting.path).ok().flatten()?;
            Some((setting.path, given.cloned().collect()))
        });
        let config = matches.try_get_one::<PathBuf>(CONFIG).ok().flatten().cloned();
        Self { config, values: values.collect() }
    }
}

/// The flags of all settings, and `--config`.
pub(crate) fn args() -> Vec<Arg> {
    args_where(|_| true)
}

/// The flags of some settings, each named by its path or its section's, and `--config`.
pub(crate) fn args_for(paths: &[&str]) -> Vec<Arg> {
    args_where(|setting| paths.iter().any(|path| setting.path == *path || setting.section() == *path))
}

fn args_where(wanted: impl Fn(&Setting) -> bool) -> Vec<Arg> {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(format!("The configuration file [env: {CONFIG_ENV}] [default: postbox.toml, if there is one]"))
        .help_heading("Configuration");
    // Which of several databases; no setting, since it has no place in a file.
    let database = Arg::new(DATABASE)
        .long(DATABASE)
        .value_name("NAME")
        .action(ArgAction::Append)
        .help("Works on this database, where the configuration has several ([[database]])");
    let database =
        SETTINGS.iter().any(|setting| setting.path == "database_url" && wanted(setting)).then_some(database);
    std::iter::once(config)
        .chain(database)
        .chain(SETTINGS.iter().filter(|setting| wanted(setting)).map(arg))
        .collect()
}

/// One setting's flag. Values stay text here: all layers are checked in one place, with one kind of error.
fn arg(setting: &Setting) -> Arg {
    let arg = Arg::new(setting.path)
        .long(setting.flag)
        .help(help(setting))
        .help_heading(heading(setting.section()))
        .allow_negative_numbers(true);
    match setting.shape {
        Shape::Switch => {
            arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        Shape::List => {
            let name = if setting.path.ends_with("_tokens") { "TOKEN" } else { "NAME" };
            let arg = arg.value_name(name).action(ArgAction::Append);
            // `--table a --table b` and `--tables a,b` both read well.
            if setting.flag.ends_with('s') { arg } else { arg.alias(format!("{}s", setting.flag)) }
        }
        Shape::Text => arg.value_name("VALUE"),
        // What cannot be meant, such as -5s, shall be refused as a value, and not as a flag that nobody knows.
        Shape::Number => arg.value_name("NUMBER").allow_hyphen_values(true),
        Shape::Duration => arg.value_name("DURATION").allow_hyphen_values(true),
        Shape::Size => arg.value_name("SIZE").allow_hyphen_values(true),
    }
}

/// The section's heading in `--help` and in the reference.
pub(super) fn heading(section: &str) -> &'static str {
    match section {
        "" => "General",
        "relay" => "Relay",
        "cleaner" => "Cleaner",
        "inbox" => "Inbox",
        "metrics" => "Metrics",
        "admin" => "Admin API and dashboard",
        _ => "Configuration",
    }
}

fn help(setting: &Setting) -> String {
    // Markdown's code marks are noise in a terminal.
    let doc = setting.doc.replace('`', "");
    let default =
        if setting.default.is_empty() { String::new() } else { format!(" [default: {}]", setting.default) };
    format!("{doc} [env: {}]{default}", setting.env)
}
