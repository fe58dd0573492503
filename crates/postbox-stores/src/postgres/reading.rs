//! ④ Reading: an owner looks for rows without writing to them, and reads on while what it found last is being written down.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Spent, Standing};
use postbox_core::{StoreError, StoreErrorKind, Topic};
use sqlx::PgConnection;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::claim::{ClaimState, Position, standing};
use super::owner::{self, Spot};
use super::statements::Own;
use super::store::{Inner, Opened};
use crate::cursor::Cursor;

/// What was read ahead is not used when it is older than this.
const FRESH: Duration = Duration::from_millis(500);

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

    /// Rows that turned out to be in flight, or are gone.
    pub(super) fn drop_rows(&mut self, gone: impl Fn(&Uuid) -> bool) {
        if self.rows.iter().any(|(id, _)| gone(id)) {
            self.rows.retain(|(id, _)| !gone(id));
            self.claim.rows.retain(|row| !gone(&row.lease.row));
            self.claim.undecodable.retain(|row| !gone(&row.lease.row));
        }
    }
}

/// A batch that was read before it was asked for, and under what conditions.
#[derive(Debug)]
pub(super) struct Ahead {
    batch: Batch,
    read: Instant,
    exclude: Arc<[Topic]>,
    spent: Arc<[Spent]>,
}

impl Ahead {
    /// Whether it is what this request would find.
    fn serves(&self, request: &ClaimRequest) -> bool {
        self.read.elapsed() < FRESH
            && self.batch.picked <= request.limit
            && self.batch.bytes <= request.max_bytes
            && self.exclude == request.exclude
            && self.spent == request.spent
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

/// A read beside the claims: nobody waits for it until the next claim.
#[derive(Debug)]
pub(super) struct Reading {
    task: JoinHandle<(Position, Option<Ahead>)>,
    epoch: i64,
}

impl ClaimState {
    /// Waits for what is being read. What cannot be read is for the next claim to find out.
    pub(super) async fn finish_reading(&mut self) {
        let Some(Reading { task, epoch }) = self.reading.take() else { return };
        let Ok((at, ahead)) = task.await else { return };
        self.at = at;
        match (ahead, &mut self.lead) {
            // Where nothing is to be written down, nobody would see that the table was paused meanwhile.
            (Some(ahead), Some(lead)) if lead.epoch == epoch && !ahead.batch.rows.is_empty() => {
                lead.ahead = Some(ahead);
            }
            (Some(ahead), _) => self.start_again(&ahead.batch),
            (None, _) => {}
        }
    }

    /// What was read is not handed over: the next read finds it again.
    fn start_again(&mut self, batch: &Batch) {
        let suspect = self.at.cursor.suspect;
        self.at.cursor = Cursor::new();
        self.at.cursor.suspect = suspect;
        self.at.round.back_to(batch.from);
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
        let Some(reign) = reign else { return Ok(Batch::of(owner::standby())) };
        let mut suspects = false;
        loop {
            let mut batch = match self.take_ahead(state, request) {
                Some(batch) => batch,
                None => self.read_batch(&mut state.at, connection, reign, request).await?,
            };
            let (paused, mine) = batch.gate.ok_or_else(|| self.no_relay_row(opened))?;
            (batch.claim.standing, batch.claim.paused) = (standing(paused, mine), paused);
            if batch.claim.standing == Standing::Standby {
                self.dispossessed();
                return Ok(Batch::of(owner::standby()));
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

    /// Writes rows down as in flight, and has the next ones read meanwhile. What the relay may not work on does not stay in the batch.
    /// Without a connection the journal takes its own.
    pub(super) async fn hand_over(
        self: &Arc<Self>,
        state: &mut ClaimState,
        connection: Option<&mut PgConnection>,
        opened: &Opened,
        request: &ClaimRequest,
        batch: Batch,
    ) -> Result<Batch, StoreError> {
        let asked = Instant::now();
        let reign = state.lead.as_ref().and_then(|lead| Reign::of(opened, lead.epoch, lead.ttl));
        let Some(reign) = reign else { return Ok(Batch::of(owner::standby())) };
        self.reserve(&batch);
        let room = request.max_bytes.saturating_sub(batch.bytes);
        let goes_on = connection.is_none()
            && request.mode == ClaimMode::Waiting
            && batch.claim.more
            && (batch.full(request) || opened.ordered.is_some())
            && !batch.left_out
            && room > 0;
        if goes_on {
            let at = std::mem::replace(&mut state.at, Position::start());
            let next = ClaimRequest { max_bytes: room, ..request.clone() };
            let beside = Arc::clone(self).read_beside(at, (reign.epoch, reign.ttl), next);
            state.reading = Some(Reading { task: tokio::spawn(beside), epoch: reign.epoch });
        }
        let admitted = self.admit(connection, reign, &batch.rows).await;
        if let Ok(Standing::Active) = admitted {
            if let Some(lead) = &mut state.lead {
                lead.renewed = asked;
            }
            return Ok(batch);
        }
        state.finish_reading().await;
        state.start_again(&batch);
        Ok(Batch::of(match admitted? {
            Standing::Paused => Claim { standing: Standing::Paused, paused: true, ..Claim::default() },
            Standing::Active | Standing::Standby => {
                state.lead = None;
                owner::standby()
            }
        }))
    }

    async fn read_beside(
        self: Arc<Self>,
        mut at: Position,
        (epoch, ttl): (i64, Duration),
        request: ClaimRequest,
    ) -> (Position, Option<Ahead>) {
        let read = async {
            let reign = Reign::of(self.opened().await?, epoch, ttl);
            let (Some(reign), mut link) = (reign, self.claims.take().await?) else { return Ok(None) };
            if link.fresh {
                // Without the lock of the session before it. The next claim makes its own, and knows.
                return Ok(None);
            }
            let batch = self.read_batch(&mut at, &mut link.connection, reign, &request).await;
            if !batch.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Connection) {
                link.keep().await?;
            }
            batch.map(Some)
        };
        let batch: Result<Option<Batch>, StoreError> = read.await;
        let ahead = batch.ok().flatten().map(|batch| {
            let (exclude, spent) = (Arc::clone(&request.exclude), Arc::clone(&request.spent));
            Ahead { batch, read: Instant::now(), exclude, spent }
        });
        (at, ahead)
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
            Some(ordered) => self.read_in_order(at, connection, reign, ordered, request).await,
            None => self.read_on(&mut at.cursor, connection, reign, request).await,
        }
    }

    /// What was read ahead, if it serves; if not, it is read again.
    fn take_ahead(&self, state: &mut ClaimState, request: &ClaimRequest) -> Option<Batch> {
        // A probe is something else; what is ahead waits.
        if request.mode != ClaimMode::Waiting {
            return None;
        }
        let ahead = state.lead.as_mut()?.ahead.take()?;
        if ahead.serves(request) && !self.interferes(&ahead.batch) {
            return Some(ahead.batch);
        }
        state.start_again(&ahead.batch);
        None
    }

    /// Whether a probe has taken some of it meanwhile, or one of its strands.
    fn interferes(&self, batch: &Batch) -> bool {
        let window = self.window();
        let strands = if batch.rows.iter().any(|(_, spot)| spot.strand.is_some()) {
            window.strands()
        } else {
            HashSet::new()
        };
        batch
            .rows
            .iter()
            .any(|(id, spot)| window.has(id) || spot.strand.is_some_and(|strand| strands.contains(&strand)))
    }
}
