//! ④ Claims in order: along the strands, from the head of each, without a gap.

use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Claimed, OnDead, Token};
use postbox_core::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::claim::{ClaimState, Position};
use super::error::within;
use super::facts::FACTS;
use super::link::OPERATION_LIMIT;
use super::order::with_strands;
use super::row::{self, Found, Reader};
use super::schema::TableShape;
use super::statements;
use super::store::{Inner, Opened};
use super::strands::{FIRST_STRAND, HEADS_LOOKED_AT, Round, Seen};
use super::topics::{self, REMAINS};
use crate::gate::{no_answer_in, no_relay_row, standing};
use crate::table::Template;

/// No event has this sequence.
const NEVER: &str = "9223372036854775807";

/// The columns that stand behind those of an unordered claim.
const STRAND: usize = row::FIRST + row::COLUMNS;
const LAST_STRAND: usize = STRAND + 1;

/// The claims of a table whose events are delivered in order.
#[derive(Debug)]
pub(super) struct OrderedClaims {
    waiting: String,
    suspect: String,
    probe: String,
    /// Those of an owner: from head to head, all rows of one strand after the other, and heads of some topics.
    pub(super) own_heads: String,
    pub(super) own_range: String,
    pub(super) own_probe: String,
    /// The strands of what has waited longest, and the first rows of some strands.
    pub(super) own_turns: String,
    pub(super) own_strands: String,
}

impl OrderedClaims {
    pub(super) fn new(shape: &TableShape, on_dead: OnDead) -> Self {
        // The first dead event of a strand: nothing behind it goes.
        let stop_of = |strand: &str| {
            match on_dead {
            OnDead::Block => format!(
                "coalesce((SELECT d.sequence FROM {{{{table}}}} d WHERE d.dead_at IS NOT NULL AND {{{{d_strand}}}} = {strand}
                           ORDER BY {{{{d_strand}}}}, d.sequence LIMIT 1), {NEVER})"
            ),
            OnDead::Skip => NEVER.to_owned(),
        }
        };
        let stop = stop_of("{{t_strand}}");
        let names = with_strands(Template::of(&shape.name, '"'))
            .with("mine", statements::mine("$1"))
            .with("facts", FACTS);
        let next = "f.strand, f.sequence, f.fresh, f.stop, f.late AND f.sequence < f.stop AS suspect,
                    f.can AND f.sequence < f.stop AS free";
        let head = |can: &str, late: &str, max: &str| {
            format!(
                "{{{{t_strand}}}} AS strand, t.sequence, t.attempts < {max} AS fresh, {stop} AS stop, {late} AS late, {can} AS can"
            )
        };
        // The head of each strand, one after another.
        let heads = include_str!("sql/heads.sql").trim_end();
        let claim = |can: &str, late: &str, follows: &str, unlocked: &str| {
            let names = names.clone().with("next", next).with("follows", follows).with("unlocked", unlocked);
            let sql = include_str!("sql/claim_ordered.sql").replace("{{heads}}", heads);
            names.fill(&sql.replace("{{head}}", &head(can, late, "$9")))
        };
        let others = &format!("t.topic <> ALL ($6) AND {REMAINS}");
        let theirs = &format!("t.topic = ANY ($6) AND {REMAINS}");
        // Never null: heads are counted by it.
        let expired = "coalesce(t.locked_at < now() - make_interval(secs => $5), false)";
        let free = "t.locked_at IS NULL";
        let due = |lock: &str, topics: &str| format!("({lock} AND t.available_at <= now() AND {topics})");
        let follows = format!("{} AND t.attempts < $9", due(free, others));
        // Whether there is any is asked once: mostly there is none.
        let stop_at = |strand: &str| match on_dead {
            OnDead::Block => format!(
                "CASE WHEN (SELECT EXISTS (SELECT 1 FROM {{{{table}}}} d WHERE d.dead_at IS NOT NULL)) THEN {} ELSE {NEVER} END",
                stop_of(strand)
            ),
            OnDead::Skip => NEVER.to_owned(),
        };
        let bytes = "CASE WHEN state > 0 THEN NULL
                         WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                         ELSE octet_length(payload::text) END + coalesce(octet_length(payload_raw), 0)::bigint";
        let own = |sql: &str, topics: &str| {
            let (free, late) = (due(free, topics), due(expired, topics));
            // What has something in flight is passed by.
            let can = format!("({free} AND ({{{{t_strand}}}}) NOT IN (SELECT unnest($9::bigint[])))");
            let sql = sql
                .replace("{{heads}}", heads)
                .replace("{{head}}", &head(&can, &late, "$8"))
                .replace("{{stop}}", &stop_at("{{t_strand}}"));
            let sql = sql.replace("{{free}}", &free).replace("{{late}}", &late).replace("{{bytes}}", bytes);
            names.clone().with("next", next).fill(&sql)
        };
        Self {
            waiting: claim(&due(free, others), &due(expired, others), &follows, free),
            suspect: claim(&due(expired, others), &due(expired, others), "false", expired),
            probe: claim(&due(free, theirs), &due(expired, theirs), "false", free),
            own_heads: own(include_str!("sql/own_ordered.sql"), others),
            own_range: own(include_str!("sql/own_range.sql"), others),
            own_probe: own(include_str!("sql/own_ordered.sql"), theirs),
            own_turns: names.fill(include_str!("sql/own_turns.sql")),
            own_strands: {
                let sql = include_str!("sql/own_strands.sql").replace("{{stop}}", &stop_at("s.strand"));
                names.clone().with("bytes", bytes).with("expired", expired).fill(&sql)
            },
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
}

impl Summary {
    /// None if the table has no row in `postbox_relay`.
    fn read(row: &PgRow) -> Result<Option<Self>, sqlx::Error> {
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
        }))
    }
}

/// What an answer brought, in the order of strands and sequences.
struct Brought {
    claim: Claim,
    summary: Summary,
    /// Something was left for its length as text.
    left_out: Option<i64>,
    strands: usize,
}

/// Where a claim begins, and how many heads are enough for it.
pub(super) fn place(at: &Position, request: &ClaimRequest) -> (i64, i64) {
    match request.mode {
        ClaimMode::Waiting => (at.round.next(), at.round.heads(request.limit)),
        ClaimMode::Suspect => (at.round.suspect.unwrap_or(FIRST_STRAND), 1),
        ClaimMode::Probe(_) => (at.round.probe, 1),
    }
}

impl Inner {
    /// Leases rows in order. A look in vain at some of the strands is followed by a look at the next ones.
    pub(super) async fn claim_in_order(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        claims: &OrderedClaims,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let mut suspects = false;
        loop {
            let mut claim = self.claim_ordered(state, connection, opened, claims, request).await?;
            suspects |= claim.suspects;
            if !(claim.is_empty() && claim.more) {
                claim.suspects = suspects;
                return Ok(claim);
            }
        }
    }

    /// Leases rows of some strands.
    async fn claim_ordered(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        claims: &OrderedClaims,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        let asked = Instant::now();
        let (from, heads) = place(&state.at, request);
        let (sql, topics) = match &request.mode {
            ClaimMode::Waiting => (&claims.waiting, &request.exclude),
            ClaimMode::Suspect => (&claims.suspect, &request.exclude),
            ClaimMode::Probe(topics) => (&claims.probe, topics),
        };
        let token = self.settings.token();
        state.lost_tokens.push(token.clone());
        let query = opened
            .query(sql)
            .bind(self.settings.sole_holder())
            .bind(&opened.key)
            .bind(from)
            .bind(heads)
            .bind(request.lock_ttl.as_secs_f64())
            .bind(topics::list(topics, &request.spent))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .bind(token.to_string())
            .bind(no_answer_in(request.max_attempts))
            .bind(HEADS_LOOKED_AT)
            .bind(Round::longest_run(request.limit));
        let brought = self.bring(connection, query, &token, request).await;
        if brought.as_ref().is_err_and(|error| error.kind() != StoreErrorKind::Connection) {
            state.lost_tokens.pop();
        }
        let mut brought = brought?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        self.go_on(&mut state.at, request, &mut brought, (asked, from, heads));
        Ok(brought.claim)
    }

    /// Reads the answer row by row: a batch of large payloads shall not stand in memory twice. Once something of a strand
    /// stays, all that follows it stays.
    async fn bring(
        &self,
        connection: &mut PgConnection,
        query: Asked<'_>,
        token: &Token,
        request: &ClaimRequest,
    ) -> Result<Option<Brought>, StoreError> {
        let (mut claim, mut strands, mut bytes) = (Claim::default(), 0, 0);
        let (mut last, mut cut, mut left_out) = (None, None, None);
        let reading = async {
            let (mut rows, mut summary) = (query.fetch(connection), None);
            let mut reader = Reader::new(row::FIRST, &self.label, token);
            while let Some(row) = rows.try_next().await? {
                if summary.is_none() {
                    summary = Summary::read(&row)?;
                }
                let Some(strand) = row.try_get::<Option<i64>, _>(STRAND)? else { continue };
                strands += usize::from(last != Some(strand));
                last = Some(strand);
                match reader.read(&row)? {
                    Some(Found::Delivery(claimed)) => {
                        // Some values are far longer as text than as they are stored.
                        let fits = bytes < request.max_bytes || claim.rows.is_empty();
                        bytes += claimed.delivery.payload.len();
                        if cut == Some(strand) || !fits {
                            left_out = left_out.or(Some(strand));
                            cut = Some(strand);
                            claim.returned.push(claimed.lease);
                            continue;
                        }
                        claim.rows.push(Claimed { strand: Some(strand), ..claimed });
                    }
                    Some(Found::Undecodable(undecodable)) => {
                        if cut == Some(strand) {
                            claim.returned.push(undecodable.lease);
                            continue;
                        }
                        // It dies; what that means for those behind it is for the next claim to say.
                        cut = Some(strand);
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
        Ok(Some(Brought { claim, summary, left_out, strands }))
    }

    /// Takes in how far the claim has come.
    fn go_on(
        &self,
        at: &mut Position,
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
                at.round.suspect = summary.suspect.or(at.round.suspect);
                let events = claim.rows.len() + claim.undecodable.len() + claim.buried.len();
                let others = events + claim.returned.len() < usize::try_from(summary.picked).unwrap_or(0);
                let (strands, took) = (brought.strands, asked.elapsed());
                claim.more = at.round.read(Seen { from, last, stopped, events, strands, took });
                if others && too_large.is_none() && !self.settings.single_active {
                    claim.more |= at.round.jump(Uuid::new_v4().as_u64_pair().0.cast_signed());
                }
            }
            ClaimMode::Suspect => {
                // The next of the same strand may be one, too. Where none is left, the rounds find others.
                let found = if summary.picked > 0 { summary.last_strand } else { None };
                claim.suspects = summary.picked == 0 && summary.looked >= HEADS_LOOKED_AT;
                let on = summary.last_head.filter(|_| claim.suspects).map(|head| head.saturating_add(1));
                at.round.suspect = found.or(on);
            }
            ClaimMode::Probe(_) => {
                // Only heads can go: what lies behind one is nothing to stop the others for.
                claim.suspects = claim.rows.is_empty() && summary.suspect.is_some();
                at.round.suspect = summary.suspect.or(at.round.suspect);
                // The search goes on where it ended.
                let on = summary.last_head.filter(|_| summary.looked >= HEADS_LOOKED_AT);
                at.round.probe = on.map_or(FIRST_STRAND, |head| head.saturating_add(1));
            }
        }
    }
}
