//! The books of the demo while it runs: both sides write in them, the view reads them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ledger::Ledger;
use super::pulse::{Histogram, Minute};

/// Shared by the customers, the warehouse and whoever looks at the table.
pub(super) struct Books {
    started: Instant,
    pages: Mutex<Pages>,
}

struct Pages {
    ledger: Ledger,
    lags: Histogram,
    minute: Minute,
    table: Look,
}

/// What the table said when it was last looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// When the look began: what was written later is not in it.
    pub(super) at: Instant,
    /// Neither published nor dead.
    pub(super) open: u64,
    pub(super) dead: u64,
    /// How often the active relay has changed.
    pub(super) epoch: i64,
}

/// How things stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) written: u64,
    pub(super) rolled_back: u64,
    pub(super) delivered: u64,
    pub(super) again: u64,
    pub(super) retried: u64,
    pub(super) dead: u64,
    /// Written, and neither delivered nor dead.
    pub(super) waiting: u64,
    /// Of what was delivered lately, half and 99 in 100.
    pub(super) lag: Option<(Duration, Duration)>,
    /// Written, delivered and waiting in each second of the last minute, the newest last.
    pub(super) minute: Vec<[u64; 3]>,
}

impl Books {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let table = Look { at: started, open: 0, dead: 0, epoch: 0 };
        let (lags, minute) = (Histogram::default(), Minute::default());
        Self { started, pages: Mutex::new(Pages { ledger: Ledger::new(), lags, minute, table }) }
    }

    /// Since when the shop is open.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The id that an order's event has to have.
    pub(super) fn event_id(&self, order: u64) -> Uuid {
        self.pages().ledger.event_id(order)
    }

    pub(super) fn committed(&self, order: u64) {
        let second = self.elapsed().as_secs();
        let mut pages = self.pages();
        pages.ledger.committed.add(order);
        pages.minute.at(second).written += 1;
    }

    pub(super) fn rolled_back(&self) {
        self.pages().ledger.rolled_back += 1;
    }

    pub(super) fn unknown(&self, order: u64) {
        self.pages().ledger.unknown.add(order);
    }

    pub(super) fn not_placed(&self) {
        self.pages().ledger.not_placed += 1;
    }

    pub(super) fn retried(&self) {
        self.pages().ledger.retried += 1;
    }

    pub(super) fn arrived(&self, event: Uuid, order: u64, lag: Duration) {
        let second = self.elapsed().as_secs();
        let mut pages = self.pages();
        pages.ledger.arrive(event, order);
        pages.lags.add(lag);
        pages.minute.at(second).delivered(lag);
    }

    /// Notes what the table says.
    pub(super) fn looked(&self, look: Look) {
        let second = self.elapsed().as_secs();
        let mut pages = self.pages();
        pages.table = look;
        let waiting = pages.waiting();
        pages.minute.at(second).waiting = waiting;
    }

    /// What the table said last.
    pub(super) fn table(&self) -> Look {
        self.pages().table
    }

    /// How things stand.
    pub(super) fn figures(&self) -> Figures {
        let second = self.elapsed().as_secs();
        let mut pages = self.pages();
        // A second in which nothing happened is one as well.
        pages.minute.at(second);
        let recent = pages.minute.lags();
        let ledger = &pages.ledger;
        Figures {
            written: ledger.committed.count(),
            rolled_back: ledger.rolled_back,
            delivered: ledger.arrived.count(),
            again: ledger.again(),
            retried: ledger.retried,
            dead: pages.table.dead,
            waiting: pages.waiting(),
            lag: recent.percentile(50).zip(recent.percentile(99)),
            minute: pages.minute.over().map(|s| [s.written, s.delivered, s.waiting]).collect(),
        }
    }

    /// Gives away what was written down, for the account: nobody may write any more.
    pub(super) fn close(&self) -> (Ledger, Histogram) {
        let mut pages = self.pages();
        (std::mem::take(&mut pages.ledger), std::mem::take(&mut pages.lags))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// As the books see it, so that the figures of one moment add up.
    fn waiting(&self) -> u64 {
        let ledger = &self.ledger;
        ledger.committed.count().saturating_sub(ledger.arrived.count() + self.table.dead)
    }
}

#[cfg(test)]
mod tests {
    use super::{Books, Duration, Instant, Look};

    #[test]
    fn the_figures_of_a_moment_add_up() {
        let books = Books::new();
        for order in 1..=10 {
            books.committed(order);
        }
        books.rolled_back();
        for order in [1, 2, 3, 3] {
            books.arrived(books.event_id(order), order, Duration::from_millis(8));
        }
        books.looked(Look { at: Instant::now(), open: 5, dead: 2, epoch: 1 });
        let figures = books.figures();
        assert_eq!((figures.written, figures.rolled_back, figures.delivered), (10, 1, 3));
        assert_eq!((figures.dead, figures.waiting, figures.again), (2, 5, 1));
        let (p50, p99) = figures.lag.unwrap();
        assert_eq!((p50.as_millis(), p99.as_millis()), (8, 8));
    }
}
