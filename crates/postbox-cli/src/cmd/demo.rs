//! `postbox demo`: a small shop that writes orders and their events in one transaction, a relay that delivers them, and
//! trouble on purpose; at the end an account that shows that nothing was lost.
//!
//! Everything is in one SQLite file in a folder of its own: nothing has to be installed.

mod books;
mod shop;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::{Backoff, Relay, RelayHandle, Settings, TableName};
use postbox_stores::sqlite::{self, SqliteStore, migrate};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use crate::report::{Exit, Failure, Problem, say, say_json};
use books::Books;
use shop::{Customers, Warehouse};

/// What the demo was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// How long orders come in; until Ctrl-C if not given.
    pub(crate) time: Option<Duration>,
    /// Orders per second.
    pub(crate) rate: u32,
    /// Whether the account is to be JSON.
    pub(crate) json: bool,
}

/// How long the end waits for what was ordered to be delivered.
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs the demo; exits with 0 only if the books balance.
pub(crate) fn run(wanted: Wanted) -> Result<Exit, Failure> {
    let folder = tempfile::tempdir().map_err(|error| {
        Problem::system(
            "the demo cannot make a folder",
            &error,
            "make room where TMPDIR points, or set it elsewhere",
        )
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| {
        Problem::system("the program cannot start", &error, "check the limits of this user (ulimit -a)")
    })?;
    let balanced = runtime.block_on(open(wanted, folder.path()))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(if balanced { Exit::Done } else { Exit::Failed })
}

/// Makes the database and runs the shop on it.
async fn open(wanted: Wanted, folder: &Path) -> Result<bool, Failure> {
    let table: TableName =
        "shop_outbox".parse().map_err(|error| Problem::new(postbox_core::Code::TableNameInvalid, error))?;
    let about = |error: &postbox_core::StoreError| Failure::from(Problem::about(&table, error));
    let driver = |error: sqlx::Error| about(&sqlite::classify(error));
    let url = format!("sqlite:{}", folder.join("shop.db").display());
    let options = sqlite::connect_options(&url).map_err(|error| about(&error))?.create_if_missing(true);
    let pool = SqlitePool::connect_with(options.clone()).await.map_err(driver)?;
    let mut connection = pool.acquire().await.map_err(driver)?;
    migrate::up(&mut connection, &table, |_| {}).await.map_err(|error| about(&error))?;
    let orders =
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, cents INTEGER NOT NULL) STRICT";
    sqlx::query(orders).execute(&mut *connection).await.map_err(driver)?;
    drop(connection);
    Demo { wanted, table, options, pool, books: Arc::default() }.play().await
}

struct Demo {
    wanted: Wanted,
    table: TableName,
    options: SqliteConnectOptions,
    pool: SqlitePool,
    books: Arc<Books>,
}

impl Demo {
    async fn play(self) -> Result<bool, Failure> {
        let quiet = self.wanted.json;
        let tell = |text: &str| if quiet { Ok(()) } else { say(text) };
        let until =
            self.wanted.time.map_or_else(|| "until Ctrl-C".to_owned(), |time| format!("for {time:?}"));
        tell(&format!(
            "A shop takes {} orders a second {until}, in a SQLite file. One in ten is rolled back, one delivery in twenty\n\
             fails and is tried again, one in two hundred is refused for good. The relay will be killed, the warehouse closed.\n",
            self.wanted.rate
        ))?;
        let warehouse = Warehouse::new(Arc::clone(&self.books));
        let customers = Customers::start(
            self.pool.clone(),
            self.table.clone(),
            Arc::clone(&self.books),
            self.wanted.rate,
        );
        let mut relay = self.relay(&warehouse)?;
        let started = Instant::now();
        let mut second = 0_u64;
        let over = |started: Instant| self.wanted.time.is_some_and(|time| started.elapsed() >= time);
        let (kill_at, close_at, open_at) = (3, 6, 8);
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.tick().await;
        while !over(started) {
            let left = self.wanted.time.map_or(Duration::MAX, |time| time.saturating_sub(started.elapsed()));
            tokio::select! {
                _ = tick.tick() => second += 1,
                () = tokio::time::sleep(left.min(Duration::from_hours(24))) => break,
                _ = tokio::signal::ctrl_c() => break,
            }
            tell(&self.books.line(second))?;
            // Every ten seconds the same troubles.
            match second % 10 {
                at if at == kill_at => {
                    relay.kill();
                    relay = self.relay(&warehouse)?;
                    tell("       ✗ the relay was killed in the middle of its work; another starts")?;
                }
                at if at == close_at => {
                    warehouse.close(true);
                    tell("       ✗ the warehouse is closed: its events wait and spend no attempt")?;
                }
                at if at == open_at => {
                    warehouse.close(false);
                    tell("       ✓ the warehouse is open again")?;
                }
                _ => {}
            }
        }
        warehouse.close(false);
        customers.stop().await;
        tell("\nNo more orders. Waiting until everything that was ordered has been delivered …")?;
        let account = self.books.settle(&self.pool, &self.table, PATIENCE).await?;
        relay.shutdown().await.map_err(|error| Problem::of_relay(&self.table, &error))?;
        if quiet {
            say_json(&account.to_json())?;
        } else {
            say(&account.to_string())?;
        }
        Ok(account.balances())
    }

    /// A relay as a service would start it, but with short leases: what a killed one leaves behind shall be seen to come back.
    fn relay(&self, warehouse: &Warehouse) -> Result<RelayHandle, Failure> {
        let store = SqliteStore::builder(self.options.clone(), self.table.clone()).name("demo").build();
        let settings = Settings {
            poll_interval: Duration::from_millis(100),
            lock_ttl: Duration::from_secs(3),
            dispatch_timeout: Duration::from_secs(2),
            backoff: Backoff::exponential(Duration::from_millis(200), Duration::from_secs(2)),
            circuit: Backoff::fixed(Duration::from_millis(300)),
            ..Settings::default()
        };
        let relay = Relay::builder(store).dispatcher(warehouse.clone()).settings(settings).build();
        Ok(relay.map_err(|error| Problem::of_relay(&self.table, &error))?.spawn())
    }
}
