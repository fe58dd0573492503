//! [`WriterHook`]: code of yours around the writing of events.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use crate::panic::catch;
use crate::record::Record;
use crate::redact;

/// Looks at events before they are written, after it, and when their transaction has ended.
///
/// Registered with [`Outbox::hook`](crate::Outbox::hook); several run one after another, in the order of their
/// registration. Implement the stages that you need:
///
/// ```
/// use postbox_core::{HookResult, Outbox, Record, WriterHook, Written};
///
/// /// Signs every event, drops those of test customers, and counts what was committed.
/// struct Sign;
///
/// impl WriterHook for Sign {
///     async fn before_write(&self, events: &mut Vec<Record>) -> HookResult {
///         events.retain(|event| !event.headers.contains_key("test"));
///         for event in events {
///             *event = event.clone().rebuild().header("signature", "…").build()?;
///         }
///         Ok(())
///     }
///
///     async fn after_commit(&self, events: &[Written]) -> HookResult {
///         println!("{} events are on their way", events.len());
///         Ok(())
///     }
/// }
///
/// let outbox = Outbox::new("public.shop_outbox".parse()?).hook(Sign);
/// # Ok::<(), postbox_core::TableNameError>(())
/// ```
///
/// # When each stage runs
///
/// | stage | how often | an error or a panic |
/// | --- | --- | --- |
/// | `before_write` | once per call of `enqueue` or `enqueue_all` | fails the call; nothing is written |
/// | `after_write` | once per such call that wrote something | is logged |
/// | `after_commit` | once per transaction and outbox, if something was committed | is logged |
/// | `after_rollback` | once per transaction and outbox, if something was taken back | is logged |
///
/// The last two need a transaction that [`Outbox::begin`](crate::Outbox::begin) opened: of the driver's own
/// transactions nobody tells Postbox how they end, and these two stages do not run. Nor do they when the result of a
/// commit is unknown, since its answer was lost: whatever they would say could be wrong. A transaction of which a part was taken
/// back (`ROLLBACK TO SAVEPOINT`) and the rest committed runs both, each with its part.
///
/// What a process does after a commit is lost when it dies in between. Whatever *must* happen is a handler's work.
///
/// # Cancel safety
/// Who drops an enqueue drops `before_write` and `after_write` with it. The last two run in a task of their own, to their end.
pub trait WriterHook: Send + Sync + 'static {
    /// Before events are written. What is taken out of the list is not written, and its receipt says
    /// [`Suppressed`](crate::Enqueued::Suppressed); what is changed ([`Record::rebuild`]) is written changed and checked
    /// again; what is added is written too, without a receipt. Receipts go by `event_id`.
    ///
    /// # Errors
    /// An error fails the enqueue, and nothing is written.
    fn before_write(&self, events: &mut Vec<Record>) -> impl Future<Output = HookResult> + Send {
        let _ = events;
        std::future::ready(Ok(()))
    }

    /// After events were written; their transaction is still open. Duplicates, which wrote nothing, are left out here
    /// and below.
    ///
    /// # Errors
    /// An error is logged and changes nothing.
    fn after_write(&self, events: &[Written]) -> impl Future<Output = HookResult> + Send {
        let _ = events;
        std::future::ready(Ok(()))
    }

    /// After events were committed: they exist now.
    ///
    /// # Errors
    /// An error is logged and changes nothing.
    fn after_commit(&self, events: &[Written]) -> impl Future<Output = HookResult> + Send {
        let _ = events;
        std::future::ready(Ok(()))
    }

    /// After events were rolled back: they never existed.
    ///
    /// # Errors
    /// An error is logged and changes nothing.
    fn after_rollback(&self, events: &[Written]) -> impl Future<Output = HookResult> + Send {
        let _ = events;
        std::future::ready(Ok(()))
    }
}

/// An event whose row was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Written {
    /// What was written.
    pub record: Record,
    /// The row's sequence.
    pub sequence: i64,
}

/// The result of a hook.
pub type HookResult = Result<(), HookError>;

/// What a hook fails with: any error, by `?`, or a text.
#[derive(Debug)]
pub struct HookError(Box<dyn Error + Send + Sync>);

impl HookError {
    /// A failure in your own words.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }

    pub(crate) fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HookError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

/// A stage after the writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Write,
    Commit,
    Rollback,
}

impl After {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "after_write",
            Self::Commit => "after_commit",
            Self::Rollback => "after_rollback",
        }
    }
}

type BoxFuture<'a> = Pin<Box<dyn Future<Output = HookResult> + Send + 'a>>;

/// The object-safe face of a hook; other method names, or calls would be ambiguous.
trait Erased: Send + Sync {
    fn before<'a>(&'a self, events: &'a mut Vec<Record>) -> BoxFuture<'a>;
    fn after<'a>(&'a self, stage: After, events: &'a [Written]) -> BoxFuture<'a>;
}

impl<H: WriterHook> Erased for H {
    fn before<'a>(&'a self, events: &'a mut Vec<Record>) -> BoxFuture<'a> {
        Box::pin(self.before_write(events))
    }

    fn after<'a>(&'a self, stage: After, events: &'a [Written]) -> BoxFuture<'a> {
        match stage {
            After::Write => Box::pin(self.after_write(events)),
            After::Commit => Box::pin(self.after_commit(events)),
            After::Rollback => Box::pin(self.after_rollback(events)),
        }
    }
}

/// The hooks of one outbox, in the order of their registration.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Arc<Vec<Arc<dyn Erased>>>);

impl Hooks {
    pub(crate) fn add(&mut self, hook: impl WriterHook) {
        Arc::make_mut(&mut self.0).push(Arc::new(hook));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these are the hooks of the same outbox, or of a clone of it.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The first error ends it.
    pub(crate) async fn before(&self, events: &mut Vec<Record>) -> HookResult {
        for hook in self.0.iter() {
            // A hook may panic before it gives a future as well as inside of it.
            let run = catch(AssertUnwindSafe(async { hook.before(&mut *events).await })).await;
            run.unwrap_or_else(|panic| Err(HookError::new(format!("the hook panicked: {panic}"))))?;
        }
        Ok(())
    }

    /// Runs them all: what one of them does wrong is logged, and keeps no other from running.
    pub(crate) async fn after(&self, stage: After, table: &str, events: &[Written]) {
        for hook in self.0.iter() {
            let problem = match catch(AssertUnwindSafe(async { hook.after(stage, events).await })).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => redact::chain(&*error.0),
                Err(panic) => format!("it panicked: {panic}"),
            };
            let problem = redact::Summary::new(&problem, redact::LAST_ERROR_MAX_BYTES);
            tracing::error!(table, stage = stage.name(), events = events.len(), %problem, "a hook failed");
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hooks", self.0.len())
    }
}

#[cfg(test)]
mod tests;
