//! What is done about dead events, beside the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::active;
use crate::letter::{Letter, LetterRequest, Requirements};
use crate::relay::Relay;
use crate::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store, StoreError};
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
    async fn extend(&self, _: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        Ok(Vec::new())
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
