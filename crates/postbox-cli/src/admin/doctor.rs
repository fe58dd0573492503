//! What `postbox doctor` finds, looked for once for all who ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use postbox_core::{Code, Finding, Level};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use super::answer::{json_text, time};
use super::table::Table;
use super::{Admin, Shared};
use crate::cmd::doctor::{self, LONG_TRANSACTION};
use crate::config::Config;
use axum::http::StatusCode;
use postbox_core::Examination;

/// What was found is good for so long.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// No table takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where one waits while another is looked after: the answer is the same.
#[derive(Default)]
pub(super) struct Office(Mutex<Option<(Instant, Arc<str>)>>);

/// The findings.
pub(super) async fn show(State(admin): Shared) -> Response {
    let mut last = admin.doctor.0.lock().await;
    let text = match &*last {
        Some((at, text)) if at.elapsed() < GOOD_FOR => Arc::clone(text),
        _ => {
            let text: Arc<str> = Box::pin(examine(&admin)).await.to_string().into();
            *last = Some((Instant::now(), Arc::clone(&text)));
            text
        }
    };
    json_text(StatusCode::OK, text.to_string())
}

async fn examine(admin: &Admin) -> Value {
    let mut found: Vec<(Option<&Table>, Finding)> = Vec::new();
    let config = admin.config.as_ref();
    if let Some(config) = config {
        found.extend(doctor::settings::check(config).into_iter().map(|finding| (None, finding)));
    }
    let looks = admin.tables.iter().map(|table| async move {
        let findings = tokio::time::timeout(PATIENCE, Box::pin(look(table, config))).await;
        let late = |_| {
            let what = format!("no answer about {} within {PATIENCE:?}", table.name);
            vec![Finding::wrong(
                "connection",
                Code::DatabaseUnreachable,
                what,
                table.command("doctor").line(),
            )]
        };
        (table, findings.unwrap_or_else(late))
    });
    let sinks = async {
        match config {
            Some(config) => doctor::sinks::check(config).await,
            None => Vec::new(),
        }
    };
    let (sinks, looked) = tokio::join!(sinks, futures_util::future::join_all(looks));
    found.extend(sinks.into_iter().map(|finding| (None, finding)));
    for (table, findings) in looked {
        found.extend(findings.into_iter().map(|finding| (Some(&**table), finding)));
    }
    let count = |level| found.iter().filter(|(_, finding)| finding.level == level).count();
    let (wrong, doubtful) = (count(Level::Wrong), count(Level::Doubtful));
    let findings: Vec<Value> = found
        .iter()
        .map(|(table, finding)| {
            let mut value = json!(finding);
            value["table"] = json!(table.map(|table| &table.id));
            value["database"] = json!(table.and_then(|table| table.site.database.label()));
            value
        })
        .collect();
    json!({
        "at": time(OffsetDateTime::now_utc()),
        "ok": wrong == 0,
        "wrong": wrong,
        "doubtful": doubtful,
        "findings": findings,
    })
}

async fn look(table: &Table, config: Option<&Config>) -> Vec<Finding> {
    let site = &table.site;
    let store = site.database.direct(&table.name, site.max_attempts, site.lock_ttl);
    // Whether there is room for one more relay like this one, which a rolling update starts beside it.
    let connections = config.map_or(0, |config| {
        doctor::settings::connections(config, site.database.dialect(), site.tables.len())
    });
    let examination = Examination { long_transaction: LONG_TRANSACTION, connections };
    let settings = (site.single_active, site.history);
    let mut findings = doctor::of_table(&store, &table.name, examination, settings, config).await;
    for finding in &mut findings {
        finding.fix = finding.fix.take().map(|fix| crate::report::in_database(&fix, site.database.label()));
    }
    findings
}
