//! What an owner has in flight: as it remembers it, as it stands in `postbox_window`, and as others see it there. Its rows are not
//! locked.

use postbox_core::TableName;
use postbox_core::hash::RowMap;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cursor::Key;
use crate::keys::Keys;
use crate::table::Template;

/// The rows that are in flight.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The reign that they were read in.
    epoch: i64,
    /// By sequence, with the time since when they are due.
    rows: RowMap<i64, OffsetDateTime>,
    keys: Keys,
}

impl Window {
    /// One of a new reign, empty.
    pub(super) fn of(epoch: i64) -> Self {
        Self { epoch, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn put(&mut self, (at, sequence): Key) {
        self.keys.add((at, sequence));
        if let Some(before) = self.rows.insert(sequence, at) {
            self.keys.remove((before, sequence));
        }
    }

    /// A row that was read in this reign has left it. What an earlier one has read is not here, though the same row may be.
    pub(super) fn remove(&mut self, epoch: i64, sequence: i64) {
        if epoch != self.epoch {
            return;
        }
        if let Some(at) = self.rows.remove(&sequence) {
            self.keys.remove((at, sequence));
        }
    }

    /// The bounds of their sequences.
    pub(super) fn bounds(&mut self) -> Vec<i64> {
        self.keys.bounds()
    }

    /// Those that lie behind this place in the order of reading: mostly none.
    pub(super) fn beyond(&mut self, key: Key) -> Vec<i64> {
        if !self.keys.go_beyond(key) {
            return Vec::new();
        }
        self.rows.iter().filter(|(sequence, at)| (**at, **sequence) > key).map(|(one, _)| *one).collect()
    }

    /// What is written down of it: pairs of bounds, and the last of the times since when rows are due.
    pub(super) fn written(&mut self) -> (String, Option<OffsetDateTime>) {
        let pairs: Vec<Value> =
            self.keys.bounds().as_chunks::<2>().0.iter().map(|pair| json!(pair)).collect();
        (Value::from(pairs).to_string(), self.keys.span().map(|(_, to)| to))
    }
}

/// The sequences of what was written down. They were in flight all at once, so they are not too many.
pub(super) fn read(written: &str) -> Vec<i64> {
    let pairs: Vec<(i64, i64)> = serde_json::from_str(written).unwrap_or_default();
    pairs.into_iter().flat_map(|(first, end)| first..end).collect()
}

/// Whether a row is in the window of the active relay: the condition in SQL, true or false and never null.
///
/// A window is written when rows come into it, so that it may still name some that have left. What was put off lies behind
/// its end; what was delivered or died is told by its own columns.
pub(super) fn in_flight(table: &TableName) -> String {
    condition(table, "", " AND r.expires_at > UTC_TIMESTAMP(6)")
}

/// The same, also after the owner's time is over: until another has taken its place, what it settles still counts. `row` is what
/// stands before the row's columns, such as `h.`.
pub(super) fn may_be_settled(table: &TableName, row: &str) -> String {
    condition(table, row, "")
}

fn condition(table: &TableName, row: &str, and: &str) -> String {
    let key = table.table();
    Template::of(table, '`').fill(&format!(
        "EXISTS (SELECT 1 FROM {{{{relay}}}} AS r JOIN {{{{window}}}} AS w ON w.tbl = r.tbl AND w.epoch = r.epoch,
            JSON_TABLE(w.win, '$[*]' COLUMNS (first_in BIGINT PATH '$[0]', first_out BIGINT PATH '$[1]')) AS bounds
         WHERE r.tbl = '{key}' AND r.holder IS NOT NULL{and}
           AND {row}sequence >= bounds.first_in AND {row}sequence < bounds.first_out AND {row}available_at <= w.win_to)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::START;

    #[test]
    fn what_is_written_is_what_is_read() {
        let mut window = Window::default();
        assert_eq!(window.written(), ("[]".to_owned(), None));
        for sequence in [5, 3, 4, 9] {
            window.put((START.0, sequence));
        }
        let (written, to) = window.written();
        assert_eq!((written.as_str(), to), ("[[3,6],[9,10]]", Some(START.0)));
        assert_eq!(read(&written), [3, 4, 5, 9]);
        window.remove(0, 4);
        window.remove(1, 5);
        assert_eq!(read(&window.written().0), [3, 5, 9]);
        let mut beyond = window.beyond((START.0, 4));
        beyond.sort_unstable();
        assert_eq!(beyond, [5, 9]);
        assert!(window.beyond((START.0, 9)).is_empty());
    }
}
