//! ④ [`PgStore`]: what a relay asks of its table, and what is looked at before it starts. `claim.rs` claims rows, `settling.rs` writes what
//! became of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Renewed, Settled, Settlement, Store};
use postbox_core::{Code, Layout, Order, StoreError, StoreErrorKind};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::{Query, QueryScalar};
use sqlx::{AssertSqlSafe, FromRow, Postgres};
use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify, OnceCell};
use uuid::Uuid;

use super::claim::ClaimState;
use super::durable::{self, Durable};
use super::error::within;
use super::history;
use super::link::{Link, OPERATION_LIMIT};
use super::order::TableOrder;
use super::ordered::OrderedClaims;
use super::schema::TableShape;
use super::signal::Heard;
use super::statements::Statements;
use super::strategy;
use super::tenants;
use super::wake::Wake;
use super::window::Window;
use crate::builder::Settings;

/// An outbox table in PostgreSQL, for one relay.
///
/// It holds connections of its own: claims (with the session lock) and settles overlap, an owner writes down what is in flight, and
/// one listens for commits while there is nothing to do. Where dead events go to a route or are tried again, that has another, so
/// that nothing that lives waits for it.
#[derive(Debug, Clone)]
pub struct PgStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) label: Arc<str>,
    pub(super) claims: Link,
    pub(super) settles: Link,
    /// For dead events; connects when there is something to do about them.
    pub(super) dead: Link,
    /// Where an owner writes down what is in flight.
    pub(super) journals: Link,
    pub(super) window: std::sync::Mutex<Window>,
    pub(super) durable: Durable,
    /// Something was settled: strands that were in flight may go on.
    pub(super) settled: Notify,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    pub(super) max_attempts: AtomicI32,
    /// What this process has committed.
    pub(super) heard: Heard,
    /// The last settle's answer was lost: rows that no longer match may be its own work.
    pub(super) unsure: AtomicBool,
    /// Rows that somebody else had locked when they were last to be settled.
    pub(super) busy: std::sync::Mutex<HashSet<Uuid>>,
    /// Where there is no token: the lock's time after its last renewal, by row and the time it was claimed.
    pub(super) renewed: std::sync::Mutex<HashMap<(Uuid, OffsetDateTime), OffsetDateTime>>,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) statements: Statements,
    pub(super) layout: Layout,
    /// Where events are delivered in order.
    pub(super) ordered: Option<OrderedClaims>,
    /// Whether the relay owns the table and leases nothing but what is suspect.
    pub(super) owns: bool,
    /// Whether a transaction pooler is in between.
    pub(super) pooled: bool,
    /// `schema.table`, the key in `postbox_relay`.
    pub(super) key: String,
    /// The advisory lock of the active relay.
    pub(super) lock: i64,
    /// How it waits; none behind a pooler, where no session listens.
    pub(super) wake: Option<Wake>,
}

impl Opened {
    /// A statement. Behind a pooler it is prepared for this once: the next server process would not know it.
    pub(super) fn query<'q>(&self, sql: &'q str) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(sql)).persistent(!self.pooled)
    }

    /// A statement that answers one column.
    pub(super) fn scalar<'q, T>(&self, sql: &'q str) -> QueryScalar<'q, Postgres, T, PgArguments>
    where
        (T,): for<'r> FromRow<'r, PgRow>,
    {
        sqlx::query_scalar(AssertSqlSafe(sql)).persistent(!self.pooled)
    }
}

impl PgStore {
    /// Which columns the table turned out to have.
    ///
    /// # Errors
    /// When the table cannot be looked at.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        Ok(self.0.opened().await?.layout)
    }
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    /// Looks at the table and at the connections to it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let pooled = self.claims.is_pooled().await?;
        if pooled {
            self.claims.goes_through_a_pooler();
            self.settles.goes_through_a_pooler();
            self.dead.goes_through_a_pooler();
            self.journals.goes_through_a_pooler();
        }
        let mut settles = self.settles.take().await?;
        let version = sqlx::query_scalar::<_, String>("SHOW server_version_num").persistent(false);
        let version = within(OPERATION_LIMIT, version.fetch_one(&mut settles.connection)).await?;
        if version.parse::<u32>().is_ok_and(|version| version < 140_000) {
            let message = format!("the server is version {version}");
            return Err(StoreError::new(Code::DatabaseVersion, StoreErrorKind::Refused, message));
        }
        let shape = TableShape::expect(&mut settles.connection, &self.settings.table).await?;
        let layout = shape.layout();
        if layout == Layout::Bare {
            let missing = shape.missing().join(", ");
            tracing::warn!(
                table = &*self.label,
                missing,
                "a bare table: no pause, no dead_at, no owner row; `postbox migrate up` adds them"
            );
        }
        if shape.hides_rows {
            tracing::warn!(
                table = &*self.label,
                "row-level security may hide rows from this user: what it hides is never delivered"
            );
        }
        let ordered = match self.settings.order {
            Order::None => None,
            Order::Aggregate(on_dead) => {
                let order = TableOrder::read(&mut settles.connection, &shape).await?;
                order.check(&shape)?;
                if !order.triggered {
                    tracing::info!(
                        table = &*self.label,
                        "no trigger orders the writers of an aggregate: they must wait for each other by themselves"
                    );
                }
                Some(OrderedClaims::new(&shape, on_dead))
            }
        };
        if self.settings.tenants.apart() {
            let indexed = tenants::is_indexed(&mut settles.connection, &shape).await?;
            self.settings.check_tenants(&shape.name, indexed)?;
        }
        let sent = history::look(&mut settles.connection, &shape, self.settings.history).await?;
        settles.keep().await?;
        if pooled {
            if layout == Layout::Bare && self.settings.single_active {
                let message = format!(
                    "{0} is reached through a transaction pooler, where no session can hold a lock, and a bare table has no row \
                     for it: set OUTBOX_DIRECT_URL to the database itself, or run `postbox migrate up --table {0}`",
                    self.settings.table
                );
                return Err(StoreError::new(Code::PoolerUnsupported, StoreErrorKind::Refused, message));
            }
            tracing::info!(
                table = &*self.label,
                "a transaction pooler is in between: no session lock, so a dead relay is replaced only when its time limit is over"
            );
        }
        let key = shape.name.to_string();
        let lock = fnv1a(&format!("outbox:{key}"));
        let owns = strategy::owns(&self.settings, &key, layout)?;
        let wake = (!pooled).then(|| Wake::new(self.claims.options().clone(), shape.oid));
        // Whoever leases has no journal, and no connection for one.
        let knows_its_disk = owns && self.knows_its_disk().await?;
        let statements = Statements::new(&shape, &sent, &self.settings.tenants, pooled, knows_its_disk);
        let opened = Opened { statements, layout, ordered, owns, pooled, key, lock, wake };
        if layout == Layout::Full {
            let mut link = self.settles.take().await?;
            self.check_others(&mut link.connection, &opened).await?;
            link.keep().await?;
        }
        Ok(opened)
    }

    async fn knows_its_disk(&self) -> Result<bool, StoreError> {
        let mut link = self.journals.take().await?;
        let knows =
            within(OPERATION_LIMIT, async { Ok(durable::knows_its_disk(&mut link.connection).await) })
                .await?;
        if knows {
            // Else the connection goes with the transaction that has failed.
            link.keep().await?;
        }
        Ok(knows)
    }
}

/// FNV-1a of 64 bits: the same key in every language that takes part in the lock.
pub(super) fn fnv1a(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.cast_signed()
}

impl Store for PgStore {
    fn table(&self) -> &str {
        &self.0.label
    }

    fn order(&self) -> Order {
        self.0.settings.order
    }

    fn fair_tenants(&self) -> bool {
        self.0.settings.tenants.fair
    }

    async fn open(&self) -> Result<(), StoreError> {
        self.0.opened().await.map(|_| ())
    }

    async fn require(&self, wanted: Requirements) -> Result<(), StoreError> {
        self.0.require(wanted).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        self.0.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let settled = self.0.settle(settlements).await;
        // A claim passes by the strands that are in flight: after this some of them may go on.
        self.0.settled.notify_one();
        settled
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        self.0.extend_all(leases).await
    }

    fn forget(&self, leases: &[Lease]) {
        self.0.let_go(leases);
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        self.0.letters(request).await
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Settled, StoreError> {
        self.0.settle_letters(letters).await
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        self.0.redrive(request).await
    }

    async fn wait(&self, at_most: Duration) {
        let rest = async {
            match self.0.opened.get().and_then(|opened| opened.wake.as_ref()) {
                Some(wake) => wake.wait(at_most).await,
                None => self.0.heard.wait(at_most).await,
            }
        };
        tokio::select! {
            () = rest => {}
            () = self.0.settled.notified(), if self.0.settings.order != Order::None => {}
        }
    }

    async fn close(&self) {
        self.0.resign().await;
        // After that: nobody else has to wait for what is being read.
        self.0.state.lock().await.stop_reading().await;
        self.0.claims.close().await;
        self.0.settles.close().await;
        self.0.dead.close().await;
        self.0.journals.close().await;
        if let Some(wake) = self.0.opened.get().and_then(|opened| opened.wake.as_ref()) {
            wake.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn the_lock_key_is_fnv_1a_64() {
        // Test vectors of the algorithm's authors.
        assert_eq!(fnv1a("").cast_unsigned(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar").cast_unsigned(), 0x8594_4171_f739_67e8);
    }
}
