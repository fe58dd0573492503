//! `postbox status`: who works on a table and what it holds, in one line.

use std::time::Duration;

use postbox_core::{Inspect as _, Layout, TableCounts, TableName, TableRelay};
use serde_json::{Value, json};

use super::{block_on, tables, within_patience};
use crate::assemble::Database;
use crate::cli::Call;
use crate::config::Config;
use crate::report::{Exit, Failure, Problem, say, say_json};

struct Status {
    table: TableName,
    layout: Layout,
    counts: TableCounts,
    relay: TableRelay,
}

/// Shows the state of tables. One that cannot be looked at does not hide the others.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = tables(&call.config)?;
    let database = Database::of(&call.config)?;
    block_on(within_patience(async {
        drop(database.connect().await?);
        let (mut seen, mut problems) = (Vec::new(), Vec::new());
        for table in tables {
            match look(&database, &call.config, table).await {
                Ok(status) => seen.push(status),
                Err(problem) => problems.push(problem),
            }
        }
        if call.json {
            say_json(&json!({ "tables": seen.iter().map(Status::to_json).collect::<Vec<_>>() }))?;
        } else if !seen.is_empty() {
            let width = seen.iter().map(|status| status.table.to_string().len()).max().unwrap_or_default();
            let lines =
                seen.iter().map(|status| format!("{:<width$}  {}", status.table.to_string(), status.line()));
            say(&lines.collect::<Vec<_>>().join("\n"))?;
        }
        if problems.is_empty() { Ok(Exit::Done) } else { Err(Failure::Problems(problems)) }
    }))
}

async fn look(database: &Database, config: &Config, table: TableName) -> Result<Status, Problem> {
    let admin = database.admin(&table, config);
    let asked = async { Ok((admin.layout().await?, admin.counts().await?, admin.relay().await?)) };
    let (layout, counts, relay) = asked.await.map_err(|error| Problem::about(&table, &error))?;
    Ok(Status { table, layout, counts, relay })
}

impl Status {
    fn line(&self) -> String {
        let Self { layout, counts, relay, .. } = self;
        let about = if counts.estimated { "~" } else { "" };
        let mut parts = vec![match (layout, &relay.leader) {
            (Layout::Bare, _) => "bare table (leader unknown)".to_owned(),
            (Layout::Full, Some(leader)) => format!("leader {} (epoch {})", name_of(leader), relay.epoch),
            (Layout::Full, None) => "no leader".to_owned(),
        }];
        parts.push(format!("waiting {about}{}", thousands(counts.pending)));
        if counts.pending > 0 {
            parts.push(format!("oldest {}", age(counts.oldest_pending_age)));
        }
        for (name, number) in [
            ("in flight", counts.locked),
            ("dead", counts.dead),
            ("scheduled", counts.scheduled),
            ("blocked", counts.blocked),
        ] {
            if number > 0 {
                parts.push(format!("{name} {}", thousands(number)));
            }
        }
        if relay.paused_at.is_some() {
            let who = relay.paused_by.as_deref().unwrap_or("someone");
            let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            parts.push(printable(&format!("paused by {who}{reason}")));
        }
        parts.join("  ")
    }

    fn to_json(&self) -> Value {
        let layout = match self.layout {
            Layout::Full => "full",
            Layout::Bare => "bare",
        };
        json!({ "table": self.table.to_string(), "layout": layout, "counts": self.counts, "relay": self.relay })
    }
}

/// A relay's name, without what makes it unique.
fn name_of(holder: &str) -> String {
    printable(holder.rsplit_once('/').map_or(holder, |(name, _)| name))
}

/// What others wrote into the database may not move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An age with as much precision as somebody on call wants.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, age, name_of, thousands};

    #[test]
    fn numbers_and_ages_for_people() {
        for (number, text) in [(0, "0"), (999, "999"), (1204, "1,204"), (1_000_000, "1,000,000")] {
            assert_eq!(thousands(number), text);
        }
        for (seconds, text) in [(0, "0s"), (38, "38s"), (124, "2m04s"), (3720, "1h02m"), (180_000, "2d02h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(name_of("pod-7:12/0198aa"), "pod-7:12");
    }
}
