//! One try: the message, its effect and the memory of it in one transaction.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use postbox_core::inbox::{InboxDriver, Recording};
use postbox_core::{Code, CommitError, DispatchError, OutboxTransaction, Seen};
use tokio::time::timeout;

use crate::consumer::Consumer;
use crate::message::Message;

impl<D: InboxDriver> Consumer<D> {
    /// Tries a message once. `First`: its effect is committed now; `Before`: it was, and nothing was done.
    ///
    /// # Errors
    /// Nothing was committed, or it is not known: `retry` if the message may be to blame, `reject` if it is, `unavailable` if the database is.
    pub(crate) async fn attempt(&self, message: &Message) -> Result<Seen, DispatchError> {
        let mut tx = (self.begin)().await.map_err(DispatchError::unavailable)?;
        match self.inbox.record(&mut tx, &self.name, message.id()).await {
            Ok(Seen::First) => {}
            Ok(Seen::Before) => {
                // Nothing is in it.
                let _ = tx.rollback().await;
                return Ok(Seen::Before);
            }
            // Whoever held the row up, or has no such table: the message is not to blame, and is not charged a try.
            Err(error) => {
                let code = error.code();
                return Err(DispatchError::unavailable(error).with_code(code));
            }
        }
        // Called inside, since it may panic before there is anything to wait for.
        let run = AssertUnwindSafe(async { self.handler.handle(&mut tx, message).await }).catch_unwind();
        let failed = match timeout(self.timeout, run).await {
            Ok(Ok(Ok(()))) => return self.commit(tx, message).await,
            Ok(Ok(Err(error))) => error.into_dispatch_error(),
            Ok(Err(panic)) => DispatchError::retry(format!(
                "the handler panicked: {}",
                postbox_core::panic::message(&*panic)
            ))
            .with_code(Code::Panicked),
            Err(_) => {
                // Dropped, not rolled back: a statement may still be under way on its connection, and would be waited for.
                let text = format!("the handler took longer than {:?}", self.timeout);
                return Err(DispatchError::retry(text).with_code(Code::Timeout));
            }
        };
        // Whether this is answered or not: no COMMIT was sent.
        let _ = tx.rollback().await;
        Err(failed)
    }

    async fn commit(&self, mut tx: OutboxTransaction<D>, message: &Message) -> Result<Seen, DispatchError> {
        // PostgreSQL answers COMMIT with a rollback, which drivers report as success, if the handler has ignored the error of a
        // statement; MySQL ends a transaction at a deadlock, and goes on without one. The message would then be acknowledged, and its
        // effect be lost. So look whether the memory of it is still there, and write nothing: it would be kept without the effect.
        let recording = Recording {
            table: self.inbox.table(),
            consumer: self.name.as_str(),
            messages: &[message.id().as_str()],
        };
        let problem = match D::is_recorded(&mut tx, recording).await {
            Ok(true) => None,
            Ok(false) => {
                Some(DispatchError::retry("the handler has ended the transaction that it was given"))
            }
            Err(error) => Some(DispatchError::retry(error)),
        };
        if let Some(problem) = problem {
            let _ = tx.rollback().await;
            return Err(problem.with_code(Code::TransactionAborted));
        }
        match tx.commit().await {
            Ok(()) => Ok(Seen::First),
            Err(error @ CommitError::RolledBack(_)) => {
                Err(DispatchError::retry(error).with_code(Code::RolledBack))
            }
            // The next try finds out: the inbox remembers it, or not.
            Err(error @ CommitError::Unknown(_)) => {
                Err(DispatchError::unavailable(error).with_code(Code::CommitUnknown))
            }
        }
    }
}
