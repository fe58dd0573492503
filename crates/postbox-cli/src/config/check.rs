//! Checks of settings against each other, and of what a command needs.

use std::time::Duration;

use postbox_core::{Code, OnDead};
use postbox_stores::any::Strategy;

use super::error::ConfigError;
use super::kind::{DAY_MS, show_duration};
use super::layers::{Effective, change};
use super::route::Route;
use super::settings::{Cleaner, Inbox, Ordering, Relay, Setting, Settings};

/// Refuses combinations that cannot work. Settings that are wrong by themselves are left out.
pub(super) fn combinations(settings: &Settings, effective: &[Effective], errors: &mut Vec<ConfigError>) {
    let relay = &settings.relay;
    let (Some(ttl), Some(timeout)) =
        (valid(effective, "relay.lock_ttl"), valid(effective, "relay.dispatch_timeout"))
    else {
        return;
    };
    // Renewed at a third, a lease has two thirds left at worst, and those must cover a dispatch.
    let least = relay.dispatch_timeout * 3 / 2;
    if relay.lock_ttl < least {
        let at_fault = if ttl.origin == super::Origin::Default { timeout } else { ttl };
        let cause = format!(
            "relay.lock_ttl = {} is less than 1.5 × relay.dispatch_timeout = {}: a lease, renewed at a third, could end \
             before its dispatch does",
            show_duration(relay.lock_ttl),
            show_duration(relay.dispatch_timeout)
        );
        let most =
            Duration::from_millis(u64::try_from(relay.lock_ttl.as_millis() * 2 / 3).unwrap_or(u64::MAX));
        let next = format!(
            "{} at least {}, or {} at most {}",
            change(ttl),
            show_duration(least),
            change(timeout),
            show_duration(most)
        );
        errors.push(ConfigError::new(Code::ConfigInvalid, Some(at_fault.origin.clone()), cause, next));
    }
}

/// What no relay can do. Commands that look after its tables do not mind.
pub(super) fn relaying(relay: &Relay, effective: &[Effective]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut refuse = |path: &str, code, cause: String, next: &str| {
        let origin = valid(effective, path).map(|effective| effective.origin.clone());
        errors.push(ConfigError::new(code, origin, cause, next));
    };
    let apart = match (relay.fair_tenants, relay.tenants.is_empty()) {
        (true, _) => Some("relay.fair_tenants"),
        (false, false) => Some("relay.tenants"),
        (false, true) => None,
    };
    if let (Some(path), Ordering::Aggregate) = (apart, relay.ordering) {
        let cause = format!("{path} and relay.ordering = \"aggregate\" do not go together");
        refuse(path, Code::ConfigInvalid, cause, "leave one of them out");
    }
    if !relay.tenants.is_empty() && relay.single_active {
        let cause = "relay.tenants needs relay.single_active = false: the active relay would keep those of other tenants out";
        let next = "give --single-active=false, or set OUTBOX_RELAY_SINGLE_ACTIVE to false";
        refuse("relay.tenants", Code::ConfigInvalid, cause.to_owned(), next);
    }
    let shared = match (relay.fair_tenants, relay.single_active) {
        (true, _) => Some("tenants share the table (relay.fair_tenants)"),
        (false, false) => Some("several relays share the table (relay.single_active = false)"),
        (false, true) => None,
    };
    if let (Some(why), Strategy::Owner) = (shared, relay.claim) {
        let cause = format!("relay.claim = \"owner\": {why}, and its rows are leased");
        refuse("relay.claim", Code::ConfigUnsupported, cause, "leave relay.claim at auto");
    }
    errors
}

/// For how long the source of what is received may repeat it, as far as it is declared; none is for ever.
pub(super) fn source_retention(inbox: &Inbox, cleaner: &Cleaner) -> Option<Duration> {
    inbox.source_retention.or_else(|| Some(cleaner.retention + cleaner.dead_retention?))
}

/// Refuses a memory that is shorter than its source's (hazard 45).
pub(super) fn inbox(settings: &Settings, effective: &[Effective], errors: &mut Vec<ConfigError>) {
    let (inbox, cleaner) = (&settings.inbox, &settings.cleaner);
    let all = ["inbox.retention", "inbox.source_retention", "cleaner.retention", "cleaner.dead_retention"];
    let [Some(given), Some(source), Some(_), Some(_)] = all.map(|path| valid(effective, path)) else {
        return;
    };
    let Some(keep) = inbox.retention else { return };
    let (cause, next) = match source_retention(inbox, cleaner) {
        Some(repeats) if keep >= repeats => return,
        Some(repeats) => {
            let of = match inbox.source_retention {
                Some(_) => "inbox.source_retention",
                None => {
                    "cleaner.retention + cleaner.dead_retention, which hold where inbox.source_retention is not set"
                }
            };
            let repeats = show_duration(repeats);
            let cause = format!(
                "inbox.retention = {} is less than {repeats} ({of}): a message could come again when it is forgotten, and have its \
                 effect again",
                show_duration(keep)
            );
            (cause, format!("{} at least {repeats}", change(given)))
        }
        None => {
            let cause = format!(
                "inbox.retention = {}, and for how long the source repeats messages is not declared: dead events are kept for ever \
                 (cleaner.dead_retention = 0) and may be replayed at any time",
                show_duration(keep)
            );
            let next = format!(
                "{} the retention of the source's published events, its dead ones and the broker together, or leave \
                 inbox.retention at 0",
                change(source)
            );
            (cause, next)
        }
    };
    errors.push(ConfigError::new(Code::ConfigInvalid, Some(given.origin.clone()), cause, next));
}

fn valid<'a>(effective: &'a [Effective], path: &str) -> Option<&'a Effective> {
    effective.iter().find(|effective| effective.setting.path == path && effective.valid)
}

/// The default of `relay.redrive_max`.
const REDRIVE_MAX: u32 = 3;

/// What works but hardly as meant.
pub(super) fn warnings(settings: &Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(kept) = settings.cleaner.dead_retention
        && kept < Duration::from_millis(DAY_MS)
    {
        warnings.push(format!(
            "cleaner.dead_retention = {} deletes dead events before most people have seen them",
            show_duration(kept)
        ));
    }
    if settings.inbox.source_retention.is_some() && settings.inbox.retention.is_none() {
        warnings.push("inbox.source_retention has no effect without inbox.retention".to_owned());
    }
    if settings.relay.redrive_max != REDRIVE_MAX && settings.relay.redrive_after.is_none() {
        warnings.push("relay.redrive_max has no effect without relay.redrive_after".to_owned());
    }
    if settings.relay.on_dead != OnDead::Block && settings.relay.ordering == Ordering::None {
        warnings.push("relay.on_dead has no effect without relay.ordering = \"aggregate\"".to_owned());
    }
    warnings
}

/// Reports those of `paths` that nobody set. A route also counts as `sink`.
pub(super) fn required(paths: &[&str], effective: &[Effective], routes: &[Route]) -> Vec<ConfigError> {
    let set = |path: &str| {
        (path == "sink" && !routes.is_empty())
            || effective.iter().any(|effective| effective.setting.path == path && !effective.items.is_empty())
    };
    paths.iter().filter(|path| !set(path)).filter_map(|path| Setting::find(path)).map(missing).collect()
}

fn missing(setting: &Setting) -> ConfigError {
    let purpose = setting.doc.replace('`', "");
    let cause = format!("{} is not set. {purpose}", setting.path);
    let next = format!(
        "set {} or {} in postbox.toml, or give --{}: {}",
        setting.env,
        setting.path,
        setting.flag,
        (setting.accepts)()
    );
    ConfigError::new(Code::ConfigMissing, None, cause, next)
}
