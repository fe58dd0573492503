//! ④ [`MySqlStore`]: what became of rows, and the relay's own life on this table; `claim.rs` is the other half.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::sync::{Mutex, OnceCell};
use uuid::Uuid;

use super::claim::ClaimState;
use super::clock::{Clock, from_micros};
use super::error::{classify, within};
use super::history;
use super::leader::lock_name;
use super::link::{Link, OPERATION_LIMIT, Taken, Tries};
use super::list_of::{bind_list, with_list};
use super::ordered::expect_order;
use super::owner::is_owned;
use super::schema::{TableShape, is_ordered, locate, names};
use super::statements::Statements;
use super::strategy;
use super::version::Server;
use super::wake::Watch;
use super::window::{Window, are_there};
use crate::builder::Settings;
use crate::ordered::News;
use crate::row::Times as _;
use crate::sequenced::{claims_of, fence, key_of, sequence_of, verdict};
use crate::tenants::check as check_tenants;

/// An outbox table in MySQL or MariaDB, for one relay.
///
/// It holds up to five connections of its own: one claims, one settles meanwhile, one looks for commits, one holds the lock of the
/// active relay, and one writes down what that has in flight, if it owns the table.
#[derive(Debug, Clone)]
pub struct MySqlStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) label: Arc<str>,
    pub(super) claims: Link,
    pub(super) settles: Link,
    /// Writes down what an owner has in flight.
    pub(super) journals: Link,
    pub(super) watch: Link,
    /// Holds the lock, and does nothing else.
    pub(super) session: Link,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    /// Where order is kept.
    pub(super) news: News,
    pub(super) clock: Clock,
    pub(super) seen: Watch,
    /// What an owner has in flight.
    pub(super) window: std::sync::Mutex<Window>,
    /// The answer to the last settle of an owner's rows was lost.
    pub(super) unsure: AtomicBool,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) statements: Statements,
    /// The table's key in `postbox_relay`.
    pub(super) key: String,
    /// The name of the active relay's lock.
    pub(super) lock: String,
}

impl Opened {
    /// Whether the relay owns the table.
    pub(super) fn owns(&self) -> bool {
        self.statements.own.is_some()
    }
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    /// Looks at the server and the table in it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let mut link = self.claims.take().await?;
        let connection = &mut link.connection;
        Server::expect(connection).await?;
        let (schema, table) = locate(connection, &self.settings.table).await?;
        TableShape::expect(connection, &schema, &table).await?;
        let names = names(connection, &schema, &table).await?;
        let sent = history::look(connection, &schema, &table, self.settings.history).await?;
        if self.settings.order != Order::None {
            expect_order(is_ordered(&names), &table)?;
        }
        if self.settings.tenants.apart() {
            let indexed = !names.fill("{{by_tenants_waiting}}").is_empty();
            check_tenants(&self.settings, &table, indexed)?;
        }
        let owners = are_there(connection, &schema).await?;
        let owns = strategy::owns(&self.settings, &table, owners)?;
        let owned = owns.then(|| table.table());
        let opened = Opened {
            statements: Statements::new(&names, &sent, &self.settings.tenants, owners, owned),
            key: table.table().to_owned(),
            lock: lock_name("relay", &schema, &table),
        };
        self.check_others(connection, &opened).await?;
        link.keep();
        Ok(opened)
    }

    /// Writes what became of rows. Those that a relay owns are fenced by its place, the others by their leases.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let owned: Vec<&Settlement> = settlements.iter().filter(|one| is_owned(&one.lease)).collect();
        let Some(own) = opened.statements.own.as_ref().filter(|_| !owned.is_empty()) else {
            return self.settle_leased(opened, settlements).await;
        };
        let mut settled = Settled::default();
        if owned.len() < settlements.len() {
            let leased: Vec<Settlement> =
                settlements.iter().filter(|one| !is_owned(&one.lease)).cloned().collect();
            settled = self.settle_leased(opened, &leased).await?;
        }
        settled.lost.extend(self.settle_own(own, owned).await?);
        Ok(settled)
    }

    async fn settle_leased(
        &self,
        opened: &Opened,
        settlements: &[Settlement],
    ) -> Result<Settled, StoreError> {
        let lost: Vec<Uuid> = match (claims_of(settlements), &opened.statements.gone) {
            (Some(claims), None) => self.settle_delivered(opened, claims).await?,
            (claims, Some(gone)) => self.settle_gone(opened, gone, settlements, claims).await?,
            (None, None) => {
                let document = self.document(settlements);
                let statements = &opened.statements;
                let leases = settlements.iter().map(|settlement| &settlement.lease);
                let lost = self.fenced(&statements.held, &statements.settle, document, leases).await?;
                lost.iter().map(|lease| lease.row).collect()
            }
        };
        if self.settings.order != Order::None {
            self.news.settled(settlements, &lost, self.clock.now());
        }
        Ok(Settled { lost, ..Settled::default() })
    }

    /// Settlements for SQL, in the order in which rows are locked.
    pub(super) fn document<'a>(&self, settlements: impl IntoIterator<Item = &'a Settlement>) -> String {
        let at = from_micros(self.clock.now());
        let mut sorted: Vec<&Settlement> = settlements.into_iter().collect();
        sorted.sort_unstable_by_key(|settlement| sequence_of(settlement.lease.row));
        sorted.into_iter().map(|one| verdict(one, at)).collect::<Value>().to_string()
    }

    /// Runs a statement about rows whose leases are still what they were, and answers which are not.
    pub(super) async fn fenced<'a>(
        &self,
        held: &str,
        change: &str,
        document: String,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> Result<Vec<&'a Lease>, StoreError> {
        let mut tries = Tries::new();
        let found = loop {
            let mut link = self.settles.take().await?;
            match change_held(&mut link, held, change, &document).await {
                Ok(found) => {
                    link.keep();
                    break found;
                }
                Err(error) => tries.again(link, error).await?,
            }
        };
        Ok(leases.filter(|lease| !found.contains(&sequence_of(lease.row))).collect())
    }

    /// Everything arrived: one statement for each claim, and its usual answer is a number.
    async fn settle_delivered(
        &self,
        opened: &Opened,
        claims: Vec<(&Lease, Vec<i64>)>,
    ) -> Result<Vec<Uuid>, StoreError> {
        let mut lost = Vec::new();
        for (lease, mut sequences) in claims {
            // Rows are locked in this order by everybody (hazard 18).
            sequences.sort_unstable();
            let sql = with_list(&opened.statements.settle_delivered, sequences.len());
            let mut tries = Tries::new();
            loop {
                let mut link = self.settles.take().await?;
                let settle = bind_list(sqlx::query(AssertSqlSafe(sql.as_str())), &sequences);
                let settle = settle.bind(&*lease.token).bind(lease.attempts).execute(&mut link.connection);
                match within(OPERATION_LIMIT, settle).await {
                    Ok(done) => {
                        if done.rows_affected() != sequences.len() as u64 {
                            let sql = &opened.statements.published;
                            lost.extend(
                                not_settled(&mut link.connection, sql, &sequences, done.rows_affected())
                                    .await?,
                            );
                        }
                        link.keep();
                        break;
                    }
                    Err(error) => tries.again(link, error).await?,
                }
            }
        }
        Ok(lost)
    }

    /// Rows of an owner have no lease of their own: they last as long as the table is its own.
    async fn extend_all(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        let opened = self.opened().await?;
        let (owned, others): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(is_owned);
        let mut lost = if others.is_empty() { Vec::new() } else { self.extend(opened, &others).await? };
        if let Some(own) = &opened.statements.own {
            lost.extend(self.lost_reigns(own, owned).await?);
        }
        Ok(lost)
    }

    async fn extend(&self, opened: &Opened, leases: &[Lease]) -> Result<Vec<Lease>, StoreError> {
        let mut sorted: Vec<&Lease> = leases.iter().collect();
        sorted.sort_unstable_by_key(|lease| sequence_of(lease.row));
        let (statements, document) = (&opened.statements, fence(sorted.into_iter()));
        let lost = self.fenced(&statements.held, &statements.extend, document, leases.iter()).await?;
        Ok(lost.into_iter().cloned().collect())
    }
}

/// Locks what is still held, and changes it; answers which that was.
async fn change_held(
    link: &mut Taken<'_>,
    held: &str,
    change: &str,
    document: &str,
) -> Result<HashSet<i64>, StoreError> {
    link.begin().await?;
    let look =
        sqlx::query_scalar::<_, i64>(AssertSqlSafe(held)).bind(document).fetch_all(&mut link.connection);
    let found: HashSet<i64> = within(OPERATION_LIMIT, look).await?.into_iter().collect();
    if !found.is_empty() {
        let change = sqlx::query(AssertSqlSafe(change)).bind(document).execute(&mut link.connection);
        within(OPERATION_LIMIT, change).await?;
    }
    link.commit().await?;
    Ok(found)
}

/// Rows that a settle did not publish, of which it has published so many at one time: their leases were lost.
async fn not_settled(
    connection: &mut MySqlConnection,
    sql: &str,
    sequences: &[i64],
    settled: u64,
) -> Result<Vec<Uuid>, StoreError> {
    let sql = with_list(sql, sequences.len());
    let rows = bind_list(sqlx::query(AssertSqlSafe(sql)), sequences).fetch_all(connection);
    let mut by_time: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in within(OPERATION_LIMIT, rows).await? {
        let read = || Ok((row.try_get::<i64, _>(0)?, row.micros(1)?));
        let (sequence, at): (i64, i64) = read().map_err(classify)?;
        by_time.entry(at).or_default().push(sequence);
    }
    let ours = by_time.into_iter().rev().find(|(at, rows)| *at > 0 && rows.len() as u64 == settled);
    let ours: HashSet<i64> = ours.map(|(_, rows)| rows).unwrap_or_default().into_iter().collect();
    Ok(sequences
        .iter()
        .filter(|sequence| !ours.contains(*sequence))
        .map(|sequence| key_of(*sequence))
        .collect())
}

impl Store for MySqlStore {
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

    /// A table that was migrated can do all of it.
    async fn require(&self, _wanted: Requirements) -> Result<(), StoreError> {
        self.0.opened().await.map(|_| ())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        self.0.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement], _admit: usize) -> Result<Settled, StoreError> {
        self.0.settle(settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        self.0.extend_all(leases).await
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        self.0.letters(request).await
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Vec<Uuid>, StoreError> {
        self.0.settle_letters(&letters).await
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        self.0.redrive(&request).await
    }

    fn forget(&self, leases: &[Lease]) {
        self.0.let_go(leases);
        if self.0.settings.order != Order::None {
            self.0.news.lost(leases);
        }
    }

    /// Looks for commits of others every 10 ms at first, and every 40 ms after a while in vain.
    async fn wait(&self, at_most: Duration) {
        self.0.wait(at_most).await;
    }

    async fn close(&self) {
        self.0.resign().await;
        for link in [&self.0.claims, &self.0.settles, &self.0.journals, &self.0.watch, &self.0.session] {
            link.close().await;
        }
    }
}
