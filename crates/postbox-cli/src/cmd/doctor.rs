//! `postbox doctor`: everything that can be wrong between here and a delivered event, and what to do about it.

pub(crate) mod settings;
pub(crate) mod sinks;
mod work;

use std::time::{Duration, Instant};

use postbox_core::{
    Code, Diagnose, Examination, Finding, Flow, History, Inspect, Level, StoreError, TableCounts, TableName,
    TableRelay,
};
use postbox_stores::any::AnyAdmin;
use serde_json::{Value, json};

use super::{block_on, given, tables, within_patience};
use crate::cli::Call;
use crate::config::{Config, ConfigErrors};
use crate::database::Database;
use crate::render::{Tint, paint, printable, thousands};
use crate::report::{Exit, Failure, in_database};
use crate::say::{say, say_json};

/// A transaction open for longer than this holds others up.
pub(crate) const LONG_TRANSACTION: Duration = Duration::from_mins(1);

/// How long to wait between two looks at what waits.
const BETWEEN: Duration = Duration::from_secs(2);

/// How a doctor was asked.
struct Asked {
    examination: Examination,
    between: Duration,
    report: Form,
}

/// How findings are told, and from which on they are a problem.
#[derive(Clone, Copy)]
struct Form {
    json: bool,
    problem: Level,
}

/// Looks at everything.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let asked = Asked {
        examination: Examination {
            long_transaction: given::duration(call, "max-transaction")?.unwrap_or(LONG_TRANSACTION),
            connections: 0,
        },
        between: given::duration(call, "between")?.unwrap_or(BETWEEN),
        report: Form {
            json: call.json,
            problem: if call.text("fail-on") == Some("wrong") { Level::Wrong } else { Level::Doubtful },
        },
    };
    let calls = call.each();
    for call in &calls {
        let checked = tables(&call.config).and_then(|_| Database::of(&call.config));
        checked.map_err(|failure| failure.of_database(call.config.database.as_deref()))?;
    }
    block_on(async {
        let mut before = settings::check(&call.config);
        before.extend(sinks::check(&call.config).await);
        let mut reports = vec![Report { database: None, table: None, findings: before }];
        // Side by side: one that does not answer keeps nobody waiting for the others.
        let looks = calls.iter().map(|call| look(call, &asked));
        for looked in futures_util::future::join_all(looks).await {
            reports.extend(looked?);
        }
        report(asked.report, &reports)
    })
}

/// A configuration that cannot be used is what a doctor is asked about, too.
pub(crate) fn unusable(errors: ConfigErrors, json: bool) -> Result<Exit, Failure> {
    let findings = settings::wrong(&Failure::from(errors));
    report(Form { json, problem: Level::Doubtful }, &[Report { database: None, table: None, findings }])
}

/// What was found out about a table, or about what comes before any.
struct Report {
    /// The name of its database, where there are several.
    database: Option<String>,
    table: Option<TableName>,
    findings: Vec<Finding>,
}

/// A look at what a table holds and who works on it.
struct Look {
    at: Instant,
    counts: TableCounts,
    relay: TableRelay,
    flow: Flow,
}

impl Look {
    async fn at(store: &(impl Diagnose + Inspect)) -> Result<Self, StoreError> {
        let (counts, relay, flow) = (store.counts().await?, store.relay().await?, store.flow().await?);
        Ok(Self { at: Instant::now(), counts, relay, flow })
    }
}

/// Looks at the tables of one database.
async fn look(call: &Call<'_>, asked: &Asked) -> Result<Vec<Report>, Failure> {
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
    let examination = Examination {
        connections: settings::connections(&call.config, database.dialect(), tables.len()),
        ..asked.examination
    };
    let mut first = Vec::new();
    for table in tables {
        let store = database.direct_admin(&table, &call.config);
        let found = within_patience(async {
            Ok(examine(&store, &table, examination, call.config.relay.history).await)
        });
        let (findings, look) = found.await.unwrap_or_else(|failure| (vec![unreachable(&failure)], None));
        first.push((store, table, findings, look));
    }
    // Where nothing waits there is nothing to wait for.
    if first.iter().any(|(.., look)| look.as_ref().is_some_and(|look| look.counts.pending > 0)) {
        tokio::time::sleep(asked.between).await;
    }
    for (store, table, mut findings, look) in first {
        findings.extend(second_look(&store, &table, &call.config, &findings, look).await);
        reports.push(of(Some(table), findings));
    }
    Ok(reports)
}

/// All that is to be told about a table: by two looks where something waits, by one where there is no configuration to judge
/// the time between them by.
pub(crate) async fn of_table(
    store: &AnyAdmin,
    table: &TableName,
    examination: Examination,
    (single_active, history): (bool, History),
    config: Option<&Config>,
) -> Vec<Finding> {
    let (mut findings, look) = examine(store, table, examination, history).await;
    match (look, config) {
        (Some(first), Some(config)) => {
            if first.counts.pending > 0 {
                tokio::time::sleep(BETWEEN).await;
            }
            findings.extend(Box::pin(second_look(store, table, config, &findings, Some(first))).await);
        }
        (Some(look), None) => {
            findings.extend(work::findings(table, &look, is_led(single_active, &findings)));
        }
        (None, _) => {}
    }
    findings
}

/// The database's own findings, and what the table holds.
async fn examine(
    store: &AnyAdmin,
    table: &TableName,
    examination: Examination,
    history: History,
) -> (Vec<Finding>, Option<Look>) {
    let mut found = Box::pin(store.diagnose(examination)).await;
    if history == History::Move {
        found.extend(moves(table, store.has_history().await));
    }
    let look = first_look(store, &mut found).await;
    (found, look)
}

/// Whether one relay is to lead: a bare table has no place for it.
fn is_led(single_active: bool, findings: &[Finding]) -> bool {
    single_active && !findings.iter().any(|finding| finding.check == "layout" && finding.level != Level::Good)
}

/// What the table holds, unless there is none.
async fn first_look(store: &AnyAdmin, findings: &mut Vec<Finding>) -> Option<Look> {
    if findings.iter().any(|finding| {
        matches!(finding.check, "table" | "connection" | "file" | "server") && finding.level == Level::Wrong
    }) {
        return None;
    }
    match Box::pin(Look::at(store)).await {
        Ok(look) => Some(look),
        Err(error) => {
            findings.push(Finding::failed("counts", &error));
            None
        }
    }
}

/// Whether somebody works on the table, how well, and what has changed since the first look.
async fn second_look(
    store: &AnyAdmin,
    table: &TableName,
    config: &Config,
    findings: &[Finding],
    first: Option<Look>,
) -> Vec<Finding> {
    let Some(first) = first else { return Vec::new() };
    let led = is_led(config.relay.single_active, findings);
    if first.counts.pending == 0 {
        return work::findings(table, &first, led);
    }
    let again = within_patience(async { Ok(Box::pin(Look::at(store)).await) }).await;
    match again {
        Ok(Ok(second)) => {
            let mut found = work::findings(table, &second, led);
            found.extend(work::between(table, &first, &second, &config.relay));
            found
        }
        Ok(Err(error)) => vec![Finding::failed("counts", &error)],
        Err(failure) => vec![unreachable(&failure)],
    }
}

/// A failure as a finding, with its own next step.
fn unreachable(failure: &Failure) -> Finding {
    let (what, fix) = failure.first();
    Finding::wrong("connection", failure.code().unwrap_or(Code::DatabaseUnreachable), what, fix)
}

/// A relay that is to move what was published needs somewhere to move it to. What cannot be looked at was said before.
fn moves(table: &TableName, has_history: Result<bool, StoreError>) -> Option<Finding> {
    let what = format!("relay.history = \"move\", and {table} has no history: the relay refuses to start");
    let fix = format!("postbox migrate up --history move --table {table}");
    has_history.is_ok_and(|there| !there).then(|| Finding::wrong("history", Code::HistoryMissing, what, fix))
}

fn report(form: Form, reports: &[Report]) -> Result<Exit, Failure> {
    let all = || reports.iter().flat_map(|report| &report.findings);
    let count = |level| all().filter(|finding| finding.level == level).count();
    let (wrong, doubtful) = (count(Level::Wrong), count(Level::Doubtful));
    let ok = all().all(|finding| finding.level < form.problem);
    if form.json {
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
        say_json(&json!({ "ok": ok, "wrong": wrong, "doubtful": doubtful, "findings": found }))?;
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
    Ok(if ok { Exit::Done } else { Exit::Problems })
}

fn line(table: &str, finding: &Finding) -> String {
    let (mark, tint) = match finding.level {
        Level::Good => ("✓", Tint::Good),
        Level::Doubtful => ("!", Tint::Doubtful),
        Level::Wrong => ("✗", Tint::Bad),
    };
    let fix = finding.fix.as_ref().map(|fix| format!("      fix: {}", printable(fix))).unwrap_or_default();
    // As `postbox explain` takes it, without what all codes start with.
    let code = finding.code.map(|code| code.as_str().trim_start_matches("OUTBOX_"));
    let more = code.map(|code| format!("      more: postbox explain {code}")).unwrap_or_default();
    format!("{} {table}{}{fix}{more}", paint(mark, tint), printable(&finding.what))
}
