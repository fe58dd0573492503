//! ④ Claim: rows are looked for without a lock; `lease.rs` then leases them in one short transaction.

use std::sync::atomic::Ordering;
use std::time::Instant;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing};
use postbox_core::{Code, Order, StoreError, StoreErrorKind, Topic};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::clock::{from_micros, micros, now, span};
use super::error::{classify, within};
use super::leader::Lead;
use super::lease::Candidate;
use super::ordered::Ordered;
use super::patience::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::cursor::{Cursor, Key, START, just_before};

/// What a relay remembers between claims. All of it can be lost: it only makes claims quicker.
#[derive(Debug)]
pub(super) struct ClaimState {
    pub(super) lead: Option<Lead>,
    cursor: Cursor,
    /// Where order is kept.
    ordered: Option<Ordered>,
}

impl ClaimState {
    pub(super) fn new(order: Order) -> Self {
        let ordered = match order {
            Order::None => None,
            Order::Aggregate(on_dead) => Some(Ordered::new(on_dead)),
        };
        Self { lead: None, cursor: Cursor::new(), ordered }
    }
}

impl Inner {
    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        let opened = self.opened().await?;
        let mut state = self.state.lock().await;
        if self.single_active {
            if state.lead.is_none() {
                state.lead = self.take_lead(opened, request.poll_interval).await?;
            }
            let Some(lead) = &mut state.lead else {
                let mut reader = self.reader.take().await?;
                let (_, paused) = self.look_at_gate(&mut reader.connection, opened).await?;
                reader.keep();
                return Ok(Claim { standing: Standing::Standby, paused, ..Claim::default() });
            };
            self.renew_lead(lead, opened).await?;
        }
        let mut reader = self.reader.take().await?;
        // Before the look: what commits after it must end the next wait.
        let version = data_version(&mut reader.connection).await?;
        self.seen.store(version, Ordering::Relaxed);
        let (standing, paused) = self.look_at_gate(&mut reader.connection, opened).await?;
        if standing == Standing::Standby {
            state.lead = None;
        }
        if standing != Standing::Active || request.limit == 0 {
            reader.keep();
            return Ok(Claim { standing, paused, ..Claim::default() });
        }
        if let Some(ordered) = &mut state.ordered {
            reader.keep();
            let mut claim = Claim { standing, ..Claim::default() };
            self.claim_in_order(ordered, opened, &request, &mut claim).await?;
            return Ok(claim);
        }
        let picked = pick(&mut state, &mut reader.connection, opened, &request).await?;
        reader.keep();
        let mut claim = Claim { standing, more: picked.more, suspects: picked.suspects, ..Claim::default() };
        if !picked.chosen.is_empty() {
            self.take_rows(opened, &request, &picked.chosen, &mut claim).await?;
        }
        if let ClaimMode::Probe(topics) = &request.mode
            && claim.rows.is_empty()
        {
            claim.suspects = self.suspects_among(topics, opened, &request).await?;
            state.cursor.suspect = None;
        }
        Ok(claim)
    }

    /// Whether rows of these topics wait whose lease ran out.
    async fn suspects_among(
        &self,
        topics: &[Topic],
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<bool, StoreError> {
        let now = now();
        let mut reader = self.reader.take().await?;
        let found = sqlx::query_scalar::<_, bool>(AssertSqlSafe(opened.statements.suspects_among.as_str()))
            .bind(now)
            .bind(now.saturating_sub(span(request.lock_ttl)))
            .bind(names(topics))
            .fetch_one(&mut reader.connection);
        let found = within(OPERATION_LIMIT, found).await?;
        reader.keep();
        Ok(found)
    }

    /// Whether this relay may work, and whether the table is paused.
    async fn look_at_gate(
        &self,
        connection: &mut SqliteConnection,
        opened: &Opened,
    ) -> Result<(Standing, bool), StoreError> {
        let gate = sqlx::query(AssertSqlSafe(opened.statements.gate.as_str()))
            .bind(&opened.key)
            .bind(self.single_active.then_some(&self.holder))
            .bind(now())
            .fetch_optional(connection);
        let row = within(OPERATION_LIMIT, gate).await?.ok_or_else(|| self.no_relay_row(opened))?;
        let paused: bool = row.try_get(0).map_err(classify)?;
        let mine: Option<bool> = row.try_get(1).map_err(classify)?;
        let standing = match (mine, paused) {
            (Some(true), true) => Standing::Paused,
            (Some(true), false) => Standing::Active,
            _ => Standing::Standby,
        };
        Ok((standing, paused))
    }

    pub(super) fn no_relay_row(&self, opened: &Opened) -> StoreError {
        let message = format!("{} has no row in postbox_relay: run `postbox migrate up` again", opened.key);
        tracing::error!(table = &*self.label, message);
        StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message)
    }
}

/// A number that changes when another connection commits, whatever process it is in.
pub(super) async fn data_version(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    let version = sqlx::query_scalar::<_, i64>("PRAGMA data_version").fetch_one(connection);
    within(OPERATION_LIMIT, version).await
}

/// Topics for SQL.
fn names(topics: &[Topic]) -> String {
    serde_json::json!(topics.iter().map(Topic::as_str).collect::<Vec<_>>()).to_string()
}

/// What a look at the table found.
struct Picked {
    chosen: Vec<Candidate>,
    more: bool,
    suspects: bool,
}

async fn pick(
    state: &mut ClaimState,
    connection: &mut SqliteConnection,
    opened: &Opened,
    request: &ClaimRequest,
) -> Result<Picked, StoreError> {
    let asked = Instant::now();
    let statements = &opened.statements;
    let (from, from_start) = match &request.mode {
        ClaimMode::Waiting => state.cursor.next(asked),
        ClaimMode::Suspect => (just_before(state.cursor.suspect.unwrap_or(START)), false),
        ClaimMode::Probe(_) => (START, false),
    };
    let (sql, topics) = match &request.mode {
        ClaimMode::Waiting => (&statements.pick_waiting, &request.exclude),
        ClaimMode::Suspect => (&statements.pick_suspect, &request.exclude),
        ClaimMode::Probe(topics) => (&statements.pick_probe, topics),
    };
    // A time that somebody made up may be before any.
    let from_at = if from == START { i64::MIN } else { micros(from.0) };
    let now = now();
    let look = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(sql.as_str()))
        .bind(now)
        .bind(from_at)
        .bind(from.1)
        .bind(now.saturating_sub(span(request.lock_ttl)))
        .bind(names(topics))
        .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
        .fetch_one(connection);
    let answer = within(OPERATION_LIMIT, look).await?.unwrap_or_default();
    let mut rows: Vec<Candidate> = answer.split(';').filter_map(Candidate::read).collect();
    // An aggregate promises no order.
    rows.sort_unstable_by_key(|row| (row.available_at, row.sequence));

    let wants_suspects = request.mode == ClaimMode::Suspect;
    let (mut chosen, mut bytes, mut all_fit) = (Vec::with_capacity(rows.len()), 0_usize, true);
    let (mut last, mut suspect): (Option<Key>, Option<Key>) = (None, None);
    for row in &rows {
        let key = (from_micros(row.available_at), row.sequence);
        if row.suspect {
            suspect = suspect.or(Some(key));
        }
        if row.suspect == wants_suspects {
            // One is always allowed.
            if !chosen.is_empty() && bytes >= request.max_bytes {
                all_fit = false;
                break;
            }
            bytes = bytes.saturating_add(row.bytes);
            chosen.push(*row);
        }
        last = Some(key);
    }
    let full = rows.len() >= request.limit || !all_fit;
    let cursor = &mut state.cursor;
    let mut picked = Picked { chosen, more: false, suspects: false };
    match request.mode {
        ClaimMode::Waiting => {
            picked.suspects = suspect.is_some();
            cursor.suspect = match (cursor.suspect, suspect) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => old.or(new),
            };
            cursor.read(from_start, asked, last, !full);
            // A short claim behind the cursor says nothing of what is in front of it.
            picked.more = full || (!from_start && cursor.next(Instant::now()).1);
        }
        ClaimMode::Suspect => cursor.suspect = suspect,
        ClaimMode::Probe(_) => {}
    }
    Ok(picked)
}
