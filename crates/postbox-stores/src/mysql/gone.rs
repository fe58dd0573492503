//! Rows that were delivered and do not stay: they are deleted, or move to the history first.

use std::collections::HashSet;

use postbox_core::StoreError;
use postbox_core::store::{Lease, Settled, Settlement, Verdict};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::busy::keys_of;
use super::clause::{bind_list, with_list};
use super::error::{classify, within};
use super::history;
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::history::Sent;
use crate::sequenced::{fence, key_of, sequence_of};
use crate::table::Template;

/// The fence of one claim: sequences, token, attempts.
const CLAIM: &str = "t.sequence IN (<in>) AND t.locked_by = ? AND t.attempts = ? AND t.published_at IS NULL";

/// Their statements.
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
    /// Writes what became of rows; answers those that were no longer this relay's, and those that somebody else has locked.
    pub(super) async fn settle_gone(
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
                    let rows = rest.iter().map(|one| sequence_of(one.lease.row));
                    busy.extend(self.again(&mut tries, link, error, rows).await?);
                    rest.retain(|one| !busy.contains(&sequence_of(one.lease.row)));
                    for (_, sequences) in claims.iter_mut().flatten() {
                        sequences.retain(|sequence| !busy.contains(sequence));
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
