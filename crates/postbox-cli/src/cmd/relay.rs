//! `postbox relay`: one relay and one cleaner per table, until a signal.

use std::time::Duration;

use postbox_core::{Cleaner, Code, Inspect as _, StoreError, StoreErrorKind};
use postbox_stores::any::AnyIdempotency;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::assemble::{self, Database, TableCleaner, TableMonitor, TableRelay};
use crate::config::Config;
use crate::control;
use crate::http::{self, Endpoints};
use crate::report::{Exit, Failure, Problem};

/// Counting is cheap but not free, and a scrape is seldom more frequent.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// What hangs after the relays have drained (a write to a dead disk) is not waited for.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Everything that runs.
#[derive(Default)]
struct Parts {
    relays: Vec<TableRelay>,
    cleaners: Vec<TableCleaner>,
    call_cleaners: Vec<Cleaner<AnyIdempotency>>,
    monitors: Vec<TableMonitor>,
}

/// Relays until a signal.
pub(crate) fn run(config: &Config) -> Result<Exit, Failure> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let (relays, cleans) = (config.relay.enabled, config.cleaner.enabled);
    if !relays {
        let origin = config.origin("relay.enabled").map(ToString::to_string).unwrap_or_default();
        let rest = if cleans { "only cleaning" } else { "nothing to do" };
        tracing::info!("the relay is switched off (relay.enabled = false from {origin}): {rest}");
    }
    if !relays && !cleans {
        return Ok(Exit::Done);
    }
    if (relays && config.relay.tables.is_empty()) || config.cleaner_tables().is_empty() {
        return Err(Problem::new(Code::NoTables, "no outbox table is named").into());
    }
    if relays {
        config.require(&["sink"])?;
    }
    assemble::check(config)?;
    let database = Database::of(config)?;
    database.expect_file()?;

    let listener = http::bind(config)?;
    // Before the relays are made: what is measured before the recorder is there is lost.
    let metrics = if listener.is_some() && config.metrics.enabled {
        Some((http::record_metrics(&config.metrics)?, config.metrics.path.clone()))
    } else {
        None
    };
    let name = format!("{}:{}", assemble::host(), std::process::id());
    let mut parts = Parts::default();
    if relays {
        parts.relays = assemble::relays(config, &database, &name)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Problem::system("the program cannot start", &error, "check the limits of this user (ulimit -a)")
    })?;
    let inside = runtime.enter();
    if cleans {
        parts.cleaners = assemble::cleaners(config, &database)?;
        parts.call_cleaners = assemble::call_cleaners(config, &database)?;
    }
    if relays && metrics.is_some() {
        parts.monitors = assemble::monitors(config, &database)?;
    }
    let watched = parts.relays.iter().map(|relay| relay.health.clone()).collect();
    let stop = watch::Sender::new(false);
    control::start(listener, Endpoints { relays: watched, metrics }, stop.clone())?;
    let result = runtime.block_on(supervise(parts, stop));
    drop(inside);
    runtime.shutdown_timeout(LAST_MOMENT);
    result.map(|()| {
        tracing::info!("stopped");
        Exit::Done
    })
}

/// Runs all parts until they have ended. One that fails stops the others in good order.
async fn supervise(parts: Parts, stop: watch::Sender<bool>) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for TableRelay { table, relay, health, announcement } in parts.relays {
        let stopped = stopped(stop.subscribe());
        tokio::spawn(async move {
            health.opened().await;
            tracing::info!("{announcement}");
        });
        tasks.spawn(async move {
            relay
                .with_graceful_shutdown(stopped)
                .await
                .map_err(|error| Problem::of_relay(&table, &error).into())
        });
    }
    for cleaner in parts.cleaners {
        tasks.spawn(until_stopped(stop.subscribe(), clean(cleaner)));
    }
    for cleaner in parts.call_cleaners {
        let clean = async move {
            cleaner.run().await;
            Ok(())
        };
        tasks.spawn(until_stopped(stop.subscribe(), clean));
    }
    for monitor in parts.monitors {
        tasks.spawn(until_stopped(stop.subscribe(), count(monitor)));
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
