//! The inbox of a [`MemoryOutbox`](super::MemoryOutbox): what was seen, and by which transaction.

use std::collections::HashMap;

use super::memory::{FAILED, Memory, MemoryError, MemoryTransaction};
use crate::inbox::{InboxDriver, InboxTrouble, InboxTx, Recording};

/// By inbox, consumer and message: the open transaction that has recorded it, none if it was committed.
#[derive(Debug, Default)]
pub(super) struct Memories(HashMap<(String, String, String), Option<u64>>);

/// What became of one message.
enum Found {
    New,
    Known,
    /// Another transaction that is open has it.
    Held,
}

impl Memories {
    fn record(&mut self, recording: &Recording<'_>, message: &str, transaction: u64) -> Found {
        let key = (recording.table.to_string(), recording.consumer.to_owned(), message.to_owned());
        match self.0.get(&key) {
            Some(Some(other)) if *other != transaction => Found::Held,
            Some(_) => Found::Known,
            None => {
                self.0.insert(key, Some(transaction));
                Found::New
            }
        }
    }

    /// Whether this transaction, which is open, has recorded it.
    fn holds(&self, recording: &Recording<'_>, message: &str, transaction: u64) -> bool {
        let key = (recording.table.to_string(), recording.consumer.to_owned(), message.to_owned());
        self.0.get(&key) == Some(&Some(transaction))
    }

    pub(super) fn commit(&mut self, transaction: u64) {
        for held in self.0.values_mut().filter(|held| **held == Some(transaction)) {
            *held = None;
        }
    }

    /// Answers whether there was something to forget.
    pub(super) fn roll_back(&mut self, transaction: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|_, held| *held != Some(transaction));
        self.0.len() < before
    }
}

impl InboxDriver for Memory {
    async fn record(
        tx: &mut MemoryTransaction,
        recording: Recording<'_>,
    ) -> Result<Vec<String>, MemoryError> {
        if tx.failed {
            return Err(FAILED);
        }
        let mut new = Vec::new();
        for message in recording.messages {
            loop {
                let mut changed = std::pin::pin!(tx.table.changed.notified());
                // Before the look: an end that comes between it and the wait is heard.
                changed.as_mut().enable();
                let found = tx.table.lock().inbox.record(&recording, message, tx.number);
                match found {
                    Found::New => new.push((*message).to_owned()),
                    Found::Known => {}
                    Found::Held => {
                        changed.await;
                        continue;
                    }
                }
                break;
            }
        }
        Ok(new)
    }

    async fn is_recorded(tx: &mut MemoryTransaction, recording: Recording<'_>) -> Result<bool, MemoryError> {
        if tx.failed {
            return Err(FAILED);
        }
        let table = tx.table.lock();
        Ok(recording.messages.iter().all(|message| table.inbox.holds(&recording, message, tx.number)))
    }

    fn trouble(_: &MemoryError) -> InboxTrouble {
        InboxTrouble::Aborted
    }
}

#[diagnostic::do_not_recommend]
impl InboxTx<Memory> for &mut MemoryTransaction {
    type Error = MemoryError;

    async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, MemoryError> {
        <Memory as InboxDriver>::record(self, recording).await
    }

    fn trouble(error: &MemoryError) -> InboxTrouble {
        <Memory as InboxDriver>::trouble(error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::inbox::{ConsumerName, Inbox, InboxDriver as _, MessageId, RecordError, Recording, Seen};
    use crate::testing::MemoryOutbox;
    use crate::testing::memory::Memory;

    static STOCK: ConsumerName = ConsumerName::from_static("stock");
    static MAIL: ConsumerName = ConsumerName::from_static("mail");

    fn inbox() -> Inbox {
        Inbox::new("shop_outbox".parse().unwrap())
    }

    #[tokio::test]
    async fn a_message_has_one_effect_for_each_consumer() {
        let (pool, inbox) = (MemoryOutbox::new(), inbox());
        let message = MessageId::new("m").unwrap();
        for expected in [Seen::First, Seen::Before] {
            let mut tx = pool.begin().await.unwrap();
            assert_eq!(inbox.record(&mut tx, &STOCK, &message).await.unwrap(), expected);
            assert_eq!(inbox.record(&mut tx, &MAIL, &message).await.unwrap(), expected);
            assert_eq!(inbox.record(&mut tx, &MAIL, &message).await.unwrap(), Seen::Before);
            tx.commit().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_look_finds_what_its_own_transaction_has_recorded() {
        let (pool, inbox) = (MemoryOutbox::new(), inbox());
        let messages = ["m"];
        let recording = Recording { table: inbox.table(), consumer: STOCK.as_str(), messages: &messages };
        let mut tx = pool.begin().await.unwrap();
        assert!(!Memory::is_recorded(&mut tx, recording).await.unwrap());
        let seen = inbox.record(&mut tx, &STOCK, MessageId::new("m").unwrap()).await.unwrap();
        assert_eq!(seen, Seen::First);
        assert!(Memory::is_recorded(&mut tx, recording).await.unwrap());
        tx.commit().await.unwrap();
        let mut other = pool.begin().await.unwrap();
        assert!(!Memory::is_recorded(&mut other, recording).await.unwrap(), "it is another's");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_second_waits_for_the_end_of_the_first() {
        let (pool, inbox) = (MemoryOutbox::new(), inbox());
        let message = MessageId::new("m").unwrap();
        for (commit, expected) in [(false, Seen::First), (true, Seen::Before)] {
            let mut first = pool.begin().await.unwrap();
            assert_eq!(inbox.record(&mut first, &STOCK, &message).await.unwrap(), Seen::First);
            let second = async {
                let mut tx = pool.begin().await.unwrap();
                inbox.record(&mut tx, &STOCK, &message).await.unwrap()
            };
            let end = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if commit { first.commit().await.unwrap() } else { first.rollback().await.unwrap() }
            };
            let (seen, ()) = tokio::join!(second, end);
            assert_eq!(seen, expected, "after a commit: {commit}");
        }
    }

    #[tokio::test]
    async fn nothing_is_recorded_in_a_transaction_that_has_failed() {
        let (pool, inbox) = (MemoryOutbox::new(), inbox());
        let event =
            || crate::Record::builder("shop.order.placed.v1".parse::<crate::Topic>().unwrap()).json(&1);
        pool.fail_next_write();
        let mut tx = pool.begin().await.unwrap();
        pool.enqueue(&mut tx, event()).await.unwrap_err();
        let error = inbox.record(&mut tx, &STOCK, MessageId::new("m").unwrap()).await.unwrap_err();
        assert!(matches!(error, RecordError::Aborted(_)), "{error}");
        assert!(error.to_string().starts_with("OUTBOX_TX_ABORTED: "), "{error}");
    }
}
