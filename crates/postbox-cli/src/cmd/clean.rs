//! `postbox clean`: the cleaner, once.

use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep as _, SweepCount, SweepRequest, Swept};
use postbox_core::{Browse, Inbox, InboxAdmin, InboxFilter, StoreError, TableName};
use postbox_stores::any::AnyIdempotency;
use serde_json::{Value, json};

use super::{block_on, within_patience};
use crate::ask::Progress;
use crate::assemble;
use crate::cli::Call;
use crate::database::Database;
use crate::render::{counted, thousands};
use crate::report::{Exit, Failure, Problem};
use crate::say::say_json;

/// Deletes what is past its retention, or counts it.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let calls = call.each();
    let (done, failure) = super::each_of(&calls, one);
    if call.json && !done.is_empty() {
        let tables: Vec<Value> = done.into_iter().flatten().collect();
        say_json(&json!({ "dry_run": call.on("dry-run"), "tables": tables }))?;
    }
    failure.map_or(Ok(Exit::Done), Err)
}

/// The same for one database.
fn one(call: &Call<'_>) -> Result<Vec<Value>, Failure> {
    let tables = assemble::tables(call.config.cleaner_tables())?;
    if tables.is_empty() {
        return super::tables(&call.config).map(|_| Vec::new());
    }
    let database = Database::of(&call.config)?;
    let request = assemble::sweep(&call.config);
    block_on(async {
        drop(database.connect().await?);
        let mut results = Vec::new();
        for table in &tables {
            let store = database.admin(table, &call.config);
            let mut result = if call.on("dry-run") {
                count(call, &store, table, &request).await?
            } else {
                clean(call, &store, table, &request).await?
            };
            if let Some(retention) = call.config.inbox_retention() {
                result["inbox"] = inbox(call, &store, table, retention.keep(), request.batch).await?;
            }
            result["calls"] = calls(call, &database.calls(table), table).await?;
            results.push(call.tagged(result));
        }
        Ok(results)
    })
}

async fn due(store: &impl SweepCount, table: &TableName, request: &SweepRequest) -> Result<Due, Failure> {
    within_patience(async {
        store.due(request).await.map_err(|error| Failure::from(Problem::about(table, &error)))
    })
    .await
}

async fn count(
    call: &Call<'_>,
    store: &impl SweepCount,
    table: &TableName,
    request: &SweepRequest,
) -> Result<Value, Failure> {
    let due = due(store, table, request).await?;
    if !call.json {
        let dead = if due.dead > 0 { format!(" and {} dead", thousands(due.dead)) } else { String::new() };
        call.say(&format!(
            "{table}: would delete {} published{dead}; nothing was changed",
            thousands(due.published)
        ))?;
    }
    Ok(json!({ "table": table.to_string(), "due": due }))
}

async fn clean(
    call: &Call<'_>,
    store: &impl SweepCount,
    table: &TableName,
    request: &SweepRequest,
) -> Result<Value, Failure> {
    let place = Place { table, name: table.to_string(), done: "deleted", thing: "event" };
    let swept = until_short(call, &place, request.batch, async || store.sweep(request).await).await?;
    place.told(call, swept)
}

/// What was received longer ago than this: forgets it, or counts it. None where there is no inbox.
async fn inbox(
    call: &Call<'_>,
    store: &(impl SweepCount + InboxAdmin + Browse),
    table: &TableName,
    retention: Duration,
    batch: u32,
) -> Result<Value, Failure> {
    let about = |error: StoreError| Failure::from(Problem::about(table, &error));
    let name = Inbox::new(table.clone()).table().to_string();
    let place = Place { table, name, done: "deleted", thing: "message" };
    if !within_patience(async { store.has_inbox().await.map_err(about) }).await? {
        return Ok(Value::Null);
    }
    if !call.on("dry-run") {
        let sweep = async || store.sweep_inbox(retention, batch).await;
        let swept = until_short(call, &place, batch, sweep).await?;
        return place.told(call, swept);
    }
    let due = within_patience(async {
        let until = store.now().await.map_err(about)?.checked_sub(retention.try_into().unwrap_or_default());
        let filter = InboxFilter { until, ..InboxFilter::default() };
        store.inbox_count(&filter).await.map_err(about)
    });
    place.due(call, due.await?)
}

/// Calls by idempotency key that were begun longer ago than their retention: forgets them, or counts them. None where the module
/// has none.
async fn calls(call: &Call<'_>, calls: &AnyIdempotency, table: &TableName) -> Result<Value, Failure> {
    let about = |error: StoreError| Failure::from(Problem::about(table, &error));
    if !within_patience(async { calls.is_there().await.map_err(about) }).await? {
        return Ok(Value::Null);
    }
    let retention = call.config.cleaner.idempotency_retention;
    let request = SweepRequest { retention, ..assemble::sweep(&call.config) };
    let place = Place { table, name: calls.table().to_owned(), done: "forgot", thing: "call" };
    if call.on("dry-run") {
        return place.due(call, due(calls, table, &request).await?.published);
    }
    let swept = until_short(call, &place, request.batch, async || calls.sweep(&request).await).await?;
    place.told(call, swept)
}

/// What is cleaned.
struct Place<'a> {
    /// The outbox of its module.
    table: &'a TableName,
    name: String,
    /// What is done to them, and what they are.
    done: &'static str,
    thing: &'static str,
}

impl Place<'_> {
    fn told(&self, call: &Call<'_>, (total, busy): (u64, bool)) -> Result<Value, Failure> {
        if !call.json {
            let rest = if busy { "; another cleaner is at work on the rest" } else { "" };
            call.say(&format!("{}: {} {}{rest}", self.name, self.done, counted(total, self.thing)))?;
        }
        Ok(json!({ "table": self.name, "deleted": total, "busy": busy }))
    }

    /// What would be forgotten.
    fn due(&self, call: &Call<'_>, due: u64) -> Result<Value, Failure> {
        if !call.json {
            let what = counted(due, self.thing);
            call.say(&format!("{}: would forget {what}; nothing was changed", self.name))?;
        }
        Ok(json!({ "table": self.name, "due": due }))
    }
}

/// Sweeps until a batch is short; answers how many rows are gone, and whether another cleaner is at work.
async fn until_short(
    call: &Call<'_>,
    place: &Place<'_>,
    batch: u32,
    sweep: impl AsyncFn() -> Result<Swept, StoreError>,
) -> Result<(u64, bool), Failure> {
    let progress = Progress::new(call.json);
    let mut total = 0;
    loop {
        // Each batch is committed: what was done stays done.
        let so_far = (total > 0).then(|| format!("{} were deleted before", counted(total, place.thing)));
        let failed = |error: StoreError| Failure::from(Problem::about(place.table, &error));
        let swept = within_patience(async { sweep().await.map_err(failed) }).await;
        match swept.map_err(|failure| failure.after(so_far))? {
            Swept::Busy => return Ok((total, true)),
            Swept::Deleted(rows) => {
                total += rows;
                progress.at(&format!("{}: deleted {}", place.name, thousands(total)));
                if rows < u64::from(batch) {
                    return Ok((total, false));
                }
            }
        }
    }
}
