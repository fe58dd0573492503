//! [`Picked`]: what a look at the table found that a claim takes. For stores that read by sequence.

use postbox_core::store::{ClaimMode, ClaimRequest};

use crate::cursor::Key;
use crate::seen::Candidate;

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
