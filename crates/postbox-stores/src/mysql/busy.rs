//! Rows that somebody else has locked, such as an operator's open session. They keep no others from being settled or renewed.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use postbox_core::StoreError;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::clause::{bind_list, with_list};
use super::error::{classify, is_lock_wait, within};
use super::link::{OPERATION_LIMIT, Taken, Tries, say};
use super::store::Inner;
use crate::sequenced::key_of;

/// So many rows are looked for by one statement.
const PART: usize = 1024;

impl Inner {
    /// Which of these rows somebody had locked when they were last to be written, and still has: they are not waited for once more.
    pub(super) async fn still_busy(
        &self,
        rows: impl Iterator<Item = i64>,
    ) -> Result<HashSet<i64>, StoreError> {
        let rows: Vec<i64> = {
            let locked = self.locked();
            if locked.is_empty() { Vec::new() } else { rows.filter(|row| locked.contains(row)).collect() }
        };
        if rows.is_empty() { Ok(HashSet::new()) } else { self.locked_of(rows).await }
    }

    /// Of these rows so many could not be written.
    pub(super) fn note_busy(&self, rows: impl Iterator<Item = i64>, busy: impl Iterator<Item = i64>) {
        let mut locked = self.locked();
        if !locked.is_empty() {
            for row in rows {
                locked.remove(&row);
            }
        }
        locked.extend(busy);
    }

    fn locked(&self) -> MutexGuard<'_, HashSet<i64>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rolls back for another try, if this error is worth one; answers which of the rows to leave out of it: after a lock was waited
    /// for in vain, those that somebody has locked.
    pub(super) async fn again(
        &self,
        tries: &mut Tries,
        link: Taken<'_>,
        error: StoreError,
        rows: impl Iterator<Item = i64>,
    ) -> Result<HashSet<i64>, StoreError> {
        let waited = is_lock_wait(&error);
        tries.again(link, error).await?;
        if !waited {
            return Ok(HashSet::new());
        }
        let busy = self.locked_of(rows.collect()).await?;
        if !busy.is_empty() {
            let message = "somebody has locked rows that are to be settled or renewed";
            tracing::warn!(table = &*self.label, rows = busy.len(), message);
        }
        Ok(busy)
    }

    async fn locked_of(&self, mut sequences: Vec<i64>) -> Result<HashSet<i64>, StoreError> {
        let statements = &self.opened().await?.statements;
        sequences.sort_unstable();
        let mut link = self.settles.take().await?;
        link.begin().await?;
        let mut busy: HashSet<i64> = HashSet::new();
        for part in sequences.chunks(PART) {
            // What is gone is nobody's.
            busy.extend(found(&mut link, &statements.published, part).await?);
            for free in found(&mut link, &statements.free, part).await? {
                busy.remove(&free);
            }
        }
        say(&mut link.connection, "ROLLBACK").await?;
        link.keep();
        Ok(busy)
    }
}

/// The rows' keys.
pub(super) fn keys_of(sequences: &HashSet<i64>) -> Vec<Uuid> {
    sequences.iter().copied().map(key_of).collect()
}

/// The sequences that a statement finds of these.
pub(super) async fn found(
    link: &mut Taken<'_>,
    sql: &str,
    sequences: &[i64],
) -> Result<Vec<i64>, StoreError> {
    let query = sqlx::query(AssertSqlSafe(with_list(sql, sequences.len())));
    let rows = bind_list(query, sequences).fetch_all(&mut link.connection);
    let rows = within(OPERATION_LIMIT, rows).await?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)
}
