//! What a look at the table says of rows that are found by their sequence, and what of it a claim takes; topics and aggregates become
//! numbers.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

use postbox_core::store::{ClaimMode, ClaimRequest};

use crate::clock::from_micros;
use crate::cursor::Key;
use crate::left_out::Lane;

/// A row that may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) sequence: i64,
    pub(crate) available_at: i64,
    /// Attempts made so far.
    pub(crate) attempts: i64,
    /// Its lease ran out.
    pub(crate) suspect: bool,
    pub(crate) bytes: usize,
}

impl Candidate {
    /// Its place in the order of claims.
    pub(crate) fn key(&self) -> Key {
        (from_micros(self.available_at), self.sequence)
    }
}

/// What a look at the table found.
pub(crate) struct Picked {
    pub(crate) chosen: Vec<Candidate>,
    pub(crate) all_fit: bool,
    /// The last that was looked at, and the first whose lease ran out.
    pub(crate) last: Option<Key>,
    pub(crate) suspect: Option<Key>,
    pub(crate) more: bool,
}

impl Picked {
    /// Those of the rows that a request wants, as many as fit.
    pub(crate) fn of(rows: &[Candidate], request: &ClaimRequest) -> Self {
        let wants_suspects = request.mode == ClaimMode::Suspect;
        let chosen = Vec::with_capacity(rows.len());
        let mut picked = Self { chosen, all_fit: true, last: None, suspect: None, more: false };
        let mut bytes = 0_usize;
        for row in rows {
            let key = row.key();
            if row.suspect {
                picked.suspect = Some(picked.suspect.map_or(key, |first| first.min(key)));
            }
            if row.suspect == wants_suspects {
                // One is always allowed.
                if !picked.chosen.is_empty() && bytes >= request.max_bytes {
                    picked.all_fit = false;
                    break;
                }
                bytes = bytes.saturating_add(row.bytes);
                picked.chosen.push(*row);
            }
            picked.last = Some(key);
        }
        picked
    }
}

/// A row that waits, where order is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sequence: i64,
    pub(crate) available_at: i64,
    pub(crate) attempts: i64,
    /// Its lease ran out.
    pub(crate) expired: bool,
    pub(crate) bytes: usize,
    pub(crate) lane: Lane,
    /// The number of its strand; one without an aggregate has a strand of its own.
    pub(crate) strand: i64,
    /// Whether it has an aggregate.
    pub(crate) bound: bool,
}

/// What a look at the table says of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) row: Row,
    /// Somebody has it.
    pub(crate) locked: bool,
    /// It does not wait, but may hold back those that do.
    pub(crate) dead: bool,
    /// The sinks that have confirmed it, which its lane does not say yet.
    pub(crate) done: Vec<Arc<str>>,
}

/// The names in `sinks_done`; what is no such list says nothing.
pub(crate) fn names(json: &str) -> Vec<Arc<str>> {
    serde_json::from_str::<Vec<String>>(json).unwrap_or_default().into_iter().map(Arc::from).collect()
}

/// A number for something, the same in every claim.
pub(crate) fn number(of: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The number of a strand: that of an aggregate, or of a single row. Two aggregates with one number are only slower.
pub(crate) fn strand(aggregate: Option<u64>, sequence: i64) -> i64 {
    match aggregate {
        Some(number) => (number >> 1).cast_signed(),
        // Those of single rows are below zero.
        None => sequence.saturating_neg(),
    }
}

#[cfg(feature = "sqlite")]
impl Row {
    /// The same for those who lease it.
    pub(crate) fn candidate(&self, suspect: bool) -> Candidate {
        let Self { sequence, available_at, attempts, bytes, .. } = *self;
        Candidate { sequence, available_at, attempts, suspect, bytes }
    }
}
