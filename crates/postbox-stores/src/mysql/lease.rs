//! ④ The second half of a claim: what was picked is locked, read and leased in one short transaction.

use futures_util::TryStreamExt as _;
use postbox_core::store::{Buried, Claim, ClaimMode, ClaimRequest, Token};
use postbox_core::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, Row as _};

use super::clause::{bind_list, with_list};
use super::clock::span;
use super::error::within;
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::gate::no_answer_in;
use crate::row::{self, COLUMNS, Times as _};
use crate::seen::Candidate;
use crate::sequenced::{Content, Unreadable};

/// A row that is locked.
pub(super) struct Locked {
    pub(super) content: Content,
    /// Attempts made so far.
    pub(super) attempts: i64,
    /// When, by the database's clock.
    pub(super) at: i64,
}

impl Locked {
    /// The same, counting the one that it is leased for.
    pub(super) fn attempts_with_this(&self) -> i64 {
        self.attempts.max(0) + 1
    }

    /// What is said of it when it dies.
    pub(super) fn buried(&self) -> Buried {
        let (topic, event_id) = match &self.content.what {
            Ok(delivery) => (delivery.meta.topic.to_string(), delivery.meta.event_id),
            Err(Unreadable { topic, event_id, .. }) => (topic.clone(), *event_id),
        };
        Buried { topic, event_id, sequence: self.content.sequence }
    }
}

/// Claims whose answer was lost, and their rows.
pub(super) type Lost = Vec<(Token, Vec<i64>)>;

impl Inner {
    /// Leases what was picked and is still there; what has used up its attempts dies.
    pub(super) async fn take_rows(
        &self,
        lost: &mut Lost,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Candidate],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let (token, mut tries) = (self.settings.token(), Tries::new());
        let sequences: Vec<i64> = sorted(chosen.iter().map(|row| row.sequence));
        let rows = loop {
            let mut link = self.claims.take().await?;
            let leased = async {
                link.begin().await?;
                let rows = self.lock_rows(&mut link, opened, request, &sequences, request.limit).await?;
                self.write_leases(&mut link, opened, request, &token, &rows).await?;
                link.commit().await?;
                Ok::<_, StoreError>(rows)
            };
            match leased.await {
                Ok(rows) => {
                    link.keep();
                    break rows;
                }
                Err(error) => {
                    self.may_be_lost(lost, &token, &sequences, &error);
                    tries.again(link, error).await?;
                }
            }
        };
        for row in rows {
            if row.attempts >= i64::from(request.max_attempts) {
                claim.buried.push(row.buried());
                continue;
            }
            let (at, attempts) = (row.at, row.attempts_with_this());
            row.content.leased(&token, at, attempts, None, claim);
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
    }

    /// Remembers a claim whose end nobody knows.
    pub(super) fn may_be_lost(&self, lost: &mut Lost, token: &Token, sequences: &[i64], error: &StoreError) {
        if error.kind() == StoreErrorKind::Connection {
            tracing::debug!(table = &*self.label, %error, "the answer to a claim was lost");
            lost.push((token.clone(), sequences.to_vec()));
        }
    }

    /// Gives back, uncharged, what such claims have leased.
    pub(super) async fn give_back(&self, lost: &mut Lost, opened: &Opened) -> Result<(), StoreError> {
        while let Some((token, sequences)) = lost.last() {
            let mut link = self.claims.take().await?;
            let sql = with_list(&opened.statements.release, sequences.len());
            let release = bind_list(sqlx::query(AssertSqlSafe(sql)), sequences).bind(token.to_string());
            within(OPERATION_LIMIT, release.execute(&mut link.connection)).await?;
            link.keep();
            lost.pop();
        }
        Ok(())
    }

    /// Locks rows, as many of these as are wanted and can be had, and reads them. Row by row: a batch of large payloads shall
    /// not stand in memory twice.
    pub(super) async fn lock_rows(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        request: &ClaimRequest,
        sequences: &[i64],
        limit: usize,
    ) -> Result<Vec<Locked>, StoreError> {
        let sql = match request.mode {
            ClaimMode::Suspect => &opened.statements.lock_suspect,
            ClaimMode::Waiting | ClaimMode::Probe(_) => &opened.statements.lock_unlocked,
        };
        let (sql, holder) = (with_list(sql, sequences.len()), self.settings.sole_holder());
        let query = bind_list(sqlx::query(AssertSqlSafe(sql)), sequences)
            .bind(span(request.lock_ttl))
            .bind(&opened.key)
            .bind(holder)
            .bind(holder)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let read = async {
            let mut rows = Vec::with_capacity(sequences.len().min(limit));
            let mut answer = query.fetch(&mut link.connection);
            while let Some(row) = answer.try_next().await? {
                rows.push(Locked {
                    content: row::decode(&row, &self.label)?,
                    attempts: row.try_get::<i32, _>(COLUMNS)?.into(),
                    at: row.micros(COLUMNS + 1)?,
                });
            }
            Ok(rows)
        };
        within(OPERATION_LIMIT, read).await
    }

    /// Leases rows that are locked, or has them die.
    pub(super) async fn write_leases(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        request: &ClaimRequest,
        token: &Token,
        rows: &[Locked],
    ) -> Result<(), StoreError> {
        let (exhausted, rows): (Vec<&Locked>, Vec<&Locked>) =
            rows.iter().partition(|row| row.attempts >= i64::from(request.max_attempts));
        let error = no_answer_in(request.max_attempts);
        let (lease, bury) = (&opened.statements.lease, &opened.statements.bury);
        for (rows, sql, text) in [(exhausted, bury, error), (rows, lease, token.to_string())] {
            if rows.is_empty() {
                continue;
            }
            let sequences = sorted(rows.iter().map(|row| row.content.sequence));
            let query = sqlx::query(AssertSqlSafe(with_list(sql, sequences.len()))).bind(text);
            within(OPERATION_LIMIT, bind_list(query, &sequences).execute(&mut link.connection)).await?;
        }
        Ok(())
    }
}

/// Rows are locked in this order by everybody (hazard 18).
fn sorted(sequences: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut sequences: Vec<i64> = sequences.collect();
    sequences.sort_unstable();
    sequences
}
