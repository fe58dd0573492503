//! `postbox pause` and `postbox resume`.

use postbox_stores::any::AnyAdmin;
use serde_json::{Value, json};

use super::{block_on, given, named_tables, within_patience};
use crate::assemble::operator;
use crate::cli::Call;
use crate::database::Database;
use crate::render::counted;
use crate::report::{Exit, Failure, Problem};
use crate::say::say_json;

/// Stops delivery of tables.
pub(crate) fn pause(call: &Call<'_>) -> Result<Exit, Failure> {
    let reason = call.text("reason").unwrap_or_default();
    given::plain(reason).map_err(|why| given::wrong("reason", reason, &why))?;
    change(call, "paused", "was paused already", &async |admin, who| admin.pause(who, reason).await)
}

/// Starts delivery of tables again.
pub(crate) fn resume(call: &Call<'_>) -> Result<Exit, Failure> {
    change(call, "resumed", "was not paused", &async |admin, who| admin.resume(who).await)
}

fn change(
    call: &Call<'_>,
    done: &str,
    nothing: &str,
    action: &impl AsyncFn(&AnyAdmin, &str) -> Result<bool, postbox_core::StoreError>,
) -> Result<Exit, Failure> {
    let tables = named_tables(&call.config)?;
    let database = Database::of(&call.config)?;
    let who = operator();
    block_on(async {
        drop(within_patience(database.connect()).await?);
        let (mut results, mut before): (Vec<Value>, u64) = (Vec::new(), 0);
        for table in &tables {
            let admin = database.admin(table, &call.config);
            let so_far = (before > 0).then(|| format!("{done} {} before", counted(before, "table")));
            let step = async {
                action(&admin, &who).await.map_err(|error| Failure::from(Problem::about(table, &error)))
            };
            let changed = within_patience(step).await.map_err(|failure| failure.after(so_far))?;
            before += u64::from(changed);
            if !call.json {
                call.say(&if changed { format!("{done} {table}") } else { format!("{table} {nothing}") })?;
            }
            let result = json!({ "table": table.to_string(), "changed": changed, "by": who });
            results.push(call.tagged(result));
        }
        if call.json {
            say_json(&json!({ "tables": results }))?;
        }
        Ok(Exit::Done)
    })
}
