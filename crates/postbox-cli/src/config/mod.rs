//! The program's configuration: flag over environment over `postbox.toml` over default.
//!
//! [`settings`] is the one table of all settings. The layers ([`flags`], [`mod@file`], [`layers`]) give each its text, its
//! kind ([`kind`]) checks it, [`check`] holds settings against each other, and all that is wrong is reported at once.

mod check;
mod database;
mod error;
mod file;
mod flags;
mod kind;
mod layers;
#[cfg(test)]
mod reference;
mod route;
mod settings;
mod show;
#[cfg(test)]
mod tests;
mod text;

use std::path::{Path, PathBuf};

use postbox_core::{Code, InboxRetention};
use route::Routing;

pub(crate) use database::{NamedDatabase, Scope};
pub(crate) use error::{ConfigError, ConfigErrors, Origin};
pub(crate) use flags::{CONFIG_ENV, DATABASE, Flags, args, args_for};
pub(crate) use kind::{parse_delay, tenant, word};
pub(crate) use layers::{Effective, Env, environment};
#[cfg(test)]
pub(crate) use reference::reference_markdown;
pub(crate) use route::{Route, Sink};
pub(crate) use settings::{Admin, Cleaner, General, Inbox, Metrics, Ordering, Relay, Settings};
#[cfg(test)]
pub(crate) use settings::{SETTINGS, Setting};
pub(crate) use show::{json as show_json, text as show_text};
pub(crate) use text::{Hidden, Secret, mask, nearest, shown};

/// What a configuration is made from. Nothing else is looked at, so that tests need no process of their own.
/// Without `Debug`: it holds secrets.
pub(crate) struct Inputs<'a> {
    /// The directory of `postbox.toml` and of relative names; empty for the current one.
    pub(crate) dir: &'a Path,
    /// The environment.
    pub(crate) env: &'a Env,
    /// The command line.
    pub(crate) flags: &'a Flags,
}

/// A configuration that passed every check.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Connections, and what all commands share.
    pub(crate) general: General,
    /// The relay's settings.
    pub(crate) relay: Relay,
    /// The cleaner's settings.
    pub(crate) cleaner: Cleaner,
    /// The inbox's settings.
    pub(crate) inbox: Inbox,
    /// The metrics' settings.
    pub(crate) metrics: Metrics,
    /// The admin API's settings.
    pub(crate) admin: Admin,
    /// The sinks to build, each once.
    pub(crate) sinks: Vec<Sink>,
    /// The routes to them, first match first.
    pub(crate) routes: Vec<Route>,
    /// The name of the sink for dead events, if there is one.
    pub(crate) dead_letter: Option<String>,
    /// The databases of `[[database]]`; none in the plain form, and none where one of them was chosen.
    pub(crate) databases: Vec<NamedDatabase>,
    /// The name of the database that was chosen.
    pub(crate) database: Option<String>,
    /// Every setting's text and origin, in the order of [`SETTINGS`].
    pub(crate) effective: Vec<Effective>,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    /// What works but hardly as meant, for the log and `config check`.
    pub(crate) warnings: Vec<String>,
}

impl Config {
    /// Reads and checks all layers; the error has everything that is wrong.
    pub(crate) fn load(inputs: &Inputs<'_>) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let file = file::read(inputs.dir, named_file(inputs), &mut errors);
        layers::unknown_variables(inputs.env, &mut errors);
        let effective = layers::resolve(inputs.flags, inputs.env, file.as_ref(), &mut errors);
        let get = |path: &str| {
            let found = effective.iter().find(|effective| effective.setting.path == path);
            found.map(|effective| effective.items.clone()).unwrap_or_default()
        };
        // Only a default that its own check refuses can fail here; a test reads them all.
        let settings = match Settings::read(get) {
            Ok(settings) => settings,
            Err(reason) => {
                let cause = format!("a default of this build {reason}");
                errors.push(ConfigError::new(
                    Code::ConfigInvalid,
                    None,
                    cause,
                    "report this as a bug of postbox",
                ));
                return Err(ConfigErrors(errors));
            }
        };
        check::combinations(&settings, &effective, &mut errors);
        check::inbox(&settings, &effective, &mut errors);
        let origin = |path: &str| {
            let found = effective.iter().find(|effective| effective.setting.path == path && effective.valid);
            found.map(|effective| &effective.origin)
        };
        let sink = settings.general.sink.as_ref().zip(origin("sink"));
        let dead_letter = settings.general.dead_letter.as_ref().zip(origin("dead_letter"));
        let routing = route::resolve(file.as_ref(), sink, dead_letter, &mut errors);
        let databases = database::resolve(file.as_ref(), inputs.env, &effective, &mut errors);
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let mut warnings = check::warnings(&settings);
        warnings.extend(route::warnings(&routing));
        warnings.extend(database::warnings(&databases, inputs.env));
        let Routing { sinks, routes, dead_letter } = routing;
        let Settings { general, relay, cleaner, inbox, metrics, admin } = settings;
        let file = file.map(|file| file.path);
        Ok(Self {
            general,
            relay,
            cleaner,
            inbox,
            metrics,
            admin,
            sinks,
            routes,
            dead_letter,
            databases,
            database: None,
            effective,
            file,
            warnings,
        })
    }

    /// Refuses to go on without the settings of these paths, for a command that needs them. Any route counts as `sink`.
    pub(crate) fn require(&self, paths: &[&str]) -> Result<(), ConfigErrors> {
        let errors = check::required(paths, &self.effective, &self.routes);
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }

    /// What no relay can do, whatever the database. Other commands take such settings: `migrate up --tenants` adds an index.
    pub(crate) fn check_relay(&self) -> Vec<ConfigError> {
        check::relaying(&self.relay, &self.effective)
    }

    /// Whether `postbox relay` has something for others to look at, also where it delivers and cleans nothing.
    pub(crate) fn serves(&self) -> bool {
        self.admin.enabled || self.general.listen.is_some()
    }

    /// Whether no table is named for what `postbox relay` is to do.
    pub(crate) fn lacks_tables(&self) -> bool {
        let others = self.cleaner.enabled || self.serves();
        (self.relay.enabled && self.relay.tables.is_empty()) || (others && self.cleaner_tables().is_empty())
    }

    /// What `postbox relay` needs and nobody has set, by name.
    pub(crate) fn needed(&self) -> Vec<String> {
        let mut needed = Vec::new();
        for config in self.each().iter().filter(|config| config.lacks_tables()) {
            needed.push(match &config.database {
                Some(name) => format!("tables of the database {name}"),
                None => "relay.tables".to_owned(),
            });
        }
        if self.relay.enabled && self.routes.is_empty() {
            needed.push("sink".to_owned());
        }
        needed
    }

    /// Where a setting's value came from, by its path.
    pub(crate) fn origin(&self, path: &str) -> Option<&Origin> {
        self.effective
            .iter()
            .find(|effective| effective.setting.path == path)
            .map(|effective| &effective.origin)
    }

    /// The tables to clean: the cleaner's own, else the relay's.
    pub(crate) fn cleaner_tables(&self) -> &[String] {
        if self.cleaner.tables.is_empty() { &self.relay.tables } else { &self.cleaner.tables }
    }

    /// How long inboxes remember; none is for ever.
    pub(crate) fn inbox_retention(&self) -> Option<InboxRetention> {
        // What this would refuse was refused when the configuration was read.
        let source = check::source_retention(&self.inbox, &self.cleaner)?;
        InboxRetention::new(self.inbox.retention?, source).ok()
    }

    /// The sink of this name.
    pub(crate) fn sink(&self, name: &str) -> Option<&Sink> {
        self.sinks.iter().find(|sink| sink.name == name)
    }
}

/// The file that the command line or the environment names.
fn named_file<'a>(inputs: &Inputs<'a>) -> Option<(&'a Path, Origin)> {
    if let Some(path) = &inputs.flags.config {
        return Some((path, Origin::Flag("config")));
    }
    let path = inputs.env.get(CONFIG_ENV).filter(|path| !path.is_empty())?;
    Some((Path::new(path), Origin::Env(CONFIG_ENV.into())))
}
