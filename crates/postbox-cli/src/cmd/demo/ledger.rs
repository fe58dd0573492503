//! What both sides of the shop remember of each order, apart from the database: a few bits an order, so that hours of
//! orders are no burden.

use uuid::Uuid;

/// The most orders of one demo: eleven hours at the usual rate, and about 600 MB of database. Then it ends by itself.
pub(super) const MOST_ORDERS: u64 = 2_000_000;

/// Which orders, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Orders {
    words: Vec<u64>,
    count: u64,
}

impl Orders {
    /// Adds one; answers whether it is new.
    pub(super) fn add(&mut self, order: u64) -> bool {
        let (word, bit) = place(order);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(new);
        new
    }

    pub(super) fn has(&self, order: u64) -> bool {
        let (word, bit) = place(order);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// How many.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many of these are not among the others.
    pub(super) fn without(&self, others: &Self) -> u64 {
        let other = |at| others.words.get(at).copied().unwrap_or(0);
        self.words.iter().enumerate().map(|(at, word)| u64::from((word & !other(at)).count_ones())).sum()
    }
}

fn place(order: u64) -> (usize, u64) {
    let order = order.min(MOST_ORDERS + 1);
    (usize::try_from(order / 64).unwrap_or(0), 1 << (order % 64))
}

/// What the shop did and what the warehouse got.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Makes the event ids of this demo different from those of every other.
    pub(super) run: Uuid,
    /// Their transaction committed.
    pub(super) committed: Orders,
    /// The answer to their commit was an error, which leaves open whether they are there: the database will tell.
    pub(super) unknown: Orders,
    pub(super) rolled_back: u64,
    /// They failed before their commit.
    pub(super) not_placed: u64,
    /// Came to the warehouse, once or more often.
    pub(super) arrived: Orders,
    /// How often anything came.
    pub(super) arrivals: u64,
    /// Came to the warehouse under an id or number that the shop never gave.
    pub(super) strangers: u64,
    /// Parcels dropped, to be tried again.
    pub(super) retried: u64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { run: Uuid::new_v4(), ..Self::default() }
    }

    /// The id of an order's event: whoever knows the number knows the id, so neither side has to keep it.
    pub(super) fn event_id(&self, order: u64) -> Uuid {
        Uuid::new_v5(&self.run, &order.to_be_bytes())
    }

    /// Notes what came to the warehouse.
    pub(super) fn arrive(&mut self, event: Uuid, order: u64) {
        self.arrivals += 1;
        if order > MOST_ORDERS || event != self.event_id(order) {
            self.strangers += 1;
        } else {
            self.arrived.add(order);
        }
    }

    /// How often something came that had come before.
    pub(super) fn again(&self) -> u64 {
        self.arrivals.saturating_sub(self.arrived.count() + self.strangers)
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, MOST_ORDERS, Orders, Uuid};

    #[test]
    fn orders_are_counted_once_and_compared_by_number() {
        let (mut some, mut others) = (Orders::default(), Orders::default());
        for order in [1, 63, 64, 200, 200] {
            some.add(order);
        }
        for order in [1, 64, 5000] {
            others.add(order);
        }
        assert_eq!((some.count(), some.without(&others), others.without(&some)), (4, 2, 1));
        assert!(some.has(200) && !some.has(199) && !some.has(u64::MAX));
        some.add(u64::MAX);
        assert!(some.words.len() < 32_000, "a number of nowhere takes no memory");
    }

    #[test]
    fn the_warehouse_knows_strangers_and_repetitions() {
        let mut ledger = Ledger::new();
        for order in [1, 2, 2, 2] {
            ledger.arrive(ledger.event_id(order), order);
        }
        ledger.arrive(Uuid::nil(), 3);
        ledger.arrive(ledger.event_id(MOST_ORDERS + 1), MOST_ORDERS + 1);
        assert_eq!((ledger.arrived.count(), ledger.again(), ledger.strangers), (2, 2, 2));
        assert_ne!(ledger.event_id(1), Ledger::new().event_id(1));
    }
}
