//! ④ Reading: an owner looks for rows without writing to them, and reads on while what it found last is being written down.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use postbox_core::StoreError;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing, Token};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::beside::{Ahead, Ended, MOST, read_beside};
use super::claim::{ClaimState, candidate_of};
use super::clause::{bind_list, with_list};
use super::clock::{at, span};
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken};
use super::owner::Own;
use super::store::{Inner, Opened};
use super::topics::Condition;
use crate::cursor::{Cursor, Key, START};
use crate::owned;
use crate::ranges::Ranges;
use crate::row::{self, COLUMNS, Cells as _, Times as _};
use crate::seen::Candidate;

/// Places in the answer of `own.sql`, behind what rows carry.
pub(super) const ATTEMPTS: usize = COLUMNS;
const NOW: usize = COLUMNS + 1;
pub(super) const LOCKED: usize = COLUMNS + 2;
pub(super) const BYTES: usize = COLUMNS + 3;
pub(super) const AVAILABLE_AT: usize = 5;

/// After reading ahead was wasted, because one of the rows could not simply go, this many claims read by themselves.
const WARY: u32 = 20;

/// More than so many rows that are in flight are not named in a statement: they are read, and left out then.
const NAMED: usize = 4096;

/// What one read found.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// With whether there may be more, and suspects.
    pub(super) claim: Claim,
    picked: usize,
    /// Some did not fit.
    left_out: bool,
    bytes: usize,
    /// They have used up their attempts: for a lease to find out, and to bury.
    exhausted: Vec<Candidate>,
    /// The rows to dispatch.
    rows: Vec<Key>,
    last: Option<Key>,
    suspect: Option<Key>,
    /// Rows whose payloads were too large to come along.
    large: Vec<i64>,
}

/// What a read may bring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// What one row may bring along.
    pub(super) share: usize,
    pub(super) bytes: usize,
    pub(super) attempts: i32,
}

impl Limits {
    pub(super) fn of(request: &ClaimRequest) -> Self {
        let share = request.max_bytes / request.limit.max(1);
        Self { share, bytes: request.max_bytes, attempts: request.max_attempts }
    }
}

impl Batch {
    /// Takes in one row, unless the relay has it already.
    pub(super) fn take_in(
        &mut self,
        row: &MySqlRow,
        label: &Arc<str>,
        token: &Token,
        limits: Limits,
        has: impl Fn(i64) -> bool,
    ) -> Result<(), sqlx::Error> {
        self.picked += 1;
        // Nothing was written, so what does not fit is simply read again, and nothing behind it is taken.
        if self.left_out {
            return Ok(());
        }
        let sequence = row.try_get(0)?;
        let key = (row.known_time(AVAILABLE_AT)?, sequence);
        let attempts: i32 = row.try_get(ATTEMPTS)?;
        let stored = usize::try_from(row.try_get::<i64, _>(BYTES)?).unwrap_or(usize::MAX);
        if row.try_get(LOCKED)? {
            self.suspect = self.suspect.or(Some(key));
        } else if has(sequence) {
        } else if attempts >= limits.attempts {
            self.exhausted.push(candidate_of(key, attempts, stored));
        } else if !self.rows.is_empty() && self.bytes >= limits.bytes {
            self.left_out = true;
            return Ok(());
        } else {
            self.bytes = self.bytes.saturating_add(stored);
            self.rows.push(key);
            if stored > limits.share { self.large.push(sequence) } else { self.decode(row, label, token)? }
        }
        self.last = Some(key);
        Ok(())
    }

    fn decode(&mut self, row: &MySqlRow, label: &Arc<str>, token: &Token) -> Result<(), sqlx::Error> {
        let (content, now) = (row::decode(row, label)?, row.micros(NOW)?);
        let attempts = i64::from(row.try_get::<i32, _>(ATTEMPTS)?).max(0) + 1;
        content.leased(token, now, attempts, None, &mut self.claim);
        Ok(())
    }

    /// Whether there may be more behind it.
    fn full(&self, request: &ClaimRequest) -> bool {
        self.picked >= request.limit || self.left_out
    }

    /// In the order in which they were written.
    pub(super) fn put_in_order(&mut self) {
        self.claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
    }
}

/// A reader beside the claims: it reads on until something is out of the ordinary, and then leaves the rest to a claim.
#[derive(Debug)]
pub(super) struct Reading {
    /// With room for what one read brings at most: so much waits while the next read goes on.
    batches: mpsc::Receiver<Ahead>,
    task: JoinHandle<(Cursor, Ended)>,
    epoch: i64,
    /// What was in flight when it began, and what was handed over since: a row that somebody has moved to behind the reader is
    /// read again, and may be settled by then.
    known: Ranges,
}

impl ClaimState {
    /// Ends the reading beside the claims. What was read and not handed over is read again.
    pub(super) async fn stop_reading(&mut self) {
        let Some(Reading { mut batches, task, .. }) = self.reading.take() else { return };
        batches.close();
        let unused = batches.recv().await.is_some();
        // A reader that panicked takes its cursor with it; what is there is the start.
        let (cursor, ended) = task.await.unwrap_or_else(|_| (Cursor::new(), Ended::InVain));
        self.cursor = cursor;
        if ended == Ended::InVain {
            self.wary = WARY;
        }
        if unused {
            self.cursor.go_back();
        }
    }
}

impl Inner {
    /// Rows that are written down as this relay's, or whatever else there is to say.
    pub(super) async fn claim_own(
        self: &Arc<Self>,
        state: &mut ClaimState,
        opened: &Opened,
        own: &Own,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let Some(epoch) = state.lead.as_ref().map(|lead| lead.epoch) else { return Ok(owned::standby()) };
        state.wary = state.wary.saturating_sub(1);
        let mut link = self.claims.take().await?;
        let batch = self.read_own(&mut state.cursor, &mut link, own, epoch, request).await?;
        link.keep();
        if !batch.exhausted.is_empty() {
            // What else was read is read again.
            state.cursor.go_back();
            let mut claim = Claim { more: true, ..Claim::default() };
            self.take_rows(&mut state.lost, opened, request, &batch.exhausted, &mut claim).await?;
            return Ok(claim);
        }
        if batch.rows.is_empty() {
            return Ok(batch.claim);
        }
        self.hand_over(state, opened, own, request, batch).await
    }

    /// Hands over what was read beside the claims, if that is what this one would find. Needs no look at the table: that it is still
    /// this relay's, and not paused, is seen when the rows are written down.
    pub(super) async fn claim_ahead(
        self: &Arc<Self>,
        state: &mut ClaimState,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Option<Claim>, StoreError> {
        let (Some(lead), Some(reading)) = (&state.lead, &mut state.reading) else { return Ok(None) };
        let Some(own) = &opened.statements.own else { return Ok(None) };
        if request.mode != ClaimMode::Waiting || request.limit == 0 || lead.wants_renewal() {
            return Ok(None);
        }
        let reigns_on = lead.epoch == reading.epoch;
        let Some(ahead) = reading.batches.recv().await else { return Ok(None) };
        let serves = reigns_on && ahead.serves(request);
        // What cannot be decoded is read again, by itself.
        let batch = ahead.batch.await.ok().flatten();
        let fits = |batch: &Batch| batch.rows.len() <= request.limit && batch.bytes <= request.max_bytes;
        let free = |batch: &Batch| !batch.rows.iter().any(|(_, sequence)| reading.known.has(*sequence));
        let Some(batch) = batch.filter(|batch| serves && fits(batch) && free(batch)) else {
            state.stop_reading().await;
            state.cursor.go_back();
            return Ok(None);
        };
        self.hand_over(state, opened, own, request, batch).await.map(Some)
    }

    /// Writes rows down as in flight, and has the next ones read meanwhile.
    async fn hand_over(
        self: &Arc<Self>,
        state: &mut ClaimState,
        opened: &Opened,
        own: &Own,
        request: &ClaimRequest,
        batch: Batch,
    ) -> Result<Claim, StoreError> {
        let Some(epoch) = state.lead.as_ref().map(|lead| lead.epoch) else { return Ok(owned::standby()) };
        {
            let mut window = self.window();
            for key in &batch.rows {
                window.put(*key);
            }
        }
        if let Some(reading) = &mut state.reading {
            reading.known.extend(batch.rows.iter().map(|(_, sequence)| *sequence).collect());
        }
        let room = request.max_bytes.saturating_sub(batch.bytes);
        let goes_on = state.reading.is_none()
            && state.wary == 0
            && request.mode == ClaimMode::Waiting
            && batch.picked >= request.limit
            && !batch.left_out
            && room > 0;
        if goes_on {
            let cursor = std::mem::replace(&mut state.cursor, Cursor::new());
            let next = ClaimRequest { max_bytes: room, ..request.clone() };
            let (sender, batches) = mpsc::channel(MOST);
            let known = Ranges::of(&self.window().bounds());
            let task = tokio::spawn(read_beside(Arc::downgrade(self), cursor, epoch, next, sender));
            state.reading = Some(Reading { batches, task, epoch, known });
        }
        let written = self.journal(own, epoch).await;
        if let Ok(true) = written {
            return Ok(batch.claim);
        }
        // Nobody has been handed what could not be written down, or was refused.
        self.let_go_of(epoch, &batch.rows);
        state.stop_reading().await;
        state.cursor.go_back();
        written?;
        let (standing, paused, _) = self.look_at_gate(opened).await?;
        if standing == Standing::Standby {
            state.lead = None;
        }
        // It may have been paused for a moment.
        Ok(Claim { standing, paused, more: standing == Standing::Active, ..Claim::default() })
    }

    /// Reads rows by time; the next read begins behind them.
    async fn read_own(
        &self,
        cursor: &mut Cursor,
        link: &mut Taken<'_>,
        own: &Own,
        epoch: i64,
        request: &ClaimRequest,
    ) -> Result<Batch, StoreError> {
        let asked = Instant::now();
        let (from, from_start) = match request.mode {
            ClaimMode::Waiting => cursor.next(asked),
            ClaimMode::Probe(_) | ClaimMode::Suspect => (START, false),
        };
        // Asked now: what is settled during the read was in flight.
        let (known, end) = (Ranges::of(&self.window().bounds()), self.end());
        let (token, limits) = (owned::token(epoch), Limits::of(request));
        let rows = self.look_behind(link, own, from, request).await?;
        let mut batch = Batch::default();
        for row in &rows {
            batch.take_in(row, &self.label, &token, limits, |one| known.has(one)).map_err(classify)?;
        }
        drop(rows);
        if !batch.large.is_empty() {
            self.fetch_large(link, own, &token, &mut batch).await?;
        }
        batch.put_in_order();
        let full = batch.full(request);
        if request.mode == ClaimMode::Waiting {
            cursor.meet(batch.suspect);
            cursor.read(from_start, asked, batch.last.or(Some(end)), !full);
            batch.claim.suspects = batch.suspect.is_some();
            // A short read behind the cursor says nothing of what is in front of it.
            batch.claim.more = full || (!from_start && cursor.next(Instant::now()).1);
        }
        Ok(batch)
    }

    /// Looks at rows behind a key, leaving out what lies there and is in flight.
    pub(super) async fn look_behind(
        &self,
        link: &mut Taken<'_>,
        own: &Own,
        from: Key,
        request: &ClaimRequest,
    ) -> Result<Vec<MySqlRow>, StoreError> {
        let (sql, condition) = match &request.mode {
            ClaimMode::Probe(topics) => (&own.probe, Condition::only(topics, &request.spent)),
            ClaimMode::Waiting | ClaimMode::Suspect => {
                (&own.waiting, Condition::without(&request.exclude, &request.spent))
            }
        };
        let mut beyond = self.window().beyond(from);
        if beyond.len() > NAMED {
            beyond.clear();
        }
        beyond.sort_unstable();
        let sql = condition.fill(sql);
        let sql = if beyond.is_empty() {
            sql.replace("<beyond>", "TRUE")
        } else {
            // Not as a range: it is for the index's own entries to be compared with.
            with_list(&sql.replace("<beyond>", "sequence + 0 NOT IN (<in>)"), beyond.len())
        };
        let share = i64::try_from(Limits::of(request).share).unwrap_or(i64::MAX);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(share).bind(share);
        let query = query.bind(at(from.0)).bind(at(from.0)).bind(from.1).bind(span(request.lock_ttl));
        let query = bind_list(condition.bind(query), &beyond);
        let rows = query.bind(i64::try_from(request.limit).unwrap_or(i64::MAX));
        within(OPERATION_LIMIT, rows.fetch_all(&mut link.connection)).await
    }

    /// Reads the rows whose payloads were too large to come along.
    async fn fetch_large(
        &self,
        link: &mut Taken<'_>,
        own: &Own,
        token: &Token,
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        let large = std::mem::take(&mut batch.large);
        let mut missing: HashSet<i64> = large.iter().copied().collect();
        let query = sqlx::query(AssertSqlSafe(with_list(&own.large, large.len())));
        let rows = bind_list(query, &large).fetch_all(&mut link.connection);
        for row in within(OPERATION_LIMIT, rows).await? {
            batch.decode(&row, &self.label, token).map_err(classify)?;
            missing.remove(&row.try_get(0).map_err(classify)?);
        }
        // What somebody has deleted or taken meanwhile.
        batch.rows.retain(|(_, sequence)| !missing.contains(sequence));
        Ok(())
    }
}
