//! [`Lines`]: which rows of a table in memory may be claimed, where the events of an aggregate go one after another.

use std::collections::{HashMap, HashSet};

use super::memory::{Content, Row, State};
use crate::event::{AggregateKey, TenantId};
use crate::store::{OnDead, Order};

/// Goes along the rows of a table, and remembers behind which nobody may be claimed.
#[derive(Debug)]
pub(super) struct Lines {
    order: Order,
    numbers: HashMap<(TenantId, AggregateKey), i64>,
    closed: HashSet<i64>,
}

impl Lines {
    pub(super) fn new(order: Order) -> Self {
        Self { order, numbers: HashMap::new(), closed: HashSet::new() }
    }

    /// The rows as a claim has to go along them.
    pub(super) fn sort(&self, table: &Content) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..table.rows.len()).collect();
        let sequence = |index: &usize| table.rows[*index].sequence;
        match self.order {
            Order::None => rows.sort_by_key(|index| (table.rows[*index].available_at, sequence(index))),
            Order::Aggregate(_) => rows.sort_by_key(sequence),
        }
        rows
    }

    /// The row's strand, if it has to keep to one: the sequence of the first row of its aggregate that there ever was, which
    /// is always the same.
    pub(super) fn strand(&mut self, row: &Row) -> Option<i64> {
        if self.order == Order::None {
            return None;
        }
        let aggregate = row.record.aggregate.clone()?;
        Some(*self.numbers.entry((row.record.tenant_id, aggregate)).or_insert(row.sequence))
    }

    /// Whether nobody of this strand may be claimed any more; a row that is none to be claimed closes it.
    pub(super) fn is_closed(&mut self, strand: Option<i64>, state: &State) -> bool {
        let Some(strand) = strand else { return false };
        if matches!(state, State::Dead(_)) && self.order == Order::Aggregate(OnDead::Block) {
            self.closed.insert(strand);
        }
        self.closed.contains(&strand)
    }

    /// What is behind a row that waits has to wait, too.
    pub(super) fn close(&mut self, strand: Option<i64>, state: &State) {
        if *state == State::Waits {
            self.closed.extend(strand);
        }
    }
}
