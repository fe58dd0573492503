//! `postbox relay`: one relay and one cleaner per table, until a signal.
//!
//! With one database, whatever cannot go on ends the program, and who started it starts it again. With several, each table is
//! looked after by itself (`several.rs`): what fails there is told, waited for and tried again, and the others do not notice.

mod several;

use std::sync::Arc;
use std::time::Duration;

use postbox_core::{Code, Inspect as _, StoreError, StoreErrorKind, TableName};
use postbox_sinks::AnySink;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{DatabaseSetup, Setup, TableSetup};
use crate::assemble::{self, TableCleaner, TableMonitor, TableRelay};
use crate::cli::Call;
use crate::config::Config;
use crate::control;
use crate::database::Database;
use crate::http::{self, Endpoints, Watched};
use crate::report::{Exit, Failure, Problem};

/// Counting is cheap but not free, and a scrape is seldom more frequent.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// What hangs after the relays have drained (a write to a dead disk) is not waited for.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// A database, and what is done on it.
#[derive(Debug)]
struct Site {
    config: Config,
    database: Database,
    /// The tables to relay, and those to clean.
    relayed: Vec<TableName>,
    cleaned: Vec<TableName>,
    /// Those that are only shown, where nothing else is done.
    shown: Vec<TableName>,
    /// What the relays are called.
    name: String,
    sinks: Arc<[(String, AnySink)]>,
}

impl Site {
    fn relay(&self, table: &TableName) -> Result<TableRelay, Failure> {
        assemble::relay(&self.config, &self.database, table, &self.name, &self.sinks)
    }
}

/// Relays until a signal.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let config = &call.config;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let (relays, cleans) = (config.relay.enabled, config.cleaner.enabled);
    // A service that relays by itself may have its dashboard here.
    let serves = config.serves();
    if !relays {
        let origin = config.origin("relay.enabled").map(ToString::to_string).unwrap_or_default();
        let rest = match (cleans, serves) {
            (true, _) => "only cleaning",
            (false, true) => "only showing what there is",
            (false, false) => "nothing to do",
        };
        tracing::info!("the relay is switched off (relay.enabled = false from {origin}): {rest}");
    }
    if !relays && !cleans && !serves {
        return Ok(Exit::Done);
    }
    for config in &call.databases {
        if config.lacks_tables() {
            let of = config.database.as_ref().map(|name| format!(" of the database {name}"));
            let message = format!("no outbox table{} is named", of.unwrap_or_default());
            return Err(Problem::new(Code::NoTables, message).into());
        }
    }
    if relays {
        config.require(&["sink"])?;
    }
    assemble::check(config)?;
    let sites = sites(call)?;

    let listener = http::bind(config)?;
    // Before the relays are made: what is measured before the recorder is there is lost.
    let metrics = if listener.is_some() && config.metrics.enabled {
        Some((http::record_metrics(&config.metrics)?, config.metrics.path.clone()))
    } else {
        None
    };
    // What is wrong with settings and routes is wrong at once, for all of them.
    let mut made = Vec::new();
    for site in &sites {
        for table in &site.relayed {
            made.push((Arc::clone(site), site.relay(table)?));
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Problem::system("the program cannot start", &error, "check the limits of this user (ulimit -a)")
    })?;
    let inside = runtime.enter();
    let watched: Vec<Arc<Watched>> =
        made.iter().map(|(_, relay)| Arc::new(Watched::new(relay.health.clone()))).collect();
    let stop = watch::Sender::new(false);
    let counts = metrics.is_some();
    let dashboard = Setup::of(config, looked_at(&sites, &made, &watched))?;
    control::start(listener, Endpoints { relays: watched.clone(), metrics }, dashboard, stop.clone())?;
    let relays = made.into_iter().zip(watched).map(|((site, relay), watched)| (site, relay, watched));
    let result = runtime.block_on(supervise(&sites, relays.collect(), counts, stop));
    drop(inside);
    runtime.shutdown_timeout(LAST_MOMENT);
    result.map(|()| {
        tracing::info!("stopped");
        Exit::Done
    })
}

/// What the dashboard shows: every table that is relayed or cleaned, or all where nothing is.
fn looked_at(
    sites: &[Arc<Site>],
    made: &[(Arc<Site>, TableRelay)],
    watched: &[Arc<Watched>],
) -> Vec<DatabaseSetup> {
    let of = |site: &Arc<Site>| {
        let mut tables: Vec<TableSetup> = Vec::new();
        for ((of, relay), watched) in made.iter().zip(watched) {
            if Arc::ptr_eq(of, site) {
                tables.push(TableSetup { table: relay.table.clone(), watched: Some(Arc::clone(watched)) });
            }
        }
        for table in site.cleaned.iter().chain(&site.shown) {
            if !tables.iter().any(|known| known.table == *table) {
                tables.push(TableSetup { table: table.clone(), watched: None });
            }
        }
        let config = &site.config;
        DatabaseSetup {
            database: site.database.clone(),
            tables,
            relay_name: site.name.clone(),
            max_attempts: assemble::max_attempts(config),
            lock_ttl: config.relay.lock_ttl,
            single_active: config.relay.single_active,
            history: config.relay.history,
        }
    };
    sites.iter().map(of).collect()
}

/// What is to be done, database by database.
fn sites(call: &Call<'_>) -> Result<Vec<Arc<Site>>, Failure> {
    let name = format!("{}:{}", assemble::host(), std::process::id());
    // Shared between tables and databases: a file is open once, a broker has one connection.
    let sinks: Arc<[(String, AnySink)]> =
        if call.config.relay.enabled { assemble::sinks(&call.config)?.into() } else { Arc::new([]) };
    let mut sites = Vec::new();
    for config in &call.databases {
        let database = Database::of(config)?;
        if database.label().is_none() {
            database.expect_file()?;
        }
        let tables = |wanted: bool, names: &[String]| {
            if wanted { assemble::tables(names) } else { Ok(Vec::new()) }
        };
        let (relays, cleans) = (config.relay.enabled, config.cleaner.enabled);
        let all = [config.relay.tables.as_slice(), &config.cleaner.tables].concat();
        sites.push(Arc::new(Site {
            relayed: tables(relays, &config.relay.tables)?,
            cleaned: tables(cleans, config.cleaner_tables())?,
            shown: tables(!relays && !cleans, &all)?,
            config: config.clone(),
            database,
            name: name.clone(),
            sinks: Arc::clone(&sinks),
        }));
    }
    Ok(sites)
}

/// Runs all parts until they have ended. One that fails stops the others in good order, unless there are several databases.
async fn supervise(
    sites: &[Arc<Site>],
    relays: Vec<(Arc<Site>, TableRelay, Arc<Watched>)>,
    counts: bool,
    stop: watch::Sender<bool>,
) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for (site, relay, watched) in relays {
        match site.database.label() {
            None => drop(tasks.spawn(deliver(relay, stop.subscribe()))),
            Some(_) => drop(tasks.spawn(several::relay(site, relay, watched, stop.subscribe()))),
        }
    }
    for site in sites {
        for table in &site.cleaned {
            let cleaner = assemble::cleaner(&site.config, &site.database, table);
            if site.database.label().is_some() {
                tasks.spawn(several::clean(Arc::clone(site), cleaner, stop.subscribe()));
            } else {
                tasks.spawn(until_stopped(stop.subscribe(), clean(cleaner)));
            }
            let cleaner = assemble::call_cleaner(&site.config, &site.database, table);
            let clean = async move {
                cleaner.run().await;
                Ok(())
            };
            tasks.spawn(until_stopped(stop.subscribe(), clean));
        }
        for table in site.relayed.iter().filter(|_| counts) {
            let monitor = assemble::monitor(&site.config, &site.database, table);
            tasks.spawn(until_stopped(stop.subscribe(), count(monitor)));
        }
    }
    if tasks.is_empty() {
        // What is only shown is shown until a signal.
        stopped(stop.subscribe()).await;
    }
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(Problem::new(Code::Panicked, error).into()));
        if let Err(failure) = ended {
            stop.send_replace(true);
            if result.is_ok() {
                result = Err(failure);
            }
        }
    }
    result
}

/// Relays a table until it is to stop.
async fn deliver(relay: TableRelay, stop: watch::Receiver<bool>) -> Result<(), Failure> {
    let TableRelay { table, relay, health, announcement } = relay;
    tokio::spawn(async move {
        health.opened().await;
        tracing::info!("{announcement}");
    });
    let relayed = relay.with_graceful_shutdown(stopped(stop)).await;
    relayed.map_err(|error| Problem::of_relay(&table, &error).into())
}

/// Ends with the wish to stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Work that may be dropped at any time: sweeps and counts are single statements.
async fn until_stopped(
    stop: watch::Receiver<bool>,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::select! {
        () = stopped(stop) => Ok(()),
        result = work => result,
    }
}

async fn clean(TableCleaner { table, admin, cleaner }: TableCleaner) -> Result<(), Failure> {
    let label = table.to_string();
    wait_for(&label, || admin.layout()).await.map_err(|error| Problem::about(&table, &error))?;
    cleaner.run().await;
    Ok(())
}

async fn count(TableMonitor { table, admin, telemetry }: TableMonitor) -> Result<(), Failure> {
    loop {
        match admin.counts().await {
            Ok(counts) => telemetry.counts(&counts),
            // The relay itself says what is wrong; here only the gauges stand still.
            Err(error) => tracing::debug!(%table, %error, "the table cannot be counted"),
        }
        match admin.oldest_transaction().await {
            Ok(age) => age.into_iter().for_each(|age| telemetry.oldest_transaction(age)),
            Err(error) => tracing::debug!(%table, %error, "open transactions cannot be looked at"),
        }
        tokio::time::sleep(COUNT_EVERY).await;
    }
}

/// Tries until the answer is good, or one that will not get better; a database that is away is waited for.
async fn wait_for<T, F>(table: &str, mut ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Err(error) if error.kind() != StoreErrorKind::Refused => {
                tracing::warn!(table, %error, "the table cannot be looked at, trying again");
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            answer => return answer,
        }
    }
}
