//! The two sides of the demo: customers who order, and the warehouse that hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{
    Code, Delivery, DispatchError, Dispatcher, EnqueueError, Outbox, Payload, Record, StoreError,
    StoreErrorKind, TableName, Topic,
};
use postbox_stores::sqlite;
use sqlx::SqlitePool;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::books::Books;
use super::ledger::MOST_ORDERS;

const PLACED: Topic = Topic::from_static("shop.order.placed.v1");

/// How often the customers look whether it is time to order.
const BREATH: Duration = Duration::from_millis(5);

/// What an event says; the warehouse reads it again.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: u64,
    item: String,
    cents: u64,
}

/// Orders that come in at a steady rate.
pub(super) struct Customers {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), StoreError>>,
}

impl Customers {
    pub(super) fn start(pool: SqlitePool, table: TableName, books: Arc<Books>, rate: u32) -> Self {
        let (stop, stopped) = watch::channel(false);
        let outbox = Outbox::new(table);
        let task = tokio::spawn(async move {
            let mut pace = Pace::new(rate, Instant::now());
            let mut order = 0;
            while !*stopped.borrow() && order < MOST_ORDERS {
                if !pace.due(Instant::now()) {
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
                order += 1;
                match place(&pool, &outbox, &books, order).await {
                    Ok(()) => {}
                    // Others were faster for ten seconds: no order, and no event of it.
                    Err(error) if error.code() == Code::DatabaseLocked => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        Self { stop, task }
    }

    /// Waits until no more orders come by themselves: there were as many as a demo takes, or the database failed.
    pub(super) async fn ended(&mut self) -> Result<(), StoreError> {
        let panicked = |error: tokio::task::JoinError| {
            StoreError::new(Code::Panicked, StoreErrorKind::Refused, format!("the shop: {error}"))
        };
        (&mut self.task).await.unwrap_or_else(|error| Err(panicked(error)))
    }

    /// No more orders. Only if they have not ended by themselves.
    pub(super) async fn stop(mut self) -> Result<(), StoreError> {
        self.stop.send_replace(true);
        self.ended().await
    }
}

/// When the next order is due. Who could not keep pace makes up for a second of it, but not for a night in which the
/// machine slept.
struct Pace {
    step: Duration,
    next: Instant,
}

impl Pace {
    fn new(rate: u32, now: Instant) -> Self {
        Self { step: Duration::from_secs(1) / rate.max(1), next: now }
    }

    fn due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let behind = now - self.next;
        self.next = if behind > Duration::from_secs(1) { now } else { self.next } + self.step;
        true
    }
}

/// One order and its event, in one transaction. This is all that a service does.
async fn order(
    pool: &SqlitePool,
    outbox: &Outbox,
    event_id: Uuid,
    placed: &OrderPlaced,
) -> Result<sqlx::Transaction<'static, sqlx::Sqlite>, StoreError> {
    let mut tx = sqlite::begin(pool).await.map_err(sqlite::classify)?;
    sqlx::query("INSERT INTO orders (id, item, cents) VALUES ($1, $2, $3)")
        .bind(placed.order.cast_signed())
        .bind(&placed.item)
        .bind(placed.cents.cast_signed())
        .execute(&mut *tx)
        .await
        .map_err(sqlite::classify)?;
    let event = Record::builder(PLACED).json(placed).aggregate("order", placed.order).event_id(event_id);
    outbox.enqueue(&mut tx, event).await.map_err(|error| match error {
        EnqueueError::Database(error) => sqlite::classify(error),
        other => StoreError::new(Code::DatabaseError, StoreErrorKind::Refused, other),
    })?;
    Ok(tx)
}

/// Lets a customer order, and writes down what the shop knows of it then.
pub(super) async fn place(
    pool: &SqlitePool,
    outbox: &Outbox,
    books: &Books,
    number: u64,
) -> Result<(), StoreError> {
    let item = ["tea", "rice", "soap"][usize::try_from(number % 3).unwrap_or(0)].to_owned();
    let placed = OrderPlaced { order: number, item, cents: 100 + number % 900 };
    let tx =
        order(pool, outbox, books.event_id(number), &placed).await.inspect_err(|_| books.not_placed())?;
    if number.is_multiple_of(10) {
        // The customer thought better of it. Should even that fail, there was no commit either.
        books.rolled_back();
        return tx.rollback().await.map_err(sqlite::classify);
    }
    match tx.commit().await {
        Ok(()) => books.committed(number),
        Err(error) => {
            books.unknown(number);
            return Err(sqlite::classify(error));
        }
    }
    Ok(())
}

/// Where the events go: a handler with the usual weaknesses.
#[derive(Clone)]
pub(super) struct Warehouse {
    books: Arc<Books>,
    closed: Arc<AtomicBool>,
    at_work: Arc<Notify>,
}

impl Warehouse {
    /// What the warehouse takes to answer after it has taken something in: who is killed then hears no answer.
    const ANSWER: Duration = Duration::from_millis(4);

    pub(super) fn new(books: Arc<Books>) -> Self {
        Self { books, closed: Arc::default(), at_work: Arc::default() }
    }

    pub(super) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }

    /// Waits until it has taken something in and not answered yet, but not for long.
    pub(super) async fn at_work(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.at_work.notified()).await;
    }
}

/// Chance by the event's own id: the same event is refused whenever it comes.
fn chance(event: Uuid, one_in: u128) -> bool {
    event.as_u128().is_multiple_of(one_in)
}

impl Dispatcher for Warehouse {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(DispatchError::unavailable("the warehouse is closed"));
        }
        let event = delivery.meta.event_id.0;
        if chance(event, 200) {
            return Err(DispatchError::reject("the warehouse does not have this item"));
        }
        if delivery.meta.attempts == 1 && chance(event, 19) {
            self.books.retried();
            return Err(DispatchError::retry("the warehouse dropped the parcel"));
        }
        let Payload::Json(json) = &delivery.payload else {
            return Err(DispatchError::reject("not an order"));
        };
        let placed = json.decode::<OrderPlaced>().map_err(|_| DispatchError::reject("not an order"))?;
        let lag = time::OffsetDateTime::now_utc() - delivery.meta.created_at;
        self.books.arrived(event, placed.order, lag.unsigned_abs());
        self.at_work.notify_waiters();
        tokio::time::sleep(Self::ANSWER).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, Pace};

    #[test]
    fn the_pace_is_kept_but_a_night_is_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace::new(10, start);
        let mut count = |now| (0..1000).take_while(|_| pace.due(now)).count();
        assert_eq!(count(start), 1);
        assert_eq!(count(start + Duration::from_millis(500)), 5);
        assert_eq!(count(start + Duration::from_hours(8)), 1);
    }
}
