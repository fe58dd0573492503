//! The layers over one another: flag over environment over file over default.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use postbox_core::Code;

use super::error::{ConfigError, Origin};
use super::file::FileLayer;
use super::flags::Flags;
use super::kind::Shape;
use super::settings::{SETTINGS, Setting, default_items};
use super::text::{nearest, shown, shown_sink};

/// Variables that start so and that no setting has are errors: a mistyped one would be ignored in silence.
const OURS: [&str; 4] = ["OUTBOX_RELAY_", "OUTBOX_CLEANER_", "OUTBOX_INBOX_", "OUTBOX_ADMIN_"];

/// Others may start so too, and are errors where they are slips of the finger away from a setting's.
const SHARED: &str = "OUTBOX_";

/// The environment, handed in so that nothing here depends on the process.
pub(crate) type Env = BTreeMap<String, String>;

/// An environment of what `std::env::vars_os()` gives. What is not Unicode is kept in a form that every setting refuses
/// (`std::env::vars()` would panic over it, even in variables that are none of ours).
pub(crate) fn environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Env {
    variables.map(|(name, value)| (lossy(&name), lossy(&value))).collect()
}

fn lossy(text: &OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// A setting's value and where it came from.
#[derive(Clone)]
pub(crate) struct Effective {
    /// The setting.
    pub(crate) setting: &'static Setting,
    /// Its value, none when unset; as `config show` writes it, but not masked.
    pub(crate) items: Vec<String>,
    /// The layer that won.
    pub(crate) origin: Origin,
    /// Whether it passed the setting's own check.
    pub(super) valid: bool,
}

// By hand, without the secrets that items may hold.
impl fmt::Debug for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: Vec<String> = self.items.iter().map(|item| self.setting.shown(item)).collect();
        write!(f, "{} = {} ({})", self.setting.path, shown(&items.join(",")), self.origin)
    }
}

/// Every setting's value, each checked on its own, in the order of [`SETTINGS`].
pub(super) fn resolve(
    flags: &Flags,
    env: &Env,
    file: Option<&FileLayer>,
    errors: &mut Vec<ConfigError>,
) -> Vec<Effective> {
    SETTINGS.iter().map(|setting| checked(setting, pick(setting, flags, env, file), errors)).collect()
}

/// The highest layer that has the setting.
fn pick(
    setting: &'static Setting,
    flags: &Flags,
    env: &Env,
    file: Option<&FileLayer>,
) -> (Result<Vec<String>, String>, Origin) {
    if let Some(given) = flags.values.get(setting.path) {
        return (Ok(split(setting.shape, given)), Origin::Flag(setting.flag));
    }
    // Empty is unset: that is what `${NAME:-}` in a compose file leaves.
    if let Some(given) = env.get(setting.env).filter(|given| !given.trim().is_empty()) {
        return (Ok(split(setting.shape, std::slice::from_ref(given))), Origin::Env(setting.env.into()));
    }
    if let Some(file) = file
        && let Some((given, line)) = file.values.get(setting.path)
    {
        return (given.clone(), Origin::File { path: file.path.clone(), line: *line });
    }
    (Ok(default_items(setting.default)), Origin::Default)
}

/// Items of what flags or a variable gave. Trimmed: secrets mounted from files end in a newline.
fn split(shape: Shape, given: &[String]) -> Vec<String> {
    match shape {
        Shape::List => {
            given.iter().flat_map(|text| text.split(',')).map(|item| item.trim().to_owned()).collect()
        }
        Shape::Text | Shape::Number | Shape::Switch | Shape::Duration | Shape::Size => {
            given.last().map(|text| text.trim().to_owned()).into_iter().collect()
        }
    }
}

pub(super) fn checked(
    setting: &'static Setting,
    (given, origin): (Result<Vec<String>, String>, Origin),
    errors: &mut Vec<ConfigError>,
) -> Effective {
    let mut effective = Effective { setting, items: Vec::new(), origin, valid: false };
    let items = match given {
        Ok(items) => items,
        Err(reason) => {
            errors.push(wrong(&effective, format!("{} {reason}", setting.path)));
            return effective;
        }
    };
    effective.items = items;
    let result = match effective.items.iter().find_map(|item| unprintable(item)) {
        Some(reason) => Err(reason.to_owned()),
        None => (setting.canonical)(&effective.items),
    };
    match result {
        Err(reason) => {
            let value = show_wrong(setting, &effective.items);
            errors.push(wrong(&effective, format!("{} = {value} {reason}", setting.path)));
        }
        Ok(canonical) => {
            effective.items = canonical;
            effective.valid = true;
        }
    }
    effective
}

fn unprintable(item: &str) -> Option<&'static str> {
    if item.contains(char::REPLACEMENT_CHARACTER) {
        return Some("is not valid Unicode");
    }
    item.contains(char::is_control).then_some("has a control character in it")
}

/// A refused value; what should be a URL but is none may be a bare password.
fn show_wrong(setting: &Setting, items: &[String]) -> String {
    let text = items.join(",");
    if setting.path.ends_with("_tokens") {
        return "\"***\"".to_owned();
    }
    match setting.path {
        "sink" | "dead_letter" => shown_sink(&text),
        _ if setting.secret && !text.is_empty() && !text.contains("://") => "\"***\"".to_owned(),
        _ => shown(&text),
    }
}

fn wrong(effective: &Effective, cause: String) -> ConfigError {
    let next = format!("{} {}", change(effective), (effective.setting.accepts)());
    ConfigError::new(Code::ConfigInvalid, Some(effective.origin.clone()), cause, next)
}

/// How to change a value in the layer that has it; the value follows.
pub(super) fn change(effective: &Effective) -> String {
    let setting = effective.setting;
    match &effective.origin {
        Origin::Default => format!("set {} to", setting.env),
        Origin::File { path, .. } => format!("in {} set {} to", path.display(), setting.path),
        Origin::Env(name) => format!("set {name} to"),
        Origin::Flag(name) => format!("give --{name}"),
    }
}

/// Reports variables that look like settings and are none.
pub(super) fn unknown_variables(env: &Env, errors: &mut Vec<ConfigError>) {
    for (name, value) in env {
        if SETTINGS.iter().any(|setting| setting.env == name) || is_service_link(name, value) {
            continue;
        }
        let ours = OURS.iter().any(|prefix| name.starts_with(prefix));
        let guess = if ours {
            nearest(name, SETTINGS.iter().map(|setting| setting.env)).map(str::to_owned)
        } else {
            slip(name)
        };
        let known = match guess {
            Some(guess) => format!("Did you mean {guess}?"),
            None if ours => "There is no such setting.".to_owned(),
            None => continue,
        };
        let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
        errors.push(ConfigError::new(
            Code::ConfigUnknownKey,
            None,
            format!("unknown environment variable {name}. {known}"),
            "correct or unset it; `postbox config show` lists every setting",
        ));
    }
}

/// The variable that one of a name that anybody may use was meant to be. What all of them start with is left out, or half of
/// another program's names would be near. One of several databases has its name at the end, and is looked at there.
fn slip(name: &str) -> Option<String> {
    let rest = name.strip_prefix(SHARED).filter(|rest| !rest.starts_with("DIRECT_URL_"))?;
    let known = SETTINGS.iter().filter_map(|setting| setting.env.strip_prefix(SHARED));
    nearest(rest, known).map(|guess| format!("{SHARED}{guess}"))
}

/// Kubernetes puts such variables into every container for a Service called `outbox-relay` or `outbox-cleaner-…`;
/// refusing them would keep the relay from starting in its own namespace.
fn is_service_link(name: &str, value: &str) -> bool {
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") {
        return ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    }
    name.split_once("_PORT_").is_some_and(|(_, rest)| {
        let mut parts = rest.split('_');
        let port = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
        port && parts.next().is_some_and(|protocol| ["TCP", "UDP", "SCTP"].contains(&protocol))
    })
}
