//! What is counted: `outbox_idempotency_calls_total{table,result}`.

use metrics::{Counter, Label};

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It runs for the first time.
    First,
    /// It runs again, since who ran it before has not ended in time.
    TakenOver,
    /// It was answered from the table.
    Replayed,
    /// It runs elsewhere.
    Busy,
    /// Its key was used for another.
    Mismatch,
    /// It ran, but somebody else had taken it over.
    Lost,
    /// The table did not answer.
    Unavailable,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::First,
        Self::TakenOver,
        Self::Replayed,
        Self::Busy,
        Self::Mismatch,
        Self::Lost,
        Self::Unavailable,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::TakenOver => "taken_over",
            Self::Replayed => "replayed",
            Self::Busy => "busy",
            Self::Mismatch => "mismatch",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A counter for each outcome, in the order in which they are declared.
pub(crate) struct Telemetry([Counter; 7]);

impl Telemetry {
    pub(crate) fn new(prefix: &str, database: Option<&str>, table: &str) -> Self {
        let name = format!("{prefix}_idempotency_calls_total");
        Self(Outcome::ALL.map(|outcome| {
            let database = database.map(|database| Label::new("database", database.to_owned()));
            let others =
                [Label::new("table", table.to_owned()), Label::from_static_parts("result", outcome.label())];
            let labels: Vec<Label> = database.into_iter().chain(others).collect();
            metrics::counter!(name.clone(), labels)
        }))
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.0[outcome as usize].increment(1);
    }
}
