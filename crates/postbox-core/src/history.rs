//! [`History`]: what becomes of an event's row once it was published.

use std::fmt;

/// What a relay does with the rows of events that were delivered.
///
/// It is a choice between what can be looked up later and what a delivery costs. Events that died are kept in the table in
/// any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum History {
    /// The row stays where it is until its retention ends: it can be shown and replayed, and its `event_id` is recognised
    /// when it is enqueued again.
    #[default]
    Keep,
    /// The row moves to `<table>_history`, where it stays until its retention ends: it can be shown and replayed. The table
    /// itself stays small. Needs a table that was migrated with a history.
    Move,
    /// The row is deleted. Nothing is left to show or to replay.
    None,
}

impl History {
    /// The word for it in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Move => "move",
            Self::None => "none",
        }
    }

    /// Whether an `event_id` is still recognised after its event was published, until its retention ends.
    pub const fn recognises_duplicates(self) -> bool {
        match self {
            Self::Keep => true,
            Self::Move | Self::None => false,
        }
    }

    /// Tells the log, when a relay starts, that an event which is enqueued again after it was published is written and
    /// delivered again.
    pub fn warn_of_duplicates(self, table: &str) {
        if !self.recognises_duplicates() {
            tracing::warn!(
                table,
                history = self.as_str(),
                "a repeated event_id is recognised only until its event was published: later it is a new event; receivers must \
                 deduplicate by event_id"
            );
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
