//! ⑥ Settle: what became of rows that were leased, fenced by their leases. Where delivered rows do not stay, they are deleted, or move
//! to the history first.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use postbox_core::store::{Lease, Renewed, Settled, Settlement, Verdict};
use postbox_core::{Order, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use uuid::Uuid;

use super::clause::{bind_list, with_list};
use super::clock::from_micros;
use super::error::{classify, is_lock_wait, within};
use super::history;
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::history::Sent;
use crate::owned::is_owned;
use crate::row::Times as _;
use crate::sequenced::{claims_of, fence, key_of, sequence_of, verdict};
use crate::table::Template;

/// How often it is looked whether a row is free that is all there is to settle.
const LOOK: Duration = Duration::from_millis(200);

impl Inner {
    /// Writes what became of rows, but for those that somebody has locked since the last settle of them.
    pub(super) async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let busy = self.still_busy(settlements).await?;
        let settled = self.settle_but(settlements, &busy).await?;
        self.note_busy(settlements, &settled.busy);
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
    /// else has locked them.
    pub(super) async fn fenced<'a>(
        &self,
        held: &str,
        change: &str,
        mut document: String,
        leases: impl Iterator<Item = &'a Lease> + Clone,
    ) -> Result<(Vec<&'a Lease>, HashSet<i64>), StoreError> {
        let (mut busy, mut tries): (HashSet<i64>, _) = (HashSet::new(), Tries::new());
        let found = loop {
            let mut link = self.settles.take().await?;
            match change_held(&mut link, held, change, &document).await {
                Ok(found) => {
                    link.keep();
                    break found;
                }
                Err(error) => {
                    let waited = is_lock_wait(&error);
                    tries.again(link, error).await?;
                    if waited {
                        let rows = leases.clone().map(|lease| sequence_of(lease.row)).collect();
                        busy.extend(self.busy(rows).await?);
                        document = without(&document, &busy);
                    }
                }
            }
        };
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
                        let waited = is_lock_wait(&error);
                        tries.again(link, error).await?;
                        if waited {
                            let busy = self.busy(sequences.clone()).await?;
                            sequences.retain(|sequence| !busy.contains(sequence));
                            settled.busy.extend(keys_of(&busy));
                        }
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

/// The rows' keys.
pub(super) fn keys_of(sequences: &HashSet<i64>) -> Vec<Uuid> {
    sequences.iter().copied().map(key_of).collect()
}

/// A document for SQL, but for some of its rows.
fn without(document: &str, busy: &HashSet<i64>) -> String {
    let rows: Vec<Value> = serde_json::from_str(document).unwrap_or_default();
    let stays = |row: &Value| row[0].as_i64().is_none_or(|sequence| !busy.contains(&sequence));
    rows.into_iter().filter(stays).collect::<Value>().to_string()
}

/// Locks what is still held, and changes it; answers which that was.
pub(super) async fn change_held(
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

/// The fence of one claim: sequences, token, attempts.
const CLAIM: &str = "t.sequence IN (<in>) AND t.locked_by = ? AND t.attempts = ? AND t.published_at IS NULL";

/// The statements.
#[derive(Debug)]
pub(super) struct Gone {
    /// Brings the rows of one claim into the history, and locks them; none where they are only deleted.
    arrive: Option<String>,
    /// Deletes the rows of one claim.
    leave: String,
    /// Which of some rows are still there.
    still_there: String,
    /// Brings rows that are locked into the history.
    arrive_each: Option<String>,
    /// Deletes rows that are locked.
    leave_each: String,
}

impl Gone {
    /// None where delivered rows stay.
    pub(super) fn new(names: &Template, sent: &Sent) -> Option<Self> {
        const SOURCE: &str = "{{table}} AS t FORCE INDEX (PRIMARY)";
        let history = match sent {
            Sent::Kept => return None,
            Sent::Moved(history) => Some(history),
            Sent::Deleted => None,
        };
        let arrive = |condition: &str| {
            // With a lock: what is read without one may be another's by the time that it is deleted.
            history.map(|history| {
                names.fill(&format!(
                    "{} FROM {SOURCE} WHERE {condition} FOR UPDATE",
                    history::arrive(history, "t.attempts")
                ))
            })
        };
        let leave = |condition: &str| names.fill(&format!("DELETE t FROM {SOURCE} WHERE {condition}"));
        Some(Self {
            arrive: arrive(CLAIM),
            leave: leave(CLAIM),
            still_there: names
                .fill("SELECT sequence FROM {{table}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)"),
            arrive_each: arrive("t.sequence IN (<in>)"),
            leave_each: leave("t.sequence IN (<in>)"),
        })
    }
}

/// The rows of some claims that all arrived.
type Claims<'a> = Vec<(&'a Lease, Vec<i64>)>;

impl Inner {
    /// Writes what became of rows; answers those that were no longer this relay's.
    async fn settle_gone(
        &self,
        opened: &Opened,
        gone: &Gone,
        settlements: &[Settlement],
        mut claims: Option<Claims<'_>>,
    ) -> Result<Settled, StoreError> {
        let mut rest: Vec<&Settlement> = settlements.iter().collect();
        let (mut busy, mut tries): (HashSet<i64>, _) = (HashSet::new(), Tries::new());
        loop {
            let mut link = self.settles.take().await?;
            let settled = match &claims {
                Some(claims) => gone_delivered(&mut link, gone, claims).await,
                None => self.gone_mixed(&mut link, opened, gone, &rest).await,
            };
            match settled {
                Ok(lost) => {
                    link.keep();
                    return Ok(Settled { lost, busy: keys_of(&busy) });
                }
                Err(error) => {
                    let waited = is_lock_wait(&error);
                    tries.again(link, error).await?;
                    if waited {
                        let rows = rest.iter().map(|one| sequence_of(one.lease.row)).collect();
                        busy.extend(self.busy(rows).await?);
                        rest.retain(|one| !busy.contains(&sequence_of(one.lease.row)));
                        for (_, sequences) in claims.iter_mut().flatten() {
                            sequences.retain(|sequence| !busy.contains(sequence));
                        }
                    }
                }
            }
        }
    }

    /// Some arrived, others did not.
    async fn gone_mixed(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        gone: &Gone,
        settlements: &[&Settlement],
    ) -> Result<Vec<Uuid>, StoreError> {
        let mut sorted: Vec<&Lease> = settlements.iter().map(|settlement| &settlement.lease).collect();
        sorted.sort_unstable_by_key(|lease| sequence_of(lease.row));
        link.begin().await?;
        let held = sqlx::query_scalar::<_, i64>(AssertSqlSafe(opened.statements.held.as_str()))
            .bind(fence(sorted.into_iter()))
            .fetch_all(&mut link.connection);
        let held: HashSet<i64> = within(OPERATION_LIMIT, held).await?.into_iter().collect();
        let is_held = |settlement: &&Settlement| held.contains(&sequence_of(settlement.lease.row));
        let (delivered, rest): (Vec<&Settlement>, Vec<&Settlement>) = settlements
            .iter()
            .copied()
            .filter(is_held)
            .partition(|settlement| settlement.verdict == Verdict::Delivered);
        let delivered: Vec<i64> =
            delivered.iter().map(|settlement| sequence_of(settlement.lease.row)).collect();
        for sql in gone.arrive_each.iter().chain([&gone.leave_each]).filter(|_| !delivered.is_empty()) {
            let query = sqlx::query(AssertSqlSafe(with_list(sql, delivered.len())));
            within(OPERATION_LIMIT, bind_list(query, &delivered).execute(&mut link.connection)).await?;
        }
        if !rest.is_empty() {
            let settle =
                sqlx::query(AssertSqlSafe(opened.statements.settle.as_str())).bind(self.document(rest));
            within(OPERATION_LIMIT, settle.execute(&mut link.connection)).await?;
        }
        link.commit().await?;
        let rows = settlements.iter().map(|settlement| settlement.lease.row);
        Ok(rows.filter(|row| !held.contains(&sequence_of(*row))).collect())
    }
}

/// Everything arrived: one or two statements for each claim, and their usual answer is a number.
async fn gone_delivered(
    link: &mut Taken<'_>,
    gone: &Gone,
    claims: &[(&Lease, Vec<i64>)],
) -> Result<Vec<Uuid>, StoreError> {
    let alone = claims.len() == 1 && gone.arrive.is_none();
    if !alone {
        link.begin().await?;
    }
    let mut lost = Vec::new();
    for (lease, sequences) in claims.iter().filter(|(_, sequences)| !sequences.is_empty()) {
        let mut sequences = sequences.clone();
        sequences.sort_unstable();
        let mut changed = 0;
        for sql in gone.arrive.iter().chain([&gone.leave]) {
            let query = bind_list(sqlx::query(AssertSqlSafe(with_list(sql, sequences.len()))), &sequences);
            let query = query.bind(lease.token.to_string()).bind(lease.attempts);
            changed = within(OPERATION_LIMIT, query.execute(&mut link.connection)).await?.rows_affected();
        }
        if changed != sequences.len() as u64 {
            // What is there is another's. What is gone was delivered, whoever deleted it.
            let query = sqlx::query(AssertSqlSafe(with_list(&gone.still_there, sequences.len())));
            let there = bind_list(query, &sequences).fetch_all(&mut link.connection);
            for row in within(OPERATION_LIMIT, there).await? {
                lost.push(key_of(row.try_get(0).map_err(classify)?));
            }
        }
    }
    if !alone {
        link.commit().await?;
    }
    Ok(lost)
}
