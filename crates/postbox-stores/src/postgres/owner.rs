//! Ownership: the active relay reads its table and writes no claim. What it has in flight, its window, stands in its row of
//! `postbox_relay`, so that a successor knows it; that row is also the fence of every settle.
//!
//! Rows that are locked are left alone: hot ones belong to the process that wrote them, and those whose lease ran out, or
//! that a predecessor left behind, are claimed one by one, by lease.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use postbox_core::redact::Summary as Text;
use postbox_core::store::{Buried, Claim, ClaimMode, ClaimRequest, Lease, Settlement, Standing, Verdict};
use postbox_core::{Code, EventId, StoreError};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::claim::{ClaimState, standing};
use super::error::{classify, within};
use super::fan;
use super::link::OPERATION_LIMIT;
use super::row;
use super::statements::Own;
use super::store::{Inner, Opened};
use crate::cursor::{Key, START};

/// What every token of an owner starts with; the epoch follows.
const OWNED: &str = "own/";

/// The rows that are in flight, by id.
#[derive(Debug, Default)]
pub(super) struct Window(HashMap<Uuid, Key>);

impl Window {
    /// Their sequences as a multirange: neighbours share a range, so that it is short for a window without holes, and exact
    /// for any.
    fn sequences(&self) -> String {
        let mut sequences: Vec<i64> = self.0.values().map(|(_, sequence)| *sequence).collect();
        sequences.sort_unstable();
        let mut text = String::from("{");
        for run in sequences.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            let comma = if text.len() > 1 { "," } else { "" };
            let _ = write!(text, "{comma}[{},{}]", run[0], run[run.len() - 1]);
        }
        text.push('}');
        text
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

/// What a read found besides the rows to dispatch.
#[derive(Default)]
struct Found {
    /// Whether the table is paused, and whether it is this relay's; none if it has no row in `postbox_relay`.
    gate: Option<(bool, bool)>,
    picked: usize,
    /// Some did not fit.
    left_out: bool,
    bytes: usize,
    last: Option<Key>,
    suspect: Option<Key>,
    exhausted: Vec<Uuid>,
    new: Vec<(Uuid, Key)>,
}

/// Whether a row was read by its owner and not leased.
pub(super) fn is_owned(lease: &Lease) -> bool {
    lease.token.starts_with(OWNED)
}

/// The token of an owner's rows.
pub(super) fn token(epoch: i64) -> Arc<str> {
    format!("{OWNED}{epoch}").into()
}

/// The epoch that a row was read in.
fn epoch(lease: &Lease) -> i64 {
    lease.token.strip_prefix(OWNED).and_then(|epoch| epoch.parse().ok()).unwrap_or(-1)
}

impl Inner {
    fn window(&self) -> MutexGuard<'_, Window> {
        // Each change is one step: the map stays whole whatever panics beside it.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only claims put rows into the window, one claim after the other.
    pub(super) fn has_nothing_in_flight(&self) -> bool {
        self.window().0.is_empty()
    }

    /// These rows are not in flight any more.
    pub(super) fn let_go<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        let mut window = self.window();
        let mut strands = self.strands();
        for lease in leases {
            window.0.remove(&lease.row);
            strands.remove(&lease.row);
        }
    }

    /// Another relay has the table.
    pub(super) fn dispossessed(&self) {
        self.window().0.clear();
        self.strands().clear();
    }

    /// Puts rows into the window; they are in flight once the owner's row says so. Answers whether the table is still this
    /// relay's; nobody has been handed rows that could not be written down.
    pub(super) async fn admit(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        (epoch, ttl): (i64, Duration),
        rows: Vec<(Uuid, Key)>,
    ) -> Result<bool, StoreError> {
        let added: Vec<Uuid> = rows.iter().map(|(id, _)| *id).collect();
        self.window().0.extend(rows);
        let mine =
            self.journal(connection, opened, own, epoch, ttl.as_secs_f64()).await.inspect_err(|_| {
                let (mut window, mut strands) = (self.window(), self.strands());
                for id in &added {
                    window.0.remove(id);
                    strands.remove(id);
                }
            })?;
        if !mine {
            self.dispossessed();
        }
        Ok(mine)
    }

    /// Reads rows and puts them into the window; they are in flight once the owner's row says so.
    pub(super) async fn read_own(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let Some(lead) = &state.lead else { return Ok(standby()) };
        let (epoch, ttl) = (lead.epoch, lead.ttl);
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
        let token = token(epoch);
        let (mut claim, mut found) = (Claim::default(), Found::default());
        let read = async {
            let mut rows = query.fetch(&mut *connection);
            while let Some(row) = rows.try_next().await? {
                if found.gate.is_none() {
                    found.gate = Some((row.try_get(0)?, row.try_get(1)?));
                }
                self.take_in(&row, &token, request.max_bytes, &mut claim, &mut found)?;
            }
            Ok(())
        };
        within(OPERATION_LIMIT, read).await?;
        let Found { gate, picked, left_out, last, suspect, exhausted, new, .. } = found;
        let (paused, mine) = gate.ok_or_else(|| self.no_relay_row(opened))?;
        (claim.standing, claim.paused) = (standing(paused, mine), paused);
        if claim.standing == Standing::Standby {
            self.dispossessed();
            return Ok(claim);
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        if !new.is_empty() {
            if !self.admit(connection, opened, own, (epoch, ttl), new).await? {
                return Ok(standby());
            }
            if let Some(lead) = &mut state.lead {
                lead.renewed = asked;
            }
        }
        if !exhausted.is_empty() {
            claim.buried =
                self.bury_exhausted(connection, opened, own, &exhausted, request.max_attempts).await?;
        }
        let full = picked >= request.limit || left_out;
        if request.mode == ClaimMode::Waiting {
            claim.suspects = suspect.is_some();
            state.cursor.suspect = match (state.cursor.suspect, suspect) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => old.or(new),
            };
            state.cursor.read(from_start, asked, last, !full);
            claim.more = full || (!from_start && state.cursor.next(Instant::now()).1);
        }
        Ok(claim)
    }

    /// Takes in one row of a read.
    fn take_in(
        &self,
        row: &PgRow,
        token: &Arc<str>,
        max_bytes: usize,
        claim: &mut Claim,
        found: &mut Found,
    ) -> Result<(), sqlx::Error> {
        let Some(look) = Look::read(row)? else { return Ok(()) };
        found.picked += 1;
        // Nothing was written, so what does not fit is simply read again, and nothing behind it is taken.
        if !look.fits || found.left_out {
            found.left_out = true;
            return Ok(());
        }
        if look.suspect {
            found.suspect = found.suspect.or(Some(look.key));
        } else if look.exhausted {
            found.exhausted.push(row.try_get(row::FIRST)?);
        } else {
            match row::decode(row, &self.label, token)? {
                Some(row::Found::Delivery(mut claimed)) => {
                    // Some values are far longer as text than as they are stored.
                    if !claim.rows.is_empty() && found.bytes >= max_bytes {
                        found.left_out = true;
                        return Ok(());
                    }
                    found.bytes += claimed.delivery.payload.len();
                    let due = claimed.delivery.meta.created_at.max(look.key.0);
                    claimed.age = (claimed.lease.since - due).try_into().unwrap_or_default();
                    found.new.push((claimed.lease.row, look.key));
                    claim.rows.push(*claimed);
                }
                Some(row::Found::Undecodable(undecodable)) => {
                    found.new.push((undecodable.lease.row, look.key));
                    claim.undecodable.push(undecodable);
                }
                Some(row::Found::Buried(_)) | None => {}
            }
        }
        found.last = Some(look.key);
        Ok(())
    }

    /// Writes down what is in flight, and renews the owner's time. Answers whether the table is still this relay's.
    async fn journal(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        epoch: i64,
        seconds: f64,
    ) -> Result<bool, StoreError> {
        let (sequences, from, to) = {
            let window = self.window();
            let times = || window.0.values().map(|(at, _)| *at);
            // What is available since ever lies before all times that can be written here.
            (window.sequences(), times().min().filter(|from| *from > START.0), times().max())
        };
        let journal = opened
            .query(&own.journal)
            .bind(&opened.key)
            .bind(&self.holder)
            .bind(epoch)
            .bind(sequences)
            .bind(from)
            .bind(to)
            .bind(seconds)
            .execute(connection);
        Ok(within(OPERATION_LIMIT, journal).await?.rows_affected() > 0)
    }

    /// Rows that have used up their attempts without being in flight: the limit was lowered.
    pub(super) async fn bury_exhausted(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        rows: &[Uuid],
        max_attempts: i32,
    ) -> Result<Vec<Buried>, StoreError> {
        let bury = opened
            .query(&own.bury)
            .bind(rows)
            .bind(format!("{}: no answer in {max_attempts} attempts", Code::Exhausted))
            .bind(max_attempts)
            .fetch_all(connection);
        let read = |row: &PgRow| -> Result<Buried, sqlx::Error> {
            Ok(Buried {
                topic: row.try_get(0)?,
                event_id: EventId(row.try_get(1)?),
                sequence: row.try_get(2)?,
            })
        };
        within(OPERATION_LIMIT, bury).await?.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    /// The settle of rows that were read in one epoch.
    pub(super) fn settle_own<'q>(
        &'q self,
        opened: &'q Opened,
        own: &'q Own,
        settlements: &'q [Settlement],
    ) -> Query<'q, Postgres, PgArguments> {
        let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.row).collect();
        let attempts: Vec<i32> = settlements.iter().map(|s| s.lease.attempts).collect();
        let epoch = settlements.first().map_or(-1, |s| epoch(&s.lease));
        let query = if settlements.iter().all(|s| s.verdict == Verdict::Delivered) {
            opened.query(&own.settle_delivered).bind(ids).bind(attempts)
        } else {
            let (mut verdicts, mut waits) = (Vec::new(), Vec::new());
            let (mut errors, mut failures) = (Vec::new(), Vec::new());
            for settlement in settlements {
                let (number, wait, error) = match &settlement.verdict {
                    Verdict::Delivered => (0, None, None),
                    Verdict::Retry { after, reason } => (1, Some(*after), Some(reason.as_str())),
                    Verdict::Release { after, reason } => (2, *after, reason.as_ref().map(Text::as_str)),
                    Verdict::Dead { reason } => (3, None, Some(reason.as_str())),
                };
                verdicts.push(number);
                waits.push(wait.map(|wait| i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)));
                errors.push(error);
                failures.push(settlement.failure.as_ref().and_then(|f| serde_json::to_string(f).ok()));
            }
            opened
                .query(&own.settle)
                .bind(ids)
                .bind(attempts)
                .bind(verdicts)
                .bind(waits)
                .bind(errors)
                .bind(failures)
        };
        let mixed = settlements.iter().any(|s| s.verdict != Verdict::Delivered);
        let query = query.bind(&opened.key).bind(&self.holder).bind(epoch);
        if mixed { query.bind(fan::confirmed(settlements)) } else { query }
    }

    /// Whether the table is still this relay's, in the epoch that these rows were read in.
    pub(super) async fn is_mine(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        lease: &Lease,
    ) -> Result<bool, StoreError> {
        let mine = opened
            .scalar::<bool>(&own.is_mine)
            .bind(&opened.key)
            .bind(&self.holder)
            .bind(epoch(lease))
            .fetch_one(connection);
        within(OPERATION_LIMIT, mine).await
    }
}

/// A row that nobody has to write anything for: it was only read.
pub(super) fn needs_no_write(settlement: &Settlement) -> bool {
    is_owned(&settlement.lease)
        && settlement.sinks_done.is_empty()
        && matches!(settlement.verdict, Verdict::Release { after: None, reason: None })
}

pub(super) fn standby() -> Claim {
    Claim { standing: Standing::Standby, ..Claim::default() }
}
