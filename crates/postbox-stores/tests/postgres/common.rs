//! What several of these test files need.

use std::time::Duration;

use postbox_core::{Delivery, DispatchError, Dispatcher, EventId, Receipts};
use postbox_testkit::eventually;
use postbox_testkit::suite::state;

use crate::subject::Table;

/// How long a delivery may take that should take a fraction of a second.
pub(crate) const SOON: Duration = Duration::from_secs(12);

/// Ends the session whose lock makes its relay the active one; says how many there were.
pub(crate) const KILL_LEADER: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// A dispatcher of its batches as a whole, from a function.
pub(crate) struct Batches<F>(pub(crate) usize, pub(crate) F);

impl<F, R> Dispatcher for Batches<F>
where
    F: Fn(Vec<Delivery>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), DispatchError>> + Send,
{
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        (self.1)(vec![delivery.clone()]).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        match (self.1)(batch.to_vec()).await {
            Ok(()) => receipts.all_delivered(),
            Err(error) => {
                for index in 0..batch.len() {
                    receipts.record(index, Err(DispatchError::unavailable(error.to_string())));
                }
            }
        }
    }

    fn batch_limit(&self) -> usize {
        self.0
    }
}

pub(crate) async fn all_published(table: &Table, what: &str) {
    eventually(what, SOON, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
}

pub(crate) async fn is_published(table: &Table, what: &str, id: EventId) {
    eventually(what, SOON, async || state(table, id).await.published).await;
}

pub(crate) fn insert(topic: &str, more_columns: &str, more_values: &str) -> String {
    format!(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id{more_columns})
         VALUES (gen_random_uuid(), '{topic}', '{{}}', gen_random_uuid(){more_values}) RETURNING event_id"
    )
}
