//! Handles on tables in memory; the stores have their own tests of what they check at the start.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::cleaner::{SweepRequest, Swept};
use crate::code::Code;
use crate::hook::{HookResult, WriterHook, Written};
use crate::interceptor::after;
use crate::record::Record;
use crate::relay::Settings;
use crate::store::{
    Claim, ClaimRequest, Lease, Renewed, Settled, Settlement, Store, StoreError, StoreErrorKind,
};
use crate::testing::{FailingDispatcher, Memory, MemoryOutbox, MemoryStore};
use crate::topic::Topic;
use crate::tx::Layout;
use crate::until::{PATIENCE, until};

const TOPIC: Topic = Topic::from_static("shop.order.placed.v1");

/// A table in memory with trouble on demand.
#[derive(Clone)]
pub(super) struct Pool {
    pub(super) memory: MemoryOutbox,
    layout: Layout,
    /// The relay's own code fails.
    pub(super) broken: Arc<AtomicBool>,
    /// The database does not answer.
    pub(super) away: Arc<AtomicBool>,
    /// Sweeps that were made.
    sweeps: Arc<AtomicUsize>,
    inbox_sweeps: Arc<AtomicUsize>,
    needs: Arc<std::sync::Mutex<Option<Needs>>>,
}

impl Pool {
    pub(super) fn new() -> Self {
        let (broken, away, sweeps, inbox_sweeps, needs) = Default::default();
        Self { memory: MemoryOutbox::new(), layout: Layout::Full, broken, away, sweeps, inbox_sweeps, needs }
    }

    fn answer(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            let message = "away on purpose";
            return Err(StoreError::new(Code::DatabaseUnreachable, StoreErrorKind::Connection, message));
        }
        Ok(())
    }
}

impl PostboxPool<Memory> for Pool {
    type Store = Shaky;
    type Sweep = Shaky;

    fn store(&self, _: &TableName, _: &Settings, _: StoreOptions) -> Shaky {
        Shaky { inner: self.memory.store(), pool: self.clone() }
    }

    fn sweep(&self, _: &TableName, _: &Settings) -> Shaky {
        Shaky { inner: self.memory.store(), pool: self.clone() }
    }

    async fn examine(&self, table: &TableName, needs: Needs) -> Result<Layout, StoreError> {
        *self.needs.lock().unwrap() = Some(needs);
        self.answer()?;
        if table.table() == "absent_outbox" {
            return Err(StoreError::new(Code::TableMissing, StoreErrorKind::Refused, "it does not exist"));
        }
        Ok(self.layout)
    }
}

#[derive(Clone)]
pub(super) struct Shaky {
    inner: MemoryStore,
    pool: Pool,
}

impl Store for Shaky {
    fn table(&self) -> &str {
        Store::table(&self.inner)
    }
    async fn open(&self) -> Result<(), StoreError> {
        self.inner.open().await
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        assert!(!self.pool.broken.load(Ordering::SeqCst), "broken on purpose");
        self.pool.answer()?;
        self.inner.claim(request).await
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.inner.settle(settlements).await
    }
    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        self.inner.extend(leases).await
    }
    async fn wait(&self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

impl Sweep for Shaky {
    fn table(&self) -> &str {
        Store::table(&self.inner)
    }
    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        assert_eq!((request.retention, request.max_attempts), (Duration::from_secs(5), 7));
        self.pool.sweeps.fetch_add(1, Ordering::SeqCst);
        Ok(Swept::Deleted(0))
    }
    async fn sweep_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        assert_eq!((retention, batch), (Duration::from_mins(3), 500));
        self.pool.inbox_sweeps.fetch_add(1, Ordering::SeqCst);
        Ok(Swept::Deleted(0))
    }
}

pub(super) fn name(text: &str) -> TableName {
    text.parse().unwrap()
}

pub(super) fn quick(builder: PostboxBuilder<Memory, Pool>) -> PostboxBuilder<Memory, Pool> {
    builder.set(|settings| settings.poll_interval = Duration::from_millis(5))
}

pub(super) async fn write(outbox: &Outbox, memory: &MemoryOutbox) {
    let mut tx = outbox.begin(memory).await.unwrap();
    outbox.enqueue(&mut tx, Record::builder(TOPIC).json(&1)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn everything_is_handed_through_and_runs_until_the_shutdown() {
    struct Count(Arc<AtomicUsize>);
    impl WriterHook for Count {
        async fn after_commit(&self, events: &[Written]) -> HookResult {
            self.0.fetch_add(events.len(), Ordering::SeqCst);
            Ok(())
        }
    }
    let (pool, sink) = (Pool::new(), FailingDispatcher::times(0));
    let (hooked, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let looked = Arc::clone(&seen);
    let postbox = quick(Postbox::builder(&pool, name("shop_outbox")))
        .sink("main", sink.clone())
        .route_to("shop.**", "main")
        .interceptor(after(move |_, _| looked.store(1, Ordering::SeqCst)))
        .hook(Count(Arc::clone(&hooked)))
        .default_tenant(uuid::Uuid::from_u128(5))
        .set(|settings| settings.max_attempts = 7)
        .retention(Duration::from_secs(5))
        .inbox_retention(Duration::from_mins(3), Duration::from_mins(2))
        .clean_every(Duration::from_millis(1))
        .start()
        .await
        .unwrap();
    assert_eq!(pool.needs.lock().unwrap().take(), Some(Needs { clean: true, hot: false, durable: false }));
    assert!(postbox.hot().is_none());
    let outbox = postbox.outbox();
    write(&outbox, &pool.memory).await;
    until("the event", || sink.delivered().len() == 1).await;
    until("sweeps", || pool.sweeps.load(Ordering::SeqCst) > 1).await;
    until("sweeps of the inbox", || pool.inbox_sweeps.load(Ordering::SeqCst) > 1).await;
    assert_eq!(postbox.inbox().table().to_string(), "shop_inbox");
    until("health", || postbox.health().problem().is_none()).await;
    assert_eq!((hooked.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(sink.seen()[0].meta.tenant_id.0.as_u128(), 5);
    postbox.shutdown().await.unwrap();
    let sweeps = pool.sweeps.load(Ordering::SeqCst);
    // Whoever still writes, writes to the table.
    write(&outbox, &pool.memory).await;
    assert_eq!((pool.memory.records().len(), sink.delivered().len()), (2, 1));
    assert_eq!(pool.sweeps.load(Ordering::SeqCst), sweeps);
}

#[tokio::test]
async fn what_cannot_work_is_refused_and_nothing_runs() {
    let (pool, sink) = (Pool::new(), FailingDispatcher::times(0));
    let shop = || quick(Postbox::builder(&pool, name("shop_outbox")));
    let bare = Pool { layout: Layout::Bare, ..pool.clone() };
    let path = HotPath::new();
    for (builder, words) in [
        (shop(), "there is no route: add `.route(\"**\", dispatcher)`"),
        (shop().route("shop.**.", sink.clone()), "OUTBOX_ROUTE_INVALID"),
        (shop().route_to("**", "kafka"), "which does not exist"),
        (
            shop().dispatcher(sink.clone()).set(|s| s.lock_ttl = Duration::from_secs(1)),
            "lock_ttl 1s is too short",
        ),
        (shop().dispatcher(sink.clone()).clean_every(Duration::ZERO), "clean_every is 0"),
        (
            shop().dispatcher(sink.clone()).inbox_retention(Duration::from_secs(59), Duration::from_mins(1)),
            "OUTBOX_CONFIG_INVALID: an inbox that remembers for 59s forgets messages",
        ),
        (Postbox::builder(&pool, name("absent_outbox")).dispatcher(sink.clone()), "OUTBOX_TABLE_MISSING"),
        (
            Postbox::builder(&bare, name("shop_outbox")).dispatcher(sink.clone()).hot(path.clone()),
            "run `postbox migrate up --table shop_outbox`, or leave .hot(…) out",
        ),
        (shop().dispatcher(sink.clone()).hot(path), "leads to another relay already"),
    ] {
        let error = builder.start().await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    write(&Outbox::new(name("shop_outbox")), &pool.memory).await;
    tokio::task::yield_now().await;
    assert_eq!((sink.seen().len(), pool.sweeps.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn the_hot_path_is_asked_for_and_durable_unless_told_otherwise() {
    let pool = Pool::new();
    for (path, durable) in [(HotPath::new(), true), (HotPath::new().allow_asynchronous_commit(), false)] {
        let builder = quick(Postbox::builder(&pool, name("shop_outbox"))).without_cleaner().hot(path);
        let postbox = builder.dispatcher(FailingDispatcher::times(0)).start().await.unwrap();
        assert_eq!(*pool.needs.lock().unwrap(), Some(Needs { clean: false, hot: true, durable }));
        until("room", || postbox.hot().is_some_and(|path| path.remaining() == 1000)).await;
        postbox.shutdown().await.unwrap();
    }
    assert_eq!(pool.sweeps.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_relay_that_ends_by_itself_is_noticed() {
    let pool = Pool::new();
    let builder = quick(Postbox::builder(&pool, name("shop_outbox"))).without_cleaner();
    let postbox = builder.dispatcher(FailingDispatcher::times(0)).start().await.unwrap();
    let (failed, again) = (postbox.failed(), postbox.failed());
    pool.broken.store(true, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, failed).await.unwrap();
    again.await;
    let problem = postbox.health().problem().unwrap();
    assert!(problem.contains("the relay of test_outbox cannot work: it has ended: it panicked"), "{problem}");
    let error = postbox.with_graceful_shutdown(std::future::pending()).await.unwrap_err();
    assert_eq!(error.code(), Code::Panicked);
    assert!(error.to_string().contains("broken on purpose"), "{error}");
}

#[tokio::test]
async fn a_signal_stops_it_and_dropping_it_does_not() {
    let (pool, sink) = (Pool::new(), FailingDispatcher::times(0));
    let builder = || quick(Postbox::builder(&pool, name("shop_outbox"))).without_cleaner();
    let dropped = builder().dispatcher(sink.clone()).start().await.unwrap();
    let (outbox, health) = (dropped.outbox(), dropped.health());
    drop(dropped);
    write(&outbox, &pool.memory).await;
    until("the event", || sink.delivered().len() == 1).await;
    assert_eq!(health.problem(), None);
    let second = builder().dispatcher(sink.clone()).start().await.unwrap();
    second.with_graceful_shutdown(std::future::ready(())).await.unwrap();
}

#[tokio::test]
async fn one_handle_for_each_table_or_none_at_all() {
    let pool = Pool::new();
    let build = |builder: PostboxBuilder<Memory, Pool>| {
        quick(builder).without_cleaner().dispatcher(FailingDispatcher::times(0))
    };
    assert!(Postbox::start_each(&pool, [], build).await.unwrap().is_empty());
    let both = Postbox::start_each(&pool, [name("a_outbox"), name("b_outbox")], build).await.unwrap();
    let tables: Vec<String> = both.iter().map(|postbox| postbox.outbox().table().to_string()).collect();
    assert_eq!(tables, ["a_outbox", "b_outbox"]);
    for postbox in both {
        postbox.shutdown().await.unwrap();
    }
    let error =
        Postbox::start_each(&pool, [name("a_outbox"), name("absent_outbox")], build).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMissing);
    // Nothing of it is left: an event waits.
    write(&Outbox::new(name("a_outbox")), &pool.memory).await;
    assert_eq!(pool.memory.drain(FailingDispatcher::times(0)).await.delivered(), 1);
}
