//! What the configuration itself says.

use postbox_core::{Code, Finding};
use postbox_stores::any::Dialect;

use crate::assemble;
use crate::config::Config;
use crate::report::Failure;

/// What a relay of one table has open at the most, by what it does: claims, settles, what is in flight beside them, the journal
/// of its window, wake-ups; the cleaner's, with those of calls by idempotency key; the monitor's.
const RELAY: u32 = 5;
const CLEANER: u32 = 4;
const MONITOR: u32 = 2;

/// What the configuration itself has wrong was refused before; this is what parts can be made of, and what is doubtful.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    let mut findings = match assemble::check(config) {
        Ok(()) => Vec::new(),
        Err(failure) => wrong(&failure),
    };
    for warning in &config.warnings {
        findings.push(Finding::doubtful("settings", Code::ConfigDoubtful, warning, "postbox config show"));
    }
    if findings.is_empty() {
        findings.push(Finding::good("settings", "the configuration can be used"));
    }
    findings
}

/// Everything that is wrong with a configuration.
pub(super) fn wrong(failure: &Failure) -> Vec<Finding> {
    let each = failure.each().into_iter();
    each.map(|(code, what, fix)| Finding::wrong("settings", code.unwrap_or(Code::ConfigInvalid), what, fix))
        .collect()
}

/// How many connections a relay of this configuration has at the most; none where a file is the database.
pub(crate) fn connections(config: &Config, dialect: Dialect, tables: usize) -> u32 {
    if dialect == Dialect::Sqlite {
        return 0;
    }
    let mut each = 0;
    for (on, connections) in [
        (config.relay.enabled, RELAY),
        (config.cleaner.enabled, CLEANER),
        (config.general.listen.is_some() && config.metrics.enabled, MONITOR),
    ] {
        each += if on { connections } else { 0 };
    }
    each.saturating_mul(u32::try_from(tables).unwrap_or(u32::MAX))
}
