//! Dead events on their way to the dead-letter route, and those that are tried again by themselves.

use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive};
use postbox_core::store::{Lease, Settled, Standing, Token};
use sqlx::{AssertSqlSafe, Row as _};
use time::OffsetDateTime;

use super::busy::{found, keys_of};
use super::clause::{bind_list, with_list};
use super::clock::{at, micros, span};
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::cursor::START;
use crate::letters::{self, PAGE, SUSPECT_WAIT};
use crate::row::{self, COLUMNS, Cells as _};
use crate::sequenced::sequence_of;

/// So many more than are wanted are looked at: somebody may have locked the first of them.
const BESIDE: usize = 16;

impl Inner {
    pub(super) async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        let opened = self.opened().await?;
        let mut found = self.find_letters(opened, &request).await?;
        let (token, mut tries): (Token, _) = (self.settings.token(), Tries::new());
        loop {
            let mut chosen = letters::chosen(&found, &request);
            if chosen.is_empty() {
                return Ok(Vec::new());
            }
            chosen.sort_unstable();
            let mut link = self.settles.take().await?;
            match self.lease_letters(&mut link, opened, &request, &chosen, &token).await {
                Ok(letters) => {
                    link.keep();
                    if !letters.is_empty() {
                        return Ok(letters);
                    }
                    // Somebody else has these, or has locked them: they hide no others.
                    found.retain(|(sequence, ..)| !chosen.contains(sequence));
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    /// Letters that may be leased: each with whether its lease ran out, and its bytes.
    async fn find_letters(
        &self,
        opened: &Opened,
        request: &LetterRequest,
    ) -> Result<Vec<(i64, bool, i64)>, StoreError> {
        if self.look_at_gate(opened).await?.0 != Standing::Active {
            return Ok(Vec::new());
        }
        let mut link = self.claims.take().await?;
        let found = sqlx::query_as::<_, (i64, bool, i64)>(AssertSqlSafe(opened.statements.letters.as_str()))
            .bind(span(request.lock_ttl))
            .bind(i64::try_from(request.limit + BESIDE).unwrap_or(i64::MAX))
            .fetch_all(&mut link.connection);
        let found = within(OPERATION_LIMIT, found).await?;
        link.keep();
        Ok(found)
    }

    async fn lease_letters(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        request: &LetterRequest,
        chosen: &[i64],
        token: &Token,
    ) -> Result<Vec<Letter>, StoreError> {
        let holder = self.settings.sole_holder();
        link.begin().await?;
        let lock = sqlx::query(AssertSqlSafe(with_list(&opened.statements.lock_letters, chosen.len())));
        let lock =
            bind_list(lock, chosen).bind(span(request.lock_ttl)).bind(&opened.key).bind(holder).bind(holder);
        let rows = within(OPERATION_LIMIT, lock.fetch_all(&mut link.connection)).await?;
        let mut letters = Vec::with_capacity(rows.len());
        for row in &rows {
            letters.push(self.letter(row, token).map_err(classify)?);
        }
        if !letters.is_empty() {
            let sequences: Vec<i64> = letters.iter().map(|letter| sequence_of(letter.lease.row)).collect();
            let lease =
                sqlx::query(AssertSqlSafe(with_list(&opened.statements.lease_letters, sequences.len())))
                    .bind(span(SUSPECT_WAIT))
                    // At most.
                    .bind(span(SUSPECT_WAIT * 60))
                    .bind(token.to_string());
            within(OPERATION_LIMIT, bind_list(lease, &sequences).execute(&mut link.connection)).await?;
        }
        link.commit().await?;
        Ok(letters)
    }

    fn letter(&self, row: &sqlx::mysql::MySqlRow, token: &Token) -> Result<Letter, sqlx::Error> {
        let attempts: i32 = row.try_get(COLUMNS)?;
        let (now, dead_at) = (row.known_time(COLUMNS + 1)?, row.known_time(COLUMNS + 2)?);
        let last_error = row.text(COLUMNS + 3)?;
        let (lease, delivery) = row::decode(row, &self.label)?.letter(token, micros(now), attempts.into());
        let dead_for = Duration::try_from(now - dead_at).unwrap_or_default();
        Ok(Letter { lease, delivery, dead_at, dead_for, last_error })
    }

    pub(super) async fn settle_letters(
        &self,
        letters: &[(Lease, LetterVerdict)],
    ) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let mut sorted: Vec<&(Lease, LetterVerdict)> = letters.iter().collect();
        sorted.sort_unstable_by_key(|(lease, _)| sequence_of(lease.row));
        let (held, settle) = (&opened.statements.held_letters, &opened.statements.settle_letters);
        let leases = letters.iter().map(|(lease, _)| lease);
        let (lost, busy) = self.fenced(held, settle, letters::verdicts(sorted), leases).await?;
        Ok(Settled { lost: lost.iter().map(|lease| lease.row).collect(), busy: keys_of(&busy) })
    }

    pub(super) async fn redrive(&self, request: &Redrive) -> Result<u64, StoreError> {
        let opened = self.opened().await?;
        let (mut behind, mut total): ((OffsetDateTime, i64), u64) = (START, 0);
        loop {
            let mut link = self.settles.take().await?;
            let page = sqlx::query(AssertSqlSafe(opened.statements.long_dead.as_str()))
                .bind(span(request.after))
                .bind(at(behind.0))
                .bind(at(behind.0))
                .bind(behind.1)
                .bind(PAGE)
                .fetch_all(&mut link.connection);
            let page = within(OPERATION_LIMIT, page).await?;
            let read = |row: &sqlx::mysql::MySqlRow| Ok((row.known_time(0)?, row.try_get::<i64, _>(1)?));
            let page: Vec<(OffsetDateTime, i64)> =
                page.iter().map(read).collect::<Result<_, _>>().map_err(classify)?;
            let Some(last) = page.last().copied() else {
                link.keep();
                return Ok(total);
            };
            // Rows are only locked where there may be something to do.
            let mut sequences: Vec<i64> = page.iter().map(|(_, sequence)| *sequence).collect();
            sequences.sort_unstable();
            let any =
                sqlx::query(AssertSqlSafe(with_list(&opened.statements.any_to_redrive, sequences.len())));
            let any = bind_list(any, &sequences).bind(request.most).fetch_one(&mut link.connection);
            let any: bool = within(OPERATION_LIMIT, any).await?.try_get(0).map_err(classify)?;
            link.keep();
            if any {
                total += self.redrive_page(opened, request, &sequences).await?;
            }
            if i64::try_from(page.len()).is_ok_and(|rows| rows < PAGE) {
                return Ok(total);
            }
            behind = last;
        }
    }

    async fn redrive_page(
        &self,
        opened: &Opened,
        request: &Redrive,
        sequences: &[i64],
    ) -> Result<u64, StoreError> {
        let mut tries = Tries::new();
        loop {
            let mut link = self.settles.take().await?;
            match self.redrive_once(&mut link, opened, request, sequences).await {
                Ok(rows) => {
                    link.keep();
                    return Ok(rows);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    async fn redrive_once(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        request: &Redrive,
        sequences: &[i64],
    ) -> Result<u64, StoreError> {
        let holder = self.settings.sole_holder();
        link.begin().await?;
        // Those that somebody has locked are tried again when they are free.
        let free = found(link, &opened.statements.free, sequences).await?;
        if free.is_empty() {
            link.commit().await?;
            return Ok(0);
        }
        let revive = sqlx::query(AssertSqlSafe(with_list(&opened.statements.redrive, free.len())));
        let revive = bind_list(revive, &free)
            .bind(span(request.after))
            .bind(request.most)
            .bind(span(request.lock_ttl))
            .bind(&opened.key)
            .bind(holder)
            .bind(holder)
            .execute(&mut link.connection);
        let rows = within(OPERATION_LIMIT, revive).await?.rows_affected();
        if rows > 0 {
            let audit = sqlx::query(AssertSqlSafe(opened.statements.audit.as_str()))
                .bind(&*request.who)
                .bind("redrive")
                .bind(&opened.key)
                .bind(letters::described(request))
                .bind(i64::try_from(rows).unwrap_or(i64::MAX))
                .execute(&mut link.connection);
            within(OPERATION_LIMIT, audit).await?;
        }
        link.commit().await?;
        Ok(rows)
    }
}
