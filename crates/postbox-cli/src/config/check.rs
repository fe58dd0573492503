//! Checks of settings against each other, and of what a command needs.

use std::time::Duration;

use postbox_core::Code;

use super::error::ConfigError;
use super::kind::{DAY_MS, show_duration};
use super::layers::{Effective, change};
use super::route::Route;
use super::settings::{OnDead, Ordering, Setting, Settings};

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
