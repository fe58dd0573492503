//! Dead events on their way to the dead-letter route, and those that are tried again by themselves.

use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Lease, Settled};
use postbox_core::{Code, Layout, StoreError, StoreErrorKind};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::busy::lock_free;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::row::{self, Found, Reader};
use super::schema::TableShape;
use super::settling::is_lock_timeout;
use super::store::{Inner, Opened};
use super::unreadable::is_about_data;
use super::window::may_be_settled;
use crate::table::Template;

/// So many dead rows are looked at by one statement.
const PAGE: i64 = 500;

/// A row that the database itself cannot show is left alone for so long.
const UNREADABLE: &str = "1 day";

/// The statements about dead events.
#[derive(Debug)]
pub(super) struct Letters {
    lease: String,
    due: String,
    put_off: String,
    settle: String,
    /// Where there is a column to count by.
    redrive: Option<String>,
}

impl Letters {
    pub(super) fn new(base: &Template, shape: &TableShape) -> Self {
        let counted = shape.columns.contains_key("redrives");
        Self {
            lease: base.fill(include_str!("sql/letters.sql")),
            due: base.fill(
                "SELECT id FROM {{table}} WHERE dead_at IS NOT NULL AND dlq_at IS NULL AND published_at IS NULL
                    AND available_at <= now() ORDER BY available_at, sequence LIMIT $1",
            ),
            put_off: base.fill(
                "UPDATE {{table}} SET available_at = now() + $2::interval
                 WHERE id = $1 AND dead_at IS NOT NULL AND published_at IS NULL",
            ),
            settle: base.fill(include_str!("sql/settle_letters.sql")),
            redrive: counted.then(|| {
                let base = base.clone().with("unsettled", may_be_settled(&shape.name, "t."));
                base.fill(include_str!("sql/redrive.sql"))
            }),
        }
    }
}

impl Opened {
    fn redrive(&self) -> Option<&String> {
        self.statements.letters.as_ref()?.redrive.as_ref()
    }
}

impl Inner {
    pub(super) async fn require(&self, wanted: Requirements) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        let Some(what) = wanted.first() else { return Ok(()) };
        let lacks = match opened.layout {
            Layout::Bare if wanted.fan_out => "sinks_done",
            Layout::Bare if wanted.dead_letters => "dlq_at",
            Layout::Bare => "dead_at",
            Layout::Full if wanted.redrive && opened.redrive().is_none() => "redrives",
            Layout::Full => return Ok(()),
        };
        let what = if lacks == "redrives" { "redrive_after" } else { what };
        let key = &opened.key;
        let message = format!(
            "{what} needs the column {lacks}, which {key} does not have: run `postbox migrate up --table {key}`"
        );
        Err(StoreError::new(Code::ColumnMissing, StoreErrorKind::Refused, message))
    }

    pub(super) async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        let opened = self.opened().await?;
        let Some(Letters { lease: sql, .. }) = &opened.statements.letters else { return Ok(Vec::new()) };
        let token = self.settings.token();
        let mut link = self.dead.take().await?;
        let query = opened
            .query(sql)
            .bind(self.settings.sole_holder())
            .bind(&opened.key)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(token.to_string())
            .fetch_all(&mut link.connection);
        let rows = match within(OPERATION_LIMIT, query).await {
            Err(error) if is_about_data(&error) => {
                self.dead.turn_over(&mut link.connection).await?;
                self.put_off_unreadable(&mut link.connection, opened, request.limit).await?;
                Vec::new()
            }
            rows => rows?,
        };
        link.keep().await?;
        let mut letters = Vec::with_capacity(rows.len());
        let mut reader = Reader::new(row::FIRST, &self.label, &token);
        for row in &rows {
            letters.extend(letter(row, &mut reader).map_err(classify)?);
        }
        Ok(letters)
    }

    /// A value that the database cannot show fails the statement for all: those that are so are put off.
    async fn put_off_unreadable(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        limit: usize,
    ) -> Result<(), StoreError> {
        let Some(Letters { due, put_off, .. }) = &opened.statements.letters else { return Ok(()) };
        let ids = opened
            .scalar::<Uuid>(due)
            .bind(i64::try_from(limit.max(100)).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection);
        for id in within(OPERATION_LIMIT, ids).await? {
            let read = opened.query(&opened.statements.show).bind(id);
            let read = within(OPERATION_LIMIT, read.persistent(false).execute(&mut *connection)).await;
            let Err(error) = read else { continue };
            if !is_about_data(&error) {
                return Err(error);
            }
            self.dead.turn_over(connection).await?;
            tracing::warn!(table = &*self.label, row = %id, %error, "a dead row cannot be shown: nothing to send");
            let put_off = opened.query(put_off).bind(id).bind(UNREADABLE);
            within(OPERATION_LIMIT, put_off.persistent(false).execute(&mut *connection)).await?;
        }
        Ok(())
    }

    pub(super) async fn settle_letters(
        &self,
        mut letters: Vec<(Lease, LetterVerdict)>,
    ) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let Some(Letters { settle: sql, .. }) = &opened.statements.letters else {
            return Ok(Settled::default());
        };
        // The order of locking, the same for everybody (hazard 18).
        letters.sort_unstable_by_key(|(lease, _)| lease.row);
        let ids: Vec<Uuid> = letters.iter().map(|(lease, _)| lease.row).collect();
        let mut busy = Vec::new();
        let mut link = self.dead.take().await?;
        let found = match write(opened, sql, &letters, &mut link.connection).await {
            Err(error) if is_lock_timeout(&error) => {
                // Somebody keeps one of them: the others do not wait for it.
                self.dead.begin(&mut link.connection).await?;
                busy = lock_free(&mut link.connection, opened, ids.clone()).await?;
                letters.retain(|(lease, _)| !busy.contains(&lease.row));
                let found = write(opened, sql, &letters, &mut link.connection).await?;
                self.dead.commit(&mut link.connection).await?;
                tracing::warn!(table = &*self.label, "somebody has locked dead rows that are to be settled");
                found
            }
            found => found?,
        };
        link.keep().await?;
        let lost = ids.into_iter().filter(|id| !found.contains(id) && !busy.contains(id)).collect();
        Ok(Settled { lost, busy })
    }

    pub(super) async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        let opened = self.opened().await?;
        let Some(sql) = opened.redrive() else { return Ok(0) };
        let mut behind: Option<(OffsetDateTime, i64)> = None;
        let mut total = 0;
        loop {
            // Taken anew for each page: letters come in between.
            let mut link = self.dead.take().await?;
            let query = opened
                .query(sql)
                .bind(self.settings.sole_holder())
                .bind(&opened.key)
                .bind(request.after.as_secs_f64())
                .bind(request.most)
                .bind(request.lock_ttl.as_secs_f64())
                .bind(behind.map(|(at, _)| at))
                .bind(behind.map_or(i64::MIN, |(_, sequence)| sequence))
                .bind(PAGE)
                .bind(&*request.who)
                .fetch_one(&mut link.connection);
            let row = within(OPERATION_LIMIT, query).await?;
            link.keep().await?;
            let read = || -> Result<_, sqlx::Error> {
                let (revived, looked): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
                let key = row.try_get::<Option<_>, _>(2)?.zip(row.try_get::<Option<_>, _>(3)?);
                Ok((revived, looked, key))
            };
            let (revived, looked, key) = read().map_err(classify)?;
            total += u64::try_from(revived).unwrap_or(0);
            if looked < PAGE || key.is_none() {
                return Ok(total);
            }
            behind = key;
        }
    }
}

/// Writes what became of letters; answers those that were still this relay's.
async fn write(
    opened: &Opened,
    sql: &str,
    letters: &[(Lease, LetterVerdict)],
    connection: &mut PgConnection,
) -> Result<Vec<Uuid>, StoreError> {
    let wait = |verdict: &LetterVerdict| match verdict {
        LetterVerdict::Sent => None,
        LetterVerdict::Later(after) => Some(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
    };
    let query = opened
        .scalar::<Uuid>(sql)
        .bind(letters.iter().map(|(lease, _)| lease.row).collect::<Vec<_>>())
        .bind(letters.iter().map(|(lease, _)| &*lease.token).collect::<Vec<_>>())
        .bind(letters.iter().map(|(_, verdict)| wait(verdict)).collect::<Vec<_>>())
        .fetch_all(connection);
    within(OPERATION_LIMIT, query).await
}

fn letter(row: &PgRow, reader: &mut Reader<'_>) -> Result<Option<Letter>, sqlx::Error> {
    let dead_at: OffsetDateTime = row.try_get(0)?;
    let last_error: Option<String> = row.try_get(1)?;
    let letter = |lease, delivery, dead_for| Letter { lease, delivery, dead_at, dead_for, last_error };
    Ok(match reader.read(row)? {
        Some(Found::Delivery(claimed)) => {
            let dead_for = (claimed.lease.since - dead_at).try_into().unwrap_or_default();
            Some(letter(claimed.lease, Some(*claimed.delivery), dead_for))
        }
        Some(Found::Undecodable(row)) => Some(letter(row.lease, None, Duration::ZERO)),
        Some(Found::Buried(_)) | None => None,
    })
}
