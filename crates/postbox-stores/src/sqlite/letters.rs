//! Dead events on their way to the dead-letter route, and those that are tried again by themselves.

use std::collections::HashMap;
use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive};
use postbox_core::store::{Lease, Settled, Standing};
use sqlx::{AssertSqlSafe, Row as _};

use super::clock::{from_micros, now, span};
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::letters::{self, PAGE, SUSPECT_WAIT};
use crate::row::{self, Cells as _};
use crate::sequenced::{Content, array};

impl Inner {
    pub(super) async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        let opened = self.opened().await?;
        let chosen = self.find_letters(opened, &request).await?;
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let sequences = array(chosen.iter().copied());
        // First: what cannot be read must not be leased.
        let contents = self.read_letters(opened, &sequences).await?;
        let token = self.settings.token();
        let lease = |at: i64| {
            sqlx::query(AssertSqlSafe(opened.statements.lease_letters.as_str()))
                .bind(at)
                .bind(sequences.as_str())
                .bind(at.saturating_sub(span(request.lock_ttl)))
                .bind(span(SUSPECT_WAIT))
                .bind(&*token)
                .bind(&opened.key)
                .bind(self.settings.sole_holder())
        };
        let mut done = self.writer.execute(lease).await?;
        let which = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(opened.statements.leased.as_str()))
            .bind(sequences.as_str())
            .bind(&*token)
            .fetch_all(&mut done.taken.connection);
        let leased: HashMap<i64, i64> = within(OPERATION_LIMIT, which).await?.into_iter().collect();
        let at = done.at;
        done.taken.keep();
        let mut letters = Vec::with_capacity(leased.len());
        for (content, dead_at, last_error) in contents {
            if let Some(attempts) = leased.get(&content.sequence) {
                let (lease, delivery) = content.letter(&token, at, *attempts);
                let dead_for = Duration::from_micros(u64::try_from(at.saturating_sub(dead_at)).unwrap_or(0));
                let dead_at = from_micros(dead_at);
                letters.push(Letter { lease, delivery, dead_at, dead_for, last_error });
            }
        }
        Ok(letters)
    }

    /// Which letters to lease: one whose lease ran out alone, else as many as are allowed.
    async fn find_letters(&self, opened: &Opened, request: &LetterRequest) -> Result<Vec<i64>, StoreError> {
        let mut reader = self.reader.take().await?;
        if self.look_at_gate(&mut reader.connection, opened).await?.0 != Standing::Active {
            reader.keep();
            return Ok(Vec::new());
        }
        let now = now();
        let found = sqlx::query_as::<_, (i64, bool, i64)>(AssertSqlSafe(opened.statements.letters.as_str()))
            .bind(now)
            .bind(now.saturating_sub(span(request.lock_ttl)))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .fetch_all(&mut reader.connection);
        let found = within(OPERATION_LIMIT, found).await?;
        reader.keep();
        Ok(letters::chosen(&found, request))
    }

    async fn read_letters(
        &self,
        opened: &Opened,
        sequences: &str,
    ) -> Result<Vec<(Content, i64, Option<String>)>, StoreError> {
        let mut reader = self.reader.take().await?;
        let rows = sqlx::query(AssertSqlSafe(opened.statements.letter_content.as_str()))
            .bind(sequences)
            .fetch_all(&mut reader.connection);
        let rows = within(OPERATION_LIMIT, rows).await?;
        reader.keep();
        let read = |row: &sqlx::sqlite::SqliteRow| -> Result<_, sqlx::Error> {
            let dead_at = row.try_get::<Option<i64>, _>(row::COLUMNS)?.unwrap_or_default();
            Ok((row::decode(row, &self.label)?, dead_at, row.text(row::COLUMNS + 1)?))
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    pub(super) async fn settle_letters(
        &self,
        letters: &[(Lease, LetterVerdict)],
    ) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let leases = letters.iter().map(|(lease, _)| lease);
        let lost = self.fenced(&opened.statements.settle_letters, letters::verdicts(letters), leases).await?;
        let lost = lost.into_iter().map(|lease| lease.row).collect();
        Ok(Settled { lost, ..Settled::default() })
    }

    pub(super) async fn redrive(&self, request: &Redrive) -> Result<u64, StoreError> {
        let opened = self.opened().await?;
        let mut behind = (i64::MIN, i64::MIN);
        let mut total = 0;
        loop {
            let dead_since = now().saturating_sub(span(request.after));
            let mut reader = self.reader.take().await?;
            let page = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(opened.statements.long_dead.as_str()))
                .bind(dead_since)
                .bind(behind.0)
                .bind(behind.1)
                .bind(PAGE)
                .fetch_all(&mut reader.connection);
            let page = within(OPERATION_LIMIT, page).await?;
            reader.keep();
            let Some(last) = page.last().copied() else { return Ok(total) };
            // The lock is only asked for where there may be something to do.
            let sequences = array(page.iter().map(|(_, sequence)| *sequence));
            if self.any_to_redrive(opened, request, &sequences).await? {
                total += self.redrive_page(opened, request, dead_since, &sequences).await?;
            }
            if i64::try_from(page.len()).is_ok_and(|rows| rows < PAGE) {
                return Ok(total);
            }
            behind = last;
        }
    }

    async fn any_to_redrive(
        &self,
        opened: &Opened,
        request: &Redrive,
        sequences: &str,
    ) -> Result<bool, StoreError> {
        let mut reader = self.reader.take().await?;
        let any = sqlx::query_scalar::<_, bool>(AssertSqlSafe(opened.statements.any_to_redrive.as_str()))
            .bind(sequences)
            .bind(request.most)
            .fetch_one(&mut reader.connection);
        let any = within(OPERATION_LIMIT, any).await?;
        reader.keep();
        Ok(any)
    }

    async fn redrive_page(
        &self,
        opened: &Opened,
        request: &Redrive,
        dead_since: i64,
        sequences: &str,
    ) -> Result<u64, StoreError> {
        let mut writer = self.writer.begin().await?;
        let at = now();
        let revive = sqlx::query(AssertSqlSafe(opened.statements.redrive.as_str()))
            .bind(at)
            .bind(sequences)
            .bind(at.saturating_sub(span(request.lock_ttl)))
            .bind(request.most)
            .bind(dead_since)
            .bind(&opened.key)
            .bind(self.settings.sole_holder());
        let rows = revive.execute(&mut writer.connection).await.map_err(classify)?.rows_affected();
        if rows > 0 {
            sqlx::query(AssertSqlSafe(opened.statements.audit.as_str()))
                .bind(at)
                .bind(&*request.who)
                .bind("redrive")
                .bind(&opened.key)
                .bind(letters::described(request))
                .bind(i64::try_from(rows).unwrap_or(i64::MAX))
                .execute(&mut writer.connection)
                .await
                .map_err(classify)?;
        }
        writer.commit().await?;
        Ok(rows)
    }
}
