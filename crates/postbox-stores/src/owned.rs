//! Rows that a relay owns instead of leasing them, whatever the server: they are known by their token, and fenced by its epoch.

use postbox_core::store::{Claim, Lease, Settlement, Standing, Token, Verdict};

/// What every token of an owner starts with; the epoch follows.
const OWNED: &str = "own/";

/// Whether a row was read by its owner and not leased.
pub(crate) fn is_owned(lease: &Lease) -> bool {
    lease.token.starts_with(OWNED)
}

/// The token of an owner's rows.
pub(crate) fn token(epoch: i64) -> Token {
    format!("{OWNED}{epoch}").into()
}

/// The epoch that a row was read in.
pub(crate) fn epoch_of(token: &str) -> i64 {
    token.strip_prefix(OWNED).and_then(|epoch| epoch.parse().ok()).unwrap_or(-1)
}

/// A row that nobody has to write anything for: it was only read.
pub(crate) fn needs_no_write(settlement: &Settlement) -> bool {
    is_owned(&settlement.lease)
        && settlement.sinks_done.is_empty()
        && matches!(settlement.verdict, Verdict::Release { after: None, reason: None })
}

/// What a relay is told whose table is another's.
pub(crate) fn standby() -> Claim {
    Claim { standing: Standing::Standby, ..Claim::default() }
}
