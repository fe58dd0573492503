//! ④ Reading: an owner looks for rows without writing to them, and reads on while what it found last is being written down.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Spent, Standing, Token};
use postbox_core::{StoreError, StoreErrorKind, Topic};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::claim::{ClaimState, candidate_of};
use super::clock::{at, known_time, micros, span};
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken};
use super::list_of::{bind_list, with_list};
use super::own::Own;
use super::owner;
use super::row::{self, COLUMNS};
use super::store::{Inner, Opened};
use super::topics::Condition;
use crate::cursor::{Cursor, Key, START};
use crate::ranges::Ranges;
use crate::seen::Candidate;

/// Places in the answer of `own.sql`, behind what rows carry.
const ATTEMPTS: usize = COLUMNS;
const NOW: usize = COLUMNS + 1;
const LOCKED: usize = COLUMNS + 2;
const BYTES: usize = COLUMNS + 3;
const AVAILABLE_AT: usize = 5;

/// What was read ahead is not used when it is older than this.
const FRESH: Duration = Duration::from_millis(500);

/// A reader beside the claims goes on while batches are not larger than this share of the room there is: so that some can wait, some be
/// read, and some have come into flight before the first of them is taken.
const SHARES: usize = 16;

/// It reads up to so many batches at once, as long as they are taken soon.
const MOST: usize = 4;
const SOON: Duration = Duration::from_millis(50);

/// After that was in vain, since one of the rows could not simply go, so many claims read by themselves.
const WARY: u32 = 20;

/// More than so many rows that are in flight are not named in a statement: they are read, and left out then.
const NAMED: usize = 4096;

/// What one read found.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// With whether there may be more, and suspects.
    claim: Claim,
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
struct Limits {
    /// What one row may bring along.
    share: usize,
    bytes: usize,
    attempts: i32,
}

impl Limits {
    fn of(request: &ClaimRequest) -> Self {
        let share = request.max_bytes / request.limit.max(1);
        Self { share, bytes: request.max_bytes, attempts: request.max_attempts }
    }
}

impl Batch {
    /// Takes in one row, unless the relay has it already.
    fn take_in(
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
        let key = (known_time(row, AVAILABLE_AT)?, sequence);
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
        let (content, now) = (row::decode(row, label)?, micros(known_time(row, NOW)?));
        let attempts = i64::from(row.try_get::<i32, _>(ATTEMPTS)?).max(0) + 1;
        content.leased(token, now, attempts, None, &mut self.claim);
        Ok(())
    }

    /// Whether there may be more behind it.
    fn full(&self, request: &ClaimRequest) -> bool {
        self.picked >= request.limit || self.left_out
    }

    /// In the order in which they were written.
    fn put_in_order(&mut self) {
        self.claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
    }
}

/// A batch that was read before it was asked for, and under what conditions.
#[derive(Debug)]
struct Ahead {
    /// Decoded by a task of its own: neither the next read nor the claim before it waits for that.
    batch: JoinHandle<Option<Batch>>,
    read: Instant,
    exclude: Arc<[Topic]>,
    spent: Arc<[Spent]>,
}

impl Ahead {
    /// Whether it is what this request would find.
    fn serves(&self, request: &ClaimRequest) -> bool {
        self.read.elapsed() < FRESH && self.exclude == request.exclude && self.spent == request.spent
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

/// Why a reader has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// There is no more, or it is time to go back to the start.
    AtEnd,
    /// Something was out of the ordinary.
    InVain,
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
        let Some(epoch) = state.lead.as_ref().map(|lead| lead.epoch) else { return Ok(standby()) };
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
        let Some(epoch) = state.lead.as_ref().map(|lead| lead.epoch) else { return Ok(standby()) };
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
        let (token, limits) = (owner::token(epoch), Limits::of(request));
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
    async fn look_behind(
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

    /// Looks at the next rows for a reader: they are not even decoded, as long as all is well with them. None if it is not: then the
    /// cursor stays where it was.
    async fn look_ahead(
        &self,
        cursor: &mut Cursor,
        request: &ClaimRequest,
        asked: Instant,
    ) -> Result<Option<(Vec<MySqlRow>, usize)>, StoreError> {
        let opened = self.opened().await?;
        let Some(own) = &opened.statements.own else { return Ok(None) };
        let mut link = self.claims.take().await?;
        let (from, from_start) = cursor.next(asked);
        let rows = self.look_behind(&mut link, own, from, request).await;
        if rows.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Connection) {
            return rows.map(|_| None);
        }
        link.keep();
        let rows = rows?;
        let Some((bytes, last)) = extent_if_all_go(&rows, Limits::of(request)).map_err(classify)? else {
            return Ok(None);
        };
        cursor.read(from_start, asked, Some(last), rows.len() < request.limit);
        Ok(Some((rows, bytes)))
    }

    /// Rows that were looked at, decoded; none if they cannot be.
    fn decoded(&self, rows: &[MySqlRow], epoch: i64, more: bool) -> Option<Batch> {
        let (token, mut batch) = (owner::token(epoch), Batch::default());
        let limits = Limits { share: usize::MAX, bytes: usize::MAX, attempts: i32::MAX };
        for row in rows {
            batch.take_in(row, &self.label, &token, limits, |_| false).ok()?;
        }
        batch.claim.more = more;
        batch.put_in_order();
        Some(batch)
    }
}

/// How many bytes an answer has and where it ends, if each row of it can go as it is.
fn extent_if_all_go(rows: &[MySqlRow], limits: Limits) -> Result<Option<(usize, Key)>, sqlx::Error> {
    let Some(last) = rows.last() else { return Ok(None) };
    let mut bytes = 0;
    for row in rows {
        let stored = usize::try_from(row.try_get::<i64, _>(BYTES)?).unwrap_or(usize::MAX);
        if row.try_get(LOCKED)?
            || row.try_get::<i32, _>(ATTEMPTS)? >= limits.attempts
            || stored > limits.share
        {
            return Ok(None);
        }
        bytes += stored;
    }
    Ok(Some((bytes, (known_time(last, AVAILABLE_AT)?, last.try_get(0)?))))
}

/// Reads on beside the claims, and answers where it has come to. Does not keep the store alive: whoever drops it waits for nobody.
async fn read_beside(
    store: Weak<Inner>,
    mut cursor: Cursor,
    epoch: i64,
    one: ClaimRequest,
    batches: mpsc::Sender<Ahead>,
) -> (Cursor, Ended) {
    let (mut several, mut asked) = (1, Instant::now());
    loop {
        let (limit, small) = (one.limit * several, one.max_bytes / SHARES * several);
        let max_bytes = if several == 1 { one.max_bytes / 2 } else { small };
        let request = ClaimRequest { limit, max_bytes, ..one.clone() };
        // From the start on, a read would find again what is not yet known to be in flight.
        if cursor.next(asked).1 {
            return (cursor, Ended::AtEnd);
        }
        let Some(inner) = store.upgrade() else { return (cursor, Ended::AtEnd) };
        // What cannot be read, or go, is for the next claim to find out.
        let Ok(Some((rows, bytes))) = inner.look_ahead(&mut cursor, &request, asked).await else {
            return (cursor, Ended::InVain);
        };
        drop(inner);
        let (count, mut rows) = (rows.len(), rows.into_iter());
        while rows.len() > 0 {
            let batch: Vec<MySqlRow> = rows.by_ref().take(one.limit).collect();
            let (more, store) = (count >= limit || rows.len() > 0, Weak::clone(&store));
            let task =
                tokio::spawn(
                    async move { store.upgrade().and_then(|inner| inner.decoded(&batch, epoch, more)) },
                );
            let (exclude, spent) = (Arc::clone(&one.exclude), Arc::clone(&one.spent));
            if batches.send(Ahead { batch: task, read: asked, exclude, spent }).await.is_err() {
                cursor.go_back();
                return (cursor, Ended::AtEnd);
            }
        }
        several = if asked.elapsed() < SOON { (several * 2).min(MOST) } else { 1 };
        asked = Instant::now();
        if count < limit || bytes > small {
            return (cursor, Ended::AtEnd);
        }
    }
}

fn standby() -> Claim {
    Claim { standing: Standing::Standby, ..Claim::default() }
}
