//! ④ [`PgStore`]: what became of rows, and the relay's own life on this table; `claim.rs` is the other half.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store, Verdict};
use postbox_core::{Code, History, Layout, Order, StoreError, StoreErrorKind, TableName};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgRow};
use sqlx::query::{Query, QueryScalar};
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Postgres, Row as _};
use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify, OnceCell};
use uuid::Uuid;

use super::claim::ClaimState;
use super::error::{classify, sqlstate, within};
use super::fan;
use super::history::Sent;
use super::link::{Link, OPERATION_LIMIT};
use super::order::TableOrder;
use super::ordered::OrderedClaims;
use super::owner::{Window, is_owned, needs_no_write};
use super::schema::TableShape;
use super::statements::Statements;
use super::strands::{InFlight, Round};
use super::strategy::{LEADER_TTL, Strategy};

/// An outbox table in PostgreSQL, for one relay.
///
/// It holds two connections of its own: claims (with the session lock) and settles overlap. Where dead events go to a route or
/// are tried again, that has a third, so that nothing that lives waits for it.
#[derive(Debug, Clone)]
pub struct PgStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) table: TableName,
    pub(super) label: Arc<str>,
    pub(super) claims: Link,
    pub(super) settles: Link,
    /// For dead events; connects when there is something to do about them.
    pub(super) beside: Link,
    /// Where an owner writes down what is in flight.
    pub(super) journals: Link,
    pub(super) single_active: bool,
    strategy: Strategy,
    pub(super) order: Order,
    history: History,
    pub(super) window: std::sync::Mutex<Window>,
    strands: std::sync::Mutex<InFlight>,
    /// Something was settled: strands that were in flight may go on.
    settled: Notify,
    /// This incarnation of the relay: never used again.
    pub(super) holder: String,
    pub(super) leader_ttl: Duration,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    pub(super) max_attempts: AtomicI32,
    /// The last settle's answer was lost: rows that no longer match may be its own work.
    unsure: AtomicBool,
    /// Where there is no token: the lock's time after its last renewal, by row and the time it was claimed.
    renewed: std::sync::Mutex<HashMap<(Uuid, OffsetDateTime), OffsetDateTime>>,
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

/// Builds a [`PgStore`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct PgStoreBuilder {
    options: PgConnectOptions,
    direct: Option<PgConnectOptions>,
    table: TableName,
    single_active: bool,
    strategy: Strategy,
    order: Order,
    history: History,
    name: String,
    leader_ttl: Duration,
}

impl PgStoreBuilder {
    /// How rows are claimed.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// What becomes of the rows of events that were delivered (they are kept). All relays of a table should do the same.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Whether only one relay works on the table at a time (the default).
    pub fn single_active(mut self, single: bool) -> Self {
        self.single_active = single;
        self
    }

    /// The relay's name, for people: a host or pod name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// In what order events are delivered (none, by default). By aggregate it needs a table that was migrated `--ordered`, or
    /// with `--order-index` where an aggregate's writers wait for each other by themselves.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Where to reach the database itself, if the other address is a transaction pooler (`OUTBOX_DIRECT_URL`): all
    /// connections of the relay go there.
    pub fn direct(mut self, options: PgConnectOptions) -> Self {
        self.direct = Some(options);
        self
    }

    /// After how long without a sign of life the active relay loses its place (15 s, and at least five times its
    /// `poll_interval`, at which signs of life are given).
    pub fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.leader_ttl = ttl;
        self
    }

    /// Makes the store; nothing is connected yet.
    pub fn build(self) -> PgStore {
        let options = self.direct.unwrap_or(self.options);
        let name: String = self.name.chars().filter(|c| !c.is_control()).take(64).collect();
        PgStore(Arc::new(Inner {
            label: self.table.to_string().into(),
            table: self.table,
            claims: Link::new(options.clone()),
            settles: Link::new(options.clone()),
            beside: Link::new(options.clone()),
            journals: Link::new(options),
            single_active: self.single_active,
            strategy: self.strategy,
            order: self.order,
            history: self.history,
            window: std::sync::Mutex::default(),
            strands: std::sync::Mutex::default(),
            settled: Notify::new(),
            holder: format!("{name}/{}", Uuid::now_v7().simple()),
            leader_ttl: self.leader_ttl,
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new(Round::new())),
            max_attempts: AtomicI32::new(25),
            unsure: AtomicBool::new(false),
            renewed: std::sync::Mutex::default(),
        }))
    }
}

impl PgStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: PgConnectOptions, table: TableName) -> PgStoreBuilder {
        let name = format!("pid-{}", std::process::id());
        PgStoreBuilder {
            options,
            direct: None,
            table,
            single_active: true,
            strategy: Strategy::Auto,
            order: Order::None,
            history: History::Keep,
            name,
            leader_ttl: LEADER_TTL,
        }
    }

    /// A store with the defaults, that connects to where a pool does (but takes no connection from it).
    pub fn new(pool: &PgPool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }

    /// Which columns the table turned out to have.
    ///
    /// # Errors
    /// When the table cannot be looked at.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        Ok(self.0.opened().await?.layout)
    }
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    pub(super) fn strands(&self) -> std::sync::MutexGuard<'_, InFlight> {
        // Each change is one step: the map stays whole whatever panics beside it.
        self.strands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the table and at the connections to it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let pooled = self.claims.is_pooled().await?;
        if pooled {
            self.claims.goes_through_a_pooler();
            self.settles.goes_through_a_pooler();
            self.beside.goes_through_a_pooler();
            self.journals.goes_through_a_pooler();
        }
        let mut settles = self.settles.take().await?;
        let version = sqlx::query_scalar::<_, String>("SHOW server_version_num").persistent(false);
        let version = within(OPERATION_LIMIT, version.fetch_one(&mut settles.connection)).await?;
        if version.parse::<u32>().is_ok_and(|version| version < 140_000) {
            let message = format!("the server is version {version}");
            return Err(StoreError::new(Code::DatabaseVersion, StoreErrorKind::Refused, message));
        }
        let shape = TableShape::expect(&mut settles.connection, &self.table).await?;
        let layout = shape.layout();
        if layout == Layout::Bare {
            let missing = shape.missing().join(", ");
            tracing::warn!(
                table = &*self.label,
                missing,
                "a bare table: no pause, no dead_at, no owner row; `postbox migrate up` adds them"
            );
        }
        let ordered = match self.order {
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
        let sent = Sent::look(&mut settles.connection, &shape, self.history).await?;
        settles.keep().await?;
        if pooled {
            if layout == Layout::Bare && self.single_active {
                let message = format!(
                    "{0} is reached through a transaction pooler, where no session can hold a lock, and a bare table has no row \
                     for it: set OUTBOX_DIRECT_URL to the database itself, or run `postbox migrate up --table {0}`",
                    self.table
                );
                return Err(StoreError::new(Code::PoolerUnsupported, StoreErrorKind::Refused, message));
            }
            tracing::info!(
                table = &*self.label,
                "a transaction pooler is in between: no session lock, so that a relay which dies is missed when its time is over"
            );
        }
        let key = shape.name.to_string();
        let lock = fnv1a(&format!("outbox:{key}"));
        let owns = self.strategy.owns(&key, layout, self.single_active)?;
        let opened =
            Opened { statements: Statements::new(&shape, &sent), layout, ordered, owns, pooled, key, lock };
        if layout == Layout::Full {
            let mut link = self.settles.take().await?;
            self.check_others(&mut link.connection, &opened).await?;
            link.keep().await?;
        }
        Ok(opened)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let mut settled = Settled::default();
        // The common case: all of one claim, and all to be written.
        let one_token = settlements.first().map(|first| Arc::clone(&first.lease.token)).filter(|token| {
            settlements.iter().all(|s| s.lease.token == *token && is_owned(&s.lease) && !needs_no_write(s))
        });
        if one_token.is_some() {
            let mut group = settlements;
            let settled = self.settle_group(opened, &mut group).await?;
            self.let_go(group.iter().map(|s| &s.lease).filter(|lease| !settled.busy.contains(&lease.row)));
            return Ok(settled);
        }
        let (unwritten, rest): (Vec<_>, Vec<_>) = settlements.into_iter().partition(needs_no_write);
        self.let_go(unwritten.iter().map(|s| &s.lease));
        // Rows of one token are settled by one statement.
        let (owned, leased): (Vec<_>, Vec<_>) = rest.into_iter().partition(|s| is_owned(&s.lease));
        let mut groups: HashMap<Arc<str>, Vec<Settlement>> = HashMap::new();
        for settlement in owned {
            groups.entry(Arc::clone(&settlement.lease.token)).or_default().push(settlement);
        }
        let groups = std::iter::once(leased).chain(groups.into_values()).filter(|group| !group.is_empty());
        for (before, mut group) in groups.enumerate() {
            let part = self.settle_group(opened, &mut group).await.inspect_err(|_| {
                // What was settled before it comes again, and is as it was left then.
                if before > 0 {
                    self.unsure.store(true, Ordering::Relaxed);
                }
            })?;
            self.let_go(group.iter().map(|s| &s.lease).filter(|lease| !part.busy.contains(&lease.row)));
            settled.lost.extend(part.lost);
            settled.busy.extend(part.busy);
        }
        Ok(settled)
    }

    async fn settle_group(
        &self,
        opened: &Opened,
        settlements: &mut [Settlement],
    ) -> Result<Settled, StoreError> {
        // The order of locking, the same for everybody (hazard 18).
        settlements.sort_unstable_by_key(|settlement| settlement.lease.row);
        let mut link = self.settles.take().await?;
        let sent = self.send(opened, settlements, &mut link.connection).await;
        let settled = match sent {
            Ok(rows) => self
                .lost(opened, settlements, &rows, &mut link.connection)
                .await
                .map(|lost| Settled { lost, ..Settled::default() }),
            Err(error) if is_lock_timeout(&error) => {
                self.settle_free(opened, settlements, &mut link.connection).await
            }
            Err(error) => Err(error),
        };
        let settled = match settled {
            Ok(settled) => link.keep().await.map(|()| settled),
            Err(error) => Err(error),
        };
        // A refusal is an answer: only a lost one leaves the result unknown.
        let unknown = settled.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Connection);
        self.unsure.store(unknown, Ordering::Relaxed);
        let settled = settled?;
        if opened.layout == Layout::Bare {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            for settlement in settlements.iter().filter(|s| !settled.busy.contains(&s.lease.row)) {
                renewed.remove(&(settlement.lease.row, settlement.lease.since));
            }
        }
        Ok(settled)
    }

    /// Sends one settle; answers the rows that it changed.
    async fn send(
        &self,
        opened: &Opened,
        settlements: &[Settlement],
        connection: &mut PgConnection,
    ) -> Result<Vec<PgRow>, StoreError> {
        if let (Some(own), Some(true)) =
            (&opened.statements.own, settlements.first().map(|s| is_owned(&s.lease)))
        {
            let query = self.settle_own(opened, own, settlements);
            return within(OPERATION_LIMIT, query.fetch_all(connection)).await;
        }
        let all_delivered = settlements.iter().all(|s| s.verdict == Verdict::Delivered);
        let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.row).collect();
        let attempts: Vec<i32> = settlements.iter().map(|s| s.lease.attempts).collect();
        let query = match (&opened.statements.settle_delivered, all_delivered) {
            (Some(sql), true) => {
                let tokens: Vec<&str> = settlements.iter().map(|s| &*s.lease.token).collect();
                opened.query(sql).bind(&ids).bind(tokens).bind(&attempts)
            }
            _ => self.settle_mixed(opened, settlements, &ids, &attempts),
        };
        within(OPERATION_LIMIT, query.fetch_all(connection)).await
    }

    /// Rows that were not changed: another's by now. After a settle whose answer was lost, rows may also be as that one
    /// left them; then only those count that another visibly has.
    async fn lost(
        &self,
        opened: &Opened,
        settlements: &[Settlement],
        changed: &[PgRow],
        connection: &mut PgConnection,
    ) -> Result<Vec<Uuid>, StoreError> {
        if changed.len() == settlements.len() {
            return Ok(Vec::new());
        }
        let unchanged = without(settlements.iter().map(|s| s.lease.row).collect(), changed)?;
        if !self.unsure.load(Ordering::Relaxed) {
            return Ok(unchanged);
        }
        if let (Some(own), Some(first)) =
            (&opened.statements.own, settlements.first().filter(|s| is_owned(&s.lease)))
        {
            let mine = self.is_mine(connection, opened, own, &first.lease).await?;
            return Ok(if mine { Vec::new() } else { unchanged });
        }
        let asked = settlements.iter().filter(|s| unchanged.contains(&s.lease.row)).map(|s| &s.lease);
        let taken = opened
            .scalar::<Uuid>(&opened.statements.taken)
            .bind(asked.clone().map(|lease| lease.row).collect::<Vec<_>>())
            .bind(asked.clone().map(|lease| lease.token.to_string()).collect::<Vec<_>>())
            .bind(asked.map(|lease| lease.attempts).collect::<Vec<_>>())
            .fetch_all(connection);
        within(OPERATION_LIMIT, taken).await
    }

    /// Somebody has locked a row of the batch for longer than we wait: settles the others, and says which were busy.
    async fn settle_free(
        &self,
        opened: &Opened,
        settlements: &[Settlement],
        connection: &mut PgConnection,
    ) -> Result<Settled, StoreError> {
        self.settles.begin(connection).await?;
        let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.row).collect();
        let there = opened.scalar::<Uuid>(&opened.statements.there).bind(&ids);
        let there = within(OPERATION_LIMIT, there.fetch_all(&mut *connection)).await?;
        let free = opened.scalar::<Uuid>(&opened.statements.free).bind(&ids);
        let free = within(OPERATION_LIMIT, free.fetch_all(&mut *connection)).await?;
        let busy: Vec<Uuid> = there.into_iter().filter(|id| !free.contains(id)).collect();
        let ours: Vec<Settlement> =
            settlements.iter().filter(|s| !busy.contains(&s.lease.row)).cloned().collect();
        let rows = self.send(opened, &ours, connection).await?;
        let lost = self.lost(opened, &ours, &rows, connection).await?;
        self.settles.commit(connection).await?;
        tracing::warn!(
            table = &*self.label,
            rows = busy.len(),
            "somebody has locked rows that are to be settled"
        );
        Ok(Settled { lost, busy, next: None })
    }

    /// The time that a lock has if it is still this relay's.
    fn locked_at(&self, lease: &Lease) -> OffsetDateTime {
        let renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.get(&(lease.row, lease.since)).copied().unwrap_or(lease.since)
    }

    fn settle_mixed<'q>(
        &self,
        opened: &'q Opened,
        settlements: &'q [Settlement],
        ids: &'q [Uuid],
        attempts: &'q [i32],
    ) -> Query<'q, Postgres, PgArguments> {
        let mut verdicts = Vec::with_capacity(ids.len());
        let (mut waits, mut errors, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for settlement in settlements {
            let (number, wait, error) = match &settlement.verdict {
                Verdict::Delivered => (0, None, None),
                Verdict::Retry { after, reason } => (1, Some(*after), Some(reason.as_str())),
                Verdict::Release { after, reason } => (2, *after, reason.as_ref().map(Summary::as_str)),
                Verdict::Dead { reason } => (3, None, Some(reason.as_str())),
            };
            verdicts.push(number);
            waits.push(wait.map(|wait| i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)));
            errors.push(error);
            failures
                .push(settlement.failure.as_ref().and_then(|failure| serde_json::to_string(failure).ok()));
        }
        let query = opened.query(&opened.statements.settle).bind(ids);
        match opened.layout {
            Layout::Full => {
                let tokens: Vec<&str> = settlements.iter().map(|s| &*s.lease.token).collect();
                let query = query.bind(tokens).bind(attempts).bind(verdicts).bind(waits);
                query.bind(errors).bind(failures).bind(fan::confirmed(settlements))
            }
            Layout::Bare => {
                let since: Vec<_> = settlements.iter().map(|s| self.locked_at(&s.lease)).collect();
                let max = self.max_attempts.load(Ordering::Relaxed);
                query.bind(since).bind(attempts).bind(verdicts).bind(waits).bind(errors).bind(max)
            }
        }
    }

    /// Rows of an owner have no lease of their own: they last as long as the table is its own.
    async fn extend_all(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        let opened = self.opened().await?;
        let (owned, mut others): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(is_owned);
        let mut lost = if others.is_empty() { Vec::new() } else { self.extend(&mut others).await? };
        if let (Some(own), Some(first)) = (&opened.statements.own, owned.first()) {
            let mut link = self.settles.take().await?;
            let mine = self.is_mine(&mut link.connection, opened, own, first).await?;
            link.keep().await?;
            let gone = |lease: &Lease| !mine || lease.token != first.token;
            lost.extend(owned.iter().filter(|lease| gone(lease)).cloned());
        }
        self.let_go(&lost);
        Ok(lost)
    }

    async fn extend(&self, leases: &mut [Lease]) -> Result<Vec<Lease>, StoreError> {
        let opened = self.opened().await?;
        leases.sort_unstable_by_key(|lease| lease.row);
        let ids: Vec<Uuid> = leases.iter().map(|lease| lease.row).collect();
        let attempts: Vec<i32> = leases.iter().map(|lease| lease.attempts).collect();
        let mut link = self.settles.take().await?;
        let query = opened.query(&opened.statements.extend).bind(&ids);
        let query = match opened.layout {
            Layout::Full => query.bind(leases.iter().map(|lease| &*lease.token).collect::<Vec<_>>()),
            Layout::Bare => query.bind(leases.iter().map(|lease| self.locked_at(lease)).collect::<Vec<_>>()),
        };
        let query = query.bind(attempts).fetch_all(&mut link.connection);
        let rows = within(OPERATION_LIMIT, query).await?;
        link.keep().await?;
        if opened.layout == Layout::Bare {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            for row in &rows {
                let (id, at): (Uuid, OffsetDateTime) =
                    (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
                let since = leases.iter().find(|lease| lease.row == id).map(|lease| lease.since);
                renewed.extend(since.map(|since| ((id, since), at)));
            }
        }
        let lost = without(ids, &rows)?;
        Ok(leases.iter().filter(|lease| lost.contains(&lease.row)).cloned().collect())
    }
}

/// Whether a row could not be locked in time.
fn is_lock_timeout(error: &StoreError) -> bool {
    sqlstate(error).is_some_and(|state| state == "55P03")
}

/// The ids that the answer does not name.
fn without(mut ids: Vec<Uuid>, rows: &[PgRow]) -> Result<Vec<Uuid>, StoreError> {
    let found = rows.iter().map(|row| row.try_get(0)).collect::<Result<std::collections::HashSet<Uuid>, _>>();
    let found = found.map_err(classify)?;
    ids.retain(|id| !found.contains(id));
    Ok(ids)
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
        self.0.order
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

    async fn settle(&self, settlements: Vec<Settlement>, _admit: usize) -> Result<Settled, StoreError> {
        let settled = self.0.settle(settlements).await;
        // A claim passes by the strands that are in flight: after this some of them may go on.
        self.0.settled.notify_one();
        settled
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        self.0.extend_all(leases).await
    }

    fn forget(&self, leases: &[Lease]) {
        self.0.let_go(leases);
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        self.0.letters(request).await
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Vec<Uuid>, StoreError> {
        self.0.settle_letters(letters).await
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        self.0.redrive(request).await
    }

    async fn wait(&self, at_most: Duration) {
        match self.0.order {
            Order::None => tokio::time::sleep(at_most).await,
            Order::Aggregate(_) => {
                let _ = tokio::time::timeout(at_most, self.0.settled.notified()).await;
            }
        }
    }

    async fn close(&self) {
        self.0.resign().await;
        self.0.claims.close().await;
        self.0.settles.close().await;
        self.0.beside.close().await;
        self.0.journals.close().await;
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
