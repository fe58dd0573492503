//! Trouble on purpose: a relay that is killed and comes back, a warehouse that closes and opens, by script or by hand;
//! and the news of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::store::Standing;
use postbox_core::{Backoff, Relay, RelayError, RelayHandle, Settings, TableName};
use postbox_stores::sqlite::SqliteStore;
use sqlx::sqlite::SqliteConnectOptions;

use super::books::Books;
use super::shop::Warehouse;
use crate::http::Watched;
use crate::render::Tint;

/// How long a killed relay is missed: long enough to see the events pile up, and drain.
const MISSED: Duration = Duration::from_secs(2);
/// How long the script keeps the warehouse closed.
const OUTAGE: Duration = Duration::from_secs(2);
/// Short leases: what a killed relay leaves behind shall be seen to come back.
pub(super) const LOCK_TTL: Duration = Duration::from_secs(3);
/// The news that are kept.
const KEPT: usize = 50;

/// Something that happened.
#[derive(Debug, Clone)]
pub(super) struct News {
    pub(super) at: Duration,
    pub(super) tint: Tint,
    pub(super) text: String,
}

/// What the relay is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RelayState {
    Starting,
    Working { epoch: i64 },
    Killed { back_in: Duration },
    Failing { error: String },
}

/// What the script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Kill,
    Close,
}

/// The script comes again after so many seconds; ten of them show everything.
const ROUND: u64 = 20;

/// What the script does after one second up to another, each thing once, however much time passed between them.
pub(super) fn script(after: u64, up_to: u64) -> impl Iterator<Item = Trouble> {
    let seconds = (after + 1).max(up_to.saturating_sub(ROUND - 1))..=up_to;
    seconds.filter_map(|second| match second % ROUND {
        3 => Some(Trouble::Kill),
        6 => Some(Trouble::Close),
        _ => None,
    })
}

enum Running {
    Alive(RelayHandle),
    Killed { back_at: Instant },
}

struct Closed {
    since: Instant,
    /// When it opens by itself.
    until: Option<Instant>,
}

/// The relay and its warehouse.
pub(super) struct Stage {
    options: SqliteConnectOptions,
    table: TableName,
    books: Arc<Books>,
    warehouse: Warehouse,
    relay: Running,
    /// The relay, whichever it is just now, for the dashboard.
    watched: Arc<Watched>,
    closed: Option<Closed>,
    /// The script wants the warehouse closed.
    close_due: bool,
    epoch: i64,
    /// The epoch of a relay that was killed and that nobody has followed yet.
    orphaned: Option<i64>,
    news: VecDeque<News>,
    unread: usize,
    past: Past,
}

/// How much trouble there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) kills: u64,
    pub(super) outages: u64,
}

impl Stage {
    pub(super) fn open(
        options: SqliteConnectOptions,
        table: TableName,
        books: Arc<Books>,
    ) -> Result<Self, RelayError> {
        let warehouse = Warehouse::new(Arc::clone(&books));
        let relay = start(&options, &table, &warehouse)?;
        let watched = Arc::new(Watched::new(relay.health().clone()));
        Ok(Self {
            options,
            table,
            books,
            warehouse,
            relay: Running::Alive(relay),
            watched,
            closed: None,
            close_due: false,
            epoch: 0,
            orphaned: None,
            news: VecDeque::new(),
            unread: 0,
            past: Past::default(),
        })
    }

    /// Kills the relay as a crash would, with something in its hands if there is anything.
    pub(super) async fn kill(&mut self) {
        if matches!(self.relay, Running::Killed { .. }) {
            return;
        }
        self.warehouse.at_work(Duration::from_millis(300)).await;
        let killed = Running::Killed { back_at: Instant::now() + MISSED };
        if let Running::Alive(relay) = std::mem::replace(&mut self.relay, killed) {
            relay.kill();
            self.past.kills += 1;
            self.orphaned = Some(self.epoch).filter(|epoch| *epoch != 0);
            self.tell(Tint::Bad, "the relay was killed in the middle of its work".to_owned());
        }
    }

    /// Closes the warehouse for a while, as soon as a relay is there: each trouble is to be seen by itself.
    pub(super) fn close_in_turn(&mut self) {
        self.close_due = true;
    }

    /// Closes the warehouse: until it is opened, or only for a while, as the script does.
    pub(super) fn close(&mut self, until: Option<Instant>) {
        if self.closed.is_none() {
            self.closed = Some(Closed { since: Instant::now(), until });
            self.warehouse.close(true);
            self.past.outages += 1;
            self.tell(Tint::Bad, "the warehouse is closed: its events wait and spend no attempt".to_owned());
        }
    }

    /// Opens the warehouse; answers whether it was closed.
    pub(super) fn reopen(&mut self) -> bool {
        let was_closed = self.closed.take().is_some();
        if was_closed {
            self.warehouse.close(false);
            self.tell(Tint::Good, "the warehouse is open again".to_owned());
        }
        was_closed
    }

    /// Does what is due: a killed relay comes back, a closed warehouse opens.
    pub(super) fn go_on(&mut self) -> Result<(), RelayError> {
        let now = Instant::now();
        if matches!(&self.relay, Running::Killed { back_at } if now >= *back_at) {
            let relay = start(&self.options, &self.table, &self.warehouse)?;
            self.watched.replace(relay.health().clone());
            self.relay = Running::Alive(relay);
        }
        if self.closed.as_ref().and_then(|closed| closed.until).is_some_and(|until| now >= until) {
            self.reopen();
        }
        let epoch = self.books.table().epoch;
        if epoch != self.epoch && self.epoch != 0 {
            self.tell(Tint::Good, format!("another relay has taken over: epoch {epoch}"));
        }
        self.epoch = epoch;
        self.orphaned = self.orphaned.filter(|orphaned| *orphaned == epoch);
        if self.close_due && self.orphaned.is_none() {
            self.close_due = false;
            self.close(Some(now + OUTAGE));
        }
        Ok(())
    }

    /// Ends all trouble, so that everything can be delivered.
    pub(super) fn make_up(&mut self) -> Result<(), RelayError> {
        if let Running::Killed { back_at } = &mut self.relay {
            *back_at = Instant::now();
        }
        self.close_due = false;
        self.reopen();
        self.go_on()
    }

    pub(super) fn past(&self) -> Past {
        self.past
    }

    /// Lets the relay finish what it has in its hands.
    pub(super) async fn shutdown(self) -> Result<(), RelayError> {
        match self.relay {
            Running::Alive(relay) => relay.shutdown().await,
            Running::Killed { .. } => Ok(()),
        }
    }

    pub(super) fn relay(&self) -> RelayState {
        match &self.relay {
            Running::Killed { back_at } => {
                RelayState::Killed { back_in: back_at.saturating_duration_since(Instant::now()) }
            }
            Running::Alive(relay) => {
                let health = relay.health().now();
                match (health.error, health.standing) {
                    (Some(error), _) => RelayState::Failing { error },
                    (None, Standing::Active) => RelayState::Working { epoch: self.epoch },
                    (None, _) => RelayState::Starting,
                }
            }
        }
    }

    /// For who looks at the relay from outside.
    pub(super) fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    /// Since when the warehouse is closed.
    pub(super) fn closed(&self) -> Option<Duration> {
        self.closed.as_ref().map(|closed| closed.since.elapsed())
    }

    pub(super) fn tell(&mut self, tint: Tint, text: String) {
        if self.news.len() == KEPT {
            self.news.pop_front();
        }
        self.news.push_back(News { at: self.books.elapsed(), tint, text });
        self.unread = (self.unread + 1).min(KEPT);
    }

    pub(super) fn news(&self) -> Vec<News> {
        self.news.iter().cloned().collect()
    }

    /// What nobody has been told yet.
    pub(super) fn unread(&mut self) -> Vec<News> {
        let old = self.news.len() - std::mem::take(&mut self.unread);
        self.news.range(old..).cloned().collect()
    }
}

/// A relay as a service would start it, but with short leases.
fn start(
    options: &SqliteConnectOptions,
    table: &TableName,
    warehouse: &Warehouse,
) -> Result<RelayHandle, RelayError> {
    let store = SqliteStore::builder(options.clone(), table.clone()).name("demo").build();
    let settings = Settings {
        poll_interval: Duration::from_millis(100),
        lock_ttl: LOCK_TTL,
        dispatch_timeout: Duration::from_secs(2),
        backoff: Backoff::exponential(Duration::from_millis(200), Duration::from_secs(2)),
        circuit: Backoff::fixed(Duration::from_millis(300)),
        ..Settings::default()
    };
    Ok(Relay::builder(store).dispatcher(warehouse.clone()).settings(settings).build()?.spawn())
}

#[cfg(test)]
mod tests {
    use super::{Trouble, script};

    #[test]
    fn ten_seconds_show_everything_and_end_in_calm() {
        let all = |after, up_to| script(after, up_to).collect::<Vec<_>>();
        assert_eq!(all(0, 10), [Trouble::Kill, Trouble::Close]);
        assert_eq!((all(2, 3), all(3, 3), all(3, 5)), (vec![Trouble::Kill], vec![], vec![]));
        assert_eq!(all(8, 22), []);
        assert_eq!(all(22, 23), [Trouble::Kill]);
        // The machine slept for an hour.
        assert_eq!(all(30, 3_630).len(), 2);
    }
}
