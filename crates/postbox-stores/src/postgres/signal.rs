//! A signal within the process, for relays that no session can listen for: behind a transaction pooler.
//!
//! Transactions that Postbox opened itself give it when they have committed. It says neither which table nor whether events were
//! written, so a relay that looked in vain takes no notice for a moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How many such transactions this process has committed.
static COMMITS: AtomicU64 = AtomicU64::new(0);
static COMMITTED: Notify = Notify::const_new();

/// A relay whose neighbours write all the time looks no more often than this.
const PAUSE: Duration = Duration::from_millis(10);

/// A transaction has committed.
pub(super) fn give() {
    COMMITS.fetch_add(1, Ordering::SeqCst);
    COMMITTED.notify_waiters();
}

/// What a relay has heard.
#[derive(Debug, Default)]
pub(super) struct Heard(AtomicU64);

impl Heard {
    /// Before a look: what commits after this is news.
    pub(super) fn all(&self) {
        self.0.store(COMMITS.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Waits for news, at most so long. Cancel safe.
    pub(super) async fn wait(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        tokio::time::sleep(PAUSE.min(at_most)).await;
        loop {
            // Before the count is read: what comes between the two is not missed.
            let committed = COMMITTED.notified();
            if COMMITS.load(Ordering::SeqCst) != self.0.load(Ordering::SeqCst) {
                return;
            }
            tokio::select! {
                () = committed => {}
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }
}
