//! ④ Claims in order: along the strands, from the head of each, without a gap.

use std::sync::Arc;
use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Claimed, OnDead, Standing};
use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::claim::{ClaimState, standing};
use super::error::within;
use super::fan::{self, REMAINS};
use super::link::OPERATION_LIMIT;
use super::order::with_strands;
use super::owner;
use super::row::{self, Found};
use super::schema::TableShape;
use super::statements::{self, Own};
use super::store::{Inner, Opened};
use super::strands::{FIRST_STRAND, HEADS_LOOKED_AT, Round, Seen};
use crate::cursor::Key;
use crate::table::Template;

/// The columns that stand behind those of an unordered claim.
const STRAND: usize = row::FIRST + 22;
const LAST_STRAND: usize = row::FIRST + 23;
const AVAILABLE_AT: usize = row::FIRST + 24;
const EXHAUSTED: usize = row::FIRST + 25;

/// The claims of a table whose events are delivered in order.
#[derive(Debug)]
pub(super) struct OrderedClaims {
    waiting: String,
    suspect: String,
    probe: String,
    own_waiting: String,
    own_probe: String,
}

impl OrderedClaims {
    pub(super) fn new(shape: &TableShape, on_dead: OnDead) -> Self {
        // The first dead event of a strand: nothing behind it goes.
        let stop = match on_dead {
            OnDead::Block => {
                "coalesce((SELECT d.sequence FROM {{table}} d WHERE d.dead_at IS NOT NULL AND {{d_strand}} = {{t_strand}}
                           ORDER BY {{d_strand}}, d.sequence LIMIT 1), 9223372036854775807)"
            }
            OnDead::Skip => "9223372036854775807",
        };
        let names = with_strands(Template::of(&shape.name, '"')).with("mine", statements::mine("$1"));
        let fill = |sql: &str, can: &str, late: &str, follows: &str, unlocked: &str| {
            let head = format!(
                "{{{{t_strand}}}} AS strand, t.sequence, t.attempts < $9 AS fresh, {stop} AS stop, {late} AS late, {can} AS can"
            );
            let next = "f.strand, f.sequence, f.fresh, f.stop, f.late AND f.sequence < f.stop AS suspect,
                        f.can AND f.sequence < f.stop AS free";
            let names = names.clone().with("next", next).with("follows", follows).with("unlocked", unlocked);
            names.fill(&sql.replace("{{head}}", &head))
        };
        let (claim, own) = (include_str!("sql/claim_ordered.sql"), include_str!("sql/own_ordered.sql"));
        let others = &format!("t.topic <> ALL ($6) AND {REMAINS}");
        let theirs = &format!("t.topic = ANY ($6) AND {REMAINS}");
        // Never null: heads are counted by it.
        let expired = "coalesce(t.locked_at < now() - make_interval(secs => $5), false)";
        let free = "t.locked_at IS NULL";
        let due = |lock: &str, topics: &str| format!("({lock} AND t.available_at <= now() AND {topics})");
        let follows = format!("{} AND t.attempts < $9", due(free, others));
        let mine = "AND ({{t_strand}}) NOT IN (SELECT unnest($10::bigint[]))";
        let but_mine = |can: &str| format!("({can} {mine})");
        Self {
            waiting: fill(claim, &due(free, others), &due(expired, others), &follows, free),
            suspect: fill(claim, &due(expired, others), &due(expired, others), "false", expired),
            probe: fill(claim, &due(free, theirs), &due(expired, theirs), "false", free),
            own_waiting: fill(own, &but_mine(&due(free, others)), &due(expired, others), &follows, free),
            own_probe: fill(own, &but_mine(&due(free, theirs)), &due(expired, theirs), "false", free),
        }
    }
}

type Asked<'q> = Query<'q, Postgres, PgArguments>;

/// What an answer says besides its rows.
struct Summary {
    paused: bool,
    mine: bool,
    picked: i64,
    /// The first strand of which something had to stay for its size.
    too_large: Option<i64>,
    looked: i64,
    last_head: Option<i64>,
    suspect: Option<i64>,
    /// Heads that could go.
    heads: i64,
    last_strand: Option<i64>,
    exhausted: Vec<Uuid>,
}

impl Summary {
    /// None if the table has no row in `postbox_relay`.
    fn read(row: &PgRow, own: bool) -> Result<Option<Self>, sqlx::Error> {
        let gate = row.try_get::<Option<bool>, _>(0)?.zip(row.try_get::<Option<bool>, _>(1)?);
        let Some((paused, mine)) = gate else { return Ok(None) };
        let number = |place| row.try_get::<Option<i64>, _>(place);
        Ok(Some(Self {
            paused,
            mine,
            picked: row.try_get(2)?,
            too_large: number(3)?,
            looked: number(4)?.unwrap_or(0),
            last_head: number(5)?,
            suspect: number(6)?,
            heads: number(7)?.unwrap_or(0),
            last_strand: number(LAST_STRAND)?,
            exhausted: if own { row.try_get(EXHAUSTED)? } else { Vec::new() },
        }))
    }
}

/// What an answer brought, in the order of strands and sequences.
struct Brought {
    claim: Claim,
    summary: Summary,
    /// What an owner has in flight now: when it was available, and its strand.
    read: Vec<(Uuid, Key, i64)>,
    /// Something was left for its length as text.
    left_out: Option<i64>,
    strands: usize,
}

impl Inner {
    /// Where a claim begins, and how many heads are enough for it.
    fn place(state: &ClaimState, request: &ClaimRequest) -> (i64, i64) {
        match request.mode {
            ClaimMode::Waiting => (state.round.next(), state.round.heads(request.limit)),
            ClaimMode::Suspect => (state.round.suspect.unwrap_or(FIRST_STRAND), 1),
            ClaimMode::Probe(_) => (state.round.probe, 1),
        }
    }

    /// Takes rows in order. A look in vain at some of the strands is followed by a look at the next ones.
    pub(super) async fn take_in_order(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        (claims, own): (&OrderedClaims, Option<&Own>),
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let mut suspects = false;
        loop {
            let mut claim = match own {
                Some(own) => self.read_own_ordered(state, connection, opened, (claims, own), request).await?,
                None => self.claim_ordered(state, connection, opened, claims, request).await?,
            };
            suspects |= claim.suspects;
            let nothing = claim.rows.is_empty() && claim.undecodable.is_empty() && claim.buried.is_empty();
            if !(nothing && claim.more && claim.returned.is_empty()) {
                claim.suspects = suspects;
                return Ok(claim);
            }
        }
    }

    /// Leases rows in order.
    async fn claim_ordered(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        claims: &OrderedClaims,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let (from, heads) = Self::place(state, request);
        let (sql, topics) = match &request.mode {
            ClaimMode::Waiting => (&claims.waiting, &request.exclude),
            ClaimMode::Suspect => (&claims.suspect, &request.exclude),
            ClaimMode::Probe(topics) => (&claims.probe, topics),
        };
        let token = format!("{}/{}", self.holder, Uuid::new_v4().simple());
        state.lost_tokens.push(token.clone());
        let query = opened
            .query(sql)
            .bind(self.single_active.then_some(&self.holder))
            .bind(&opened.key)
            .bind(from)
            .bind(heads)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(fan::list(topics, &request.spent))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(token.clone())
            .bind(format!("{}: no answer in {} attempts", Code::Exhausted, request.max_attempts))
            .bind(HEADS_LOOKED_AT)
            .bind(Round::longest_run(request.limit));
        let brought = self.bring(connection, query, &token.into(), request, false).await;
        if brought.as_ref().is_err_and(|error| error.kind() != StoreErrorKind::Connection) {
            state.lost_tokens.pop();
        }
        let mut brought = brought?.ok_or_else(|| self.no_relay_row(opened))?;
        self.go_on(state, request, &mut brought, (asked, from, heads));
        Ok(brought.claim)
    }

    /// Reads rows in order and puts them into the window. What a strand has in flight is settled before more of it is read: the
    /// relay may be giving it back at this moment.
    async fn read_own_ordered(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        (claims, own): (&OrderedClaims, &Own),
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let Some(lead) = &state.lead else { return Ok(owner::standby()) };
        let (epoch, ttl) = (lead.epoch, lead.ttl);
        let (from, heads) = Self::place(state, request);
        let (sql, topics) = match &request.mode {
            ClaimMode::Probe(topics) => (&claims.own_probe, topics),
            ClaimMode::Waiting | ClaimMode::Suspect => (&claims.own_waiting, &request.exclude),
        };
        let query = opened
            .query(sql)
            .bind(&self.holder)
            .bind(&opened.key)
            .bind(from)
            .bind(heads)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(fan::list(topics, &request.spent))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(self.strands().strands())
            .bind(HEADS_LOOKED_AT)
            .bind(Round::longest_run(request.limit));
        let token = owner::token(epoch);
        let brought = self.bring(connection, query, &token, request, true).await?;
        let mut brought = brought.ok_or_else(|| self.no_relay_row(opened))?;
        if brought.claim.standing == Standing::Standby {
            self.dispossessed();
            return Ok(owner::standby());
        }
        let read = std::mem::take(&mut brought.read);
        if !read.is_empty() {
            self.strands().extend(read.iter().map(|(id, _, strand)| (*id, *strand)));
            let rows: Vec<(Uuid, Key)> = read.iter().map(|(id, key, _)| (*id, *key)).collect();
            match self.admit(Some(&mut *connection), opened, own, (epoch, ttl), &rows).await? {
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
        if !brought.summary.exhausted.is_empty() {
            let (rows, max) = (&brought.summary.exhausted, request.max_attempts);
            brought.claim.buried = self.bury_exhausted(connection, opened, own, rows, max).await?;
        }
        self.go_on(state, request, &mut brought, (asked, from, heads));
        Ok(brought.claim)
    }

    /// Reads the answer row by row: a batch of large payloads shall not stand in memory twice. Once something of a strand
    /// stays, all that follows it stays.
    async fn bring(
        &self,
        connection: &mut PgConnection,
        query: Asked<'_>,
        token: &Arc<str>,
        request: &ClaimRequest,
        own: bool,
    ) -> Result<Option<Brought>, StoreError> {
        let (mut claim, mut read, mut strands) = (Claim::default(), Vec::new(), 0);
        let (mut last, mut cut, mut left_out) = (None, None, None);
        let reading = async {
            let (mut rows, mut summary, mut bytes) = (query.fetch(connection), None, 0);
            while let Some(row) = rows.try_next().await? {
                if summary.is_none() {
                    summary = Summary::read(&row, own)?;
                }
                let Some(strand) = row.try_get::<Option<i64>, _>(STRAND)? else { continue };
                strands += usize::from(last != Some(strand));
                last = Some(strand);
                let key = |sequence| -> Result<Key, sqlx::Error> {
                    Ok((row.try_get::<OffsetDateTime, _>(AVAILABLE_AT)?, sequence))
                };
                match row::decode(&row, &self.label, token)? {
                    Some(Found::Delivery(claimed)) => {
                        // Some values are far longer as text than as they are stored.
                        let fits = bytes < request.max_bytes || claim.rows.is_empty();
                        bytes += claimed.delivery.payload.len();
                        if cut == Some(strand) || !fits {
                            left_out = left_out.or(Some(strand));
                            cut = Some(strand);
                            // An owner wrote nothing: it has nothing to give back.
                            if !own {
                                claim.returned.push(claimed.lease);
                            }
                            continue;
                        }
                        if own {
                            read.push((claimed.lease.row, key(claimed.delivery.meta.sequence)?, strand));
                        }
                        claim.rows.push(Claimed { strand: Some(strand), ..claimed });
                    }
                    Some(Found::Undecodable(undecodable)) => {
                        if cut == Some(strand) {
                            if !own {
                                claim.returned.push(undecodable.lease);
                            }
                            continue;
                        }
                        // It dies; what that means for those behind it is for the next claim to say.
                        cut = Some(strand);
                        if own {
                            let sequence = row.try_get(row::FIRST + 4)?;
                            read.push((undecodable.lease.row, key(sequence)?, strand));
                        }
                        claim.undecodable.push(undecodable);
                    }
                    Some(Found::Buried(buried)) => claim.buried.push(buried),
                    None => {}
                }
            }
            Ok(summary)
        };
        let Some(summary) = within(OPERATION_LIMIT, reading).await? else { return Ok(None) };
        (claim.standing, claim.paused) = (standing(summary.paused, summary.mine), summary.paused);
        Ok(Some(Brought { claim, summary, read, left_out, strands }))
    }

    /// Takes in how far the claim has come.
    fn go_on(
        &self,
        state: &mut ClaimState,
        request: &ClaimRequest,
        brought: &mut Brought,
        (asked, from, heads): (Instant, i64, i64),
    ) {
        let (summary, claim) = (&brought.summary, &mut brought.claim);
        let full = usize::try_from(summary.picked).unwrap_or(usize::MAX) >= request.limit;
        let too_large = [summary.too_large, brought.left_out].into_iter().flatten().min();
        let stopped =
            full || too_large.is_some() || summary.heads >= heads || summary.looked >= HEADS_LOOKED_AT;
        // What had to stay comes first the next time; what found no place in the batch was not even looked at.
        let last = match too_large {
            Some(strand) => Some(strand.saturating_sub(1)),
            None if full => summary.last_strand,
            None => summary.last_head,
        };
        match request.mode {
            ClaimMode::Waiting => {
                claim.suspects = summary.suspect.is_some();
                state.round.suspect = summary.suspect.or(state.round.suspect);
                let events = claim.rows.len() + claim.undecodable.len() + claim.buried.len();
                let others = events + claim.returned.len() < usize::try_from(summary.picked).unwrap_or(0);
                let (strands, took) = (brought.strands, asked.elapsed());
                claim.more = state.round.read(Seen { from, last, stopped, events, strands, took });
                if others && too_large.is_none() && !self.single_active {
                    claim.more |= state.round.jump(Uuid::new_v4().as_u64_pair().0.cast_signed());
                }
            }
            ClaimMode::Suspect => {
                // The next of the same strand may be one, too. Where none is left, the rounds find others.
                let found = if summary.picked > 0 { summary.last_strand } else { None };
                claim.suspects = summary.picked == 0 && summary.looked >= HEADS_LOOKED_AT;
                let on = summary.last_head.filter(|_| claim.suspects).map(|head| head.saturating_add(1));
                state.round.suspect = found.or(on);
            }
            ClaimMode::Probe(_) => {
                // Only heads can go: what lies behind one is nothing to stop the others for.
                claim.suspects = claim.rows.is_empty() && summary.suspect.is_some();
                state.round.suspect = summary.suspect.or(state.round.suspect);
                // The search goes on where it ended.
                let on = summary.last_head.filter(|_| summary.looked >= HEADS_LOOKED_AT);
                state.round.probe = on.map_or(FIRST_STRAND, |head| head.saturating_add(1));
            }
        }
    }
}
