//! What came out, for people and as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::facts::Facts;
use super::wanted::Wanted;
use crate::config::{Config, word};
use crate::render::{Cell, Tint, counted, paint, table, thousands};

/// How long things took: microseconds up to an hour, to three digits, in bounded memory.
pub(super) struct Times(Histogram<u64>);

const LONGEST: u64 = 3_600_000_000;
const DIGITS: u8 = 3;
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

impl Times {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS);
        Self(histogram.unwrap_or_else(|error| unreachable!("these bounds are good: {error}")))
    }

    pub(super) fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(LONGEST));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    fn percentiles(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let percentiles = PERCENTILES.into_iter().map(|(name, at)| (name, self.0.value_at_percentile(at)));
        percentiles.chain([("max", self.0.max())])
    }

    fn cells(&self) -> impl Iterator<Item = Cell> + '_ {
        self.percentiles().map(|(_, micros)| Cell::right(span(micros)))
    }

    fn to_json(&self) -> Value {
        self.percentiles().map(|(name, micros)| (name.replace('.', ""), Value::from(micros))).collect()
    }
}

/// A time with as many digits as mean something.
pub(super) fn span(micros: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
    let millis = micros as f64 / 1e3;
    match micros {
        0..9_995 => format!("{millis:.2} ms"),
        9_995..99_950 => format!("{millis:.1} ms"),
        99_950..999_500 => format!("{millis:.0} ms"),
        _ => format!("{:.2} s", millis / 1e3),
    }
}

/// What a step measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// One event in a transaction.
    One {
        connections: u64,
    },
    /// So many in a transaction.
    Bulk {
        events: u64,
    },
    Drain,
    Latency {
        rate: u64,
    },
}

impl Step {
    /// Its name for people.
    pub(super) fn label(self, config: &Config) -> String {
        match self {
            Self::One { connections } => format!("enqueue, {}", counted(connections, "connection")),
            Self::Bulk { events } => format!("enqueue, {} a transaction", thousands(events)),
            Self::Drain => format!("drain, history {}", config.relay.history.as_str()),
            Self::Latency { rate } => format!("latency at {}/s", thousands(rate)),
        }
    }
}

/// One step's figures.
pub(super) struct Measured {
    pub(super) step: Step,
    pub(super) events: u64,
    pub(super) took: Duration,
    /// Of transactions, or from the end of a commit to the dispatch.
    pub(super) times: Option<Times>,
    /// From the call of commit to the dispatch.
    pub(super) with_commit: Option<Times>,
    /// What the whole server wrote to its log meanwhile, if it says.
    pub(super) wal: Option<u64>,
}

impl Measured {
    fn per_second(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let events = self.events as f64;
        events / self.took.as_secs_f64().max(1e-6)
    }

    fn wal_per_event(&self) -> Option<u64> {
        self.wal.map(|bytes| bytes / self.events.max(1))
    }

    /// Its cells; those of times only where some step has any.
    fn rows(&self, config: &Config, clocked: bool) -> Vec<Vec<Cell>> {
        let label = self.step.label(config);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, shown whole")]
        let rate = self.per_second().round() as u64;
        let mut row = vec![Cell::text(label), Cell::number(self.events), Cell::number(rate)];
        match &self.times {
            Some(times) => row.extend(times.cells()),
            None if clocked => row.extend((0..=PERCENTILES.len()).map(|_| Cell::right(""))),
            None => {}
        }
        row.push(Cell::right(
            self.wal_per_event().map(|bytes| format!("{} B", thousands(bytes))).unwrap_or_default(),
        ));
        let mut rows = vec![row];
        if let Some(times) = &self.with_commit {
            let label = Cell::text("  and the commit itself");
            rows.push([label, Cell::right(""), Cell::right("")].into_iter().chain(times.cells()).collect());
        }
        rows
    }

    fn to_json(&self, config: &Config) -> Value {
        let mut value = json!({
            "events": self.events, "seconds": self.took.as_secs_f64(), "events_per_second": self.per_second(),
            "wal_bytes_per_event": self.wal_per_event(),
        });
        let times = self.times.as_ref().map(Times::to_json);
        match self.step {
            Step::One { connections } => {
                value["step"] = "enqueue".into();
                value["connections"] = connections.into();
                value["events_per_transaction"] = 1.into();
                value["transaction_us"] = times.into();
            }
            Step::Bulk { events } => {
                value["step"] = "enqueue".into();
                value["connections"] = 1.into();
                value["events_per_transaction"] = events.into();
                value["transaction_us"] = times.into();
            }
            Step::Drain => {
                value["step"] = "drain".into();
                value["history"] = config.relay.history.as_str().into();
            }
            Step::Latency { rate } => {
                value["step"] = "latency".into();
                value["wanted_per_second"] = rate.into();
                value["commit_to_dispatch_us"] = times.into();
                value["with_commit_us"] = self.with_commit.as_ref().map(Times::to_json).into();
            }
        }
        value
    }
}

/// Everything that a bench found out.
pub(super) struct Account {
    pub(super) facts: Facts,
    pub(super) steps: Vec<Measured>,
    pub(super) stopped: bool,
    pub(super) leftovers: Vec<String>,
}

impl Account {
    /// What makes figures better or worse than they would be.
    fn warnings(&self, wanted: &Wanted) -> Vec<String> {
        let mut warnings = self.facts.warnings();
        for measured in &self.steps {
            #[allow(clippy::cast_precision_loss, reason = "a rate")]
            if let Step::Latency { rate } = measured.step
                && measured.per_second() < rate as f64 * 0.9
            {
                warnings.push(format!(
                    "{} events a second were wanted, {:.0} were written on {}: latency is that of a busier system",
                    thousands(rate),
                    measured.per_second(),
                    counted(wanted.most_connections(), "connection")
                ));
            }
        }
        if cfg!(debug_assertions) {
            warnings
                .push("this program is a debug build: a release build is several times as fast".to_owned());
        }
        warnings
    }

    /// A table, and what it has to be read with.
    pub(super) fn to_text(&self, wanted: &Wanted, config: &Config) -> String {
        let clocked = self.steps.iter().any(|measured| measured.times.is_some());
        let mut head = vec!["", "events", "per second"];
        if clocked {
            head.extend(PERCENTILES.iter().map(|(name, _)| *name).chain(["max"]));
        }
        if self.steps.iter().any(|measured| measured.wal.is_some()) {
            head.push("WAL/event");
        }
        let rows: Vec<Vec<Cell>> =
            self.steps.iter().flat_map(|measured| measured.rows(config, clocked)).collect();
        let mut lines = Vec::new();
        if !rows.is_empty() {
            lines.push(table(&head, &rows));
        }
        if clocked {
            let times =
                "times: of enqueue, a transaction from begin to commit; of latency, from commit to dispatch";
            lines.push(paint(times, Tint::Faint));
        }
        lines.push(format!("[{} · {} here]", self.facts, counted(self.facts.cores, "core")));
        lines.push(format!(
            "payload {} bytes, batch size {}, claim {}, ordering {}; writers and relay in one process",
            wanted.payload_bytes,
            config.relay.batch_size,
            word(config.relay.claim),
            word(config.relay.ordering)
        ));
        lines.extend(self.warnings(wanted).iter().map(|text| paint(&format!("! {text}"), Tint::Doubtful)));
        if self.stopped {
            lines.push("stopped before the end; what the bench made was removed".to_owned());
        }
        lines.join("\n")
    }

    pub(super) fn to_json(&self, wanted: &Wanted, config: &Config) -> Value {
        let steps: Vec<Value> = self.steps.iter().map(|measured| measured.to_json(config)).collect();
        json!({
            "database": self.facts.to_json(),
            "machine": { "cores": self.facts.cores },
            "settings": {
                "payload_bytes": wanted.payload_bytes,
                "batch_size": config.relay.batch_size,
                "claim": word(config.relay.claim),
                "history": config.relay.history.as_str(),
                "ordering": word(config.relay.ordering),
            },
            "steps": steps,
            "stopped": self.stopped,
            "warnings": self.warnings(wanted),
            "leftovers": self.leftovers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Times, span};

    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!(span(0), "0.00 ms");
        assert_eq!(span(412), "0.41 ms");
        assert_eq!(span(9_994), "9.99 ms");
        assert_eq!(span(9_996), "10.0 ms");
        assert_eq!(span(31_400), "31.4 ms");
        assert_eq!(span(412_000), "412 ms");
        assert_eq!(span(1_240_000), "1.24 s");
    }

    #[test]
    fn percentiles_are_those_of_what_was_added() {
        let (mut times, mut others) = (Times::new(), Times::new());
        for n in 1..=1_000 {
            if n % 2 == 0 { &mut times } else { &mut others }.add(Duration::from_micros(n));
        }
        times.merge(&others);
        times.add(Duration::from_hours(48));
        let json = times.to_json();
        assert_eq!((times.count(), &json["p50"], &json["p90"]), (1_001, &501.into(), &901.into()));
        assert!(json["max"].as_u64().unwrap() >= 3_600_000_000, "{json}");
        let mut last = 0;
        for (_, value) in times.percentiles() {
            assert!(value >= last);
            last = value;
        }
    }
}
