//! ④ Claim: which rows a relay may work on, in one statement.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing, Token};
use postbox_core::{Layout, StoreError, StoreErrorKind, Topic};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::{classify, sqlstate, within};
use super::leader::Lead;
use super::link::OPERATION_LIMIT;
use super::reading::{Batch, Reading};
use super::row::{self, Found, Reader};
use super::store::{Inner, Opened};
use super::strands::Round;
use super::tenants::Ring;
use super::topics;
use super::turns::Turns;
use super::unreadable::is_about_data;
use super::wake::Wake;
use crate::cursor::{Cursor, Key, START};
use crate::cursors::{Others, end};
use crate::gate::{no_answer_in, no_relay_row, standing};

/// Where a claim tenant by tenant says how far it has come.
const RING: usize = row::FIRST + row::COLUMNS;

/// For how long claims go by time after one tenant by tenant came upon a row that cannot be read and was not found.
const BY_TIME: Duration = Duration::from_secs(10);

/// What a relay remembers between claims. All of it can be lost: it only makes claims quicker.
#[derive(Debug)]
pub(super) struct ClaimState {
    pub(super) lead: Option<Lead>,
    pub(super) at: Position,
    /// What an owner reads beside its claims.
    pub(super) reading: Option<Reading>,
    /// Tenants are not claimed apart for a while: one of them has a row that cannot be read.
    by_time_until: Option<Instant>,
    /// When this relay last said that it shares the table.
    pub(super) shown: Option<Instant>,
    /// Tokens of claims whose answer was lost: their rows go back uncharged (hazard 5).
    pub(super) lost_tokens: Vec<Token>,
}

/// Where reading has come to.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) cursor: Cursor,
    pub(super) others: Others,
    /// Where order is kept.
    pub(super) round: Round,
    pub(super) turns: Turns,
    /// Where tenants are claimed apart.
    pub(super) ring: Ring,
    /// So many of the next reads are of one batch.
    pub(super) wary: u32,
}

impl Position {
    pub(super) fn start() -> Self {
        Self {
            cursor: Cursor::new(),
            others: Others::default(),
            round: Round::new(),
            turns: Turns::default(),
            ring: Ring::default(),
            wary: 0,
        }
    }
}

impl ClaimState {
    pub(super) fn new() -> Self {
        Self {
            lead: None,
            at: Position::start(),
            reading: None,
            by_time_until: None,
            shown: None,
            lost_tokens: Vec::new(),
        }
    }
}

impl Inner {
    pub(super) async fn claim(self: &Arc<Self>, request: ClaimRequest) -> Result<Claim, StoreError> {
        let opened = self.opened().await?;
        self.max_attempts.store(request.max_attempts, Ordering::Relaxed);
        if request.mode == ClaimMode::Waiting && request.limit > 0 {
            self.heard.all();
        }
        let mut state = self.state.lock().await;
        if let Some(claim) = self.claim_ahead(&mut state, opened, &request).await? {
            if let Some(wake) = &opened.wake {
                wake.claimed(None, &request, &claim, None);
            }
            return Ok(claim);
        }
        state.stop_reading().await;
        if request.mode == ClaimMode::Waiting && request.limit > 0 {
            let at = &mut state.at;
            at.others.turn_to(&mut at.cursor, &request);
        }
        let sleep = state.at.ring.begun(opened.wake.as_ref().and_then(Wake::sleeping));
        let mut link = self.claims.take().await?;
        if link.fresh {
            // A new session does not have the old one's lock.
            state.lead = None;
            self.release_lost(&mut state, &mut link.connection, opened).await?;
        }
        if self.settings.single_active {
            if state.lead.is_none() {
                state.lead = self.take_lead(&mut link.connection, opened, request.poll_interval).await?;
            }
            let Some(lead) = &mut state.lead else {
                // Also says so if there is no row to stand by for.
                let gate = self.look_at_gate(&mut link.connection, opened).await?;
                link.keep().await?;
                if let Some(wake) = &opened.wake {
                    wake.stand_by();
                }
                return Ok(Claim { standing: Standing::Standby, ..gate });
            };
            self.renew_lead(lead, &mut link.connection, opened).await?;
        } else {
            self.show_sharing(&mut state, &mut link.connection, opened, request.poll_interval).await?;
        }
        let mut batch = match request.limit {
            0 => Batch::of(self.look_at_gate(&mut link.connection, opened).await?),
            _ => match self.take_rows(&mut state, &mut link.connection, opened, &request).await {
                Err(error) if is_about_data(&error) => {
                    self.claims.turn_over(&mut link.connection).await?;
                    match self.bury_unreadable(&mut link.connection, opened, &request, &error).await {
                        // It is not among the oldest: by time it comes to be, and nobody waits for it meanwhile.
                        Err(_) if opened.statements.claims.by_tenant.is_some() => {
                            state.by_time_until = Some(Instant::now() + BY_TIME);
                            self.take_rows(&mut state, &mut link.connection, opened, &request).await?
                        }
                        buried => Batch::of(buried?),
                    }
                }
                batch => batch?,
            },
        };
        let claim = &mut batch.claim;
        if let ClaimMode::Probe(topics) = &request.mode
            && claim.rows.is_empty()
            && opened.ordered.is_none()
        {
            claim.suspects = self.suspects_among(topics, &mut link.connection, opened, &request).await?;
            state.at.cursor.suspect = None;
        }
        if batch.claim.standing == Standing::Standby {
            state.lead = None;
            self.unlock(&mut link.connection, opened).await?;
        }
        link.keep().await?;
        state.lost_tokens.clear();
        if !batch.rows.is_empty() {
            batch = self.hand_over(&mut state, opened, &request, batch, Instant::now()).await?;
        }
        if let Some(wake) = &opened.wake {
            let by_time = opened.ordered.is_none() && opened.statements.claims.by_tenant.is_none();
            let again = state.at.cursor.goes_back_in(Instant::now()).filter(|_| by_time);
            wake.claimed(sleep, &request, &batch.claim, again);
        }
        Ok(batch.claim)
    }

    /// Whether this relay may still work: a claim of nothing.
    async fn look_at_gate(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<Claim, StoreError> {
        if opened.layout == Layout::Bare {
            let ping = opened.query("SELECT 1").execute(connection);
            within(OPERATION_LIMIT, ping).await?;
            return Ok(Claim { standing: Standing::Active, ..Claim::default() });
        }
        let gate = opened
            .query(&opened.statements.gate)
            .bind(&opened.key)
            .bind(self.settings.sole_holder())
            .fetch_optional(connection);
        let row =
            within(OPERATION_LIMIT, gate).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        let paused = row.try_get(0).map_err(classify)?;
        let standing = standing(paused, row.try_get(1).map_err(classify)?);
        Ok(Claim { standing, paused, ..Claim::default() })
    }

    /// Reads rows where the relay owns the table, leases them where not. What may have killed somebody is leased always.
    async fn take_rows(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Batch, StoreError> {
        let own = opened.owns && request.mode != ClaimMode::Suspect;
        match &opened.ordered {
            _ if own => self.read_own(state, connection, opened, request).await,
            None => self.claim_rows(state, connection, opened, request).await.map(Batch::of),
            Some(ordered) => {
                self.claim_in_order(state, connection, opened, ordered, request).await.map(Batch::of)
            }
        }
    }

    async fn claim_rows(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let statements = &opened.statements;
        let ((from_at, from_sequence), from_start) = state.at.cursor.start_of(&request.mode, asked);
        let by_time = state.by_time_until.is_some_and(|until| asked < until);
        let apart = statements.claims.by_tenant.as_ref();
        let apart = apart.filter(|_| request.mode == ClaimMode::Waiting && !by_time);
        let (sql, topics) = match &request.mode {
            ClaimMode::Waiting => (apart.unwrap_or(&statements.claims.waiting), &request.exclude),
            ClaimMode::Suspect => (&statements.claims.suspect, &request.exclude),
            ClaimMode::Probe(topics) => (&statements.claims.probe, topics),
        };
        let token = self.settings.token();
        state.lost_tokens.push(token.clone());
        let query = opened.query(sql).bind(self.settings.sole_holder()).bind(&opened.key);
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        let query = match apart {
            None => query.bind(((from_at, from_sequence) != START).then_some(from_at)).bind(from_sequence),
            // As many tenants as it may take rows.
            Some(_) => query.bind(state.at.ring.from).bind(limit),
        };
        let query = query
            .bind(request.lock_ttl.as_secs_f64())
            .bind(topics::list(topics, &request.spent))
            .bind(limit)
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(token.to_string())
            .bind(no_answer_in(request.max_attempts));
        let query = if apart.is_some() {
            let (whole, parts) = topics::crowding(&request.crowding);
            query.bind(whole).bind(parts)
        } else {
            query
        };
        let mut claim = Claim::default();
        // Row by row: a batch of large payloads shall not stand in memory twice.
        let read = async {
            let (mut rows, mut summary, mut bytes) = (query.fetch(connection), None, 0);
            let mut reader = Reader::new(row::FIRST, &self.label, &token);
            while let Some(row) = rows.try_next().await? {
                if summary.is_none() {
                    summary = Summary::read(&row, apart.is_some())?;
                }
                match reader.read(&row)? {
                    Some(Found::Delivery(claimed)) => {
                        // Some values are far longer as text than as they are stored.
                        let fits = bytes < request.max_bytes || claim.rows.is_empty();
                        bytes += claimed.delivery.payload.len();
                        if fits { claim.rows.push(claimed) } else { claim.returned.push(claimed.lease) }
                    }
                    Some(Found::Undecodable(row)) => claim.undecodable.push(row),
                    Some(Found::Buried(row)) => claim.buried.push(row),
                    None => {}
                }
            }
            Ok(summary)
        };
        let summary = within(OPERATION_LIMIT, read).await;
        if summary.as_ref().is_err_and(|error| error.kind() != StoreErrorKind::Connection) {
            state.lost_tokens.pop();
        }
        let summary = summary?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        (claim.standing, claim.paused) = (standing(summary.paused, summary.mine), summary.paused);
        // UPDATE … RETURNING answers in no order.
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        let full = usize::try_from(summary.picked).unwrap_or(usize::MAX) >= request.limit || !summary.all_fit;
        match request.mode {
            ClaimMode::Waiting => {
                claim.suspects = summary.suspect.is_some();
                state.at.cursor.meet(summary.suspect);
                claim.more = if let Some((last, some_have_more)) = summary.ring {
                    state.at.ring.looked(last, summary.picked > 0) || full || some_have_more
                } else {
                    let last = summary.last.or(summary.end);
                    state.at.cursor.read(from_start, asked, last, !full);
                    // A short claim behind the cursor says nothing of what is in front of it.
                    full || (!from_start && state.at.cursor.next(Instant::now()).1)
                };
            }
            ClaimMode::Suspect => {
                state.at.cursor.suspect = if summary.picked == 0 { None } else { summary.suspect };
            }
            ClaimMode::Probe(_) => {}
        }
        Ok(claim)
    }

    /// Whether rows of these topics wait whose lease ran out.
    async fn suspects_among(
        &self,
        topics: &[Topic],
        connection: &mut PgConnection,
        opened: &Opened,
        request: &ClaimRequest,
    ) -> Result<bool, StoreError> {
        let found = opened
            .scalar::<bool>(&opened.statements.suspects_among)
            .bind(topics.iter().map(|topic| topic.as_str().to_owned()).collect::<Vec<_>>())
            .bind(request.lock_ttl.as_secs_f64())
            .fetch_one(connection);
        within(OPERATION_LIMIT, found).await
    }

    /// Gives back what claims took whose answer never came.
    async fn release_lost(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        if opened.layout == Layout::Bare {
            state.lost_tokens.clear();
        }
        while let Some(token) = state.lost_tokens.last() {
            let begun = Instant::now();
            let release =
                opened.query(&opened.statements.release_token).bind(&**token).execute(&mut *connection);
            let released = within(OPERATION_LIMIT, release).await;
            // No index leads to them. What takes too long to be found among all that waits is found when its lease runs out: to look
            // for it again and again would keep the relay from everything.
            let over = match &released {
                Ok(_) => true,
                Err(error) => is_too_slow(error) || begun.elapsed() >= OPERATION_LIMIT,
            };
            if over {
                state.lost_tokens.pop();
            }
            let rows = released?.rows_affected();
            tracing::info!(table = &*self.label, rows, "released what a lost answer had claimed");
        }
        Ok(())
    }
}

/// Whether a statement took longer than the role may.
fn is_too_slow(error: &StoreError) -> bool {
    sqlstate(error).is_some_and(|state| state == "57014")
}

/// What the claim says besides its rows.
struct Summary {
    paused: bool,
    mine: bool,
    picked: i64,
    all_fit: bool,
    last: Option<Key>,
    /// Where it has come to, if it could look and found nothing.
    end: Option<Key>,
    suspect: Option<Key>,
    /// Where tenants are claimed apart: the last that was looked at (none: there is none behind it), and whether some may have more.
    ring: Option<(Option<Uuid>, bool)>,
}

impl Summary {
    /// None if the table has no row in `postbox_relay`.
    fn read(row: &PgRow, apart: bool) -> Result<Option<Self>, sqlx::Error> {
        let key = |at, sequence| -> Result<Option<Key>, sqlx::Error> {
            Ok(row.try_get::<Option<_>, _>(at)?.zip(row.try_get::<Option<_>, _>(sequence)?))
        };
        let gate = row.try_get::<Option<bool>, _>(0)?.zip(row.try_get::<Option<bool>, _>(1)?);
        let Some((paused, mine)) = gate else { return Ok(None) };
        let (picked, all_fit) = (row.try_get(2)?, row.try_get(3)?);
        let (last, looked) = (key(4, 5)?, mine && !paused);
        let end = if last.is_none() && looked { row.try_get::<Option<_>, _>(4)?.map(end) } else { None };
        let ring = if apart { Some((row.try_get(RING)?, row.try_get(RING + 1)?)) } else { None };
        Ok(Some(Self { paused, mine, picked, all_fit, last, end, suspect: key(6, 7)?, ring }))
    }
}
