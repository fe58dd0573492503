//! `/healthz`, `/readyz` and metrics, served from the control thread: a relay that hangs still answers, in red.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use postbox_core::store::Standing;
use postbox_core::{Code, RelayHealth, telemetry};
use serde_json::{Value, json};

use crate::config::{Config, Metrics};
use crate::report::{Exit, Failure, Problem};

/// Where metrics are in any case, besides the path of the configuration.
const METRICS_PATH: &str = "/metrics";

/// Summaries are tidied up so often, or they grow without end between two scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// A dispatch: from a local file to a webhook at its timeout.
const LATENCY_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 30.0];

/// From due to acknowledged: from a wake-up to an outage.
const LAG_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0];

/// What is served.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// The relays whose health counts.
    pub(crate) relays: Vec<Arc<Watched>>,
    /// The metrics and their path, if they are served.
    pub(crate) metrics: Option<(PrometheusHandle, String)>,
}

/// The relay of a table, whichever it is just now.
#[derive(Debug)]
pub(crate) struct Watched(Mutex<(RelayHealth, Option<String>)>);

impl Watched {
    pub(crate) fn new(health: RelayHealth) -> Self {
        Self(Mutex::new((health, None)))
    }

    /// Another one has its place. Why the one before has ended is told until this one has reached its table.
    pub(crate) fn replace(&self, health: RelayHealth) {
        self.lock().0 = health;
    }

    /// It has ended.
    pub(crate) fn fail(&self, why: &str) {
        self.lock().1 = Some(why.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, (RelayHealth, Option<String>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The relay, and why there is none.
    pub(crate) fn now(&self) -> (RelayHealth, Option<String>) {
        let mut inner = self.lock();
        if inner.0.now().opened && inner.0.problem().is_none() {
            inner.1 = None;
        }
        inner.clone()
    }
}

/// Makes this process record metrics.
pub(crate) fn record_metrics(settings: &Metrics) -> Result<PrometheusHandle, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::from(Problem::new(Code::ConfigInvalid, format!("metrics cannot be recorded: {error}")))
    };
    let matcher = |name: &str| Matcher::Full(format!("{}_{name}", settings.prefix));
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(matcher("dispatch_latency_seconds"), &LATENCY_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(matcher("delivery_lag_seconds"), &LAG_BUCKETS))
        .map_err(|error| failed(&error))?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| failed(&error))?;
    telemetry::describe(&settings.prefix);
    Ok(handle)
}

/// Takes the port now, so that one that is taken is an error at the start.
pub(crate) fn bind(config: &Config) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = config.general.listen else { return Ok(None) };
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    match listener {
        Ok((bound, listener)) => {
            tracing::info!("listening on http://{bound}");
            Ok(Some(listener))
        }
        Err(error) => {
            let origin =
                config.origin("listen").map(|origin| format!(" (from {origin})")).unwrap_or_default();
            let message = format!("listen = {address} cannot be used{origin}: {error}");
            let next = "choose a free port of this machine, or stop what uses it; port 0 takes any";
            // Not a mistake in the configuration: the port may be free at the next start.
            Err(Problem::new(Code::ConfigInvalid, message).next(next).exit(Exit::Failed).into())
        }
    }
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, endpoints: Endpoints) {
    let endpoints = Arc::new(endpoints);
    let mut router =
        Router::new().route("/healthz", get(|| async { "alive\n" })).route("/readyz", get(readyz));
    if let Some((handle, path)) = &endpoints.metrics {
        router = router.route(METRICS_PATH, get(metrics_text));
        if path != METRICS_PATH {
            router = router.route(path, get(metrics_text));
        }
        tokio::spawn(upkeep(handle.clone()));
    }
    if let Err(error) = crate::serve::serve(listener, router.with_state(endpoints)).await {
        tracing::error!(%error, "the HTTP endpoints ended");
    }
}

async fn upkeep(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}

async fn metrics_text(State(endpoints): State<Arc<Endpoints>>) -> Response {
    let text = endpoints.metrics.as_ref().map(|(handle, _)| handle.render()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Green while every relay delivers, stands by or is paused.
async fn readyz(State(endpoints): State<Arc<Endpoints>>) -> Response {
    let tables: Vec<Value> = endpoints.relays.iter().map(table).collect();
    let ready = tables.iter().all(|table| table["problem"].is_null());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": ready, "tables": tables }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body + "\n").into_response()
}

fn table(watched: &Arc<Watched>) -> Value {
    let (health, ended) = watched.now();
    let now = health.now();
    let seconds = |since: Option<Instant>| since.map(|since| since.elapsed().as_secs());
    let standing = match now.standing {
        _ if !now.opened => "starting",
        Standing::Active => "active",
        Standing::Standby => "standby",
        Standing::Paused => "paused",
    };
    let sinks = now.sinks.iter().map(|sink| {
        json!({ "sink": &*sink.name, "down_seconds": seconds(sink.open_since), "last_error": sink.last_error })
    });
    let mut value = json!({
        "table": health.table(),
        "standing": standing,
        "problem": health.problem(),
        "last_delivery_seconds": seconds(now.last_delivery),
        "sinks": sinks.collect::<Vec<_>>(),
    });
    if let Some(database) = health.database() {
        value["database"] = Value::from(database);
        if let Some(why) = ended {
            let problem = format!("the relay of {} in {database} cannot work: {why}", health.table());
            value["problem"] = Value::from(problem);
        }
    }
    value
}
