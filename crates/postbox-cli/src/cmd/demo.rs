//! `postbox demo`: a small shop that writes orders and their events in one transaction, a relay that delivers them, and
//! trouble on purpose; at the end an account that shows that nothing was lost.
//!
//! Everything is in one SQLite file in a folder of its own: nothing has to be installed. `shop` is what a service would
//! have, `trouble` what befalls it; `books` and `ledger` are kept beside the database, `account` compares the two;
//! `view`, `screen` and `keys` are for those who watch.

mod account;
mod books;
pub(super) mod keys;
mod ledger;
mod pulse;
pub(super) mod screen;
mod shop;
mod show;
mod trouble;
pub(super) mod view;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::{Code, History, Inspect as _, RelayError, Settings, StoreError, TableName};
use postbox_stores::sqlite::{self, SqliteAdmin, migrate};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::admin::{self, DatabaseSetup, TableSetup};
use crate::database::Database;
use crate::render::{Tint, thousands};
use crate::report::{Exit, Failure, Problem};
use account::Account;
use books::{Books, Look};
use keys::{Ending, Key};
use ledger::MOST_ORDERS;
use shop::Customers;
use show::Show;
use trouble::{LOCK_TTL, Stage, Trouble, script};

/// What the demo was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// How long orders come in; until somebody ends it if not given.
    pub(crate) time: Option<Duration>,
    /// Orders per second.
    pub(crate) rate: u32,
    /// Whether the account is to be JSON.
    pub(crate) json: bool,
}

/// How long the end waits while nothing at all is delivered.
const PATIENCE: Duration = Duration::from_mins(1);
/// Where the dashboard is, if nobody else is there.
const DASHBOARD_PORT: u16 = 8080;
/// How often the table is looked at, and the view drawn.
const BEAT: Duration = Duration::from_millis(200);

/// Runs the demo; exits with 0 only if the books balance.
pub(crate) fn run(wanted: Wanted) -> Result<Exit, Failure> {
    let folder = tempfile::Builder::new().prefix("postbox-demo-").tempdir().map_err(|error| {
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
    let balanced = runtime.block_on(open(wanted, folder.path()));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(if balanced? { Exit::Done } else { Exit::Failed })
}

/// Makes the database and runs the shop on it.
async fn open(wanted: Wanted, folder: &Path) -> Result<bool, Failure> {
    let table: TableName =
        "shop_outbox".parse().map_err(|error| Problem::new(Code::TableNameInvalid, error))?;
    let (options, pool) = database(folder, &table).await.map_err(|error| failed(&table, &error))?;
    let ending = Ending::new(folder);
    let (show, keys) = Show::open(wanted, &ending)?;
    let books = Arc::new(Books::new());
    let mut stage =
        Stage::open(options, table.clone(), Arc::clone(&books)).map_err(|error| of_relay(&table, &error))?;
    if !wanted.json {
        dashboard(folder, &table, &mut stage)?;
    }
    let watcher = tokio::spawn(look(SqliteAdmin::new(&pool, table.clone()), Arc::clone(&books)));
    let scripted = true;
    let result = Demo { wanted, table, pool, books, ending, show, keys, stage, scripted }.play().await;
    watcher.abort();
    result
}

/// Serves the dashboard, on this machine only. Where no port is free the demo goes on without it.
fn dashboard(folder: &Path, table: &TableName, stage: &mut Stage) -> Result<(), Failure> {
    let site = DatabaseSetup {
        database: Database::at_file(&folder.join("shop.db"))?,
        tables: vec![TableSetup { table: table.clone(), watched: Some(stage.watched()) }],
        relay_name: "demo".to_owned(),
        max_attempts: Settings::default().max_attempts,
        lock_ttl: LOCK_TTL,
        single_active: true,
        history: History::Keep,
    };
    if let Some(setup) = admin::Setup::local(DASHBOARD_PORT, &[site])? {
        stage.tell(Tint::Good, format!("dashboard {}", setup.url()));
        tokio::spawn(admin::serve(setup));
    }
    Ok(())
}

/// The shop's database: its orders, and its outbox.
async fn database(
    folder: &Path,
    table: &TableName,
) -> Result<(SqliteConnectOptions, SqlitePool), StoreError> {
    let url = format!("sqlite:{}", folder.join("shop.db").display());
    let options = sqlite::connect_options(&url)?;
    let made = SqlitePool::connect_with(options.clone().create_if_missing(true)).await;
    let pool = made.map_err(sqlite::classify)?;
    let mut connection = pool.acquire().await.map_err(sqlite::classify)?;
    migrate::up(&mut connection, table, |_| {}).await?;
    let orders =
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, cents INTEGER NOT NULL) STRICT";
    sqlx::query(orders).execute(&mut *connection).await.map_err(sqlite::classify)?;
    drop(connection);
    Ok((options, pool))
}

/// Looks at the table again and again. In a task of its own: a database that does not answer holds up no key.
async fn look(admin: SqliteAdmin, books: Arc<Books>) {
    loop {
        let at = Instant::now();
        if let (Ok(counts), Ok(relay)) = (admin.counts().await, admin.relay().await) {
            let open = counts.pending + counts.scheduled;
            books.looked(Look { at, open, dead: counts.dead, epoch: relay.epoch });
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// What goes wrong with the demo's own file is a matter of the place it is in.
fn failed(table: &TableName, error: &StoreError) -> Failure {
    let problem = Problem::about(table, error);
    match error.code() {
        Code::DiskFull | Code::DatabaseFile | Code::DatabaseReadOnly | Code::DatabaseError => {
            let place = std::env::temp_dir();
            problem.next(format!("make room in {}, or set TMPDIR to another folder", place.display())).into()
        }
        _ => problem.into(),
    }
}

fn of_relay(table: &TableName, error: &RelayError) -> Failure {
    match error {
        RelayError::Store(error) => failed(table, error),
        other => Problem::of_relay(table, other).into(),
    }
}

struct Demo {
    wanted: Wanted,
    table: TableName,
    pool: SqlitePool,
    books: Arc<Books>,
    ending: Ending,
    show: Show,
    keys: mpsc::UnboundedReceiver<Key>,
    stage: Stage,
    /// Whether trouble comes by itself: until somebody makes their own.
    scripted: bool,
}

impl Demo {
    async fn play(mut self) -> Result<bool, Failure> {
        let customers = Customers::start(
            self.pool.clone(),
            self.table.clone(),
            Arc::clone(&self.books),
            self.wanted.rate,
        );
        if let Show::Live(_) = self.show {
            let usual = "1 order in 10 rolls back; 1 event in 20 fails first, 1 in 200 dies";
            self.stage.tell(Tint::Plain, usual.to_owned());
            self.stage.tell(Tint::Plain, "trouble comes by itself, until you press k or f".to_owned());
        }
        self.trade(customers).await?;
        self.ending.ask();
        self.settle().await?;
        let Self { wanted, table, pool, books, show, stage, .. } = self;
        let past = stage.past();
        let stopped = stage.shutdown().await;
        let (ledger, lags) = books.close();
        let account = Account::make(&pool, ledger, &lags, past).await;
        let account = account.map_err(|error| failed(&table, &sqlite::classify(error)))?;
        show.close(wanted, &account)?;
        stopped.map_err(|error| of_relay(&table, &error))?;
        Ok(account.balances())
    }

    /// While the shop is open.
    async fn trade(&mut self, mut customers: Customers) -> Result<(), Failure> {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let ending = self.ending.clone();
        let end = self.wanted.time.unwrap_or(Duration::from_hours(24 * 365));
        let mut second = 0;
        loop {
            let left = end.saturating_sub(self.books.elapsed());
            tokio::select! {
                biased;
                () = ending.asked() => break,
                () = tokio::time::sleep(left) => break,
                ended = customers.ended() => {
                    ended.map_err(|error| failed(&self.table, &error))?;
                    let enough = format!("{} orders are enough for a demo", thousands(MOST_ORDERS));
                    self.stage.tell(Tint::Plain, enough);
                    return Ok(());
                }
                Some(key) = self.keys.recv() => self.press(key).await,
                _ = beat.tick() => {
                    let now = self.books.elapsed().as_secs();
                    for trouble in script(second, now).filter(|_| self.scripted) {
                        match trouble {
                            Trouble::Kill => self.stage.kill().await,
                            Trouble::Close => self.stage.close_in_turn(),
                        }
                    }
                    second = now;
                }
            }
            self.go_on(false)?;
        }
        customers.stop().await.map_err(|error| failed(&self.table, &error))
    }

    async fn press(&mut self, key: Key) {
        if std::mem::replace(&mut self.scripted, false) {
            self.stage.tell(Tint::Plain, "from now on trouble comes from you".to_owned());
        }
        match key {
            Key::Kill => self.stage.kill().await,
            Key::Fail => {
                if !self.stage.reopen() {
                    self.stage.close(None);
                }
            }
            Key::End | Key::Interrupt => self.ending.ask(),
        }
    }

    /// After the last order: until everything is delivered or dead, or nothing moves any more.
    async fn settle(&mut self) -> Result<(), Failure> {
        self.stage.make_up().map_err(|error| of_relay(&self.table, &error))?;
        self.show.last_orders()?;
        let closed = Instant::now();
        let mut beat = tokio::time::interval(BEAT);
        let mut moved = (closed, 0, 0);
        loop {
            beat.tick().await;
            let (table, figures) = (self.books.table(), self.books.figures());
            if table.at >= closed && table.open == 0 {
                return Ok(());
            }
            if (moved.1, moved.2) != (figures.delivered, table.open) {
                moved = (Instant::now(), figures.delivered, table.open);
            }
            if moved.0.elapsed() > PATIENCE {
                return Ok(());
            }
            self.go_on(true)?;
        }
    }

    /// What is due, and how it looks then.
    fn go_on(&mut self, ending: bool) -> Result<(), Failure> {
        self.stage.go_on().map_err(|error| of_relay(&self.table, &error))?;
        if !self.show.update(self.wanted, &self.books, &mut self.stage, ending)? {
            // Nobody reads any further.
            self.ending.ask();
        }
        Ok(())
    }
}
