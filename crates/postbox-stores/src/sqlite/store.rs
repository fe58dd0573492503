//! ④ [`SqliteStore`]: what became of rows, and the relay's own life on this table; `claim.rs` is the other half.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection};
use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify, OnceCell};
use tokio::time::Instant;
use uuid::Uuid;

use super::claim::{ClaimState, data_version};
use super::clock::now;
use super::error::classify;
use super::history;
use super::link::Link;
use super::ordered::expect_order;
use super::schema::{TableShape, in_main, names};
use super::statements::Statements;
use crate::builder::Settings;
use crate::ordered::News;
use crate::sequenced::{array, claims_of, fence, key_of, sequence_of, verdict};
use crate::tenants::check as check_tenants;

/// Tells the relays of this process that it has committed events: they look at once. Whoever commits elsewhere, or by a
/// transaction of the driver's own, is found by looking.
pub(super) static COMMITTED: Notify = Notify::const_new();

/// How often a waiting relay looks whether anybody has committed anything. A look costs microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// An outbox table in SQLite, for one relay.
///
/// It holds two connections of its own: one that writes, and one that looks meanwhile.
#[derive(Debug, Clone)]
pub struct SqliteStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) label: Arc<str>,
    pub(super) reader: Link,
    pub(super) writer: Link,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    /// Where order is kept.
    pub(super) news: News,
    /// The version of the data that the last claim saw, as the reader counts it.
    pub(super) seen: AtomicI64,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) statements: Statements,
    /// The table's key in `postbox_relay`.
    pub(super) key: String,
    /// Locked by the active relay.
    pub(super) lock_file: PathBuf,
    /// Whether there is the column to count replays.
    pub(super) redrives: bool,
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    /// Looks at the file and the table in it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let table = in_main(&self.settings.table)?;
        let mut reader = self.reader.take().await?;
        let lock_file = format!("{}.postbox-{table}.lock", reader.file().await?);
        let shape = TableShape::expect(&mut reader.connection, &table).await?;
        let names = names(&mut reader.connection, &table).await?;
        let sent = history::look(&mut reader.connection, &table, self.settings.history).await?;
        if self.settings.order != Order::None {
            expect_order(&names, &table)?;
        }
        if self.settings.tenants.apart() {
            let indexed = !names.fill("{{by_tenants_waiting}}").is_empty();
            check_tenants(&self.settings, &table, indexed)?;
        }
        reader.keep();
        self.writer.expect_writable().await?;
        Ok(Opened {
            statements: Statements::new(&names, &sent, &self.settings.tenants),
            key: table.to_string(),
            lock_file: lock_file.into(),
            redrives: !shape.missing().contains(&"redrives"),
        })
    }

    /// Runs a statement about leases, and answers which of them it did not find.
    pub(super) async fn fenced<'a>(
        &self,
        sql: &str,
        document: String,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> Result<Vec<&'a Lease>, StoreError> {
        let mut writer = self.writer.begin().await?;
        let found = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql))
            .bind(now())
            .bind(document)
            .fetch_all(&mut writer.connection)
            .await
            .map_err(classify)?;
        writer.commit().await?;
        let found: HashSet<i64> = found.into_iter().collect();
        Ok(leases.filter(|lease| !found.contains(&sequence_of(lease.row))).collect())
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let lost: Vec<Uuid> = if let Some(gone) = &opened.statements.gone {
            self.settle_gone(opened, gone, settlements).await?
        } else if let Some(claims) = claims_of(settlements) {
            self.settle_delivered(opened, &claims).await?
        } else {
            let leases = settlements.iter().map(|settlement| &settlement.lease);
            let at = OffsetDateTime::now_utc();
            let document = settlements.iter().map(|one| verdict(one, at)).collect::<Value>().to_string();
            let lost = self.fenced(&opened.statements.settle, document, leases).await?;
            lost.iter().map(|lease| lease.row).collect()
        };
        if self.settings.order != Order::None {
            self.news.settled(settlements, &lost, now());
        }
        Ok(Settled { lost, ..Settled::default() })
    }

    /// Everything arrived: one statement for each claim, and its usual answer is a number.
    async fn settle_delivered(
        &self,
        opened: &Opened,
        claims: &[(&Lease, Vec<i64>)],
    ) -> Result<Vec<Uuid>, StoreError> {
        let sql = opened.statements.settle_delivered.as_str();
        let settle = |at: i64, lease: &Lease, sequences: &str| {
            let query = sqlx::query(AssertSqlSafe(sql)).bind(at).bind(sequences.to_owned());
            query.bind(lease.token.to_string()).bind(lease.attempts)
        };
        let wanted: usize = claims.iter().map(|(_, sequences)| sequences.len()).sum();
        if let [(lease, sequences)] = claims {
            let sequences = array(sequences.iter().copied());
            let mut done = self.writer.execute(|at| settle(at, lease, &sequences)).await?;
            let mut lost = Vec::new();
            if done.changed != wanted as u64 {
                lost = not_settled(
                    &mut done.taken.connection,
                    &opened.statements.not_settled,
                    done.at,
                    sequences,
                )
                .await?;
            }
            done.taken.keep();
            return Ok(lost);
        }
        let mut writer = self.writer.begin().await?;
        let (at, mut changed) = (now(), 0);
        for (lease, sequences) in claims {
            let settle = settle(at, lease, &array(sequences.iter().copied()));
            changed += settle.execute(&mut writer.connection).await.map_err(classify)?.rows_affected();
        }
        let mut lost = Vec::new();
        if changed != wanted as u64 {
            let sequences = array(claims.iter().flat_map(|(_, sequences)| sequences.iter().copied()));
            lost = not_settled(&mut writer.connection, &opened.statements.not_settled, at, sequences).await?;
        }
        writer.commit().await?;
        Ok(lost)
    }

    async fn extend(&self, leases: &[Lease]) -> Result<Vec<Lease>, StoreError> {
        let opened = self.opened().await?;
        let lost = self.fenced(&opened.statements.extend, fence(leases.iter()), leases.iter()).await?;
        Ok(lost.into_iter().cloned().collect())
    }

    /// Whether another connection has committed since the last claim looked.
    async fn changed(&self) -> Result<bool, StoreError> {
        let mut reader = self.reader.take().await?;
        let version = data_version(&mut reader.connection).await?;
        // Each connection counts for itself.
        let changed = reader.fresh || version != self.seen.load(Ordering::Relaxed);
        reader.keep();
        Ok(changed)
    }
}

/// Rows that were not published at this time: their leases were lost. (One that another relay published in the very same
/// microsecond is not told from ours; it is published all the same.)
pub(super) async fn not_settled(
    connection: &mut SqliteConnection,
    sql: &str,
    at: i64,
    sequences: String,
) -> Result<Vec<Uuid>, StoreError> {
    let lost = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned()))
        .bind(at)
        .bind(sequences)
        .fetch_all(connection);
    Ok(lost.await.map_err(classify)?.into_iter().map(key_of).collect())
}

impl Store for SqliteStore {
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

    async fn settle(&self, settlements: &[Settlement], _admit: usize) -> Result<Settled, StoreError> {
        self.0.settle(settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        self.0.extend(&leases).await
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
        if self.0.settings.order != Order::None {
            self.0.news.lost(leases);
        }
    }

    /// Looks for commits of others, in this process and in any other, a hundred times a second.
    async fn wait(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until.min(Instant::now() + LOOK)) => {}
                () = COMMITTED.notified() => {}
                // What was behind a row that is settled now can be claimed.
                () = self.0.news.came() => return,
            }
            if Instant::now() >= until {
                return;
            }
            match self.0.changed().await {
                Ok(false) => {}
                Ok(true) => return,
                // For the next claim to tell, when its time has come.
                Err(_) => return tokio::time::sleep_until(until).await,
            }
        }
    }

    async fn close(&self) {
        self.0.resign().await;
        self.0.reader.close().await;
        self.0.writer.close().await;
    }
}
