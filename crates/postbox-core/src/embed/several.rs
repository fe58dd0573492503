//! [`Postboxes`]: the outboxes of several databases in one application, each looked after by itself.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::builder::Prepared;
use super::{Postbox, PostboxBuilder, PostboxPool};
use crate::outbox::Outbox;
use crate::relay::{Backoff, RelayError, RelayHealth};
use crate::table::TableName;

/// The tables of several databases at work in this process, each with its own pool, relays and cleaners. What happens to one
/// database does not touch another: one that is away, or whose table is missing, is waited for, also at the start, and its
/// [health](Self::health) says so; the others deliver meanwhile.
///
/// ```
/// # use postbox_core::{EventBus, Postboxes, testing::MemoryOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (orders, billing, bus, other) = (MemoryOutbox::new(), MemoryOutbox::new(), EventBus::new(), EventBus::new());
/// // `orders` is a `sqlx::PgPool`, `billing` a `sqlx::SqlitePool`: any of the databases, side by side.
/// let postboxes = Postboxes::builder()
///     .database("orders", &orders, ["shop_outbox".parse()?], |builder| builder.dispatcher(bus.clone()))
///     .database("billing", &billing, ["billing_outbox".parse()?], |builder| builder.dispatcher(other.clone()))
///     .start()?;
///
/// // None as long as the database was not reached; `reached` waits for it.
/// postboxes.reached("orders").await;
/// let outbox = postboxes.outbox("orders", &"shop_outbox".parse()?);
/// # assert!(outbox.is_some());
///
/// for problem in postboxes.problems() {
///     println!("{problem}"); // names the database, for a readiness check
/// }
/// postboxes.shutdown().await?;
/// # Ok(())
/// # }
/// ```
///
/// Every metric has the label `database`, and so has what is logged.
///
/// # Dropping it
///
/// As with [`Postbox`]: everything runs on, as long as the runtime does. Call [`shutdown`](Self::shutdown).
#[must_use = "keep it, and call `shutdown` when the application ends"]
pub struct Postboxes {
    tables: Vec<Table>,
    stop: watch::Sender<bool>,
}

/// One table.
struct Table {
    database: String,
    name: TableName,
    health: RelayHealth,
    /// There as soon as its database was reached.
    outbox: Arc<OnceLock<Outbox>>,
    reached: watch::Receiver<bool>,
    task: JoinHandle<Result<(), RelayError>>,
}

/// Builds [`Postboxes`].
#[derive(Default)]
#[must_use = "a builder does nothing until it is started"]
pub struct PostboxesBuilder {
    waiting: Vec<(String, TableName, Start)>,
    /// The first thing that was wrong; a chain of calls is no place for it.
    wrong: Option<RelayError>,
}

/// Starts a table, whatever its database is.
type Start = Box<dyn FnOnce(watch::Receiver<bool>) -> Table + Send>;

impl Postboxes {
    /// Starts to build. Nothing is started yet.
    pub fn builder() -> PostboxesBuilder {
        PostboxesBuilder::default()
    }

    /// The writing side of a table; none before its database was reached for the first time, or where there is no such table.
    pub fn outbox(&self, database: &str, table: &TableName) -> Option<Outbox> {
        let of = self.of(database).find(|known| known.name == *table);
        of.and_then(|table| table.outbox.get().cloned())
    }

    /// Waits until all tables of a database were reached for the first time. For a database that is none of these it waits for
    /// nothing.
    ///
    /// # Cancel safety
    /// Only waits; it can be dropped and called again.
    pub async fn reached(&self, database: &str) {
        for table in self.of(database) {
            let mut reached = table.reached.clone();
            // Its sender is gone when it was stopped before.
            let _ = reached.wait_for(|reached| *reached).await;
        }
    }

    /// What the relay of each table is doing; each knows the name of its [database](RelayHealth::database).
    pub fn health(&self) -> Vec<RelayHealth> {
        self.tables.iter().map(|table| table.health.clone()).collect()
    }

    /// Why tables are not delivered from although they should be, each with the name of its database. None is well.
    pub fn problems(&self) -> Vec<String> {
        self.tables.iter().filter_map(|table| table.health.problem()).collect()
    }

    /// Stops all of them at the same time, each in good order: see [`Postbox::shutdown`].
    ///
    /// # Errors
    /// When a relay had ended by itself before; the first of these. All have stopped all the same.
    ///
    /// # Cancel safety
    /// Dropped, the stop goes on by itself, without anybody waiting for it.
    pub async fn shutdown(self) -> Result<(), RelayError> {
        self.stop.send_replace(true);
        let mut result = Ok(());
        for table in self.tables {
            let ended = table.task.await.unwrap_or_else(|error| Err(RelayError::Panicked(error.to_string())));
            result = result.and(ended);
        }
        result
    }

    fn of<'a>(&'a self, database: &'a str) -> impl Iterator<Item = &'a Table> {
        self.tables.iter().filter(move |table| table.database == database)
    }
}

impl PostboxesBuilder {
    /// Adds a database by a name of its own: its pool, its tables, and how each of them is built. Letters, digits, `-` and `_`.
    pub fn database<D: 'static, P: PostboxPool<D>>(
        mut self,
        name: &str,
        pool: &P,
        tables: impl IntoIterator<Item = TableName>,
        build: impl Fn(PostboxBuilder<D, P>) -> PostboxBuilder<D, P>,
    ) -> Self {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || !name.bytes().all(plain) {
            return self
                .refuse(format!("{name:?} cannot be the name of a database: use letters, digits, - and _"));
        }
        if self.waiting.iter().any(|(known, ..)| known == name) {
            return self.refuse(format!("two databases are named {name:?}: give each its own name"));
        }
        let before = self.waiting.len();
        for table in tables {
            if self.waiting[before..].iter().any(|(_, known, _)| *known == table) {
                return self.refuse(format!("the database {name:?} has the table {table} twice"));
            }
            let builder = build(Postbox::builder(pool, table.clone())).database(name);
            match builder.prepare() {
                Ok(prepared) => {
                    let (database, known) = (name.to_owned(), table.clone());
                    let start: Start = Box::new(move |stop| start(database, known, prepared, stop));
                    self.waiting.push((name.to_owned(), table, start));
                }
                Err(error) => {
                    self.wrong.get_or_insert(error);
                }
            }
        }
        if self.waiting.len() == before {
            tracing::info!(database = name, "no outbox table is named: no relay is started");
        }
        self
    }

    fn refuse(mut self, problem: String) -> Self {
        self.wrong.get_or_insert(RelayError::Settings(problem));
        self
    }

    /// Starts everything in tasks of the current runtime. It waits for no database: what is away is looked for until it is there.
    ///
    /// # Errors
    /// When a name is not one, or is there twice, a setting cannot work, or a route leads nowhere. Nothing runs then. Whatever a
    /// database itself says is told by [`Postboxes::problems`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(self) -> Result<Postboxes, RelayError> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let stop = watch::Sender::new(false);
        let tables = self.waiting.into_iter().map(|(_, _, start)| start(stop.subscribe())).collect();
        Ok(Postboxes { tables, stop })
    }
}

/// Looks after a table in a task of its own.
fn start<D: 'static, P: PostboxPool<D>>(
    database: String,
    name: TableName,
    prepared: Prepared<D, P>,
    stop: watch::Receiver<bool>,
) -> Table {
    let (health, outbox) = (prepared.health(), Arc::new(OnceLock::new()));
    let (told, reached) = watch::channel(false);
    // Boxed: what a database's driver makes of it is large.
    let work: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(look_after(prepared, Arc::clone(&outbox), told, stop));
    Table { database, name, health, outbox, reached, task: tokio::spawn(work) }
}

/// Waits for the table, relays it, and stops it.
async fn look_after<D: 'static, P: PostboxPool<D>>(
    prepared: Prepared<D, P>,
    outbox: Arc<OnceLock<Outbox>>,
    reached: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RelayError> {
    let waits = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));
    let (health, mut failures) = (prepared.health(), 0);
    let layout = loop {
        let looked = tokio::select! {
            () = wanted(&mut stop) => return Ok(()),
            looked = prepared.look() => looked,
        };
        let error = match looked {
            Ok(layout) => break layout,
            Err(error) => error,
        };
        failures += 1;
        tracing::error!(database = health.database(), table = health.table(), %error, "the table cannot be reached, trying again");
        health.update(|health| {
            (health.error, health.last_turn) = (Some(error.to_string()), std::time::Instant::now());
        });
        let _ = tokio::time::timeout(waits.after(failures), wanted(&mut stop)).await;
    };
    let postbox = prepared.run(layout);
    // It is set once: nobody else has this end.
    let _ = outbox.set(postbox.outbox());
    reached.send_replace(true);
    tokio::select! {
        () = wanted(&mut stop) => {}
        () = postbox.failed() => {}
    }
    postbox.shutdown().await
}

/// Ends with the wish to stop. A handle that was dropped has none.
async fn wanted(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl fmt::Debug for Postboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.tables.iter().map(|table| (&table.database, &table.name));
        f.debug_map().entries(tables).finish()
    }
}

impl fmt::Debug for PostboxesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.waiting.iter().map(|(database, table, _)| (database, table));
        f.debug_map().entries(tables).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::tests::{Pool, name, quick, write};
    use super::*;
    use crate::code::Code;
    use crate::testing::{FailingDispatcher, Memory};
    use crate::until::{PATIENCE, until};

    const TABLE: &str = "shop_outbox";

    fn build(
        sink: &FailingDispatcher,
    ) -> impl Fn(PostboxBuilder<Memory, Pool>) -> PostboxBuilder<Memory, Pool> {
        let sink = sink.clone();
        move |builder| quick(builder).without_cleaner().dispatcher(sink.clone())
    }

    #[tokio::test]
    async fn one_that_is_away_at_the_start_or_later_keeps_no_other_from_working() {
        let (here, away) = (Pool::new(), Pool::new());
        let (sinks, table) = ([(); 2].map(|()| FailingDispatcher::times(0)), name(TABLE));
        away.away.store(true, Ordering::SeqCst);
        let postboxes = Postboxes::builder()
            .database("here", &here, [table.clone()], build(&sinks[0]))
            .database("away", &away, [table.clone()], build(&sinks[1]))
            .start()
            .unwrap();
        postboxes.reached("here").await;
        let outbox = postboxes.outbox("here", &table).unwrap();
        assert!(postboxes.outbox("away", &table).is_none() && postboxes.outbox("other", &table).is_none());
        write(&outbox, &here.memory).await;
        until("the event of the one", || sinks[0].delivered().len() == 1).await;
        let named = || {
            let problems = postboxes.problems();
            problems.len() == 1
                && problems[0].contains(" in away cannot work: ")
                && problems[0].contains("on purpose")
        };
        until("the other to be told of", named).await;

        away.away.store(false, Ordering::SeqCst);
        tokio::time::timeout(PATIENCE, postboxes.reached("away")).await.unwrap();
        write(&postboxes.outbox("away", &table).unwrap(), &away.memory).await;
        until("its event", || sinks[1].delivered().len() == 1).await;
        until("all to be well", || postboxes.problems().is_empty()).await;

        here.away.store(true, Ordering::SeqCst);
        until("the first to be away", || postboxes.problems().len() == 1).await;
        assert!(postboxes.problems()[0].contains("in here"), "{:?}", postboxes.problems());
        write(&postboxes.outbox("away", &table).unwrap(), &away.memory).await;
        until("the second event", || sinks[1].delivered().len() == 2).await;
        let databases: Vec<_> =
            postboxes.health().iter().map(|health| health.database().map(str::to_owned)).collect();
        assert_eq!(databases, [Some("here".to_owned()), Some("away".to_owned())]);
        postboxes.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn one_that_breaks_is_told_at_the_end_and_the_others_work_until_then() {
        let (well, broken) = (Pool::new(), Pool::new());
        let (sink, table) = (FailingDispatcher::times(0), name(TABLE));
        broken.broken.store(true, Ordering::SeqCst);
        let postboxes = Postboxes::builder()
            .database("broken", &broken, [table.clone()], build(&sink))
            .database("well", &well, [table.clone()], build(&sink))
            .start()
            .unwrap();
        until("the end of the one", || {
            postboxes.problems().iter().any(|problem| problem.contains("it panicked"))
        })
        .await;
        postboxes.reached("well").await;
        write(&postboxes.outbox("well", &table).unwrap(), &well.memory).await;
        until("the event of the other", || sink.delivered().len() == 1).await;
        assert_eq!(postboxes.shutdown().await.unwrap_err().code(), Code::Panicked);
    }

    #[tokio::test]
    async fn what_no_database_can_mend_is_refused_and_what_one_can_is_waited_for() {
        let (pool, sink, table) = (Pool::new(), FailingDispatcher::times(0), name(TABLE));
        let twice = Postboxes::builder().database("a", &pool, [table.clone()], build(&sink)).database(
            "a",
            &pool,
            [table.clone()],
            build(&sink),
        );
        assert!(twice.start().unwrap_err().to_string().contains("two databases are named \"a\""));
        let nameless = Postboxes::builder().database("a b", &pool, [table.clone()], build(&sink));
        assert!(nameless.start().unwrap_err().to_string().contains("cannot be the name of a database"));
        let repeated =
            Postboxes::builder().database("a", &pool, [table.clone(), table.clone()], build(&sink));
        assert!(repeated.start().unwrap_err().to_string().contains("has the table shop_outbox twice"));
        let lost = Postboxes::builder().database("a", &pool, [table], |builder| builder);
        assert!(lost.start().unwrap_err().to_string().contains("there is no route"));

        let missing =
            Postboxes::builder().database("a", &pool, [name("absent_outbox")], build(&sink)).start().unwrap();
        let told = || missing.problems().iter().any(|problem| problem.contains("it does not exist"));
        until("the missing table to be told of", told).await;
        missing.shutdown().await.unwrap();
    }
}
