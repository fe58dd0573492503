//! How relays make sure that rows are their own, whatever the database.

use postbox_core::{Code, StoreError, StoreErrorKind};

use crate::builder::Settings;

/// How a relay makes sure that rows are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Ownership where it is possible, else leases.
    #[default]
    Auto,
    /// Each row is leased, which writes it once more.
    Lease,
    /// The active relay owns the table: it writes what it has in flight into a row of its own. Needs a migrated table and
    /// `single_active`.
    Owner,
}

impl Strategy {
    /// Whether the relay of a table owns it, where this is in the way of that.
    ///
    /// # Errors
    /// When ownership is asked for and not possible.
    pub(crate) fn owns(self, table: &str, obstacle: Option<&str>) -> Result<bool, StoreError> {
        match (self, obstacle) {
            (Self::Lease, _) | (Self::Auto, Some(_)) => Ok(false),
            (Self::Auto | Self::Owner, None) => Ok(true),
            (Self::Owner, Some(why)) => {
                let message = format!("claim = \"owner\": {table} cannot be owned: {why}");
                Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message))
            }
        }
    }
}

/// The name of a strategy in `postbox_relay`.
pub(crate) fn name(owns: bool) -> &'static str {
    if owns { "owner" } else { "lease" }
}

/// Refuses to start beside relays of the table that claim in another way: an owner reads rows that others would lease. `active` is
/// how the active relay claims, and its name; `sharing` is one of those that share the table.
pub(crate) fn check_others(
    settings: &Settings,
    owns: bool,
    active: Option<(String, String)>,
    sharing: Option<String>,
) -> Result<(), StoreError> {
    let mine = name(owns);
    let (theirs, relay) = match (active, sharing) {
        (Some((strategy, holder)), _) if strategy != mine => (strategy, holder),
        (_, Some(relay)) if owns => (name(false).to_owned(), relay),
        _ => return Ok(()),
    };
    let message = format!(
        "{} is relayed by {relay} with claim = \"{theirs}\", this relay has \"{mine}\"; a relay that died is forgotten after \
         {} s",
        settings.table,
        settings.leader_ttl.as_secs()
    );
    Err(StoreError::new(Code::StrategyMismatch, StoreErrorKind::Refused, message))
}
