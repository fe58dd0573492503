//! The loop itself, step by step, on a store that has no end of events.

use std::time::Duration;

use crate::relay::Relay;
use crate::store::{Claim, ClaimRequest, Claimed, Lease, Settled, Settlement, Standing, Store, StoreError};
use crate::testing::{FailingDispatcher, delivery};

/// One event for each claim.
#[derive(Clone)]
struct Endless;

impl Store for Endless {
    fn table(&self) -> &'static str {
        "endless_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, _: ClaimRequest) -> Result<Claim, StoreError> {
        let delivery = delivery("shop.order.placed.v1", "1");
        let (row, since) = (delivery.meta.event_id.0, delivery.meta.created_at);
        let lease = Lease { row, attempts: 1, token: "t".into(), since };
        let rows =
            vec![Claimed { lease, delivery, age: Duration::ZERO, strand: None, sinks_done: Vec::new() }];
        Ok(Claim { standing: Standing::Active, rows, ..Claim::default() })
    }
    async fn settle(&self, _: Vec<Settlement>, _: usize) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
    async fn extend(&self, _: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        Ok(Vec::new())
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// Whatever becomes due between two looks at the clock is done at once, and not when something else happens.
#[tokio::test(start_paused = true)]
async fn the_loop_does_not_sleep_over_its_next_claim() {
    let relay = Relay::builder(Endless).dispatcher(FailingDispatcher::times(0)).build().unwrap();
    let mut engine = relay.engine;
    engine.standing = Standing::Active;
    engine.next_claim = tokio::time::Instant::now() + Duration::from_millis(20);
    engine.next_beat = engine.next_claim;
    let looked = engine.start_work();
    assert!(engine.claiming.is_none(), "not yet");
    tokio::time::advance(Duration::from_millis(30)).await;
    let turn = tokio::time::timeout(Duration::from_secs(5), engine.turn(looked)).await;
    assert!(turn.is_ok(), "it sleeps until leases are to be renewed");
    engine.start_work();
    assert!(engine.claiming.is_some());
}
