//! Ownership: the active relay reads its table and writes no claim. What it has in flight, its window, stands in its row of
//! `postbox_relay`, so that a successor knows it; that row is also the fence of every settle.
//!
//! Rows that are locked are left alone: hot ones belong to the process that wrote them, and those whose lease ran out, or
//! that a predecessor left behind, are claimed one by one, by lease.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::redact::Summary as Text;
use postbox_core::store::{Buried, Claim, ClaimMode, ClaimRequest, Lease, Settlement, Standing, Verdict};
use postbox_core::{Code, EventId, StoreError};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::claim::{ClaimState, Summary, standing};
use super::error::{classify, within};
use super::fan;
use super::link::OPERATION_LIMIT;
use super::row::{self, Found};
use super::statements::Own;
use super::store::{Inner, Opened};
use crate::cursor::{Key, START};

/// What every token of an owner starts with; the epoch follows.
const OWNED: &str = "own/";

/// The columns that `own.sql` has behind those of a claim.
const AVAILABLE_AT: usize = row::FIRST + 22;
const EXHAUSTED: usize = row::FIRST + 23;

/// The rows that are in flight, by id.
#[derive(Debug, Default)]
pub(super) struct Window(HashMap<Uuid, Key>);

impl Window {
    fn sequences(&self) -> Vec<i64> {
        self.0.values().map(|(_, sequence)| *sequence).collect()
    }
}

/// Whether a row was read by its owner and not leased.
pub(super) fn is_owned(lease: &Lease) -> bool {
    lease.token.starts_with(OWNED)
}

/// The token of an owner's rows.
fn token(epoch: i64) -> Arc<str> {
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

    /// These rows are not in flight any more.
    pub(super) fn let_go<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        let mut window = self.window();
        for lease in leases {
            window.0.remove(&lease.row);
        }
    }

    /// Another relay has the table.
    pub(super) fn dispossessed(&self) {
        self.window().0.clear();
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
        let query = sqlx::query(AssertSqlSafe(sql.as_str()))
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
        let mut claim = Claim::default();
        let mut new: Vec<(Uuid, Key)> = Vec::new();
        let mut exhausted: Vec<Uuid> = Vec::new();
        let read = async {
            let (mut rows, mut summary, mut bytes) = (query.fetch(&mut *connection), None, 0);
            while let Some(row) = rows.try_next().await? {
                if summary.is_none() {
                    summary = Summary::read(&row)?;
                    exhausted = row.try_get(EXHAUSTED)?;
                }
                let at = || row.try_get::<OffsetDateTime, _>(AVAILABLE_AT);
                match row::decode(&row, &self.label, &token)? {
                    Some(Found::Delivery(claimed)) => {
                        // Some values are far longer as text than as they are stored; nothing was written, so these are left.
                        let fits = bytes < request.max_bytes || claim.rows.is_empty();
                        bytes += claimed.delivery.payload.len();
                        if fits {
                            new.push((claimed.lease.row, (at()?, claimed.delivery.meta.sequence)));
                            claim.rows.push(*claimed);
                        } else {
                            claim.more = true;
                        }
                    }
                    Some(Found::Undecodable(undecodable)) => {
                        new.push((undecodable.lease.row, (at()?, row.try_get(row::FIRST + 4)?)));
                        claim.undecodable.push(undecodable);
                    }
                    Some(Found::Buried(_)) | None => {}
                }
            }
            Ok(summary)
        };
        let summary = within(OPERATION_LIMIT, read).await?.ok_or_else(|| self.no_relay_row(opened))?;
        let left_out = claim.more;
        claim.standing = standing(summary.paused, summary.mine);
        if claim.standing == Standing::Standby {
            self.dispossessed();
            return Ok(claim);
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        if !new.is_empty() {
            let added: Vec<Uuid> = new.iter().map(|(id, _)| *id).collect();
            self.window().0.extend(new);
            match self.journal(connection, opened, own, epoch, ttl.as_secs_f64()).await {
                Ok(true) => {}
                Ok(false) => {
                    self.dispossessed();
                    return Ok(standby());
                }
                Err(error) => {
                    // Nobody has been handed these.
                    let mut window = self.window();
                    for id in &added {
                        window.0.remove(id);
                    }
                    return Err(error);
                }
            }
            if let Some(lead) = &mut state.lead {
                lead.renewed = asked;
            }
        }
        if !exhausted.is_empty() {
            claim.buried = self.bury_exhausted(connection, own, &exhausted, request.max_attempts).await?;
        }
        let full = usize::try_from(summary.picked).unwrap_or(usize::MAX) >= request.limit || !summary.all_fit;
        if request.mode == ClaimMode::Waiting {
            claim.suspects = summary.suspect.is_some();
            state.cursor.suspect = match (state.cursor.suspect, summary.suspect) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => old.or(new),
            };
            // What was left out for its length is found again from the start.
            let last = if left_out { None } else { summary.last };
            state.cursor.read(from_start || left_out, asked, last, !full);
            claim.more = full || left_out || (!from_start && state.cursor.next(Instant::now()).1);
        }
        Ok(claim)
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
        let journal = sqlx::query(AssertSqlSafe(own.journal.as_str()))
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
    async fn bury_exhausted(
        &self,
        connection: &mut PgConnection,
        own: &Own,
        rows: &[Uuid],
        max_attempts: i32,
    ) -> Result<Vec<Buried>, StoreError> {
        let bury = sqlx::query(AssertSqlSafe(own.bury.as_str()))
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
            sqlx::query(AssertSqlSafe(own.settle_delivered.as_str())).bind(ids).bind(attempts)
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
            sqlx::query(AssertSqlSafe(own.settle.as_str()))
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
        let mine = sqlx::query_scalar::<_, bool>(AssertSqlSafe(own.is_mine.as_str()))
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

fn standby() -> Claim {
    Claim { standing: Standing::Standby, ..Claim::default() }
}

/// Where the window of a relay that leads is written.
pub(super) fn strategy(owns: bool) -> &'static str {
    if owns { "owner" } else { "lease" }
}
