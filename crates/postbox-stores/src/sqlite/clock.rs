//! The time. SQLite has no server and so no clock of its own; everybody who opens the file is on the same machine and goes
//! by that machine's clock. Tables hold microseconds since 1970.

use time::OffsetDateTime;

pub(super) use crate::clock::{from_micros, micros, span};

/// Now.
pub(super) fn now() -> i64 {
    micros(OffsetDateTime::now_utc())
}
