//! `postbox clean`: the cleaner, once.

use postbox_core::cleaner::{Due, SweepCount, SweepRequest, Swept};
use postbox_core::{StoreError, TableName};
use serde_json::{Value, json};

use super::{block_on, within_patience};
use crate::ask::Progress;
use crate::assemble::{self, Database};
use crate::cli::Call;
use crate::render::{counted, thousands};
use crate::report::{Exit, Failure, Problem, say, say_json};

/// Deletes what is past its retention, or counts it.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = assemble::tables(call.config.cleaner_tables())?;
    if tables.is_empty() {
        return super::tables(&call.config).map(|_| Exit::Done);
    }
    let database = Database::of(&call.config)?;
    let request = assemble::sweep(&call.config);
    block_on(async {
        drop(database.connect().await?);
        let mut results = Vec::new();
        for table in &tables {
            let store = database.admin(table, &call.config);
            results.push(if call.on("dry-run") {
                count(call, &store, table, &request).await?
            } else {
                clean(call, &store, table, &request).await?
            });
        }
        if call.json {
            say_json(&json!({ "dry_run": call.on("dry-run"), "tables": results }))?;
        }
        Ok(Exit::Done)
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
        say(&format!(
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
    let progress = Progress::new(call.json);
    let mut total = 0;
    let mut busy = false;
    loop {
        // Each batch is committed: what was done stays done.
        let failed = |error: StoreError| {
            let problem = Problem::about(table, &error);
            let before = format!("{} were deleted before", counted(total, "event"));
            Failure::from(if total == 0 { problem } else { problem.after(&before) })
        };
        match within_patience(async { store.sweep(request).await.map_err(failed) }).await? {
            Swept::Busy => {
                busy = true;
                break;
            }
            Swept::Deleted(rows) => {
                total += rows;
                progress.at(&format!("{table}: deleted {}", thousands(total)));
                if rows < u64::from(request.batch) {
                    break;
                }
            }
        }
    }
    drop(progress);
    if !call.json {
        let rest = if busy { "; another cleaner is at work on the rest" } else { "" };
        say(&format!("{table}: deleted {}{rest}", counted(total, "event")))?;
    }
    Ok(json!({ "table": table.to_string(), "deleted": total, "busy": busy }))
}
