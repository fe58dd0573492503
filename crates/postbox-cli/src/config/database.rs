//! `[[database]]`: several databases in one process, each with the settings that are its own.

use postbox_core::Code;

use super::error::{ConfigError, ConfigErrors, Origin};
use super::file::{FileDatabase, FileLayer};
use super::layers::{self, Effective, Env};
use super::settings::{Setting, Settings};
use super::text::{nearest, shown};
use super::{Config, mask};

/// What a database has of its own: the key in its table, the setting that it stands for, and the variable that goes before the
/// file, which the database's name follows.
const OWN: [(&str, &str, Option<&str>); 4] = [
    ("url", "database_url", Some("DATABASE_URL_")),
    ("direct_url", "direct_url", Some("OUTBOX_DIRECT_URL_")),
    ("tables", "relay.tables", None),
    ("cleaner_tables", "cleaner.tables", None),
];

/// The keys of a `[[database]]`.
pub(super) const KEYS: [&str; 5] = ["name", "url", "direct_url", "tables", "cleaner_tables"];

/// One of several databases.
#[derive(Debug, Clone)]
pub(crate) struct NamedDatabase {
    /// Its name, unique: what `--database` takes, and the label of its metrics.
    pub(crate) name: String,
    /// Where it was declared.
    pub(crate) origin: Origin,
    /// Its own settings, in the order of [`OWN`].
    own: Vec<Effective>,
}

impl NamedDatabase {
    /// Its own settings, each with its key.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&'static str, &Effective)> {
        OWN.iter().map(|(key, ..)| *key).zip(&self.own)
    }

    fn items(&self, path: &str) -> &[String] {
        let own = self.own.iter().find(|own| own.setting.path == path);
        own.map(|own| own.items.as_slice()).unwrap_or_default()
    }
}

/// How many databases a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those that are named, else all.
    Every,
    /// One; it must be named where there are several.
    One,
}

/// What the name adds to a variable's.
fn suffix(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

/// The databases of the file, with the URLs of the environment.
pub(super) fn resolve(
    file: Option<&FileLayer>,
    env: &Env,
    effective: &[Effective],
    errors: &mut Vec<ConfigError>,
) -> Vec<NamedDatabase> {
    let Some(file) = file.filter(|file| !file.databases.is_empty()) else { return Vec::new() };
    contradictions(effective, errors);
    let mut databases: Vec<NamedDatabase> = Vec::new();
    for given in &file.databases {
        let origin = Origin::File { path: file.path.clone(), line: given.line };
        if let Some(name) = named(given, &databases, &origin, errors) {
            let own = own(given, &name, file, env, errors);
            databases.push(NamedDatabase { name, origin, own });
        }
    }
    shared(&databases, errors);
    databases
}

/// Refuses settings that say of which database they are not.
fn contradictions(effective: &[Effective], errors: &mut Vec<ConfigError>) {
    for (key, path, variable) in OWN {
        let Some(given) = effective.iter().find(|effective| effective.setting.path == path) else { continue };
        // A flag is about the database that `--database` names.
        let by_flag = matches!(given.origin, Origin::Flag(_)) && variable.is_none();
        if given.origin == Origin::Default || by_flag {
            continue;
        }
        let cause = format!("{path} is given beside [[database]], and does not say for which database");
        let next = match variable {
            Some(variable) => {
                format!("remove it, and give each [[database]] its own {key}, or set {variable}<NAME>")
            }
            None => format!("remove it, and give each [[database]] its own {key}"),
        };
        errors.push(ConfigError::new(Code::ConfigInvalid, Some(given.origin.clone()), cause, next));
    }
}

/// A name that can be used and that no other database has.
fn named(
    given: &FileDatabase,
    others: &[NamedDatabase],
    origin: &Origin,
    errors: &mut Vec<ConfigError>,
) -> Option<String> {
    let mut refuse = |cause: String, next: &str| {
        errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
        None
    };
    let Some(name) = &given.name else {
        return refuse("the database has no name".to_owned(), "give it one, such as name = \"orders\"");
    };
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if !plain || name.is_empty() || name.len() > 64 {
        let cause = format!("{} cannot be the name of a database", shown(name));
        return refuse(cause, "use letters, digits, - and _, at most 64");
    }
    match others.iter().find(|other| suffix(&other.name) == suffix(name)) {
        None => Some(name.clone()),
        Some(other) if other.name == *name => {
            let cause = format!("two databases are named {name} (the other from {})", other.origin);
            refuse(cause, "give each its own name")
        }
        Some(other) => {
            let cause = format!(
                "the databases {name} and {} (from {}) are named too much alike",
                other.name, other.origin
            );
            let next = format!("change one: both would have the variable DATABASE_URL_{}", suffix(name));
            refuse(cause, &next)
        }
    }
}

/// The database's own settings, each checked as the setting that it stands for.
fn own(
    given: &FileDatabase,
    name: &str,
    file: &FileLayer,
    env: &Env,
    errors: &mut Vec<ConfigError>,
) -> Vec<Effective> {
    let mut own = Vec::new();
    for (key, path, variable) in OWN {
        let Some(setting) = Setting::find(path) else { continue };
        let variable = variable.map(|variable| format!("{variable}{}", suffix(name)));
        let by_variable = variable.as_ref().and_then(|variable| env.get(variable));
        let by_variable = by_variable.filter(|given| !given.trim().is_empty());
        let value = match (by_variable, given.values.get(key), variable) {
            (Some(value), _, Some(variable)) => {
                (Ok(vec![value.trim().to_owned()]), Origin::Env(variable.into()))
            }
            (_, Some((value, line)), _) => {
                (value.clone(), Origin::File { path: file.path.clone(), line: *line })
            }
            (_, None, Some(variable)) if key == "url" => {
                let cause = format!("the database {name} has no url");
                let next = format!("set {variable}, or give it one: url = \"postgres://…\"");
                let origin = Origin::File { path: file.path.clone(), line: given.line };
                errors.push(ConfigError::new(Code::ConfigMissing, Some(origin), cause, next));
                continue;
            }
            (_, None, _) => (Ok(Vec::new()), Origin::Default),
        };
        let before = errors.len();
        own.push(layers::checked(setting, value, errors));
        for error in &mut errors[before..] {
            error.cause = format!("database {name}: {}", error.cause.replacen(path, key, 1));
            error.next = error.next.replacen(&format!("set {path} to"), &format!("set its {key} to"), 1);
        }
    }
    own
}

/// Refuses two entries that are one database, as far as that can be seen, with one table in both: its relays would keep each
/// other from working.
fn shared(databases: &[NamedDatabase], errors: &mut Vec<ConfigError>) {
    for (at, one) in databases.iter().enumerate() {
        for other in &databases[..at] {
            let url = one.items("database_url");
            let twice =
                one.items("relay.tables").iter().find(|table| other.items("relay.tables").contains(table));
            if let Some(table) = twice.filter(|_| !url.is_empty() && url == other.items("database_url")) {
                let cause = format!(
                    "the databases {} and {} (from {}) are one, and both have the table {}",
                    one.name,
                    other.name,
                    other.origin,
                    shown(table)
                );
                let next = "leave the table to one of them, or make them one";
                errors.push(ConfigError::new(Code::ConfigInvalid, Some(one.origin.clone()), cause, next));
            }
        }
    }
}

/// Variables that would be a database's, were it there.
pub(super) fn warnings(databases: &[NamedDatabase], env: &Env) -> Vec<String> {
    if databases.is_empty() {
        return Vec::new();
    }
    let prefixes: Vec<&str> = OWN.iter().filter_map(|(.., variable)| *variable).collect();
    let ours = |name: &&String| {
        let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        rest.is_some_and(|rest| databases.iter().all(|database| suffix(&database.name) != rest))
    };
    let warn = |name: &String| {
        let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
        format!("the variable {name} belongs to no [[database]]: {}", names(databases))
    };
    env.keys().filter(ours).map(warn).collect()
}

/// The names, for people.
fn names(databases: &[NamedDatabase]) -> String {
    databases.iter().map(|database| database.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// The configurations of the databases that a command is about, each as if it were the only one. In the plain form that is
    /// this configuration itself.
    pub(crate) fn choose(&self, wanted: &[String], scope: Scope) -> Result<Vec<Self>, ConfigErrors> {
        let flag = || Some(Origin::Flag("database"));
        let refuse = |code, origin, cause: String, next: String| {
            Err(ConfigErrors(vec![ConfigError::new(code, origin, cause, next)]))
        };
        if self.databases.is_empty() {
            return match wanted.first() {
                None => Ok(vec![self.clone()]),
                Some(name) => {
                    let cause = format!(
                        "there is no database {}: the configuration has no [[database]]",
                        shown(name)
                    );
                    let next = "leave --database out, or declare the databases in postbox.toml".to_owned();
                    refuse(Code::ConfigInvalid, flag(), cause, next)
                }
            };
        }
        let known = || self.databases.iter().map(|database| database.name.as_str());
        for (at, name) in wanted.iter().enumerate() {
            if !known().any(|known| known == name) {
                let guess = nearest(name, known()).map(|name| format!(". Did you mean {name}?"));
                let cause = format!("there is no database {}{}", shown(name), guess.unwrap_or_default());
                let next = format!("name one of {}", names(&self.databases));
                return refuse(Code::ConfigInvalid, flag(), cause, next);
            }
            if wanted[..at].contains(name) {
                let cause = format!("the database {name} is named twice");
                return refuse(Code::ConfigInvalid, flag(), cause, "name it once".to_owned());
            }
        }
        let meant = |database: &&NamedDatabase| wanted.is_empty() || wanted.contains(&database.name);
        let chosen: Vec<&NamedDatabase> = self.databases.iter().filter(meant).collect();
        if let [first, _, ..] = chosen[..] {
            let by_flag =
                ["relay.tables", "cleaner.tables"].into_iter().find_map(|path| match self.origin(path) {
                    Some(Origin::Flag(flag)) => Some(*flag),
                    _ => None,
                });
            let next = format!("give --database {}", first.name);
            if scope == Scope::One {
                let several = wanted.len().max(self.databases.len());
                let cause = format!(
                    "this command works on one database, and there are {several}: {}",
                    names(&self.databases)
                );
                return refuse(Code::ConfigMissing, None, cause, next);
            }
            if let Some(flag) = by_flag {
                let cause = format!(
                    "--{flag} is about one database, and there are several: {}",
                    names(&self.databases)
                );
                return refuse(Code::ConfigMissing, Some(Origin::Flag(flag)), cause, next);
            }
        }
        Ok(chosen.into_iter().map(|database| self.of(database)).collect())
    }

    /// The configuration as if this database were the only one.
    fn of(&self, database: &NamedDatabase) -> Self {
        let mut config = self.clone();
        config.database = Some(database.name.clone());
        config.databases = Vec::new();
        for own in &database.own {
            let place =
                config.effective.iter_mut().find(|effective| effective.setting.path == own.setting.path);
            // Tables that the command line names go before those of the file.
            if let Some(place) = place.filter(|place| !matches!(place.origin, Origin::Flag(_))) {
                *place = own.clone();
            }
        }
        let get = |path: &str| {
            let found = config.effective.iter().find(|effective| effective.setting.path == path);
            found.map(|effective| effective.items.clone()).unwrap_or_default()
        };
        // Each of them was read before.
        if let Ok(Settings { general, relay, cleaner, inbox, metrics, admin }) = Settings::read(get) {
            (config.general, config.relay, config.cleaner) = (general, relay, cleaner);
            (config.inbox, config.metrics, config.admin) = (inbox, metrics, admin);
        }
        config
    }

    /// The configuration of each database; this one itself in the plain form.
    pub(crate) fn each(&self) -> Vec<Self> {
        if self.databases.is_empty() {
            return vec![self.clone()];
        }
        self.databases.iter().map(|database| self.of(database)).collect()
    }
}

/// A database for `config show`: its name, and each of its own settings with where it came from, without secrets.
pub(super) fn shown_settings(database: &NamedDatabase) -> Vec<(&'static str, String, String)> {
    let own = database.own().filter(|(_, own)| !own.items.is_empty());
    own.map(|(key, own)| {
        let value: Vec<String> = own.items.iter().map(|item| mask(item)).collect();
        (key, value.join(","), own.origin.to_string())
    })
    .collect()
}

/// Whether a setting is the databases' own, where there are several.
pub(super) fn is_own(path: &str) -> bool {
    OWN.iter().any(|(_, own, _)| *own == path)
}
