//! [`Durable`]: up to when it is known that what was committed is on disk.
//!
//! A writer may leave its commit to a crash (`synchronous_commit = off`), and nothing is delivered that a crash can take back
//! (hazard 33). A commit that waits for the disk takes with it whatever was committed before. So what was seen before such a commit
//! began is safe once that has ended, and nobody needs to wait for the disk on its account again.
//!
//! And where the server can say that the disk has everything, nobody waits at all: an event whose writer has waited is dispatched
//! without a second wait.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sqlx::{AssertSqlSafe, PgConnection};

/// Whether the disk has all that was ever committed. Where a standby has to have it, too, this disk says too little.
pub(super) const DISK_HAS_ALL: &str = "current_setting('synchronous_standby_names') = ''
            AND pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()";

/// Whether this server can be asked that: some that speak PostgreSQL's language keep their log elsewhere.
pub(super) async fn knows_its_disk(connection: &mut PgConnection) -> bool {
    let asked =
        sqlx::query_scalar::<_, bool>(AssertSqlSafe(format!("SELECT {DISK_HAS_ALL}"))).persistent(false);
    asked.fetch_one(connection).await.is_ok()
}

#[derive(Debug, Default)]
pub(super) struct Durable(Mutex<Option<Instant>>);

impl Durable {
    /// A commit has waited for the disk; it had not begun before this time.
    pub(super) fn up_to(&self, begun: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = (*known).max(Some(begun));
    }

    /// Whether all that was seen by this time is on disk.
    pub(super) fn has(&self, seen: Instant) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) >= Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_was_seen_before_a_commit_began_is_known_to_be_there() {
        let durable = Durable::default();
        let start = Instant::now();
        assert!(!durable.has(start));
        let begun = start + Duration::from_millis(5);
        durable.up_to(begun);
        // One that began earlier may end later.
        durable.up_to(start);
        assert!(durable.has(begun));
        assert!(!durable.has(begun + Duration::from_nanos(1)));
    }
}
