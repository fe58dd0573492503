//! The tables of several databases, each looked after by itself: nothing that happens to one ends another.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::Backoff;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::{Site, deliver, until_stopped};
use crate::assemble::{self, TableCleaner, TableRelay};
use crate::http::Watched;
use crate::report::Failure;

/// A relay that has run for so long before it ended starts again as if it were the first time.
const LONG_ENOUGH: Duration = Duration::from_mins(1);

/// The wait before a cleaner looks again for a table that it was refused.
const CLEANER_PAUSE: Duration = Duration::from_secs(10);

/// Relays a table until it is to stop. Its relay waits by itself for a database that is away, and for a table that is missing; one that ends
/// all the same is made anew.
pub(super) async fn relay(
    site: Arc<Site>,
    first: TableRelay,
    watched: Arc<Watched>,
    stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let waits = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(30));
    let (table, mut failures) = (first.table.clone(), 0);
    let mut next = Some(first);
    loop {
        let relay = match next.take() {
            Some(relay) => relay,
            // It was made before, of the same settings.
            None => site.relay(&table)?,
        };
        watched.replace(relay.health.clone());
        let started = tokio::time::Instant::now();
        // In a task of its own, which may panic.
        let mut task = JoinSet::new();
        task.spawn(deliver(relay, stop.clone()));
        let why = match task.join_next().await {
            Some(Ok(Ok(()))) | None => return Ok(()),
            Some(Ok(Err(failure))) => failure.first().0,
            Some(Err(error)) => error.to_string(),
        };
        failures = if started.elapsed() > LONG_ENOUGH { 1 } else { failures + 1 };
        let pause = waits.after(failures);
        tracing::error!(database = site.database.label(), %table, error = why, ?pause, "the relay has ended, starting it again");
        watched.fail(&format!("it has ended: {why}"));
        let paused = async {
            tokio::time::sleep(pause).await;
            Ok(())
        };
        until_stopped(stop.clone(), paused).await?;
        if *stop.borrow() {
            return Ok(());
        }
    }
}

/// Cleans a table until it is to stop, whatever is in the way.
pub(super) async fn clean(
    site: Arc<Site>,
    first: TableCleaner,
    stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let table = first.table.clone();
    let span = tracing::error_span!("database", name = site.database.label());
    let forever = async {
        let mut next = Some(first);
        loop {
            let cleaner =
                next.take().unwrap_or_else(|| assemble::cleaner(&site.config, &site.database, &table));
            let mut task = JoinSet::new();
            task.spawn(super::clean(cleaner).in_current_span());
            let why = match task.join_next().await {
                Some(Ok(Ok(()))) | None => return Ok(()),
                Some(Ok(Err(failure))) => failure.first().0,
                Some(Err(error)) => error.to_string(),
            };
            tracing::warn!(%table, error = why, "the table cannot be cleaned, trying again");
            tokio::time::sleep(CLEANER_PAUSE).await;
        }
    };
    until_stopped(stop, forever.instrument(span)).await
}
