//! ④ Reading: an owner looks for rows without writing to them, and reads on while what it found last is being written down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use postbox_core::StoreError;
use postbox_core::Topic;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Spent, Standing};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::claim::{ClaimState, standing};
use super::error::within;
use super::fan;
use super::link::OPERATION_LIMIT;
use super::owner;
use super::row;
use super::statements::Own;
use super::store::{Inner, Opened};
use crate::cursor::{Cursor, Key, START};

/// What was read ahead is not used when it is older than this.
const FRESH: Duration = Duration::from_millis(500);

/// What one read found.
#[derive(Debug, Default)]
pub(super) struct Batch {
    claim: Claim,
    /// Whether the table is paused, and whether it is this relay's; none if it has no row in `postbox_relay`.
    gate: Option<(bool, bool)>,
    picked: usize,
    /// Some did not fit.
    left_out: bool,
    bytes: usize,
    last: Option<Key>,
    suspect: Option<Key>,
    exhausted: Vec<Uuid>,
    /// The rows to dispatch.
    rows: Vec<(Uuid, Key)>,
    /// The read began at the start of the table.
    from_start: bool,
}

impl Batch {
    /// Whether there may be more behind it.
    fn full(&self, request: &ClaimRequest) -> bool {
        self.picked >= request.limit || self.left_out
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

/// What `own.sql` says of a row in front of its event.
struct Look {
    key: Key,
    suspect: bool,
    exhausted: bool,
    fits: bool,
}

impl Look {
    /// None if no row was found.
    fn read(row: &PgRow) -> Result<Option<Self>, sqlx::Error> {
        let Some(sequence) = row.try_get(row::FIRST + 4)? else { return Ok(None) };
        Ok(Some(Self {
            key: (row.try_get(2)?, sequence),
            suspect: row.try_get(3)?,
            exhausted: row.try_get(4)?,
            fits: row.try_get(5)?,
        }))
    }
}

impl Inner {
    /// Hands over rows that are written down as in flight, and reads the next ones meanwhile.
    pub(super) async fn read_own(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let Some(lead) = &state.lead else { return Ok(owner::standby()) };
        let (epoch, ttl) = (lead.epoch, lead.ttl);
        let mut batch = match self.take_ahead(state, request) {
            Some(batch) => batch,
            None => self.read_batch(state, connection, opened, own, request, epoch).await?,
        };
        let (paused, mine) = batch.gate.ok_or_else(|| self.no_relay_row(opened))?;
        (batch.claim.standing, batch.claim.paused) = (standing(paused, mine), paused);
        if batch.claim.standing == Standing::Standby {
            self.dispossessed();
            return Ok(batch.claim);
        }
        let full = batch.full(request);
        if !batch.rows.is_empty() {
            self.reserve(&batch.rows);
            let room = request.max_bytes.saturating_sub(batch.bytes);
            let next = ClaimRequest { max_bytes: room, ..request.clone() };
            // Behind a pooler this would hold one of its server processes while it waits for another.
            let goes_on =
                request.mode == ClaimMode::Waiting && full && !batch.left_out && room > 0 && !opened.pooled;
            let admitted = if goes_on {
                let (admitted, ahead) = tokio::join!(
                    self.admit(None, opened, own, (epoch, ttl), &batch.rows),
                    self.read_batch(state, connection, opened, own, &next, epoch)
                );
                // What cannot be read is for the next claim to find out. And where nothing is to be written down, nobody would see
                // that the table was paused meanwhile.
                let ahead = ahead.ok().filter(|batch| !batch.rows.is_empty()).map(|batch| {
                    let (exclude, spent) = (Arc::clone(&request.exclude), Arc::clone(&request.spent));
                    Ahead { batch, read: Instant::now(), exclude, spent }
                });
                if let Some(lead) = &mut state.lead {
                    lead.ahead = ahead;
                }
                admitted
            } else {
                self.admit(Some(&mut *connection), opened, own, (epoch, ttl), &batch.rows).await
            };
            match admitted? {
                Standing::Active => {}
                Standing::Standby => return Ok(owner::standby()),
                Standing::Paused => {
                    return Ok(Claim { standing: Standing::Paused, paused: true, ..Claim::default() });
                }
            }
            if let Some(lead) = &mut state.lead {
                lead.renewed = asked;
            }
        }
        let Batch { mut claim, exhausted, from_start, suspect, .. } = batch;
        if !exhausted.is_empty() {
            claim.buried =
                self.bury_exhausted(connection, opened, own, &exhausted, request.max_attempts).await?;
        }
        if request.mode == ClaimMode::Waiting {
            claim.suspects = suspect.is_some();
            claim.more = full || (!from_start && state.cursor.next(Instant::now()).1);
        }
        Ok(claim)
    }

    /// Reads rows; the cursor is then behind them.
    async fn read_batch(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        request: &ClaimRequest,
        epoch: i64,
    ) -> Result<Batch, StoreError> {
        let asked = Instant::now();
        let ((from_at, from_sequence), from_start) = match request.mode {
            ClaimMode::Waiting => state.cursor.next(asked),
            ClaimMode::Probe(_) | ClaimMode::Suspect => (START, false),
        };
        let (sql, topics) = match &request.mode {
            ClaimMode::Probe(topics) => (&own.probe, topics),
            ClaimMode::Waiting | ClaimMode::Suspect => (&own.waiting, &request.exclude),
        };
        let query = opened
            .query(sql)
            .bind(&self.holder)
            .bind(&opened.key)
            .bind(((from_at, from_sequence) != START).then_some(from_at))
            .bind(from_sequence)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(fan::list(topics, &request.spent))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(self.window().sequences());
        let token = owner::token(epoch);
        let mut batch = Batch { from_start, ..Batch::default() };
        let read = async {
            let mut rows = query.fetch(&mut *connection);
            while let Some(row) = rows.try_next().await? {
                if batch.gate.is_none() {
                    batch.gate = Some((row.try_get(0)?, row.try_get(1)?));
                }
                self.take_in(&row, &token, request.max_bytes, &mut batch)?;
            }
            Ok(())
        };
        within(OPERATION_LIMIT, read).await?;
        batch.claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        if request.mode == ClaimMode::Waiting {
            state.cursor.suspect = match (state.cursor.suspect, batch.suspect) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => old.or(new),
            };
            state.cursor.read(from_start, asked, batch.last, !batch.full(request));
        }
        Ok(batch)
    }

    /// Takes in one row of a read.
    fn take_in(
        &self,
        row: &PgRow,
        token: &Arc<str>,
        max_bytes: usize,
        batch: &mut Batch,
    ) -> Result<(), sqlx::Error> {
        let Some(look) = Look::read(row)? else { return Ok(()) };
        batch.picked += 1;
        // Nothing was written, so what does not fit is simply read again, and nothing behind it is taken.
        if !look.fits || batch.left_out {
            batch.left_out = true;
            return Ok(());
        }
        if look.suspect {
            batch.suspect = batch.suspect.or(Some(look.key));
        } else if look.exhausted {
            batch.exhausted.push(row.try_get(row::FIRST)?);
        } else {
            match row::decode(row, &self.label, token)? {
                Some(row::Found::Delivery(mut claimed)) => {
                    // Some values are far longer as text than as they are stored.
                    if !batch.claim.rows.is_empty() && batch.bytes >= max_bytes {
                        batch.left_out = true;
                        return Ok(());
                    }
                    batch.bytes += claimed.delivery.payload.len();
                    let due = claimed.delivery.meta.created_at.max(look.key.0);
                    claimed.age = (claimed.lease.since - due).try_into().unwrap_or_default();
                    batch.rows.push((claimed.lease.row, look.key));
                    batch.claim.rows.push(claimed);
                }
                Some(row::Found::Undecodable(undecodable)) => {
                    batch.rows.push((undecodable.lease.row, look.key));
                    batch.claim.undecodable.push(undecodable);
                }
                Some(row::Found::Buried(_)) | None => {}
            }
        }
        batch.last = Some(look.key);
        Ok(())
    }

    /// What was read ahead, if it serves; if not, it is read again.
    fn take_ahead(&self, state: &mut ClaimState, request: &ClaimRequest) -> Option<Batch> {
        // A probe is something else; what is ahead waits.
        if request.mode != ClaimMode::Waiting {
            return None;
        }
        let ahead = state.lead.as_mut()?.ahead.take()?;
        // A probe may have taken one of them meanwhile.
        let taken = {
            let window = self.window();
            ahead.batch.rows.iter().any(|(id, _)| window.has(id))
        };
        if !taken && ahead.serves(request) {
            return Some(ahead.batch);
        }
        let suspect = state.cursor.suspect;
        state.cursor = Cursor::new();
        state.cursor.suspect = suspect;
        None
    }
}
