//! The books: what customers were told, what the shop has, what the stock has.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream;
use sqlx::SqlitePool;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::customers::Entries;
use crate::director::Kills;
use crate::settings::Settings;
use crate::stock::{self, SHELF};

/// How long what is under way may take to arrive, after the last kill.
const PATIENCE: Duration = Duration::from_mins(1);

struct Books {
    /// The shop's orders: number to reference and pieces.
    orders: BTreeMap<i64, (String, i64)>,
    /// The stock's movements: order to pieces, as often as there are.
    movements: Vec<(i64, i64)>,
    shelf: i64,
}

impl Books {
    async fn read(shop: &SqlitePool, stock: &SqlitePool) -> Result<Self> {
        let orders: Vec<(i64, String, i64)> =
            sqlx::query_as("SELECT id, reference, pieces FROM orders").fetch_all(shop).await?;
        let orders = orders.into_iter().map(|(id, reference, pieces)| (id, (reference, pieces))).collect();
        let movements = sqlx::query_as("SELECT order_id, pieces FROM movements").fetch_all(stock).await?;
        let shelf = sqlx::query_scalar("SELECT pieces FROM stock").fetch_one(stock).await?;
        Ok(Self { orders, movements, shelf })
    }

    /// What does not balance, each with how much.
    fn problems(&self, entries: &Entries) -> Vec<(&'static str, usize)> {
        let mut moved: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for (order, pieces) in &self.movements {
            moved.entry(*order).or_default().push(*pieces);
        }
        let mut references: BTreeMap<&str, usize> = BTreeMap::new();
        for (reference, _) in self.orders.values() {
            *references.entry(reference).or_default() += 1;
        }
        let accepted = entries.accepted.iter();
        let not_there = accepted.filter(|(reference, (order, pieces))| {
            self.orders.get(order).is_none_or(|(known, ordered)| known != *reference || ordered != pieces)
        });
        let orders = self.orders.iter();
        let without = orders.clone().filter(|(order, _)| !moved.contains_key(order));
        let wrong = orders.filter(|(order, (_, pieces))| {
            moved.get(order).is_some_and(|found| found.iter().any(|found| found != pieces))
        });
        let taken: i64 = self.movements.iter().map(|(_, pieces)| pieces).sum();
        vec![
            ("accepted orders that the shop does not have", not_there.count()),
            ("orders that were placed twice", references.values().filter(|count| **count > 1).count()),
            (
                "answers that contradict an earlier one",
                usize::try_from(entries.contradictions).unwrap_or(usize::MAX),
            ),
            ("orders without a movement of stock", without.count()),
            ("orders with more than one movement", moved.values().filter(|found| found.len() > 1).count()),
            ("movements of another number of pieces", wrong.count()),
            (
                "movements without an order",
                moved.keys().filter(|order| !self.orders.contains_key(order)).count(),
            ),
            ("pieces that left the shelf without a movement", usize::from(SHELF - self.shelf != taken)),
        ]
    }
}

/// Waits until everything that is under way has arrived, prints the books, and says whether they balance.
pub(crate) async fn audit(settings: &Settings, entries: &Entries, kills: &Kills) -> Result<bool> {
    let (shop, stock) = (settings.shop().await?, settings.stock().await?);
    let until = Instant::now() + PATIENCE;
    let books = loop {
        let books = Books::read(&shop, &stock).await?;
        if books.movements.len() >= books.orders.len() || Instant::now() > until {
            break books;
        }
        sleep(Duration::from_millis(100)).await;
    };
    // What may still be under way could only be a repetition: wait until the broker has nothing more to deliver.
    let delivered = settled(settings, until).await?;
    let books = Books { movements: Books::read(&shop, &stock).await?.movements, ..books };
    let shelf = Books::read(&shop, &stock).await?.shelf;
    let books = Books { shelf, ..books };
    let killed: Vec<String> = kills.iter().map(|(part, times)| format!("{part} {times}")).collect();
    let row = |what: &str, number: &dyn std::fmt::Display| println!("  {what:<44} {number:>8}");
    println!("\n  killed: {}", if killed.is_empty() { "nothing".to_owned() } else { killed.join(", ") });
    row("calls by customers", &entries.calls);
    row("… without an answer", &entries.lost);
    row("… answered by what was stored for their key", &entries.replayed);
    row("orders accepted", &entries.accepted.len());
    row("orders in the shop", &books.orders.len());
    row("messages in the stream", &delivered.messages);
    row("deliveries by the broker", &delivered.deliveries);
    row("movements of stock", &books.movements.len());
    row("pieces ordered", &books.orders.values().map(|(_, pieces)| pieces).sum::<i64>());
    row("pieces gone from the shelf", &(SHELF - books.shelf));
    let problems: Vec<_> = books.problems(entries).into_iter().filter(|(_, count)| *count > 0).collect();
    for (what, count) in &problems {
        row(&format!("WRONG: {what}"), count);
    }
    let balance = problems.is_empty() && delivered.left == 0 && !books.orders.is_empty();
    println!("\n{}", if balance { "the books balance" } else { "THE BOOKS DO NOT BALANCE" });
    Ok(balance)
}

/// What the broker says.
struct Delivered {
    messages: u64,
    deliveries: u64,
    left: u64,
}

async fn settled(settings: &Settings, until: Instant) -> Result<Delivered> {
    let jetstream = jetstream::new(async_nats::connect(settings.nats()?).await?);
    let mut consumer = stock::consumer(settings, &jetstream).await?;
    loop {
        let info = consumer.info().await?;
        let left = info.num_pending + u64::try_from(info.num_ack_pending).unwrap_or_default();
        let deliveries = info.delivered.consumer_sequence;
        if left == 0 || Instant::now() > until {
            let mut stream = jetstream.get_stream(&settings.name).await?;
            let messages = stream.info().await?.state.messages;
            return Ok(Delivered { messages, deliveries, left });
        }
        sleep(Duration::from_millis(100)).await;
    }
}
