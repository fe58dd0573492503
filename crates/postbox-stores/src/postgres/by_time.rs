//! ④ Reading without an order: a look at the rows that wait, by the time since when they do.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::StoreError;
use postbox_core::store::{ClaimMode, ClaimRequest, Claimed};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::moment::Micros;
use super::reading::{Batch, Reign};
use super::row::{DUE, Found, Reader, SINCE, payload};
use super::statements::Own;
use super::store::{Inner, Opened};
use super::topics;
use super::window::Spot;
use crate::cursor::{Cursor, Key, START};
use crate::cursors::end;
use crate::owned;

/// Places in the answer of `own.sql`: what there is to say of a row, where it lies, its size, and the event.
const NOTE: usize = 0;
const PLACE: usize = 1;
const BYTES: usize = 2;
const EVENT: usize = 3;

/// Notes; rows that can go have none.
const NOT_MINE: i32 = 1;
const PAUSED: i32 = 2;
const NOTHING: i32 = 3;
const SUSPECT: i32 = 4;

/// What a read has found until now.
#[derive(Debug, Default)]
struct View {
    batch: Batch,
    /// How far it has come.
    last: Option<Key>,
    suspect: Option<Key>,
    /// Rows whose payloads were too large to come along.
    large: Vec<Uuid>,
}

impl View {
    /// Takes in one row.
    fn take_in(
        &mut self,
        row: &PgRow,
        reader: &mut Reader<'_>,
        (share, max_bytes): (usize, usize),
    ) -> Result<(), sqlx::Error> {
        let batch = &mut self.batch;
        if batch.gate.is_none() {
            batch.gate = Some(gate(row)?);
        }
        let Some(sequence) = row.try_get_unchecked::<Option<i64>, _>(EVENT + 4)? else {
            if note(row)? == Some(NOTHING) {
                let now: Micros = row.try_get_unchecked(EVENT + SINCE)?;
                self.last = Some(end(now.time()));
            }
            return Ok(());
        };
        let key = (reader.due(row)?, sequence);
        batch.picked += 1;
        // Nothing was written, so what does not fit is simply read again, and nothing behind it is taken.
        if batch.left_out {
            return Ok(());
        }
        // None of a row that is not to be dispatched.
        if let Some(stored) = row.try_get_unchecked::<Option<i64>, _>(BYTES)? {
            if !batch.rows.is_empty() && batch.bytes >= max_bytes {
                batch.left_out = true;
                return Ok(());
            }
            let place = row.try_get_unchecked(PLACE)?;
            let stored = usize::try_from(stored).unwrap_or(usize::MAX);
            match reader.read(row)? {
                Some(Found::Delivery(claimed)) => {
                    if stored > share {
                        self.large.push(claimed.lease.row);
                    }
                    // Some values are far longer as text than as they are stored.
                    batch.bytes += claimed.delivery.payload.len().max(stored);
                    batch.rows.push((claimed.lease.row, Spot { key, place, strand: None }));
                    batch.claim.rows.push(claimed);
                }
                Some(Found::Undecodable(undecodable)) => {
                    batch.rows.push((undecodable.lease.row, Spot { key, place, strand: None }));
                    batch.claim.undecodable.push(undecodable);
                }
                Some(Found::Buried(_)) | None => {}
            }
        } else if note(row)? == Some(SUSPECT) {
            self.suspect = self.suspect.or(Some(key));
        } else {
            batch.exhausted.push(row.try_get_unchecked(EVENT)?);
        }
        self.last = Some(key);
        Ok(())
    }
}

/// How a look at rows began.
#[derive(Debug, Clone, Copy)]
struct Begun {
    asked: Instant,
    from_start: bool,
    /// What one row may bring along.
    share: usize,
}

/// What a look brought.
#[derive(Debug)]
pub(super) enum Sight {
    /// All of them can go, and there is nothing about them that somebody would have to see to first.
    Rows {
        rows: Vec<PgRow>,
        bytes: usize,
        /// Whether there may be more behind them.
        more: bool,
    },
    Batch(Batch),
    /// Read in order.
    Ordered(Batch),
}

impl Inner {
    /// Reads rows by time.
    pub(super) async fn read_on(
        &self,
        cursor: &mut Cursor,
        connection: &mut PgConnection,
        reign: Reign<'_>,
        request: &ClaimRequest,
    ) -> Result<Batch, StoreError> {
        let (query, begun) = self.statement(cursor, reign, request, Instant::now());
        let token = owned::token(reign.epoch);
        let mut view = View::default();
        let read = async {
            let mut rows = query.fetch(&mut *connection);
            let mut reader = Reader::new(EVENT, &self.label, &token);
            while let Some(row) = rows.try_next().await? {
                view.take_in(&row, &mut reader, (begun.share, request.max_bytes))?;
            }
            Ok(())
        };
        within(OPERATION_LIMIT, read).await?;
        self.seen(cursor, connection, reign, request, (begun, view)).await
    }

    /// The same, for somebody who wants to read on at once: rows are not even decoded, as long as all is well with them.
    pub(super) async fn look_on(
        &self,
        cursor: &mut Cursor,
        connection: &mut PgConnection,
        reign: Reign<'_>,
        request: &ClaimRequest,
        asked: Instant,
    ) -> Result<Sight, StoreError> {
        let (query, begun) = self.statement(cursor, reign, request, asked);
        let rows = within(OPERATION_LIMIT, query.fetch_all(&mut *connection)).await?;
        if let Some((bytes, last)) = extent_if_all_go(&rows, begun.share).map_err(classify)? {
            let full = rows.len() >= request.limit;
            cursor.read(begun.from_start, begun.asked, Some(last), !full);
            let more = full || (!begun.from_start && cursor.next(Instant::now()).1);
            return Ok(Sight::Rows { rows, bytes, more });
        }
        let view = self.view(&rows, reign.epoch, (begun.share, request.max_bytes))?;
        self.seen(cursor, connection, reign, request, (begun, view)).await.map(Sight::Batch)
    }

    /// Rows that were looked at, decoded; none if they cannot be.
    pub(super) fn decoded(&self, rows: &[PgRow], epoch: i64, more: bool) -> Option<Batch> {
        let View { mut batch, .. } = self.view(rows, epoch, (usize::MAX, usize::MAX)).ok()?;
        batch.claim.more = more;
        batch.put_in_order();
        Some(batch)
    }

    fn view(&self, rows: &[PgRow], epoch: i64, limits: (usize, usize)) -> Result<View, StoreError> {
        let token = owned::token(epoch);
        let (mut view, mut reader) = (View::default(), Reader::new(EVENT, &self.label, &token));
        for row in rows {
            view.take_in(row, &mut reader, limits).map_err(classify)?;
        }
        Ok(view)
    }

    /// The statement that looks at rows behind the cursor, wherever that is at this time.
    fn statement<'q>(
        &'q self,
        cursor: &Cursor,
        Reign { opened, own, .. }: Reign<'q>,
        request: &'q ClaimRequest,
        asked: Instant,
    ) -> (Query<'q, Postgres, PgArguments>, Begun) {
        let ((from_at, from_sequence), from_start) = match request.mode {
            ClaimMode::Waiting => cursor.next(asked),
            ClaimMode::Probe(_) | ClaimMode::Suspect => (START, false),
        };
        let at_start = (from_at, from_sequence) == START;
        let (sql, topics) = match &request.mode {
            ClaimMode::Probe(topics) => (&own.probe, topics),
            ClaimMode::Waiting | ClaimMode::Suspect => (&own.waiting, &request.exclude),
        };
        let share = request.max_bytes / request.limit.max(1);
        // What is in flight mostly lies before what is read next. Asked now: what is settled during the read was in flight.
        let in_flight = {
            let keys = &mut self.window().keys;
            keys.go_beyond((from_at, from_sequence)).then(|| keys.bounds())
        };
        let query = opened
            .query(sql)
            .bind(&self.settings.holder)
            .bind(&opened.key)
            .bind((!at_start).then_some(from_at))
            .bind(from_sequence)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(topics::list(topics, &request.spent))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(share).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(in_flight);
        (query, Begun { asked, from_start, share })
    }

    /// Takes in what a look has brought; the next one begins behind it.
    async fn seen(
        &self,
        cursor: &mut Cursor,
        connection: &mut PgConnection,
        Reign { opened, own, .. }: Reign<'_>,
        request: &ClaimRequest,
        (Begun { asked, from_start, .. }, view): (Begun, View),
    ) -> Result<Batch, StoreError> {
        let View { mut batch, last, suspect, large } = view;
        if !large.is_empty() {
            fetch_payloads(connection, opened, own, &mut batch, large).await?;
        }
        // An operator may have changed when one of them is due.
        let window = self.window();
        batch.drop_rows(|id| window.has(id));
        drop(window);
        batch.put_in_order();
        if request.mode == ClaimMode::Waiting {
            cursor.meet(suspect);
            let full = batch.full(request);
            cursor.read(from_start, asked, last, !full);
            batch.claim.suspects = suspect.is_some();
            // A short read behind the cursor says nothing of what is in front of it.
            batch.claim.more = full || (!from_start && cursor.next(Instant::now()).1);
        }
        Ok(batch)
    }
}

fn note(row: &PgRow) -> Result<Option<i32>, sqlx::Error> {
    row.try_get_unchecked(NOTE)
}

/// Whether the table is paused, and whether it is this relay's. Nothing is said beside rows: they come if all is well.
fn gate(row: &PgRow) -> Result<(bool, bool), sqlx::Error> {
    let note = note(row)?;
    Ok((note == Some(PAUSED), note != Some(NOT_MINE)))
}

/// How many bytes an answer has and where it ends, if each row of it can go as it is.
fn extent_if_all_go(rows: &[PgRow], share: usize) -> Result<Option<(usize, Key)>, sqlx::Error> {
    let Some(last) = rows.last() else { return Ok(None) };
    if gate(last)? != (false, true) {
        return Ok(None);
    }
    let mut bytes = 0;
    for row in rows {
        let stored: Option<i64> = row.try_get_unchecked(BYTES)?;
        let Some(stored) =
            stored.and_then(|stored| usize::try_from(stored).ok()).filter(|stored| *stored <= share)
        else {
            return Ok(None);
        };
        bytes += stored;
    }
    let at: Micros = last.try_get_unchecked(EVENT + DUE)?;
    Ok(Some((bytes, (at.time(), last.try_get_unchecked(EVENT + 4)?))))
}

/// Reads the payloads that were too large to come along.
pub(super) async fn fetch_payloads(
    connection: &mut PgConnection,
    opened: &Opened,
    own: &Own,
    batch: &mut Batch,
    large: Vec<Uuid>,
) -> Result<(), StoreError> {
    let mut missing: HashSet<Uuid> = large.iter().copied().collect();
    let mut waiting: HashMap<Uuid, &mut Claimed> = HashMap::new();
    for claimed in batch.claim.rows.iter_mut().filter(|claimed| missing.contains(&claimed.lease.row)) {
        waiting.insert(claimed.lease.row, claimed);
    }
    let query = opened.query(&own.payloads).bind(large);
    let read = async {
        let mut rows = query.fetch(connection);
        while let Some(row) = rows.try_next().await? {
            let id: Uuid = row.try_get(0)?;
            if let Some(claimed) = waiting.get_mut(&id) {
                claimed.delivery.payload = payload(&row, 1, row.try_get(3)?)?;
                missing.remove(&id);
            }
        }
        Ok(())
    };
    within(OPERATION_LIMIT, read).await?;
    // What somebody has deleted meanwhile.
    batch.drop_rows(|id| missing.contains(id));
    Ok(())
}
