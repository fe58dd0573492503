//! A database with an inbox, and a handler whose effects can be counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox_consumers::{Consumer, Handler, Message};
use postbox_core::testing::delivery;
use postbox_core::{ConsumerName, Delivery, DispatchError, HandlerResult, Inbox, OutboxTransaction};
use postbox_stores::sqlite::{SqlxSqlite, connect_options, migrate};
use serde::Deserialize;
use sqlx::SqlitePool;

static STOCK: ConsumerName = ConsumerName::from_static("stock");

/// An order, with more fields that say how its handler is to fail.
pub(crate) fn order(n: usize, more: &str) -> Delivery {
    delivery("shop.order.placed.v1", &format!("{{\"n\":{n}{more}}}"))
}

#[derive(Debug, Deserialize)]
struct Order {
    n: usize,
    /// So many tries fail.
    #[serde(default)]
    fail: usize,
    /// So many tries panic.
    #[serde(default)]
    panic: usize,
    #[serde(default)]
    reject: bool,
    /// So many milliseconds.
    #[serde(default)]
    slow: u64,
}

/// A SQLite database of its own.
pub(crate) struct Shop {
    pub(crate) pool: SqlitePool,
    inbox: Inbox,
    _folder: tempfile::TempDir,
}

/// What the handler saw, beside what it wrote.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects(Arc<Mutex<BTreeMap<String, Seen>>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) n: usize,
    pub(crate) topic: Option<String>,
    runs: usize,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("stock.db").display());
        let options = connect_options(&url).unwrap().create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let table: postbox_core::TableName = "stock_outbox".parse().unwrap();
        let extras = migrate::Extras { inbox: true, ..Default::default() };
        migrate::up_with(&mut pool.acquire().await.unwrap(), &table, extras, |_| {}).await.unwrap();
        sqlx::query("CREATE TABLE effects (message_id TEXT NOT NULL)").execute(&pool).await.unwrap();
        Self { pool, inbox: Inbox::new(table), _folder: folder }
    }

    pub(crate) fn consumer(&self, effects: Effects) -> Consumer<SqlxSqlite> {
        self.consumer_of(effects)
    }

    pub(crate) fn consumer_of(&self, handler: impl Handler<SqlxSqlite>) -> Consumer<SqlxSqlite> {
        Consumer::new(&self.pool, self.inbox.clone(), STOCK.clone(), handler)
    }

    /// The messages that have had their effect, each as often as it had it.
    pub(crate) async fn effects(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT message_id FROM effects").fetch_all(&self.pool).await.unwrap()
    }

    /// Each of these events has had its effect once, and nothing else has.
    pub(crate) async fn assert_once(&self, events: &[Delivery]) {
        let mut found = self.effects().await;
        let mut expected: Vec<String> = events.iter().map(|event| event.meta.event_id.to_string()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}

impl Effects {
    /// How often the handler was called for an event.
    pub(crate) fn runs(&self, event: &Delivery) -> usize {
        self.seen(event).runs
    }

    pub(crate) fn seen(&self, event: &Delivery) -> Seen {
        self.0.lock().unwrap().get(&event.meta.event_id.to_string()).cloned().unwrap_or_default()
    }
}

impl Handler<SqlxSqlite> for Effects {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
        let order: Order = message.json()?;
        let id = message.id().to_string();
        let run = {
            let mut all = self.0.lock().unwrap();
            let seen = all.entry(id.clone()).or_default();
            seen.runs += 1;
            seen.n = order.n;
            seen.topic = message.topic().map(Into::into);
            seen.runs
        };
        // First: whoever fails after it must leave nothing behind.
        sqlx::query("INSERT INTO effects (message_id) VALUES (?1)").bind(&id).execute(&mut ***tx).await?;
        tokio::time::sleep(Duration::from_millis(order.slow)).await;
        assert!(run > order.panic, "panics on purpose");
        if order.reject {
            return Err(DispatchError::reject("refused on purpose").into());
        }
        if run <= order.fail {
            return Err(DispatchError::retry("broken on purpose").into());
        }
        Ok(())
    }
}
