//! What is done about dead events, beside the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::active;
use crate::letter::{Letter, LetterRequest, LetterVerdict, Requirements};
use crate::relay::Relay;
use crate::store::{Claim, ClaimRequest, Claimed, Lease, Renewed, Settled, Settlement, Store, StoreError};
use crate::testing::FailingDispatcher;
use crate::until::until;

/// No events; panics at the first look at dead ones, and counts them.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicUsize>);

impl Store for Panics {
    fn table(&self) -> &'static str {
        "panicking_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn require(&self, _: Requirements) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, _: ClaimRequest) -> Result<Claim, StoreError> {
        Ok(active(0))
    }
    async fn settle(&self, _: &[Settlement]) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
    async fn extend(&self, _: Vec<Lease>) -> Result<Renewed, StoreError> {
        Ok(Renewed::default())
    }
    async fn letters(&self, _: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "the first time, on purpose");
        Ok(Vec::new())
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// Nobody would hear of it otherwise: the relay delivers what lives, and what is dead would stay where it is.
#[tokio::test(start_paused = true)]
async fn dead_events_are_looked_after_again_after_a_panic() {
    let (store, sink) = (Panics::default(), FailingDispatcher::times(0));
    let relay = Relay::builder(store.clone()).dispatcher(sink.clone()).dead_letters("dead", sink);
    let relay = relay.build().unwrap().spawn();
    until("a second look", || store.0.load(Ordering::SeqCst) > 1).await;
    relay.shutdown().await.unwrap();
}

/// One dead event; somebody has locked its row when it is first settled.
#[derive(Clone, Default)]
struct Locks(Arc<AtomicUsize>);

impl Store for Locks {
    fn table(&self) -> &'static str {
        "locked_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn require(&self, _: Requirements) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, _: ClaimRequest) -> Result<Claim, StoreError> {
        Ok(active(0))
    }
    async fn settle(&self, _: &[Settlement]) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
    async fn extend(&self, _: Vec<Lease>) -> Result<Renewed, StoreError> {
        Ok(Renewed::default())
    }
    async fn letters(&self, _: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        let first = self.0.load(Ordering::SeqCst) == 0;
        let rows = active(usize::from(first)).rows.into_iter();
        let letter = |row: Claimed| Letter {
            dead_at: row.delivery.meta.created_at,
            lease: row.lease,
            delivery: Some(*row.delivery),
            dead_for: Duration::ZERO,
            last_error: None,
        };
        Ok(rows.map(letter).collect())
    }
    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Settled, StoreError> {
        let rows = letters.iter().filter(|(_, verdict)| *verdict == LetterVerdict::Sent);
        let rows: Vec<_> = rows.map(|(lease, _)| lease.row).collect();
        assert_eq!(rows.len(), 1);
        let first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(Settled { busy: if first { rows } else { Vec::new() }, ..Settled::default() })
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// It has arrived: to let its lease run out would be to send it once more.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_row_was_locked_is_settled_with_the_next() {
    let (store, sink) = (Locks::default(), FailingDispatcher::times(0));
    let relay = Relay::builder(store.clone()).dispatcher(sink.clone()).dead_letters("dead", sink);
    let mut relay = relay.build().unwrap();
    for (sent, settles) in [(0, 1), (1, 2), (0, 2)] {
        assert_eq!(relay.run_once().await.unwrap().dead_lettered, sent);
        assert_eq!(store.0.load(Ordering::SeqCst), settles);
    }
}
