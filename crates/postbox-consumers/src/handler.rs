//! [`Handler`]: what is done with a message, in the transaction that remembers it.

use std::future::Future;
use std::pin::Pin;

use postbox_core::{Driver, HandlerResult, OutboxTransaction};

use crate::message::Message;

/// Has the effect of a message in the given transaction, which is committed after it, together with the memory of the message.
///
/// Implemented by every `async fn` of these two, and by types of yours that have something to bring along:
///
/// ```
/// use postbox_consumers::{Handler, Message};
/// use postbox_core::{Event, HandlerResult, Outbox, OutboxTransaction};
/// use postbox_stores::sqlite::SqlxSqlite;
///
/// async fn reduce(tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
///     let item: String = message.json()?;
///     sqlx::query("UPDATE stock SET pieces = pieces - 1 WHERE item = ?1").bind(item).execute(&mut ***tx).await?;
///     Ok(())
/// }
///
/// struct Reduce { outbox: Outbox }
///
/// impl Handler<SqlxSqlite> for Reduce {
///     async fn handle(&self, tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
///         reduce(tx, message).await?;
///         // self.outbox.enqueue(tx, StockReduced { … }).await?;
///         Ok(())
///     }
/// }
/// # fn is<H: Handler<SqlxSqlite>>(_: H) {}
/// # is(reduce); is(Reduce { outbox: Outbox::new("stock_outbox".parse().unwrap()) });
/// ```
///
/// Any error is a failed try. [`DispatchError`](postbox_core::DispatchError) says more: `reject` makes the message a dead letter at once,
/// `unavailable` has it wait without being charged a try, `retry_after` says for how long. A panic is a failed try, too.
///
/// Do not commit, roll back or acknowledge anything yourself. What is done outside of the transaction (an e-mail, a call) is done again when the
/// transaction fails: pass `message.id()` on as its idempotency key, or enqueue an event for it.
pub trait Handler<D: Driver>: Send + Sync + 'static {
    /// Has the effect.
    ///
    /// # Errors
    /// Nothing of it is committed, and the error says what becomes of the message.
    ///
    /// # Cancel safety
    /// Dropped at the consumer's [`timeout`](crate::Consumer::timeout), or with its run: the transaction is rolled back.
    fn handle(
        &self,
        tx: &mut OutboxTransaction<D>,
        message: &Message,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// An `async fn` of a transaction and a message. Its future borrows both, which needs a trait of its own to be said.
pub trait HandlerFn<'a, D: Driver>: Fn(&'a mut OutboxTransaction<D>, &'a Message) -> Self::Future {
    /// What it returns.
    type Future: Future<Output = HandlerResult> + Send + 'a;
}

impl<'a, D: Driver, F, Fut> HandlerFn<'a, D> for F
where
    F: Fn(&'a mut OutboxTransaction<D>, &'a Message) -> Fut,
    Fut: Future<Output = HandlerResult> + Send + 'a,
{
    type Future = Fut;
}

impl<D: Driver, F> Handler<D> for F
where
    F: for<'a> HandlerFn<'a, D> + Send + Sync + 'static,
{
    async fn handle(&self, tx: &mut OutboxTransaction<D>, message: &Message) -> HandlerResult {
        self(tx, message).await
    }
}

pub(crate) type Handling<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// A handler of which only the database is known.
pub(crate) trait AnyHandler<D: Driver>: Send + Sync {
    fn handle<'a>(&'a self, tx: &'a mut OutboxTransaction<D>, message: &'a Message) -> Handling<'a>;
}

impl<D: Driver, H: Handler<D>> AnyHandler<D> for H {
    fn handle<'a>(&'a self, tx: &'a mut OutboxTransaction<D>, message: &'a Message) -> Handling<'a> {
        Box::pin(Handler::handle(self, tx, message))
    }
}
