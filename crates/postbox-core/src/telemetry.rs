//! Metrics and log lines of the engine, in one place: names, labels and help texts never drift apart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};

use crate::inbox::ConsumerName;
use crate::inspect::TableCounts;
use crate::topic::Topic;

/// Topics beyond this number share the label `other` (hazard 50).
pub(crate) const DEFAULT_TOPIC_LABELS: usize = 200;
const OTHER: &str = "other";

/// A metric that Postbox exports: name without prefix, kind, labels, help.
#[derive(Debug, Clone, Copy)]
pub struct MetricInfo {
    /// The name without its prefix.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The labels it carries.
    pub labels: &'static [&'static str],
    /// One line of help.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricInfo {
    MetricInfo { name, kind, labels, help }
}

/// Every metric of the engine.
pub const METRICS: &[MetricInfo] = &[
    metric(
        "enqueue_total",
        "counter",
        &["table", "topic"],
        "Events written by this process (their transactions may still roll back).",
    ),
    metric(
        "dispatch_total",
        "counter",
        &["table", "topic", "result"],
        "Dispatches by result: success or failure.",
    ),
    metric(
        "dispatch_latency_seconds",
        "histogram",
        &["table", "topic", "result"],
        "How long dispatches took.",
    ),
    metric(
        "delivery_lag_seconds",
        "histogram",
        &["table"],
        "From due (created or available, the later) to acknowledged.",
    ),
    metric("dead_total", "counter", &["table", "topic"], "Events that became dead."),
    metric("dlq_total", "counter", &["table", "topic"], "Dead events that arrived at the dead-letter route."),
    metric(
        "lease_lost_total",
        "counter",
        &["table"],
        "Rows whose lease another relay had taken when they were settled.",
    ),
    metric("hot_enqueued_total", "counter", &["table"], "Events handed to the hot path after their commit."),
    metric(
        "hot_dropped_total",
        "counter",
        &["table"],
        "Events that found no room on the hot path and went the way over the table.",
    ),
    metric("cold_enqueued_total", "counter", &["table"], "Events claimed from the table."),
    metric("cleaned_total", "counter", &["table"], "Rows deleted after their retention."),
    metric(
        "inbox_processed_total",
        "counter",
        &["table", "consumer", "result"],
        "Messages recorded by this process, by result: first or before (their transactions may still roll back).",
    ),
    metric(
        "idempotency_calls_total",
        "counter",
        &["table", "result"],
        "Calls by idempotency key, in services with the layer: first, taken_over, replayed, busy, mismatch, lost, unavailable.",
    ),
    metric(
        "pending",
        "gauge",
        &["table"],
        "Events that wait for delivery (bounded count; estimated beyond).",
    ),
    metric("locked", "gauge", &["table"], "Events in flight."),
    metric("dead", "gauge", &["table"], "Dead events in the table (bounded count)."),
    metric("scheduled", "gauge", &["table"], "Events that were scheduled for later and never tried."),
    metric("blocked", "gauge", &["table"], "Aggregates that wait behind a dead event."),
    metric(
        "oldest_pending_age_seconds",
        "gauge",
        &["table"],
        "How long the oldest pending event has been due.",
    ),
    metric(
        "oldest_transaction_age_seconds",
        "gauge",
        &["table"],
        "How long the oldest transaction is open that keeps vacuum from cleaning up behind the relay, as far as its user may see (PostgreSQL).",
    ),
    metric("relay_leader", "gauge", &["table"], "1 where this relay is the active one, 0 on a standby."),
    metric("circuit_open", "gauge", &["table", "sink"], "1 while the sink is down and its events wait."),
    metric("queue_depth", "gauge", &["table", "queue"], "Events claimed and not yet dispatched, by sink."),
];

/// Writes the help texts of all metrics to the installed recorder.
pub fn describe(prefix: &str) {
    for metric in METRICS {
        let name = format!("{prefix}_{}", metric.name);
        match metric.kind {
            "counter" => metrics::describe_counter!(name, metric.help),
            "gauge" => metrics::describe_gauge!(name, metric.help),
            _ => metrics::describe_histogram!(name, metric.help),
        }
    }
}

/// The metrics of one table. Cheap to clone; handles are made when they are first used, so install the recorder
/// of the `metrics` facade before that.
#[derive(Debug, Clone)]
pub struct Telemetry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    prefix: String,
    /// The name of the table's database, where there are several.
    database: Option<Arc<str>>,
    table: String,
    topic_labels: usize,
    topics: Mutex<HashMap<Topic, TopicMetrics>>,
    consumers: Mutex<HashMap<String, ConsumerMetrics>>,
}

#[derive(Clone)]
struct ConsumerMetrics {
    first: Counter,
    before: Counter,
}

impl std::fmt::Debug for ConsumerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsumerMetrics")
    }
}

#[derive(Clone)]
struct TopicMetrics {
    enqueued: Counter,
    success: (Counter, Histogram),
    failure: (Counter, Histogram),
    dead: Counter,
    dead_lettered: Counter,
}

impl std::fmt::Debug for TopicMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TopicMetrics")
    }
}

impl Telemetry {
    /// The metrics of a table under a prefix, with at most so many topics as labels.
    pub(crate) fn new(prefix: &str, table: &str, topic_labels: usize) -> Self {
        Self::in_database(prefix, None, table, topic_labels)
    }

    /// The metrics of a table under a prefix, with at most so many topics as labels. Where the database has a name, since there are
    /// several, everything also has the label `database`.
    pub fn in_database(prefix: &str, database: Option<&str>, table: &str, topic_labels: usize) -> Self {
        let (prefix, table, database) = (prefix.to_owned(), table.to_owned(), database.map(Into::into));
        let (topics, consumers) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { prefix, database, table, topic_labels, topics, consumers }))
    }

    /// The same under another prefix.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Self {
        Self::in_database(prefix, self.database(), &self.0.table, self.0.topic_labels)
    }

    /// The same for a table of one of several databases.
    pub(crate) fn with_database(&self, name: &str) -> Self {
        Self::in_database(&self.0.prefix, Some(name), &self.0.table, self.0.topic_labels)
    }

    /// The same for another table of the database.
    pub(crate) fn with_table(&self, table: &str) -> Self {
        Self::in_database(&self.0.prefix, self.database(), table, self.0.topic_labels)
    }

    /// An event was written.
    pub(crate) fn enqueued(&self, topic: &Topic) {
        self.with_topic(topic, |metrics| metrics.enqueued.increment(1));
    }

    /// So many events of a topic ended in the same way after the same time.
    pub(crate) fn dispatched(&self, topic: &Topic, success: bool, took: Duration, events: usize) {
        self.with_topic(topic, |metrics| {
            let (count, latency) = if success { &metrics.success } else { &metrics.failure };
            count.increment(events as u64);
            latency.record_many(took.as_secs_f64(), events);
        });
    }

    pub(crate) fn died(&self, topic: &Topic) {
        self.with_topic(topic, |metrics| metrics.dead.increment(1));
    }

    pub(crate) fn dead_lettered(&self, topic: &Topic) {
        self.with_topic(topic, |metrics| metrics.dead_lettered.increment(1));
    }

    pub(crate) fn lag(&self) -> Histogram {
        metrics::histogram!(self.name("delivery_lag_seconds"), self.labels([]))
    }

    pub(crate) fn lease_lost(&self, rows: usize) {
        metrics::counter!(self.name("lease_lost_total"), self.labels([])).increment(rows as u64);
    }

    pub(crate) fn hot_enqueued(&self, events: usize) {
        metrics::counter!(self.name("hot_enqueued_total"), self.labels([])).increment(events as u64);
    }

    pub(crate) fn hot_dropped(&self) {
        metrics::counter!(self.name("hot_dropped_total"), self.labels([])).increment(1);
    }

    pub(crate) fn cold_enqueued(&self, rows: usize) {
        metrics::counter!(self.name("cold_enqueued_total"), self.labels([])).increment(rows as u64);
    }

    /// Rows were deleted after their retention.
    pub(crate) fn cleaned(&self, rows: u64) {
        metrics::counter!(self.name("cleaned_total"), self.labels([])).increment(rows);
    }

    /// The name of the table's database, where there are several.
    pub(crate) fn database(&self) -> Option<&str> {
        self.0.database.as_deref()
    }

    /// Log lines within it name the database, where there are several; else it is none. It is never over, so that no trace may
    /// have it as its parent.
    pub(crate) fn span(&self) -> tracing::Span {
        match self.database() {
            // Of the highest level: whatever is logged at all is to say where it was.
            Some(name) => tracing::error_span!("database", name),
            None => tracing::Span::none(),
        }
    }

    /// Messages were recorded: so many for the first time, and so many that had come before.
    pub(crate) fn processed(&self, consumer: &ConsumerName, first: usize, before: usize) {
        let mut consumers = self.0.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = consumers.contains_key(consumer.as_str());
        let label = if known || consumers.len() < self.0.topic_labels { consumer.as_str() } else { OTHER };
        if !consumers.contains_key(label) {
            let metrics = self.consumer_metrics(label);
            consumers.insert(label.to_owned(), metrics);
        }
        if let Some(metrics) = consumers.get(label) {
            metrics.first.increment(first as u64);
            metrics.before.increment(before as u64);
        }
    }

    fn consumer_metrics(&self, consumer: &str) -> ConsumerMetrics {
        let by_result = |result: &str| {
            let labels = self.labels([("consumer", consumer), ("result", result)]);
            metrics::counter!(self.name("inbox_processed_total"), labels)
        };
        ConsumerMetrics { first: by_result("first"), before: by_result("before") }
    }

    pub(crate) fn leader(&self, active: bool) {
        self.gauge("relay_leader").set(if active { 1.0 } else { 0.0 });
    }

    pub(crate) fn circuit(&self, sink: &str, open: bool) {
        metrics::gauge!(self.name("circuit_open"), self.labels([("sink", sink)])).set(if open {
            1.0
        } else {
            0.0
        });
    }

    pub(crate) fn queue_depth(&self, sink: &str) -> Gauge {
        metrics::gauge!(self.name("queue_depth"), self.labels([("queue", sink)]))
    }

    /// What the table holds, as last counted.
    #[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
    pub fn counts(&self, counts: &TableCounts) {
        self.gauge("pending").set(counts.pending as f64);
        self.gauge("locked").set(counts.locked as f64);
        self.gauge("dead").set(counts.dead as f64);
        self.gauge("scheduled").set(counts.scheduled as f64);
        self.gauge("blocked").set(counts.blocked as f64);
        self.gauge("oldest_pending_age_seconds").set(counts.oldest_pending_age.as_secs_f64());
    }

    /// How long the oldest transaction is open that the database cannot clean up behind (hazard 15). Not who has it: a process id is no label.
    pub fn oldest_transaction(&self, age: Duration) {
        self.gauge("oldest_transaction_age_seconds").set(age.as_secs_f64());
    }

    fn gauge(&self, name: &str) -> Gauge {
        metrics::gauge!(self.name(name), self.labels([]))
    }

    /// Whose it is, and what else is told apart.
    fn labels<const N: usize>(&self, more: [(&'static str, &str); N]) -> Vec<Label> {
        let database = self.database().map(|database| Label::new("database", database.to_owned()));
        let table = Label::new("table", self.0.table.clone());
        let more = more.map(|(name, value)| Label::new(name, value.to_owned()));
        database.into_iter().chain([table]).chain(more).collect()
    }

    fn name(&self, name: &str) -> String {
        format!("{}_{name}", self.0.prefix)
    }

    fn with_topic(&self, topic: &Topic, record: impl FnOnce(&TopicMetrics)) {
        let mut topics = self.0.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = topics.get(topic) {
            return record(metrics);
        }
        let other = topics.len() >= self.0.topic_labels;
        let key = if other { Topic::lenient(OTHER).unwrap_or_else(|_| topic.clone()) } else { topic.clone() };
        let metrics = topics.entry(key).or_insert_with_key(|label| self.topic_metrics(label.as_str()));
        record(metrics);
    }

    fn topic_metrics(&self, topic: &str) -> TopicMetrics {
        let labels = || self.labels([("topic", topic)]);
        let by_result = |result: &'static str| {
            let labels = || self.labels([("topic", topic), ("result", result)]);
            (
                metrics::counter!(self.name("dispatch_total"), labels()),
                metrics::histogram!(self.name("dispatch_latency_seconds"), labels()),
            )
        };
        TopicMetrics {
            enqueued: metrics::counter!(self.name("enqueue_total"), labels()),
            success: by_result("success"),
            failure: by_result("failure"),
            dead: metrics::counter!(self.name("dead_total"), labels()),
            dead_lettered: metrics::counter!(self.name("dlq_total"), labels()),
        }
    }
}

#[cfg(test)]
mod tests;
