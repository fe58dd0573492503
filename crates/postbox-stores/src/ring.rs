//! [`Ring`]: how claims go from tenant to tenant where tenants are claimed apart. For stores that read by sequence.

use std::collections::HashMap;
use std::hash::Hash;

use crate::seen::Candidate;

/// Where the next claim goes on: at a tenant's id, or at the start.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) from: Vec<u8>,
    /// Whether claims of this round have found anything.
    found: bool,
}

/// What a look found.
pub(crate) struct Looked {
    /// First one of each tenant, then the second, and so on.
    pub(crate) rows: Vec<Candidate>,
    /// Whether there may be more: of other tenants, or of one that had its share.
    pub(crate) more: bool,
}

impl Ring {
    /// Whether the next look begins a round.
    pub(crate) fn is_at_start(&self) -> bool {
        self.from.is_empty()
    }

    /// Takes in how far a look has come that found some rows of each tenant, at most its share, and puts them in turns.
    pub(crate) fn looked<T: Eq + Hash>(
        &mut self,
        next: Vec<u8>,
        mut found: Vec<(T, Candidate)>,
        share: usize,
        limit: usize,
    ) -> Looked {
        found.sort_unstable_by_key(|(_, row)| (row.available_at, row.sequence));
        let (late, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, row)| row.suspect);
        let mut turns: HashMap<T, usize> = HashMap::new();
        let turn = |(tenant, row)| {
            let turn = turns.entry(tenant).or_default();
            *turn += 1;
            (*turn, row)
        };
        let mut rows: Vec<(usize, Candidate)> = found.into_iter().map(turn).collect();
        let full = rows.iter().any(|(turn, _)| *turn >= share);
        let more = self.go_on(next, !rows.is_empty()) || full;
        // Stable: of one turn, the oldest first.
        rows.sort_by_key(|(turn, _)| *turn);
        rows.truncate(limit);
        let late = late.into_iter().map(|(_, row)| row);
        Looked { rows: rows.into_iter().map(|(_, row)| row).chain(late).collect(), more }
    }

    /// The same of a look that found nobody who has anything due.
    pub(crate) fn looked_in_vain(&mut self, next: Vec<u8>) -> Looked {
        Looked { rows: Vec::new(), more: self.go_on(next, false) }
    }

    /// Answers whether there may be more: the rest of the round, or, if the round took several looks and found something, what has
    /// come meanwhile.
    fn go_on(&mut self, next: Vec<u8>, found: bool) -> bool {
        let began_late = !self.is_at_start();
        self.from = next;
        self.found |= found;
        !self.is_at_start() || (std::mem::take(&mut self.found) && began_late)
    }
}
