//! The statements of an owner. `<in>`, `<topics>`, `<beyond>` and `<epoch>` are places that are filled when one is used.

use super::history;
use super::statements::CONTENT;
use crate::history::Sent;
use crate::table::Template;

#[derive(Debug)]
pub(super) struct Own {
    /// Reads what waits, or what waits of some topics.
    pub(super) waiting: String,
    pub(super) probe: String,
    /// Reads rows by their keys: those whose payloads were too large to come along.
    pub(super) large: String,
    /// Writes down what is in flight, if the table is this relay's and not paused.
    pub(super) journal: String,
    /// Writes down that nothing is.
    pub(super) clear: String,
    /// Begins a transaction during which nobody takes the table over, and answers whose it is.
    pub(super) fence: String,
    pub(super) is_mine: String,
    /// What is done to rows that arrived at one attempt, one statement after the other: sequences, and the attempts before it. Each
    /// answers how many there were.
    pub(super) delivered: Vec<String>,
    /// Which rows are as they were, locked.
    pub(super) held: String,
    /// Writes what became of rows that are locked.
    pub(super) settle: String,
    /// What is done first to those of them that arrived, where they do not stay.
    pub(super) gone: Vec<String>,
}

/// Rows that are as they were when they were read: sequences, and the attempts they had.
const AS_READ: &str = "t.sequence IN (<in>) AND GREATEST(t.attempts, 0) = ? AND t.published_at IS NULL AND t.dead_at IS NULL \
                       AND t.locked_at IS NULL";
const BYTES: &str = "LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0)";

impl Own {
    /// `unlocked` are the conditions for an ordinary claim and for a probe.
    pub(super) fn new(base: &Template, key: &str, sent: &Sent, unlocked: [&str; 2]) -> Self {
        let small = |column: &str| format!("IF({BYTES} <= ?, {column}, NULL)");
        let small = format!("{}, {}", small("payload"), small("payload_raw"));
        let base = base.clone().with("bytes", BYTES).with("key", format!("'{key}'"));
        let reads = base.clone().with("small_content", CONTENT.replace("payload, payload_raw", &small));
        let read =
            |unlocked: &str| reads.fill(&include_str!("sql/own.sql").replace("{{unlocked}}", unlocked));
        let (delivered, gone) = settles(&base, sent);
        Self {
            waiting: read(unlocked[0]),
            probe: read(unlocked[1]),
            large: base.fill(
                "SELECT {{content}}, attempts, UTC_TIMESTAMP(6) FROM {{table}} FORCE INDEX (PRIMARY)
                 WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL",
            ),
            // Another's journal would have another epoch: whoever takes over changes that first, under a lock. That the relay's row is
            // only looked at is enough to see a pause.
            journal: base.fill(
                "UPDATE {{window}} SET win = ?, win_to = ? WHERE tbl = {{key}} AND epoch = ?
                   AND EXISTS (SELECT 1 FROM {{relay}} AS r WHERE r.tbl = {{key}} AND r.holder = ? AND r.epoch = ?
                               AND r.paused_at IS NULL)",
            ),
            clear: base
                .fill("UPDATE {{window}} SET win = NULL WHERE tbl = {{key}} AND epoch = ? AND win IS NOT NULL"),
            // A shared lock: it keeps out a take-over, which locks the row for itself, but not other settles; the journal has another row.
            fence: base.fill(
                "START TRANSACTION; SELECT holder FROM {{relay}} WHERE tbl = {{key}} AND epoch = <epoch> LOCK IN SHARE MODE",
            ),
            is_mine: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = {{key}} AND holder = ? AND epoch = ?)",
            ),
            delivered,
            held: base.fill(include_str!("sql/own_held.sql")),
            settle: base.fill(include_str!("sql/own_settle.sql")),
            gone,
        }
    }
}

/// What is done to rows that arrived: as they were read, and when they are locked already.
fn settles(base: &Template, sent: &Sent) -> (Vec<String>, Vec<String>) {
    const SOURCE: &str = "{{table}} AS t FORCE INDEX (PRIMARY)";
    let history = match sent {
        Sent::Kept => {
            let stay = format!(
                "UPDATE {SOURCE} SET t.published_at = UTC_TIMESTAMP(6), t.attempts = GREATEST(t.attempts, 0) + 1, t.last_error = NULL
                 WHERE {AS_READ}"
            );
            return (vec![base.fill(&stay)], Vec::new());
        }
        Sent::Moved(history) => Some(history::arrive(history, "GREATEST(t.attempts, 0) + 1")),
        Sent::Deleted => None,
    };
    let both = |condition: &str| {
        // With a lock: what is read without one may be another's by the time that it is deleted.
        let arrive =
            history.iter().map(|arrive| format!("{arrive} FROM {SOURCE} WHERE {condition} FOR UPDATE"));
        let leave = format!("DELETE t FROM {SOURCE} WHERE {condition}");
        arrive.chain([leave]).map(|sql| base.fill(&sql)).collect()
    };
    (both(AS_READ), both("t.sequence IN (<in>)"))
}
