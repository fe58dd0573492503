//! Rows that somebody else has locked, such as an operator's open session. They keep no others from being settled.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use postbox_core::StoreError;
use postbox_core::store::{Settled, Settlement};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::within;
use super::link::OPERATION_LIMIT;
use super::settling::in_order;
use super::store::{Inner, Opened};

impl Inner {
    /// Whether a settle of these is worth waiting for: not with one among them that somebody has had locked since the last settle of
    /// it. All others would wait for it once more.
    pub(super) fn waits_for_locks(&self, settlements: &[&Settlement]) -> bool {
        let busy = self.busy();
        let known = || settlements.iter().filter(|one| busy.contains(&one.lease.row)).count();
        busy.is_empty() || [0, settlements.len()].contains(&known())
    }

    /// Of these rows so many could not be settled.
    pub(super) fn note_busy(&self, settlements: &[&Settlement], rows: &[Uuid]) {
        let mut busy = self.busy();
        if !busy.is_empty() {
            for one in settlements {
                busy.remove(&one.lease.row);
            }
        }
        busy.extend(rows);
    }

    fn busy(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has locked a row of the batch for longer than we wait: settles the others, and says which were busy.
    pub(super) async fn settle_free(
        &self,
        opened: &Opened,
        settlements: &[&Settlement],
        connection: &mut PgConnection,
    ) -> Result<Settled, StoreError> {
        self.settles.begin(connection).await?;
        let ids = settlements.iter().map(|s| s.lease.row).collect();
        let busy = lock_free(connection, opened, ids).await?;
        let mut ours: Vec<&Settlement> =
            settlements.iter().filter(|s| !busy.contains(&s.lease.row)).copied().collect();
        in_order(&mut ours);
        let lost = self.write(opened, &ours, connection).await?;
        self.settles.commit(connection).await?;
        Ok(Settled { lost, busy })
    }
}

/// Locks those of these rows that nobody has locked, in a transaction that is open; answers the others.
pub(super) async fn lock_free(
    connection: &mut PgConnection,
    opened: &Opened,
    mut ids: Vec<Uuid>,
) -> Result<Vec<Uuid>, StoreError> {
    // The order of locking, the same for everybody (hazard 18).
    ids.sort_unstable();
    let there = opened.scalar::<Uuid>(&opened.statements.there).bind(&ids);
    let there = within(OPERATION_LIMIT, there.fetch_all(&mut *connection)).await?;
    let free = opened.scalar::<Uuid>(&opened.statements.free).bind(&ids);
    let free = within(OPERATION_LIMIT, free.fetch_all(connection)).await?;
    Ok(there.into_iter().filter(|id| !free.contains(id)).collect())
}
