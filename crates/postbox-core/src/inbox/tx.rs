//! [`InboxTx`]: the caller's open transaction as an inbox sees it, whatever the driver.

use std::fmt;
use std::future::Future;

use crate::table::TableName;
use crate::transaction::{Driver, OutboxTransaction};
use crate::uow::UnitOfWork;

/// An open transaction of some driver, in which messages can be recorded. Implemented where [`OutboxTx`](crate::OutboxTx) is,
/// with the same marker, so that effect, memory and further events are one commit.
///
/// # Errors
/// As the driver. The transaction cannot go on then: its caller rolls it back.
///
/// # Cancel safety
/// Not cancel safe: a dropped call leaves the statement's result unknown. Its caller rolls the transaction back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "a message must be recorded in the transaction that has its effect",
    note = "begin one and pass `&mut tx`: what is recorded on its own connection is remembered though its effect was \
            rolled back, or forgotten though it was not"
)]
pub trait InboxTx<Driver>: Sized {
    /// The driver's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Writes the messages in one statement, in their order; answers those that are new, in any order. Waits for other
    /// transactions that have recorded one of them.
    fn record(
        self,
        recording: Recording<'_>,
    ) -> impl Future<Output = Result<Vec<String>, Self::Error>> + Send;

    /// What an error of [`record`](Self::record) means.
    fn trouble(error: &Self::Error) -> InboxTrouble;

    /// As [`OutboxTx::is_open`](crate::OutboxTx::is_open).
    fn is_open(&mut self) -> bool {
        true
    }
}

/// The same of a driver whose transactions Postbox opens itself.
///
/// # Cancel safety
/// As [`InboxTx`].
pub trait InboxDriver: Driver {
    /// As [`InboxTx::record`].
    fn record(
        tx: &mut Self::Transaction,
        recording: Recording<'_>,
    ) -> impl Future<Output = Result<Vec<String>, Self::Error>> + Send;

    /// Looks, before COMMIT, whether this transaction is still open and has these messages recorded. Must write nothing: where the
    /// transaction has ended behind its owner's back, what is written commits at once. An error says that it is not alive any more.
    fn is_recorded(
        tx: &mut Self::Transaction,
        recording: Recording<'_>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// As [`InboxTx::trouble`].
    fn trouble(error: &Self::Error) -> InboxTrouble;
}

/// What to record.
#[derive(Debug, Clone, Copy)]
pub struct Recording<'a> {
    /// Where to.
    pub table: &'a InboxTable,
    /// For whom.
    pub consumer: &'a str,
    /// The messages: sorted by their bytes, none twice, at least one.
    pub messages: &'a [&'a str],
}

/// What went wrong, as far as it matters to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxTrouble {
    /// An earlier statement of the transaction had failed.
    Aborted,
    /// Another transaction was in the way: this one may work from its beginning.
    Conflict,
    /// There is no such table.
    Missing,
    /// Anything else.
    Other,
}

/// The table of an inbox: `<module>_inbox`, in the schema of `<module>_outbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxTable {
    outbox: TableName,
    name: String,
    prepared: bool,
}

impl InboxTable {
    /// The inbox of the module with this outbox.
    pub(crate) fn new(outbox: TableName, prepared: bool) -> Self {
        Self { name: outbox.inbox(), outbox, prepared }
    }

    /// The outbox of the same module.
    pub fn outbox(&self) -> &TableName {
        &self.outbox
    }

    /// Its own name, without schema.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name for SQL, each part in the given quotes.
    pub fn quoted(&self, quote: char) -> String {
        self.outbox.quoted_sibling(&self.name, quote)
    }

    /// Whether a driver may keep statements prepared on the session.
    pub fn prepared(&self) -> bool {
        self.prepared
    }
}

impl fmt::Display for InboxTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outbox.schema() {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl<D: InboxDriver> InboxTx<D> for &mut OutboxTransaction<D> {
    type Error = D::Error;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, D::Error> {
        D::record(self, recording).await
    }

    fn trouble(error: &D::Error) -> InboxTrouble {
        D::trouble(error)
    }
}

#[diagnostic::do_not_recommend]
impl<D: InboxDriver> InboxTx<D> for &mut UnitOfWork<'_, D> {
    type Error = D::Error;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, D::Error> {
        D::record(self, recording).await
    }

    fn trouble(error: &D::Error) -> InboxTrouble {
        D::trouble(error)
    }
}
