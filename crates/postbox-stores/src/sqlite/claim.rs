//! ④ Claim: rows are looked for without a lock, then leased in one short transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing};
use postbox_core::{Code, StoreError, StoreErrorKind, Topic};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use uuid::Uuid;

use super::clock::{from_micros, micros, now, span};
use super::error::{classify, within};
use super::leader::Lead;
use super::patience::OPERATION_LIMIT;
use super::row::{self, Found};
use super::store::{Inner, Opened};
use crate::cursor::{Cursor, Key, START, just_before};

/// What a relay remembers between claims. All of it can be lost: it only makes claims quicker.
#[derive(Debug)]
pub(super) struct ClaimState {
    pub(super) lead: Option<Lead>,
    cursor: Cursor,
}

impl ClaimState {
    pub(super) fn new() -> Self {
        Self { lead: None, cursor: Cursor::new() }
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

    /// Leases what was picked and is still there.
    async fn take_rows(
        &self,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[i64],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let sql = match request.mode {
            ClaimMode::Suspect => &opened.statements.claim_suspect,
            ClaimMode::Waiting | ClaimMode::Probe(_) => &opened.statements.claim_unlocked,
        };
        let token: Arc<str> = format!("{}/{}", self.holder, Uuid::new_v4().simple()).into();
        let mut writer = self.writer.begin().await?;
        let now = now();
        let mut rows = sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(now)
            .bind(serde_json::json!(chosen).to_string())
            .bind(now.saturating_sub(span(request.lock_ttl)))
            .bind(request.max_attempts)
            .bind(&*token)
            .bind(format!("{}: no answer in {} attempts", Code::Exhausted, request.max_attempts))
            .bind(&opened.key)
            .bind(self.single_active.then_some(&self.holder))
            .fetch(&mut writer.connection);
        // Row by row: a batch of large payloads shall not stand in memory twice.
        while let Some(row) = rows.try_next().await.map_err(classify)? {
            match row::decode(&row, &self.label, &token).map_err(classify)? {
                Found::Delivery(claimed) => claim.rows.push(*claimed),
                Found::Undecodable(row) => claim.undecodable.push(row),
                Found::Buried(row) => claim.buried.push(row),
            }
        }
        drop(rows);
        writer.commit().await?;
        // UPDATE … RETURNING answers in no order.
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
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
    chosen: Vec<i64>,
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
    let look = sqlx::query(AssertSqlSafe(sql.as_str()))
        .bind(now)
        .bind(from_at)
        .bind(from.1)
        .bind(now.saturating_sub(span(request.lock_ttl)))
        .bind(names(topics))
        .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
        .fetch_all(connection);
    let rows = within(OPERATION_LIMIT, look).await?;

    let wants_suspects = request.mode == ClaimMode::Suspect;
    let (mut chosen, mut bytes, mut all_fit) = (Vec::with_capacity(rows.len()), 0, true);
    let (mut last, mut suspect): (Option<Key>, Option<Key>) = (None, None);
    for row in &rows {
        let read = || -> Result<(i64, i64, bool, i64), sqlx::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
        };
        let (sequence, available_at, is_suspect, size) = read().map_err(classify)?;
        let key = (from_micros(available_at), sequence);
        if is_suspect {
            suspect = suspect.or(Some(key));
        }
        if is_suspect == wants_suspects {
            // One is always allowed.
            if !chosen.is_empty() && bytes >= request.max_bytes {
                all_fit = false;
                break;
            }
            bytes = bytes.saturating_add(usize::try_from(size).unwrap_or(0));
            chosen.push(sequence);
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
