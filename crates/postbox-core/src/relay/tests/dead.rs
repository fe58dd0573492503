//! What is done about dead events, beside the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::active;
use crate::dispatcher::{Delivery, DispatchError, Dispatcher};
use crate::letter::{Letter, LetterRequest, LetterVerdict, Requirements};
use crate::relay::Relay;
use crate::store::{
    Claim, ClaimRequest, Claimed, Lease, Renewed, Settled, Settlement, Standing, Store, StoreError,
};
use crate::testing::FailingDispatcher;
use crate::until::until;

/// No events, and what is dead is in the hands of a test. Counts its looks at dead events, and their settles.
#[derive(Clone, Default)]
struct Dead {
    /// The first look panics; then nothing is dead. Else one event is dead, and somebody has locked its row when it is first settled.
    panics: bool,
    /// And so many others are, whose rows are free.
    others: usize,
    /// The table is lost while the first of them is settled.
    loses: bool,
    looks: Arc<AtomicUsize>,
    settles: Arc<AtomicUsize>,
}

impl Dead {
    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    fn settles(&self) -> usize {
        self.settles.load(Ordering::SeqCst)
    }

    fn relay(&self) -> Relay<Self> {
        let sink = FailingDispatcher::times(0);
        Relay::builder(self.clone()).dispatcher(sink.clone()).dead_letters("dead", sink).build().unwrap()
    }
}

impl Store for Dead {
    fn table(&self) -> &'static str {
        "dead_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn require(&self, _: Requirements) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, _: ClaimRequest) -> Result<Claim, StoreError> {
        let lost = self.loses && self.settles() > 0;
        let standing = if lost { Standing::Standby } else { Standing::Active };
        Ok(Claim { standing, ..active(0) })
    }
    async fn settle(&self, _: &[Settlement]) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
    async fn extend(&self, _: Vec<Lease>) -> Result<Renewed, StoreError> {
        Ok(Renewed::default())
    }
    async fn letters(&self, _: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        let first = self.looks.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(!(first && self.panics), "the first time, on purpose");
        let rows = active(if first { 1 + self.others } else { 0 }).rows.into_iter();
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
        let first = self.settles.fetch_add(1, Ordering::SeqCst) == 0;
        if first && self.loses {
            // The loop hears of it meanwhile.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        Ok(Settled { busy: if first { rows } else { Vec::new() }, ..Settled::default() })
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// Nobody would hear of it otherwise: the relay delivers what lives, and what is dead would stay where it is.
#[tokio::test(start_paused = true)]
async fn dead_events_are_looked_after_again_after_a_panic() {
    let store = Dead { panics: true, ..Dead::default() };
    let relay = store.relay().spawn();
    until("a second look", || store.looks() > 1).await;
    relay.shutdown().await.unwrap();
}

/// It has arrived: to let its lease run out would be to send it once more.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_row_was_locked_is_settled_with_the_next() {
    let store = Dead::default();
    let mut relay = store.relay();
    for (sent, settles) in [(0, 1), (1, 2), (0, 2)] {
        assert_eq!(relay.run_once().await.unwrap().dead_lettered, sent);
        assert_eq!(store.settles(), settles);
    }
}

/// Also when there is no next one: another relay would send it again.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_row_was_locked_is_settled_when_the_relay_stops() {
    let store = Dead::default();
    let mut by_hand = store.relay();
    assert_eq!(by_hand.run_once().await.unwrap().dead_lettered, 0);
    by_hand.close().await;
    assert_eq!(store.settles(), 2);

    let store = Dead::default();
    let relay = store.relay().spawn();
    until("a letter that is sent", || store.settles() == 1).await;
    relay.shutdown().await.unwrap();
    assert_eq!(store.settles(), 2);
}

/// Whoever has the table now would send it again, when its lease has run out.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_row_was_locked_is_settled_though_the_table_is_lost() {
    let store = Dead { loses: true, ..Dead::default() };
    let relay = store.relay().spawn();
    until("it to be settled once more", || store.settles() == 2).await;
    relay.shutdown().await.unwrap();
}

/// The first is sent at once, and there is no end of the others.
#[derive(Clone, Default)]
struct OnlyTheFirst(Arc<AtomicUsize>);

impl Dispatcher for OnlyTheFirst {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        if self.0.fetch_add(1, Ordering::SeqCst) == 0 { Ok(()) } else { std::future::pending().await }
    }
}

/// What has arrived is written down when the time of the others is over: the next relay would send it again.
#[tokio::test(start_paused = true)]
async fn a_letter_that_arrived_is_settled_though_another_is_cut_off_by_a_stop() {
    let (store, sink) = (Dead { others: 1, ..Dead::default() }, OnlyTheFirst::default());
    let relay = Relay::builder(store.clone()).dispatcher(FailingDispatcher::times(0));
    let relay = relay.dead_letters("dead", sink.clone()).build().unwrap().spawn();
    until("letters that are sent", || sink.0.load(Ordering::SeqCst) == 2).await;
    relay.shutdown().await.unwrap();
    assert_eq!(store.settles(), 2, "once, and once more since its row was locked");
}
