//! [`PostboxPool`]: what a handle needs of a database, beside what a relay does.

use std::future::Future;

use crate::cleaner::Sweep;
use crate::history::History;
use crate::relay::Settings;
use crate::store::{Order, Store, StoreError, Tenants};
use crate::table::TableName;
use crate::tx::Layout;

/// How the relay of a handle works, as far as that is for its store to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// Whether only one relay works on the table at a time.
    pub single_active: bool,
    /// In what order events are delivered.
    pub order: Order,
    /// What becomes of the rows of delivered events.
    pub history: History,
    /// Whose events it is for.
    pub tenants: Tenants,
}

/// A pool on whose database a [`Postbox`](crate::Postbox) can run. `D` marks the driver, as with
/// [`OutboxTx`](crate::OutboxTx): it is always inferred.
#[diagnostic::on_unimplemented(
    message = "a Postbox cannot run on `{Self}`",
    label = "pass a reference to your pool",
    note = "`Postbox::builder(&pool, table)` takes a `&sqlx::PgPool`, a `&sqlx::MySqlPool` or a `&sqlx::SqlitePool`"
)]
pub trait PostboxPool<D>: Clone + Send + Sync + 'static {
    /// The table as its relay sees it.
    type Store: Store;
    /// The table as its cleaner sees it.
    type Sweep: Sweep;

    /// The relay's side of a table. Nothing is connected yet, and no connection of the pool is kept.
    fn store(&self, table: &TableName, settings: &Settings, options: StoreOptions) -> Self::Store;

    /// The cleaner's side of a table. Nothing is connected yet.
    fn sweep(&self, table: &TableName, settings: &Settings) -> Self::Sweep;

    /// Looks, before anything is started, whether the table is there and whether the pool's user may do what is needed;
    /// answers which columns it has.
    ///
    /// # Errors
    /// What is in the way, with the next step.
    ///
    /// # Cancel safety
    /// Only looks; may be dropped at any time.
    fn examine(
        &self,
        table: &TableName,
        needs: Needs,
    ) -> impl Future<Output = Result<Layout, StoreError>> + Send;
}

/// What a [`Postbox`](crate::Postbox) is going to do with its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Needs {
    /// It deletes what was published long ago.
    pub clean: bool,
    /// It writes rows that are born leased, through this pool.
    pub hot: bool,
    /// It relies on commits that survive a crash of the server.
    pub durable: bool,
}
