//! The part of `postbox clean` that is about calls by idempotency key.

use postbox_core::TableName;
use postbox_core::cleaner::{Sweep as _, SweepCount as _, SweepRequest, Swept};
use postbox_stores::any::AnyIdempotency;
use serde_json::{Value, json};

use crate::assemble;
use crate::cli::Call;
use crate::cmd::within_patience;
use crate::render::counted;
use crate::report::{Failure, Problem};

/// Forgets calls that were begun longer ago than their retention, or counts them. Null where the module has none.
pub(super) async fn run(
    call: &Call<'_>,
    calls: &AnyIdempotency,
    table: &TableName,
) -> Result<Value, Failure> {
    let about = |error| Failure::from(Problem::about(table, &error));
    if !within_patience(async { calls.is_there().await.map_err(about) }).await? {
        return Ok(Value::Null);
    }
    let retention = call.config.cleaner.idempotency_retention;
    let request = SweepRequest { retention, ..assemble::sweep(&call.config) };
    let name = calls.table();
    if call.on("dry-run") {
        let due = within_patience(async { calls.due(&request).await.map_err(about) }).await?.published;
        if !call.json {
            call.say(&format!("{name}: would forget {}; nothing was changed", counted(due, "call")))?;
        }
        return Ok(json!({ "table": name, "due": due }));
    }
    let (mut total, mut busy) = (0, false);
    loop {
        match within_patience(async { calls.sweep(&request).await.map_err(about) }).await? {
            Swept::Busy => {
                busy = true;
                break;
            }
            Swept::Deleted(rows) => {
                total += rows;
                if rows < u64::from(request.batch) {
                    break;
                }
            }
        }
    }
    if !call.json {
        let rest = if busy { "; another cleaner is at work on the rest" } else { "" };
        call.say(&format!("{name}: forgot {}{rest}", counted(total, "call")))?;
    }
    Ok(json!({ "table": name, "deleted": total, "busy": busy }))
}
