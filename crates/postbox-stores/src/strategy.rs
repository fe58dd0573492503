//! How relays make sure that rows are their own, whatever the database.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind};

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
    /// When it shall and cannot.
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

/// Another relay of the table claims in another way: an owner reads rows that others would lease.
pub(crate) fn mismatch(table: &str, ttl: Duration, mine: &str, theirs: &str, relay: &str) -> StoreError {
    let message = format!(
        "{table} is relayed by {relay} with claim = \"{theirs}\", this relay has \"{mine}\"; a relay that died is forgotten after \
         {} s",
        ttl.as_secs()
    );
    StoreError::new(Code::StrategyMismatch, StoreErrorKind::Refused, message)
}

/// After how long without a sign of life the active relay loses its place.
pub(crate) const LEADER_TTL: Duration = Duration::from_secs(15);
