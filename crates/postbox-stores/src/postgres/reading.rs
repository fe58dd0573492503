//! ④ Reading: an owner looks for rows without writing to them, and reads on while what it found last is being written down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing};
use postbox_core::{StoreError, StoreErrorKind};
use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::beside::{Ahead, Found, MOST, MOST_IN_ORDER, Waiting, read_beside};
use super::by_time::Sight;
use super::claim::{ClaimState, Position};
use super::statements::Own;
use super::store::{Inner, Opened};
use super::window::Spot;
use crate::gate::{no_relay_row, standing};
use crate::owned;
use crate::ranges::Ranges;

/// What one read found.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// With whether there may be more, and suspects.
    pub(super) claim: Claim,
    /// Whether the table is paused, and whether it is this relay's; none if it has no row in `postbox_relay`.
    pub(super) gate: Option<(bool, bool)>,
    pub(super) picked: usize,
    /// Some did not fit.
    pub(super) left_out: bool,
    pub(super) bytes: usize,
    pub(super) exhausted: Vec<Uuid>,
    /// The rows to dispatch.
    pub(super) rows: Vec<(Uuid, Spot)>,
    /// The first strand that was looked at.
    pub(super) from: i64,
    /// In order: whether the next read is of other strands, as those of one round are.
    pub(super) others_follow: bool,
}

impl Batch {
    /// What needs no handing over: it is leased, or there is nothing.
    pub(super) fn of(claim: Claim) -> Self {
        Self { claim, ..Self::default() }
    }

    /// Whether there may be more behind it.
    pub(super) fn full(&self, request: &ClaimRequest) -> bool {
        self.picked >= request.limit || self.left_out
    }

    /// Whether it can be handed over as it is. Exhausted rows are for a claim to bury. And where nothing is to be written down, nobody
    /// would see that the table was paused meanwhile.
    pub(super) fn goes(&self, request: &ClaimRequest) -> bool {
        let active = self.gate == Some((false, true));
        active && !self.rows.is_empty() && self.exhausted.is_empty() && self.picked <= request.limit
    }

    /// In the order in which they were written.
    pub(super) fn put_in_order(&mut self) {
        self.claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
    }

    /// As batches of so many rows, each of other strands. Where some of it is not to be dispatched it stays as it is.
    pub(super) fn in_parts(mut self, limit: usize) -> impl Iterator<Item = Self> {
        let whole = self.rows.len() <= limit || self.rows.len() != self.claim.rows.len();
        let mut parts = Vec::new();
        while !whole && self.rows.len() > limit {
            let strand = |at: usize| self.rows[at].1.strand;
            let Some(cut) = (1..=limit).rev().find(|at| strand(*at) != strand(at - 1)) else { break };
            let mut part = Self { gate: self.gate, picked: cut, from: self.from, ..Self::default() };
            part.rows = self.rows.drain(..cut).collect();
            part.claim.rows = self.claim.rows.drain(..cut).collect();
            part.claim.more = true;
            part.bytes = part.claim.rows.iter().map(|row| row.delivery.payload.len()).sum();
            (self.picked, self.bytes) = (self.rows.len(), self.bytes.saturating_sub(part.bytes));
            parts.push(part);
        }
        parts.into_iter().chain([self])
    }

    /// Rows that turned out to be in flight, or are gone.
    pub(super) fn drop_rows(&mut self, gone: impl Fn(&Uuid) -> bool) {
        if self.rows.iter().any(|(id, _)| gone(id)) {
            self.rows.retain(|(id, _)| !gone(id));
            self.claim.rows.retain(|row| !gone(&row.lease.row));
            self.claim.undecodable.retain(|row| !gone(&row.lease.row));
        }
    }
}

/// An owner's reign: its statements, which reign it is, and for how long at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reign<'a> {
    pub(super) opened: &'a Opened,
    pub(super) own: &'a Own,
    pub(super) epoch: i64,
    pub(super) ttl: Duration,
}

impl<'a> Reign<'a> {
    fn of(opened: &'a Opened, epoch: i64, ttl: Duration) -> Option<Self> {
        Some(Self { opened, own: opened.statements.own.as_ref()?, epoch, ttl })
    }
}

/// A reader beside the claims: it reads on until something is out of the ordinary, and then leaves the rest to a claim.
#[derive(Debug)]
pub(super) struct Reading {
    /// With room for what one read brings at most: so much waits while the next read goes on.
    batches: mpsc::Receiver<Ahead>,
    task: JoinHandle<Position>,
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
        let ahead = batches.recv().await;
        // A reader that panicked takes its position with it; what is there is the start.
        self.at = task.await.unwrap_or_else(|_| Position::start());
        if let Some(ahead) = ahead {
            self.at.start_again(ahead.from);
        }
    }
}

impl Position {
    /// What was read is not handed over: the next read finds it again.
    pub(super) fn start_again(&mut self, from: i64) {
        self.cursor.go_back();
        self.round.back_to(from);
        self.turns.start_again();
    }
}

impl Inner {
    /// Rows that are to be handed over. A look in vain at some of the strands is followed by a look at the next ones.
    pub(super) async fn read_own(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Batch, StoreError> {
        let reign = state.lead.as_ref().and_then(|lead| Reign::of(opened, lead.epoch, lead.ttl));
        let Some(reign) = reign else { return Ok(Batch::of(owned::standby())) };
        let mut suspects = false;
        loop {
            let mut batch = self.read_batch(&mut state.at, connection, reign, request).await?;
            let (paused, mine) = batch.gate.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
            (batch.claim.standing, batch.claim.paused) = (standing(paused, mine), paused);
            if batch.claim.standing == Standing::Standby {
                return Ok(Batch::of(owned::standby()));
            }
            if !batch.exhausted.is_empty() {
                let (rows, max) = (&batch.exhausted, request.max_attempts);
                batch.claim.buried = self.bury_exhausted(connection, opened, reign.own, rows, max).await?;
            }
            suspects |= batch.claim.suspects;
            if !(opened.ordered.is_some() && batch.claim.is_empty() && batch.claim.more) {
                batch.claim.suspects = suspects;
                return Ok(batch);
            }
        }
    }

    /// Hands over what was read beside the claims, if that is what this one would find. Needs no look at the table: that it is still
    /// this relay's is seen when the rows are written down.
    pub(super) async fn claim_ahead(
        self: &Arc<Self>,
        state: &mut ClaimState,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Option<Claim>, StoreError> {
        let (Some(lead), Some(reading)) = (&state.lead, &mut state.reading) else { return Ok(None) };
        if request.mode != ClaimMode::Waiting || request.limit == 0 || lead.wants_renewal() {
            return Ok(None);
        }
        let reigns_on = lead.epoch == reading.epoch;
        let Some(ahead) = reading.batches.recv().await else { return Ok(None) };
        let (from, seen, serves) = (ahead.from, ahead.seen, reigns_on && ahead.serves(request));
        let last = ahead.last;
        let batch = match ahead.found {
            Found::Batch(batch) => Some(batch),
            // What cannot be decoded is read again, by itself.
            Found::Decoding(task) => task.await.ok().flatten(),
        };
        let fits = |batch: &Batch| batch.picked <= request.limit && batch.bytes <= request.max_bytes;
        let free = |batch: &Batch| !batch.rows.is_empty() && !self.interferes(batch, &reading.known);
        let batch = batch.filter(|batch| serves && fits(batch) && free(batch));
        if batch.is_none() || last {
            state.stop_reading().await;
        }
        let Some(batch) = batch else {
            state.at.start_again(from);
            return Ok(None);
        };
        let batch = self.hand_over(state, opened, request, batch, seen).await?;
        Ok(Some(batch.claim))
    }

    /// Writes rows down as in flight, and has the next ones read meanwhile. What the relay may not work on does not stay in the batch.
    /// `seen` is when they were read, or later.
    pub(super) async fn hand_over(
        self: &Arc<Self>,
        state: &mut ClaimState,
        opened: &Opened,
        request: &ClaimRequest,
        batch: Batch,
        seen: Instant,
    ) -> Result<Batch, StoreError> {
        let asked = Instant::now();
        let reign = state.lead.as_ref().and_then(|lead| Reign::of(opened, lead.epoch, lead.ttl));
        let Some(reign) = reign else { return Ok(Batch::of(owned::standby())) };
        self.reserve(reign.epoch, &batch);
        if let Some(reading) = &mut state.reading {
            reading.known.extend(batch.rows.iter().map(|(_, spot)| spot.key.1).collect());
        }
        let room = request.max_bytes.saturating_sub(batch.bytes);
        let goes_on = state.reading.is_none()
            && request.mode == ClaimMode::Waiting
            && batch.claim.more
            && (batch.full(request) || opened.ordered.is_some())
            && !batch.left_out
            && room > 0;
        if goes_on {
            let at = std::mem::replace(&mut state.at, Position::start());
            let next = ClaimRequest { max_bytes: room, ..request.clone() };
            let (sender, batches) =
                mpsc::channel(if opened.ordered.is_some() { MOST_IN_ORDER } else { MOST });
            let beside = read_beside(Arc::downgrade(self), at, (reign.epoch, reign.ttl), next, sender);
            let (task, known) = (tokio::spawn(beside), Ranges::of(&self.window().keys.bounds()));
            state.reading = Some(Reading { batches, task, epoch: reign.epoch, known });
        }
        let admitted = self.admit(reign, &batch.rows, seen).await;
        if let Ok(Standing::Active) = admitted {
            if let Some(lead) = &mut state.lead {
                lead.renewed = asked;
            }
            return Ok(batch);
        }
        state.stop_reading().await;
        state.at.start_again(batch.from);
        if let Standing::Paused = admitted? {
            return Ok(Batch::of(Claim { standing: Standing::Paused, paused: true, ..Claim::default() }));
        }
        state.lead = None;
        let mut link = self.claims.take().await?;
        self.unlock(&mut link.connection, opened).await?;
        link.keep().await?;
        Ok(Batch::of(owned::standby()))
    }

    /// One read; none if it is not for a reader. `waiting` are strands of which something was read that is not yet known to be in
    /// flight: until it is, nothing more of them is read.
    pub(super) async fn read_ahead(
        &self,
        at: &mut Position,
        (epoch, ttl): (i64, Duration),
        request: &ClaimRequest,
        asked: Instant,
        waiting: &Waiting,
    ) -> Result<Option<Sight>, StoreError> {
        let reign = Reign::of(self.opened().await?, epoch, ttl);
        let (Some(reign), mut link) = (reign, self.claims.take().await?) else { return Ok(None) };
        if link.fresh {
            // Without the lock of the session before it. The next claim makes its own, and knows.
            return Ok(None);
        }
        let connection = &mut link.connection;
        let found = match &reign.opened.ordered {
            None => self.look_on(&mut at.cursor, connection, reign, request, asked).await,
            Some(ordered) => {
                let batch = self.read_in_order(at, connection, reign, ordered, request, waiting).await;
                batch.map(Sight::Ordered)
            }
        };
        if !found.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Connection) {
            link.keep().await?;
        }
        found.map(Some)
    }

    /// Reads rows; the next read begins behind them.
    async fn read_batch(
        &self,
        at: &mut Position,
        connection: &mut PgConnection,
        reign: Reign<'_>,
        request: &ClaimRequest,
    ) -> Result<Batch, StoreError> {
        match &reign.opened.ordered {
            Some(ordered) => {
                at.turns.several(1);
                self.read_in_order(at, connection, reign, ordered, request, &Waiting::default()).await
            }
            None => self.read_on(&mut at.cursor, connection, reign, request).await,
        }
    }

    /// Whether some of it is in flight or was, or one of its strands is.
    fn interferes(&self, batch: &Batch, known: &Ranges) -> bool {
        let strands = &self.window().strands;
        let taken = |spot: &Spot| {
            known.has(spot.key.1) || spot.strand.is_some_and(|strand| strands.contains_key(&strand))
        };
        batch.rows.iter().any(|(_, spot)| taken(spot))
    }
}
