//! ⑥ Settle: what became of rows that were leased, fenced by their leases. Where delivered rows do not stay,
//! `gone.rs` does it.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use postbox_core::store::{Lease, Renewed, Settled, Settlement};
use postbox_core::{Order, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use uuid::Uuid;

use super::busy::keys_of;
use super::clause::{bind_list, with_list};
use super::clock::from_micros;
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::owned::is_owned;
use crate::row::Times as _;
use crate::sequenced::{claims_of, fence, key_of, sequence_of, verdict};

/// How often it is looked whether a row is free that is all there is to settle.
const LOOK: Duration = Duration::from_millis(200);

impl Inner {
    /// Writes what became of rows, but for those that somebody has locked since the last settle of them.
    pub(super) async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let rows = || settlements.iter().map(|one| sequence_of(one.lease.row));
        let busy = self.still_busy(rows()).await?;
        let settled = self.settle_but(settlements, &busy).await?;
        self.note_busy(rows(), settled.busy.iter().copied().map(sequence_of));
        if settled.busy.is_empty() {
            self.unsure.store(false, Ordering::Relaxed);
        }
        Ok(settled)
    }

    async fn settle_but(
        &self,
        settlements: &[Settlement],
        busy: &HashSet<i64>,
    ) -> Result<Settled, StoreError> {
        if busy.is_empty() {
            return self.settle_free(settlements).await;
        }
        let is_free = |one: &&Settlement| !busy.contains(&sequence_of(one.lease.row));
        let free: Vec<Settlement> = settlements.iter().filter(is_free).cloned().collect();
        if free.is_empty() {
            // Nothing else is to be done, and this comes back at once.
            tokio::time::sleep(LOOK).await;
            return Ok(Settled { busy: keys_of(busy), ..Settled::default() });
        }
        let mut settled = self.settle_free(&free).await?;
        settled.busy.extend(keys_of(busy));
        Ok(settled)
    }

    /// Those that a relay owns are fenced by its place, the others by their leases.
    async fn settle_free(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
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
        let part = self.settle_own(own, owned).await?;
        settled.lost.extend(part.lost);
        settled.busy.extend(part.busy);
        Ok(settled)
    }

    async fn settle_leased(
        &self,
        opened: &Opened,
        settlements: &[Settlement],
    ) -> Result<Settled, StoreError> {
        let settled = match (claims_of(settlements), &opened.statements.gone) {
            (Some(claims), None) => self.settle_delivered(opened, claims).await?,
            (claims, Some(gone)) => self.settle_gone(opened, gone, settlements, claims).await?,
            (None, None) => {
                let document = self.document(settlements);
                let statements = &opened.statements;
                let leases = settlements.iter().map(|settlement| &settlement.lease);
                let (lost, busy) =
                    self.fenced(&statements.held, &statements.settle, document, leases).await?;
                Settled { lost: lost.iter().map(|lease| lease.row).collect(), busy: keys_of(&busy) }
            }
        };
        if self.settings.order != Order::None {
            let told = settlements.iter().filter(|one| !settled.busy.contains(&one.lease.row));
            self.news.settled(told, &settled.lost, self.clock.now());
        }
        Ok(settled)
    }

    /// Settlements for SQL, in the order in which rows are locked.
    pub(super) fn document<'a>(&self, settlements: impl IntoIterator<Item = &'a Settlement>) -> String {
        let at = from_micros(self.clock.now());
        let mut sorted: Vec<&Settlement> = settlements.into_iter().collect();
        sorted.sort_unstable_by_key(|settlement| sequence_of(settlement.lease.row));
        sorted.into_iter().map(|one| verdict(one, at)).collect::<Value>().to_string()
    }

    /// Runs a statement about rows whose leases are still what they were; answers which are not, and which are left out, since somebody
    /// else has locked them. One lock is waited for once: settles of others wait behind this one.
    pub(super) async fn fenced<'a>(
        &self,
        held: &str,
        change: &str,
        mut document: String,
        leases: impl Iterator<Item = &'a Lease> + Clone,
    ) -> Result<(Vec<&'a Lease>, HashSet<i64>), StoreError> {
        let rows = || leases.clone().map(|lease| sequence_of(lease.row));
        let (mut busy, mut tries) = (self.still_busy(rows()).await?, Tries::new());
        if !busy.is_empty() {
            document = without(&document, &busy);
        }
        let found = loop {
            let mut link = self.settles.take().await?;
            match change_held(&mut link, held, change, &document).await {
                Ok(found) => {
                    link.keep();
                    break found;
                }
                Err(error) => {
                    busy.extend(self.again(&mut tries, link, error, rows()).await?);
                    document = without(&document, &busy);
                }
            }
        };
        self.note_busy(rows(), busy.iter().copied());
        let is_known = |sequence: i64| found.contains(&sequence) || busy.contains(&sequence);
        let lost = leases.filter(|lease| !is_known(sequence_of(lease.row))).collect();
        Ok((lost, busy))
    }

    /// Everything arrived: one statement for each claim, and its usual answer is a number.
    async fn settle_delivered(
        &self,
        opened: &Opened,
        claims: Vec<(&Lease, Vec<i64>)>,
    ) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        for (lease, mut sequences) in claims {
            // Rows are locked in this order by everybody (hazard 18).
            sequences.sort_unstable();
            let mut tries = Tries::new();
            while !sequences.is_empty() {
                let sql = with_list(&opened.statements.settle_delivered, sequences.len());
                let mut link = self.settles.take().await?;
                let settle = bind_list(sqlx::query(AssertSqlSafe(sql.as_str())), &sequences);
                let settle = settle.bind(&*lease.token).bind(lease.attempts).execute(&mut link.connection);
                match within(OPERATION_LIMIT, settle).await {
                    Ok(done) => {
                        if done.rows_affected() != sequences.len() as u64 {
                            let sql = &opened.statements.published;
                            settled.lost.extend(
                                not_settled(&mut link.connection, sql, &sequences, done.rows_affected())
                                    .await?,
                            );
                        }
                        link.keep();
                        break;
                    }
                    Err(error) => {
                        let rows = sequences.iter().copied();
                        let busy = self.again(&mut tries, link, error, rows).await?;
                        sequences.retain(|sequence| !busy.contains(sequence));
                        settled.busy.extend(keys_of(&busy));
                    }
                }
            }
        }
        Ok(settled)
    }

    /// Rows of an owner have no lease of their own: they last as long as the table is its own.
    pub(super) async fn extend_all(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        let opened = self.opened().await?;
        let (owned, others): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(is_owned);
        let mut renewed =
            if others.is_empty() { Renewed::default() } else { self.extend(opened, &others).await? };
        if let Some(own) = &opened.statements.own {
            renewed.lost.extend(self.lost_reigns(own, owned).await?);
        }
        Ok(renewed)
    }

    async fn extend(&self, opened: &Opened, leases: &[Lease]) -> Result<Renewed, StoreError> {
        let mut sorted: Vec<&Lease> = leases.iter().collect();
        sorted.sort_unstable_by_key(|lease| sequence_of(lease.row));
        let (statements, document) = (&opened.statements, fence(sorted.into_iter()));
        let (lost, busy) = self.fenced(&statements.held, &statements.extend, document, leases.iter()).await?;
        let is_busy = |lease: &&Lease| busy.contains(&sequence_of(lease.row));
        Ok(Renewed {
            lost: lost.into_iter().cloned().collect(),
            busy: leases.iter().filter(is_busy).cloned().collect(),
        })
    }
}

/// A document for SQL, but for some of its rows.
fn without(document: &str, busy: &HashSet<i64>) -> String {
    let rows: Vec<Value> = serde_json::from_str(document).unwrap_or_default();
    let stays = |row: &Value| row[0].as_i64().is_none_or(|sequence| !busy.contains(&sequence));
    rows.into_iter().filter(stays).collect::<Value>().to_string()
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
