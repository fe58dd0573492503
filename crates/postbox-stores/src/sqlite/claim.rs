//! ④ Claim: rows are looked for without a lock; `lease.rs` then leases them in one short transaction.

use std::sync::atomic::Ordering;
use std::time::Instant;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Spent, Standing};
use postbox_core::{Order, StoreError, Topic};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::clock::{micros, now, span};
use super::error::{classify, within};
use super::leader::Lead;
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::cursor::{Cursor, START};
use crate::gate::{no_relay_row, standing};
use crate::ordered::Ordered;
use crate::ring::Ring;
use crate::seen::{Candidate, Picked};

/// What a relay remembers between claims. All of it can be lost: it only makes claims quicker.
#[derive(Debug)]
pub(super) struct ClaimState {
    pub(super) lead: Option<Lead>,
    cursor: Cursor,
    /// Where tenants are claimed apart.
    ring: Ring,
    /// Where order is kept.
    ordered: Option<Ordered>,
}

impl ClaimState {
    pub(super) fn new(order: Order) -> Self {
        Self { lead: None, cursor: Cursor::new(), ring: Ring::default(), ordered: Ordered::of(order) }
    }
}

impl Inner {
    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        let opened = self.opened().await?;
        let mut state = self.state.lock().await;
        if self.settings.single_active {
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
        // Of a round that takes several claims, the first: what commits into what was looked at is news.
        if state.ring.is_at_start() {
            self.seen.store(version, Ordering::Relaxed);
        }
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
        let suspects = request.mode == ClaimMode::Waiting && picked.suspect.is_some();
        let mut claim = Claim { standing, more: picked.more, suspects, ..Claim::default() };
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
    pub(super) async fn look_at_gate(
        &self,
        connection: &mut SqliteConnection,
        opened: &Opened,
    ) -> Result<(Standing, bool), StoreError> {
        let gate = sqlx::query(AssertSqlSafe(opened.statements.gate.as_str()))
            .bind(&opened.key)
            .bind(self.settings.sole_holder())
            .bind(now())
            .fetch_optional(connection);
        let row =
            within(OPERATION_LIMIT, gate).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        let paused: bool = row.try_get(0).map_err(classify)?;
        let mine: Option<bool> = row.try_get(1).map_err(classify)?;
        Ok((standing(paused, mine == Some(true)), paused))
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

/// The topics of a look, and rows of others that it leaves out: an array of a topic and sinks means rows that all of these
/// have confirmed.
pub(super) fn list(topics: &[Topic], spent: &[Spent]) -> String {
    let whole = topics.iter().map(|topic| Value::from(topic.as_str()));
    let parts = spent.iter().map(|spent| {
        std::iter::once(spent.topic.as_str()).chain(spent.sinks.iter().map(|name| &**name)).collect::<Value>()
    });
    whole.chain(parts).collect::<Value>().to_string()
}

async fn pick(
    state: &mut ClaimState,
    connection: &mut SqliteConnection,
    opened: &Opened,
    request: &ClaimRequest,
) -> Result<Picked, StoreError> {
    if let (ClaimMode::Waiting, Some(by_tenant)) = (&request.mode, &opened.statements.by_tenant) {
        let looked = by_tenant.look(connection, &mut state.ring, request).await?;
        let mut picked = Picked::of(&looked.rows, request);
        state.cursor.meet(picked.suspect);
        picked.more = looked.more || !picked.all_fit;
        return Ok(picked);
    }
    let asked = Instant::now();
    let statements = &opened.statements;
    let (from, from_start) = state.cursor.start_of(&request.mode, asked);
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
        .bind(list(topics, &request.spent))
        .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
        .fetch_one(connection);
    let answer = within(OPERATION_LIMIT, look).await?.unwrap_or_default();
    let mut rows: Vec<Candidate> = answer.split(';').filter_map(candidate).collect();
    // An aggregate promises no order.
    rows.sort_unstable_by_key(|row| (row.available_at, row.sequence));

    let mut picked = Picked::of(&rows, request);
    let full = rows.len() >= request.limit || !picked.all_fit;
    let cursor = &mut state.cursor;
    match request.mode {
        ClaimMode::Waiting => {
            cursor.meet(picked.suspect);
            cursor.read(from_start, asked, picked.last, !full);
            // A short claim behind the cursor says nothing of what is in front of it.
            picked.more = full || (!from_start && cursor.next(Instant::now()).1);
        }
        ClaimMode::Suspect => cursor.suspect = picked.suspect,
        ClaimMode::Probe(_) => {}
    }
    Ok(picked)
}

/// Reads a row of the answer of `pick.sql`, which is one text: each row of an answer costs more than to find it.
pub(super) fn candidate(text: &str) -> Option<Candidate> {
    let mut numbers = text.split(' ').map(str::parse::<i64>);
    let mut next = || numbers.next()?.ok();
    let (sequence, available_at, attempts) = (next()?, next()?, next()?);
    let (suspect, bytes) = (next()? != 0, usize::try_from(next()?).ok()?);
    Some(Candidate { sequence, available_at, attempts, suspect, bytes })
}
