//! How long an event may wait: one measure for the dashboard, `doctor` and `top`, so that none calls ill what another calls well.

use std::time::Duration;

/// Events that have been due for longer than this are late.
pub(crate) const LATE: Duration = Duration::from_secs(10);

/// And for longer than this far too late.
pub(crate) const FAR_TOO_LATE: Duration = Duration::from_mins(5);
