//! [`Shares`]: what tenants have of a lane that they share. None may have so much of it that nothing is left for the others.

use super::lease::Load;
use crate::event::TenantId;
use crate::hash::RowMap;

/// A tenant may have as much as this times what is left: alone three quarters of the whole, a second one three quarters of the
/// rest, and so on. However many there are that never end, the next one finds something.
const TIMES: usize = 3;

/// Whether somebody who has so much gets no more while only so much is left. The last is for somebody who has nothing.
fn crowds(has: usize, left: usize) -> bool {
    has > 0 && (left <= 1 || has >= TIMES.saturating_mul(left))
}

/// What one tenant has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Share {
    rows: usize,
    bytes: usize,
    /// Dispatches that run, of its events alone.
    running: usize,
}

/// What each tenant has that has anything.
#[derive(Debug, Default)]
pub(super) struct Shares(RowMap<TenantId, Share>);

impl Shares {
    pub(super) fn take_on(&mut self, load: &Load) {
        self.change(load.tenant, |share| {
            share.rows += 1;
            share.bytes += load.bytes;
        });
    }

    pub(super) fn let_off(&mut self, load: &Load) {
        self.change(load.tenant, |share| {
            share.rows -= 1;
            share.bytes -= load.bytes;
        });
    }

    pub(super) fn started(&mut self, tenant: TenantId) {
        self.change(tenant, |share| share.running += 1);
    }

    pub(super) fn over(&mut self, tenant: TenantId) {
        self.change(tenant, |share| share.running -= 1);
    }

    /// Whether one more of its events may be dispatched while so many slots are free.
    pub(super) fn may_start(&self, tenant: TenantId, free: usize) -> bool {
        !self.0.get(&tenant).is_some_and(|share| crowds(share.running, free))
    }

    /// Whether it gets no more rows while there is room for so many, with so many bytes.
    pub(super) fn crowds(&self, tenant: TenantId, rows: usize, bytes: usize) -> bool {
        self.0.get(&tenant).is_some_and(|share| crowds(share.rows, rows) || crowds(share.bytes, bytes))
    }

    /// Those that have anything.
    pub(super) fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.0.keys().copied()
    }

    fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut Share)) {
        let share = self.0.entry(tenant).or_default();
        change(share);
        if *share == Share::default() {
            self.0.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tenant(number: u128) -> TenantId {
        TenantId(Uuid::from_u128(number))
    }

    /// How many slots each of these tenants gets, one after another, if none of their dispatches ends.
    fn slots(all: usize, tenants: u128) -> Vec<usize> {
        let (mut shares, mut free) = (Shares::default(), all);
        let mut got = Vec::new();
        for number in 0..tenants {
            let mut own = 0;
            while free > 0 && shares.may_start(tenant(number), free) {
                shares.started(tenant(number));
                (free, own) = (free - 1, own + 1);
            }
            got.push(own);
        }
        got
    }

    #[test]
    fn something_is_left_for_the_next_one() {
        assert_eq!(slots(16, 3), [12, 3, 1]);
        assert_eq!(slots(64, 4), [48, 12, 3, 1]);
        assert_eq!(slots(2, 2), [1, 1]);
        assert_eq!(slots(3, 2), [2, 1]);
        assert_eq!(slots(1, 1), [1], "there is nothing to share");
        assert!(!crowds(7, usize::MAX), "and enough where there is no limit");
    }

    #[test]
    fn who_has_too_many_rows_or_bytes_gets_no_more() {
        let mut shares = Shares::default();
        let load = |number, bytes| Load { lane: None, bytes, tenant: tenant(number) };
        (0..6).for_each(|_| shares.take_on(&load(1, 10)));
        shares.take_on(&load(2, 90));
        let crowding = |shares: &Shares, rows, bytes| {
            let mut all: Vec<_> = shares.tenants().filter(|one| shares.crowds(*one, rows, bytes)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(crowding(&shares, 100, 1000), []);
        assert_eq!(crowding(&shares, 2, 1000), [tenant(1)]);
        assert_eq!(crowding(&shares, 100, 30), [tenant(2)]);
        assert_eq!(crowding(&shares, 1, 1000), [tenant(1), tenant(2)]);
        (0..6).for_each(|_| shares.let_off(&load(1, 10)));
        assert_eq!(crowding(&shares, 1, 1000), [tenant(2)]);
        shares.let_off(&load(2, 90));
        assert!(shares.0.is_empty(), "who has nothing is forgotten");
    }
}
