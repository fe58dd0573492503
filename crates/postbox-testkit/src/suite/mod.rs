//! The store suite: what every store must keep, written once.
//!
//! A store brings a [`Subject`]; [`store_suite!`](crate::store_suite) makes one test of each promise from it. Whatever
//! a store cannot do it declares in its [`Features`], and the tests that need it say `skipped`.

pub mod admin;
pub mod browse;
pub mod claim;
pub mod dead_letter;
pub mod diagnose;
pub mod embed;
pub mod enqueue;
pub mod fan_out;
pub mod fan_out_rows;
pub mod handlers;
pub mod history;
pub mod hooks;
pub mod hot;
pub mod idempotency;
pub mod inbox;
pub mod moved;
pub mod order;
pub mod order_chaos;
pub mod order_dead;
pub mod order_fan_out;
pub mod owner;
pub mod owner_window;
mod promises;
pub mod relay;
pub mod script;
pub mod settle;
pub mod tenants;
pub mod trouble;
pub mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::SweepCount;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Settlement, Standing, Tenants, Verdict};
use postbox_core::{
    Backoff, Browse, DeadLetters, Diagnose, Driver, EventId, History, InboxAdmin, InboxDriver, Inspect,
    Order, Outbox, OutboxTransaction, Receipt, Record, RecordBuilder, Settings, Store, TableName, Topic,
    UnitOfWork,
};

/// A store under test: a table of its own, empty at the start.
pub trait Subject: Sync {
    /// The store.
    type Store: Store;
    /// Its operators' side.
    type Admin: Inspect + DeadLetters + SweepCount + Browse + Diagnose + InboxAdmin + Clone;
    /// A transaction that is open.
    type Open: OpenTransaction;
    /// The driver of its writers.
    type Driver: InboxDriver;

    /// What it can do.
    fn features(&self) -> Features;
    /// Whether two transactions can have written at the same time; else nothing commits out of order.
    fn writers_overlap(&self) -> bool {
        true
    }
    /// Whether its writers may write rows that are born leased.
    fn has_hot_path(&self) -> bool {
        self.features().full
    }
    /// Whether an error of one statement fails the whole transaction.
    fn errors_abort(&self) -> bool {
        true
    }
    /// Whether the database may end one of several transactions that wait for the same row.
    fn waiting_may_conflict(&self) -> bool {
        false
    }
    /// Whether a COMMIT can be refused by a constraint that is deferred until then.
    fn commits_can_be_refused(&self) -> bool {
        true
    }
    /// The writers' view of the table.
    fn outbox(&self) -> Outbox;
    /// Opens a transaction on the writers' pool, by the outbox.
    fn open(&self, outbox: &Outbox) -> impl Future<Output = OutboxTransaction<Self::Driver>> + Send;
    /// Begins a unit of work on the writers' pool.
    fn unit_of_work<'a>(&self, outbox: &Outbox) -> impl Future<Output = UnitOfWork<'a, Self::Driver>> + Send;
    /// Runs a statement in such a transaction, as its user would.
    fn run_in(
        &self,
        tx: &mut OutboxTransaction<Self::Driver>,
        sql: &'static str,
    ) -> impl Future<Output = Result<(), <Self::Driver as Driver>::Error>> + Send;
    /// Enqueues in the driver's own transaction inside of it.
    fn enqueue_in_driver_transaction(
        &self,
        outbox: &Outbox,
        tx: &mut OutboxTransaction<Self::Driver>,
        records: Vec<Record>,
    ) -> impl Future<Output = Vec<Receipt>> + Send;
    /// What its relays do with the rows of delivered events.
    fn history(&self) -> History {
        History::Keep
    }
    /// A new relay's view of the table.
    fn store(&self, single_active: bool) -> Self::Store {
        self.store_with(single_active, self.history())
    }
    /// A new relay's view of the table, where the events of an aggregate go in order. Asked for only of those that declare it.
    fn ordered_store(&self, order: Order, single_active: bool) -> Self::Store {
        assert!(!self.features().order, "a store that declares it gives one, {order:?}");
        self.store(single_active)
    }
    /// A new relay's view of the table, for some tenants or shared by them. One that does not declare it gives one that refuses.
    fn tenants_store(&self, tenants: &Tenants, single_active: bool) -> Self::Store;
    /// The same as [`store`](Self::store), for a relay that does this with the rows of delivered events.
    fn store_with(&self, single_active: bool, history: History) -> Self::Store;
    /// Gives the table a history; answers the steps that it took.
    fn make_history(&self) -> impl Future<Output = Vec<String>> + Send;
    /// Gives the table's module an inbox.
    fn make_inbox(&self) -> impl Future<Output = ()> + Send;
    /// Makes all that was received until now older by so much.
    fn age_inbox(&self, by: Duration) -> impl Future<Output = ()> + Send;
    /// Whether the table has a history.
    fn has_history(&self) -> impl Future<Output = bool> + Send;
    /// The row of an event in the table or in its history, the latest if there are several.
    fn row_in(&self, place: Place, event: EventId) -> impl Future<Output = Option<RowState>> + Send;
    /// The row of an event in the history.
    fn moved(&self, event: EventId) -> impl Future<Output = Option<RowState>> + Send {
        async move { if self.has_history().await { self.row_in(Place::History, event).await } else { None } }
    }
    /// What the status view says of an event, each time that it has it.
    fn view(&self, event: EventId) -> impl Future<Output = Vec<String>> + Send;
    /// The operators' view.
    fn admin(&self) -> Self::Admin {
        self.admin_of(self.table())
    }
    /// The table's name.
    fn table(&self) -> TableName;
    /// The operators' view of a table of this name, whether there is one or not.
    fn admin_of(&self, table: TableName) -> Self::Admin;
    /// Enqueues in a transaction that stays open.
    fn begin(&self, records: Vec<Record>) -> impl Future<Output = Self::Open> + Send;
    /// The row of an event: in the table, or, for a subject whose relays move them, in its history.
    fn row(&self, event: EventId) -> impl Future<Output = Option<RowState>> + Send {
        async move {
            let row = self.row_in(Place::Table, event).await;
            if row.is_none() && self.history() == History::Move { self.moved(event).await } else { row }
        }
    }
    /// Waits until a transaction waits for another; where that cannot be seen, for long enough.
    fn somebody_waits(&self) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(Duration::from_millis(100))
    }
    /// How many rows there are.
    fn rows(&self) -> impl Future<Output = usize> + Send;
    /// Makes the lease of an event run out, as if its relay had died long ago.
    fn expire_lease(&self, event: EventId) -> impl Future<Output = ()> + Send;
    /// Makes an event older by so much: written, published and dead earlier.
    fn make_older(&self, event: EventId, by: Duration) -> impl Future<Output = ()> + Send {
        async move {
            let mut changed = self.age_in(Place::Table, event, by).await;
            if changed == 0 && self.has_history().await {
                changed = self.age_in(Place::History, event, by).await;
            }
            assert_eq!(changed, 1, "the event is there");
        }
    }
    /// Does so where it is, and says how many rows that were.
    fn age_in(&self, place: Place, event: EventId, by: Duration) -> impl Future<Output = u64> + Send;
    /// Writes something into the row that cannot be decoded.
    fn spoil(&self, event: EventId) -> impl Future<Output = ()> + Send;
    /// Sets the attempts of a waiting row.
    fn set_attempts(&self, event: EventId, attempts: i32) -> impl Future<Output = ()> + Send;
    /// Pauses or resumes the table.
    fn pause(&self, paused: bool) -> impl Future<Output = ()> + Send;
    /// How many lines the audit log has.
    fn audit_lines(&self) -> impl Future<Output = usize> + Send;
}

/// A transaction with enqueued events.
pub trait OpenTransaction: Send {
    /// What the enqueue answered.
    fn receipts(&self) -> &[Receipt];
    /// Commits it.
    fn commit(self) -> impl Future<Output = ()> + Send;
    /// Rolls it back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

/// What a store can do beyond the standard columns.
#[allow(clippy::struct_excessive_bools, reason = "each is something of its own that a store can do or not")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// All columns: headers, aggregates, tokens, `dead_at`, pause, audit.
    pub full: bool,
    /// The events of an aggregate in order.
    pub order: bool,
    /// A history that published rows can be moved to.
    pub history: bool,
    /// Tenants claimed apart.
    pub tenants: bool,
}

/// Where the row of an event can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the table.
    Table,
    /// In its history.
    History,
}

impl Place {
    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "org_outbox",
            Self::History => "org_outbox_history",
        }
    }
}

/// What matters of a row.
#[allow(clippy::struct_excessive_bools, reason = "each is one column of the row")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowState {
    /// Published.
    pub published: bool,
    /// Dead, as this table knows it.
    pub dead: bool,
    /// Locked.
    pub locked: bool,
    /// Attempts.
    pub attempts: i32,
    /// Available now.
    pub due: bool,
    /// The last error.
    pub last_error: Option<String>,
    /// Lines of the log of attempts.
    pub log_lines: usize,
    /// Changes with every version of the row.
    pub version: String,
}

/// [`RowState`] as a store's subject reads it, in the order of its fields.
pub type RowColumns = (bool, bool, bool, i32, bool, Option<String>, i64, String);

impl From<RowColumns> for RowState {
    fn from(columns: RowColumns) -> Self {
        let (published, dead, locked, attempts, due, last_error, log_lines, version) = columns;
        let log_lines = usize::try_from(log_lines).expect("a number of lines");
        Self { published, dead, locked, attempts, due, last_error, log_lines, version }
    }
}

/// The topic of most test events.
pub const TOPIC: Topic = Topic::from_static("org.thing.happened.v1");

/// Events with numbers in their payloads.
pub fn events(number: usize) -> Vec<Record> {
    (0..number).map(|n| event(TOPIC, n).build().expect("an event")).collect()
}

/// One event of a topic.
pub fn event(topic: Topic, n: usize) -> RecordBuilder {
    Record::builder(topic).json(&serde_json::json!({ "n": n }))
}

/// Enqueues and commits.
pub async fn enqueue<S: Subject>(subject: &S, records: Vec<Record>) -> Vec<EventId> {
    let open = subject.begin(records).await;
    let ids = open.receipts().iter().map(|receipt| receipt.event_id).collect();
    open.commit().await;
    ids
}

/// A claim with the usual settings.
pub fn request(mode: ClaimMode, limit: usize) -> ClaimRequest {
    ClaimRequest {
        mode,
        limit,
        max_bytes: 16 << 20,
        lock_ttl: Duration::from_mins(1),
        // The signs of life of a store that tests claim by hand last as long as its test says, and no longer.
        poll_interval: Duration::ZERO,
        max_attempts: 25,
        exclude: Arc::from([]),
        spent: Arc::from([]),
        crowding: Arc::from([]),
    }
}

/// Claims waiting rows.
pub async fn claim<S: Store>(store: &S, limit: usize) -> Claim {
    store.claim(request(ClaimMode::Waiting, limit)).await.expect("a claim")
}

/// Claims waiting rows as soon as the relay may work: the one before it may still be on its way out.
pub async fn claim_in_turn<S: Store>(store: &S, limit: usize) -> Claim {
    crate::eventually("a turn", PATIENCE, async || {
        let claim = claim(store, limit).await;
        (claim.standing == Standing::Active).then_some(claim)
    })
    .await
}

/// One verdict for all that a claim brought.
pub fn settle_all(claim: &Claim, verdict: &Verdict) -> Vec<Settlement> {
    claim.rows.iter().map(|row| Settlement::new(row.lease.clone(), verdict.clone())).collect()
}

/// Settings under which tests are quick and nothing else changes. Leases and timeouts outlast a machine that stands
/// still for seconds, as one with a busy disk does: whoever waits for them to pass sets shorter ones.
pub fn quick() -> Settings {
    Settings {
        poll_interval: Duration::from_millis(20),
        lock_ttl: Duration::from_secs(12),
        dispatch_timeout: Duration::from_secs(5),
        backoff: Backoff::fixed(Duration::from_millis(10)),
        circuit: Backoff::fixed(Duration::from_millis(50)),
        ..Settings::default()
    }
}

/// The state of a row that must be there.
pub async fn state<S: Subject>(subject: &S, event: EventId) -> RowState {
    subject.row(event).await.expect("the event's row")
}

/// Whether an event has used up its attempts: dead, in the words of either table.
pub async fn exhausted<S: Subject>(subject: &S, event: EventId, max_attempts: i32) -> bool {
    let row = state(subject, event).await;
    row.dead || (!subject.features().full && !row.published && !row.locked && row.attempts >= max_attempts)
}

/// Waits until an event is published.
pub async fn published<S: Subject>(subject: &S, event: EventId) {
    crate::eventually("the event to be published", PATIENCE, async || state(subject, event).await.published)
        .await;
}

/// How long tests wait for what must happen.
pub const PATIENCE: Duration = Duration::from_mins(1);
