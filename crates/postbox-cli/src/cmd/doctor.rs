//! `postbox doctor`: everything that can be wrong between here and a delivered event, and what to do about it.

use std::time::Duration;

use postbox_core::{
    Diagnose, Examination, Finding, History, Inspect, Level, StoreError, TableCounts, TableName, TableRelay,
};
use postbox_stores::any::AnyAdmin;
use serde_json::{Value, json};

use super::{block_on, given, tables, within_patience};
use crate::assemble::{self, Database};
use crate::cli::Call;
use crate::config::Config;
use crate::render::{Tint, age, counted, paint, printable, thousands};
use crate::report::{Exit, Failure, in_database, say, say_json};

/// A transaction open for longer than this holds others up.
pub(crate) const LONG_TRANSACTION: Duration = Duration::from_mins(1);

/// Events that have been due for longer than this are late, and far too late.
const LATE: Duration = Duration::from_secs(10);
const FAR_TOO_LATE: Duration = Duration::from_mins(5);

/// Looks at everything.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let examination = Examination {
        long_transaction: given::duration(call, "max-transaction")?.unwrap_or(LONG_TRANSACTION),
    };
    let calls = call.each();
    for call in &calls {
        let checked = tables(&call.config).and_then(|_| Database::of(&call.config));
        checked.map_err(|failure| failure.of_database(call.config.database.as_deref()))?;
    }
    block_on(async {
        let mut reports = vec![Report { database: None, table: None, findings: settings(&call.config) }];
        // Side by side: one that does not answer keeps nobody waiting for the others.
        let looks = calls.iter().map(|call| look(call, examination));
        for looked in futures_util::future::join_all(looks).await {
            reports.extend(looked?);
        }
        report(call, &reports)
    })
}

/// What was found out about a table, or about what comes before any.
struct Report {
    /// The name of its database, where there are several.
    database: Option<String>,
    table: Option<TableName>,
    findings: Vec<Finding>,
}

/// Looks at the tables of one database.
async fn look(call: &Call<'_>, examination: Examination) -> Result<Vec<Report>, Failure> {
    let (tables, database) = (tables(&call.config)?, Database::of(&call.config)?);
    let of = |table: Option<TableName>, mut findings: Vec<Finding>| {
        for finding in &mut findings {
            finding.fix = finding.fix.take().map(|fix| in_database(&fix, database.label()));
        }
        Report { database: call.config.database.clone(), table, findings }
    };
    if let Err(failure) = within_patience(database.connect()).await.map(drop) {
        return Ok(vec![of(None, vec![unreachable(&failure)])]);
    }
    let place = format!("connected to {}", database.place());
    let mut reports = vec![of(None, vec![Finding::good("connection", place)])];
    for table in tables {
        let store = database.direct_admin(&table, &call.config);
        let relay = &call.config.relay;
        let findings = within_patience(async {
            Ok(of_table(&store, &table, examination, relay.single_active, relay.history).await)
        });
        let findings = findings.await.unwrap_or_else(|failure| vec![unreachable(&failure)]);
        reports.push(of(Some(table), findings));
    }
    Ok(reports)
}

/// Everything about one table.
pub(crate) async fn of_table(
    store: &AnyAdmin,
    table: &TableName,
    examination: Examination,
    single_active: bool,
    history: History,
) -> Vec<Finding> {
    let mut found = examine(store, table, examination, single_active).await;
    if history == History::Move {
        found.extend(moves(table, store.has_history().await));
    }
    found
}

/// A failure as a finding, with its own next step.
fn unreachable(failure: &Failure) -> Finding {
    let (what, fix) = failure.first();
    Finding::wrong("connection", what, fix)
}

/// What the configuration itself has wrong was refused before; this is what parts can be made of, and what is doubtful.
pub(crate) fn settings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(failure) = assemble::check(config) {
        let (what, fix) = failure.first();
        findings.push(Finding::wrong("settings", what, fix));
    }
    for warning in &config.warnings {
        findings.push(Finding::doubtful("settings", warning, "postbox config show"));
    }
    if findings.is_empty() {
        findings.push(Finding::good("settings", "the configuration can be used"));
    }
    findings
}

async fn examine(
    store: &(impl Diagnose + Inspect),
    table: &TableName,
    examination: Examination,
    single_active: bool,
) -> Vec<Finding> {
    let mut findings = store.diagnose(examination).await;
    // Without a table there is nothing to count.
    if findings.iter().any(|finding| finding.check == "table" && finding.level == Level::Wrong) {
        return findings;
    }
    let asked: Result<_, StoreError> = async { Ok((store.counts().await?, store.relay().await?)) }.await;
    match asked {
        Ok((counts, relay)) => {
            let bare =
                findings.iter().any(|finding| finding.check == "layout" && finding.level != Level::Good);
            findings.extend(work(table, &counts, &relay, single_active && !bare));
        }
        Err(error) => findings.push(Finding::wrong("counts", error.message(), error.code().next_step())),
    }
    findings
}

/// A relay that is to move what was published needs somewhere to move it to. What cannot be looked at was said before.
fn moves(table: &TableName, has_history: Result<bool, StoreError>) -> Option<Finding> {
    let what = format!("relay.history = \"move\", and {table} has no history: the relay refuses to start");
    let fix = format!("postbox migrate up --history move --table {table}");
    has_history.is_ok_and(|there| !there).then(|| Finding::wrong("history", what, fix))
}

/// Whether somebody works on the table, and how well.
fn work(table: &TableName, counts: &TableCounts, relay: &TableRelay, led: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if relay.paused_at.is_some() {
        let who = relay.paused_by.as_deref().unwrap_or("someone");
        let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let fix = format!("postbox resume --table {table}");
        findings.push(Finding::doubtful("paused", format!("paused by {who}{reason}"), fix));
    }
    let waiting = counted(counts.pending, "event");
    let wait = if counts.pending == 1 { "waits" } else { "wait" };
    match &relay.leader {
        Some(leader) => {
            let name = leader.rsplit_once('/').map_or(leader.as_str(), |(name, _)| name);
            findings.push(Finding::good("relay", format!("{name} relays (epoch {})", relay.epoch)));
        }
        None if led && counts.pending > 0 => findings.push(Finding::wrong(
            "relay",
            format!("nobody relays, and {waiting} {wait}"),
            format!("postbox relay --table {table}"),
        )),
        None if led => findings.push(Finding::good("relay", "nobody relays, and nothing waits")),
        None => {}
    }
    let oldest = counts.oldest_pending_age;
    let lag = format!("{waiting} {wait}, the oldest for {}", age(oldest));
    let fix = format!("postbox events list --oldest --limit 5 --table {table} shows what they wait for");
    findings.push(match oldest {
        _ if counts.pending == 0 => Finding::good("lag", "nothing waits"),
        _ if oldest <= LATE => Finding::good("lag", lag),
        _ if oldest <= FAR_TOO_LATE => Finding::doubtful("lag", lag, fix),
        _ => Finding::wrong("lag", lag, fix),
    });
    findings.push(if counts.dead == 0 {
        Finding::good("dead", "no dead events")
    } else {
        let more = if counts.estimated { "at least " } else { "" };
        let what = format!("{more}{} dead", counted(counts.dead, "event"));
        Finding::wrong("dead", what, format!("postbox dead list --table {table}"))
    });
    findings
}

fn report(call: &Call<'_>, reports: &[Report]) -> Result<Exit, Failure> {
    let all = || reports.iter().flat_map(|report| &report.findings);
    let count = |level| all().filter(|finding| finding.level == level).count();
    let (wrong, doubtful) = (count(Level::Wrong), count(Level::Doubtful));
    if call.json {
        let found = reports.iter().flat_map(|Report { database, table, findings }| {
            findings.iter().map(move |finding| {
                let mut value = json!(finding);
                value["table"] = table.as_ref().map_or(Value::Null, |table| Value::from(table.to_string()));
                if let Some(database) = database {
                    value["database"] = Value::from(database.as_str());
                }
                value
            })
        });
        let found: Vec<Value> = found.collect();
        say_json(&json!({ "ok": wrong == 0, "wrong": wrong, "doubtful": doubtful, "findings": found }))?;
    } else {
        let named = reports.iter().filter(|report| report.table.is_some()).count() > 1;
        let lines = reports.iter().flat_map(|Report { database, table, findings }| {
            let table = table.as_ref().filter(|_| named).map(|table| format!("{table}: "));
            let database = database.as_ref().map(|database| format!("{database}: "));
            let label = database.unwrap_or_default() + &table.unwrap_or_default();
            findings.iter().map(move |finding| line(&label, finding))
        });
        let mut lines: Vec<String> = lines.collect();
        lines.push(match (wrong, doubtful) {
            (0, 0) => "all is well".to_owned(),
            _ => format!("{} wrong, {} doubtful", thousands(wrong as u64), thousands(doubtful as u64)),
        });
        say(&lines.join("\n"))?;
    }
    Ok(if wrong > 0 { Exit::Problems } else { Exit::Done })
}

fn line(table: &str, finding: &Finding) -> String {
    let (mark, tint) = match finding.level {
        Level::Good => ("✓", Tint::Good),
        Level::Doubtful => ("!", Tint::Doubtful),
        Level::Wrong => ("✗", Tint::Bad),
    };
    let fix = finding.fix.as_ref().map(|fix| format!("      fix: {}", printable(fix))).unwrap_or_default();
    format!("{} {table}{}{fix}", paint(mark, tint), printable(&finding.what))
}

#[cfg(test)]
mod tests {
    use super::Level::{Doubtful, Good, Wrong};
    use super::{Duration, TableCounts, TableRelay, work};

    #[test]
    fn nobody_who_relays_is_only_wrong_where_something_waits() {
        let table = "public.org_outbox".parse().unwrap();
        let levels = |pending, seconds, led| {
            let oldest_pending_age = Duration::from_secs(seconds);
            let counts = TableCounts { pending, oldest_pending_age, ..TableCounts::default() };
            let found = work(&table, &counts, &TableRelay::default(), led);
            found.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
        };
        assert_eq!(levels(0, 0, true), [("relay", Good), ("lag", Good), ("dead", Good)]);
        assert_eq!(levels(1, 11, true), [("relay", Wrong), ("lag", Doubtful), ("dead", Good)]);
        assert_eq!(levels(1, 301, false), [("lag", Wrong), ("dead", Good)]);
    }
}
