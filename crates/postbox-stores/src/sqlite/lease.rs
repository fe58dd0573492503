//! ④ The second half of a claim: what was picked is read, then leased in one short transaction.

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use postbox_core::store::{Buried, Claim, ClaimMode, ClaimRequest};
use postbox_core::{EventId, StoreError};
use sqlx::{AssertSqlSafe, Row as _};

use super::clock::{now, span};
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::gate::no_answer_in;
use crate::row::{self, Cells as _};
use crate::seen::Candidate;
use crate::sequenced::{Content, array};

/// Which rows were leased.
pub(super) enum Leased {
    /// All, and each has had so many attempts now.
    All(i64),
    /// These, with their attempts.
    Some(HashMap<i64, i64>),
}

impl Leased {
    /// How many attempts a row has had now, if it was leased.
    pub(super) fn attempts(&self, sequence: i64) -> Option<i64> {
        match self {
            Self::All(attempts) => Some(*attempts),
            Self::Some(rows) => rows.get(&sequence).copied(),
        }
    }
}

impl Inner {
    /// Leases what was picked and is still there; what has used up its attempts dies.
    pub(super) async fn take_rows(
        &self,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Candidate],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let (exhausted, rows): (Vec<Candidate>, Vec<Candidate>) =
            chosen.iter().partition(|row| row.attempts >= i64::from(request.max_attempts));
        if !exhausted.is_empty() {
            claim.buried = self.bury(opened, request, &exhausted).await?;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let token = self.settings.token();
        let (contents, at, leased) = self.read_and_lease(opened, request, &rows, &token).await?;
        for content in contents {
            if let Some(attempts) = leased.attempts(content.sequence) {
                content.leased(&token, at, attempts, None, claim);
            }
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
    }

    /// Leases rows; answers what they carry, when that was, and which of them were had.
    pub(super) async fn read_and_lease(
        &self,
        opened: &Opened,
        request: &ClaimRequest,
        rows: &[Candidate],
        token: &str,
    ) -> Result<(Vec<Content>, i64, Leased), StoreError> {
        // First: what cannot be read must not be leased.
        let mut contents = self.contents(opened, rows).await?;
        let (at, leased) = self.lease(opened, request, rows, token).await?;
        if !self.settings.single_active {
            // Again: between the two another relay may have had a row, and written down which sinks have it.
            contents = self.contents(opened, rows).await?;
        }
        Ok((contents, at, leased))
    }

    async fn contents(&self, opened: &Opened, rows: &[Candidate]) -> Result<Vec<Content>, StoreError> {
        let mut contents = Vec::with_capacity(rows.len());
        let mut reader = self.reader.take().await?;
        let read = async {
            let mut answer = sqlx::query(AssertSqlSafe(opened.statements.content.as_str()))
                .bind(array(rows.iter().map(|row| row.sequence)))
                .fetch(&mut reader.connection);
            // Row by row: a batch of large payloads shall not stand in memory twice.
            while let Some(row) = answer.try_next().await? {
                contents.push(row::decode(&row, &self.label)?);
            }
            Ok(())
        };
        within(OPERATION_LIMIT, read).await?;
        reader.keep();
        Ok(contents)
    }

    /// Leases rows; answers when, and which.
    async fn lease(
        &self,
        opened: &Opened,
        request: &ClaimRequest,
        rows: &[Candidate],
        token: &str,
    ) -> Result<(i64, Leased), StoreError> {
        let statements = &opened.statements;
        let sql = match request.mode {
            ClaimMode::Suspect => &statements.lease_suspect,
            ClaimMode::Waiting | ClaimMode::Probe(_) => &statements.lease_unlocked,
        };
        let sequences = array(rows.iter().map(|row| row.sequence));
        let attempts = rows[0].attempts;
        let alike = rows.iter().all(|row| row.attempts == attempts).then_some(attempts);
        let lease = |at: i64| {
            sqlx::query(AssertSqlSafe(sql.as_str()))
                .bind(at)
                .bind(sequences.as_str())
                .bind(at.saturating_sub(span(request.lock_ttl)))
                .bind(request.max_attempts)
                .bind(token)
                .bind(&opened.key)
                .bind(self.settings.sole_holder())
                .bind(alike)
        };
        let mut done = self.writer.execute(lease).await?;
        let leased = match alike {
            // The usual answer is a number.
            Some(attempts) if done.changed == rows.len() as u64 => Leased::All(attempts.max(0) + 1),
            // Otherwise the token tells which rows were had.
            _ => {
                let which = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(statements.leased.as_str()))
                    .bind(sequences.as_str())
                    .bind(token)
                    .fetch_all(&mut done.taken.connection);
                Leased::Some(within(OPERATION_LIMIT, which).await?.into_iter().collect())
            }
        };
        done.taken.keep();
        Ok((done.at, leased))
    }

    /// Exhausted rows die.
    pub(super) async fn bury(
        &self,
        opened: &Opened,
        request: &ClaimRequest,
        rows: &[Candidate],
    ) -> Result<Vec<Buried>, StoreError> {
        let sql = match request.mode {
            ClaimMode::Suspect => &opened.statements.bury_suspect,
            ClaimMode::Waiting | ClaimMode::Probe(_) => &opened.statements.bury_unlocked,
        };
        let mut writer = self.writer.begin().await?;
        let at = now();
        let dead = sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(at)
            .bind(array(rows.iter().map(|row| row.sequence)))
            .bind(at.saturating_sub(span(request.lock_ttl)))
            .bind(request.max_attempts)
            .bind(no_answer_in(request.max_attempts))
            .bind(&opened.key)
            .bind(self.settings.sole_holder())
            .fetch_all(&mut writer.connection);
        let dead = dead.await.map_err(classify)?;
        writer.commit().await?;
        let read = |row: &sqlx::sqlite::SqliteRow| -> Result<Buried, sqlx::Error> {
            Ok(Buried {
                sequence: row.try_get(0)?,
                event_id: EventId(row.uuid(1).unwrap_or_default()),
                topic: row.text(2)?.unwrap_or_default(),
            })
        };
        dead.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }
}
