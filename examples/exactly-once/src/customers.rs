//! Customers, who repeat their calls until they have an answer, and sometimes after it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::shop::{NewOrder, Placed};

/// What all customers together know.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Entries {
    /// Each order that was accepted: the customer's reference, the shop's number, how many pieces.
    pub(crate) accepted: BTreeMap<String, (i64, i64)>,
    pub(crate) calls: u64,
    /// Calls without an answer: refused, broken off, or too slow.
    pub(crate) lost: u64,
    /// Answers that were given before.
    pub(crate) replayed: u64,
    /// Answers to one key that were not the same; there must be none.
    pub(crate) contradictions: u64,
}

struct Answer {
    status: u16,
    replayed: bool,
    body: String,
}

impl Ledger {
    pub(crate) fn entries(&self) -> Entries {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn write(&self, change: impl FnOnce(&mut Entries)) {
        change(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// A customer: orders until this time, and does not go before the last order is answered.
    pub(crate) async fn customer(&self, port: u16, until: Instant) {
        while Instant::now() < until {
            let reference = uuid::Uuid::new_v4().to_string();
            let new = NewOrder { reference: reference.clone(), pieces: fastrand::i64(1..=5) };
            let Ok(body) = serde_json::to_string(&new) else { return };
            let first = self.insist(port, &reference, &body).await;
            self.write(|entries| {
                entries.accepted.insert(reference.clone(), (first, new.pieces));
            });
            // Was that the right button? Once more, to be sure.
            for _ in 0..fastrand::u8(0..=2) {
                let again = self.insist(port, &reference, &body).await;
                self.write(|entries| entries.contradictions += u64::from(again != first));
            }
        }
    }

    /// Calls until the order is accepted; its number.
    async fn insist(&self, port: u16, key: &str, body: &str) -> i64 {
        loop {
            self.write(|entries| entries.calls += 1);
            let answer = timeout(Duration::from_secs(3), call(port, key, body)).await.ok().flatten();
            if let Some(Answer { status: 201, replayed, body }) = &answer
                && let Ok(Placed { order }) = serde_json::from_str(body)
            {
                self.write(|entries| entries.replayed += u64::from(*replayed));
                return order;
            }
            self.write(|entries| entries.lost += u64::from(answer.is_none()));
            sleep(Duration::from_millis(fastrand::u64(20..200))).await;
        }
    }
}

/// One call on a connection of its own; none without a whole answer.
async fn call(port: u16, key: &str, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-type: application/json\r\n\
         idempotency-key: \"{key}\"\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, replayed: head.contains("idempotency-replayed: true"), body: body.to_owned() })
}
