//! ④ Claim: rows are looked for without a lock; `lease.rs` then leases them in one short transaction.

use std::sync::Arc;
use std::time::Instant;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing, Token};
use postbox_core::{Order, StoreError, Topic};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::clock::{at, from_micros, micros, span};
use super::error::{classify, within};
use super::leader::Lead;
use super::link::OPERATION_LIMIT;
use super::reading::Reading;
use super::store::{Inner, Opened};
use super::topics::Condition;
use super::wake::Mark;
use crate::cursor::{Cursor, Key};
use crate::cursors::{self, Others};
use crate::gate::{no_relay_row, standing};
use crate::ordered::Ordered;
use crate::ring::Ring;
use crate::row::Times as _;
use crate::seen::{Candidate, Picked};

/// Where several relays share a table, they look for so many times the rows that they want: others have some of these.
const SHARED: usize = 4;
/// And for what is claimed alone, so many times: an outsider may have locked the first, which must not hide those behind it.
const ALONE: usize = 16;

/// What a relay remembers between claims. All of it can be lost: it only makes claims quicker.
#[derive(Debug)]
pub(super) struct ClaimState {
    pub(super) lead: Option<Lead>,
    pub(super) cursor: Cursor,
    others: Others,
    /// Where tenants are claimed apart.
    ring: Ring,
    /// Where order is kept.
    ordered: Option<Ordered>,
    /// Claims whose answer was lost, and the rows that they were for: they go back uncharged (hazard 5).
    pub(super) lost: Vec<(Token, Vec<i64>)>,
    /// What an owner reads beside its claims.
    pub(super) reading: Option<Reading>,
    /// So many claims read by themselves.
    pub(super) wary: u32,
    /// When this relay last said that it shares the table.
    pub(super) shown: Option<Instant>,
}

impl ClaimState {
    pub(super) fn new(order: Order) -> Self {
        Self {
            lead: None,
            cursor: Cursor::new(),
            others: Others::default(),
            ring: Ring::default(),
            ordered: Ordered::of(order),
            lost: Vec::new(),
            reading: None,
            wary: 0,
            shown: None,
        }
    }
}

impl Inner {
    pub(super) async fn claim(self: &Arc<Self>, request: ClaimRequest) -> Result<Claim, StoreError> {
        let opened = self.opened().await?;
        let mut guard = self.state.lock().await;
        let state = &mut *guard;
        if let Some(claim) = self.claim_ahead(state, opened, &request).await? {
            return Ok(claim);
        }
        state.stop_reading().await;
        if self.settings.single_active {
            if state.lead.is_none() {
                state.lead = self.take_lead(opened, request.poll_interval).await?;
            }
            let Some(lead) = &mut state.lead else {
                let (_, paused, _) = self.look_at_gate(opened).await?;
                return Ok(Claim { standing: Standing::Standby, paused, ..Claim::default() });
            };
            self.renew_lead(lead, opened).await?;
        } else {
            self.show_sharing(state, opened, request.poll_interval).await?;
        }
        let (standing, paused, mark) = self.look_at_gate(opened).await?;
        // Of a round that takes several claims, the first: what commits into what was looked at is news.
        if state.ring.is_at_start() {
            self.seen.saw(mark, standing == Standing::Active);
        }
        if standing == Standing::Standby {
            state.lead = None;
        }
        if standing != Standing::Active || request.limit == 0 {
            return Ok(Claim { standing, paused, ..Claim::default() });
        }
        self.give_back(&mut state.lost, opened).await?;
        if request.mode == ClaimMode::Waiting {
            state.others.turn_to(&mut state.cursor, &request);
        }
        let mut claim = Claim { standing, ..Claim::default() };
        if let Some(ordered) = &mut state.ordered {
            self.claim_in_order(ordered, &mut state.lost, opened, &request, &mut claim).await?;
            return Ok(claim);
        }
        // What may have killed somebody is leased always.
        let own = opened.statements.own.as_ref().filter(|_| request.mode != ClaimMode::Suspect);
        if let Some(own) = own {
            claim = self.claim_own(state, opened, own, &request).await?;
        } else {
            let picked = self.pick(state, opened, &request).await?;
            claim.more = picked.more;
            claim.suspects = request.mode == ClaimMode::Waiting && picked.suspect.is_some();
            if !picked.chosen.is_empty() {
                self.take_rows(&mut state.lost, opened, &request, &picked.chosen, &mut claim).await?;
            }
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
        let condition = Condition::only(topics, &[]);
        let sql = condition.fill(&opened.statements.suspects_among);
        let mut link = self.claims.take().await?;
        let query = condition.bind(sqlx::query(AssertSqlSafe(sql)).bind(span(request.lock_ttl)));
        let row = within(OPERATION_LIMIT, query.fetch_one(&mut link.connection)).await?;
        link.keep();
        row.try_get(0).map_err(classify)
    }

    /// Whether this relay may work, whether the table is paused, and what tells of commits.
    pub(super) async fn look_at_gate(&self, opened: &Opened) -> Result<(Standing, bool, Mark), StoreError> {
        let holder = self.settings.sole_holder();
        let mut link = self.claims.take().await?;
        let gate = sqlx::query(AssertSqlSafe(opened.statements.gate.as_str()))
            .bind(holder)
            .bind(holder)
            .bind(&opened.key)
            .fetch_optional(&mut link.connection);
        let row =
            within(OPERATION_LIMIT, gate).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        link.keep();
        let read = || -> Result<_, sqlx::Error> {
            self.clock.set(row.micros(2)?);
            let (paused, mine): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
            Ok((standing(paused, mine), paused, Mark::read(&row, 3)?))
        };
        read().map_err(classify)
    }

    /// The place that a look comes to which begins now and finds nothing.
    pub(super) fn end(&self) -> Key {
        cursors::end(from_micros(self.clock.now()))
    }

    async fn pick(
        &self,
        state: &mut ClaimState,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Picked, StoreError> {
        let mut link = self.claims.take().await?;
        let picked =
            if let (ClaimMode::Waiting, Some(by_tenant)) = (&request.mode, &opened.statements.by_tenant) {
                let looked = by_tenant.look(&mut link.connection, &mut state.ring, request).await?;
                let mut picked = Picked::of(&looked.rows, request);
                state.cursor.meet(picked.suspect);
                picked.more = looked.more || !picked.all_fit;
                picked
            } else {
                let shared = if self.settings.single_active { 1 } else { SHARED };
                pick(&mut state.cursor, &mut link.connection, opened, request, (shared, self.end())).await?
            };
        link.keep();
        Ok(picked)
    }
}

/// As many rows are looked at by one claim: they are locked by a list of arguments, and a statement takes 65,535 of them.
const MOST: usize = 16_384;

async fn pick(
    cursor: &mut Cursor,
    connection: &mut MySqlConnection,
    opened: &Opened,
    request: &ClaimRequest,
    (shared, end): (usize, Key),
) -> Result<Picked, StoreError> {
    let asked = Instant::now();
    let statements = &opened.statements;
    let (from, from_start) = cursor.start_of(&request.mode, asked);
    let (sql, condition) = match &request.mode {
        ClaimMode::Waiting => {
            (&statements.pick_waiting, Condition::without(&request.exclude, &request.spent))
        }
        ClaimMode::Suspect => {
            (&statements.pick_suspect, Condition::without(&request.exclude, &request.spent))
        }
        ClaimMode::Probe(topics) => (&statements.pick_probe, Condition::only(topics, &request.spent)),
    };
    let times = if request.mode == ClaimMode::Waiting { shared } else { ALONE };
    let rows = request.limit.saturating_mul(times).min(MOST.max(request.limit));
    let query = sqlx::query(AssertSqlSafe(condition.fill(sql)))
        .bind(at(from.0))
        .bind(at(from.0))
        .bind(from.1)
        .bind(span(request.lock_ttl));
    let look = condition.bind(query).bind(i64::try_from(rows).unwrap_or(i64::MAX)).fetch_all(connection);
    let found = within(OPERATION_LIMIT, look).await?;
    let found: Vec<Candidate> = found.iter().map(candidate).collect::<Result<_, _>>().map_err(classify)?;

    let mut picked = Picked::of(&found, request);
    let full = found.len() >= rows || !picked.all_fit;
    match request.mode {
        ClaimMode::Waiting => {
            cursor.meet(picked.suspect);
            // What is left for others, or for the next claim, is not passed by.
            let last = match picked.chosen.get(request.limit.saturating_sub(1)) {
                Some(row) if picked.chosen.len() > request.limit => Some(row.key()),
                _ => picked.last,
            };
            cursor.read(from_start, asked, last.or(Some(end)), !full);
            // A short claim behind the cursor says nothing of what is in front of it.
            picked.more =
                full || picked.chosen.len() > request.limit || (!from_start && cursor.next(Instant::now()).1);
        }
        ClaimMode::Suspect => cursor.suspect = picked.suspect,
        ClaimMode::Probe(_) => {}
    }
    Ok(picked)
}

/// Reads a row of `pick.sql`.
pub(super) fn candidate(row: &MySqlRow) -> Result<Candidate, sqlx::Error> {
    Ok(Candidate {
        sequence: row.try_get(0)?,
        available_at: row.micros(1)?,
        attempts: row.try_get::<i32, _>(2)?.into(),
        suspect: row.try_get(3)?,
        bytes: usize::try_from(row.try_get::<i64, _>(4)?).unwrap_or(usize::MAX),
    })
}

/// A row as an owner has read it.
pub(super) fn candidate_of((at, sequence): Key, attempts: i32, bytes: usize) -> Candidate {
    Candidate { sequence, available_at: micros(at), attempts: attempts.into(), suspect: false, bytes }
}
