//! ④ Claim where the events of an aggregate go in order: what is known of the table is in `ahead.rs`, this reads on in it and
//! leases what that chose.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Settlement, Verdict};
use postbox_core::{Code, OnDead, StoreError, StoreErrorKind, TableName};
use sqlx::AssertSqlSafe;

use super::ahead::{Ahead, Fate, Wanted};
use super::clock::{now, span};
use super::error::within;
use super::lease::Candidate;
use super::patience::OPERATION_LIMIT;
use super::row::{Content, lease};
use super::seen::{Row, Seen, topic_number};
use super::store::{Inner, MAX_WAIT, Opened};
use crate::table::Template;

/// How many rows are read at a time, and how many one claim reads at most: it has to end, whatever is in front.
const CHUNK: usize = 500;
const LOOK: usize = 2_000;

/// To begin again is free below this; otherwise it may take this share of the time.
const CHEAP: Duration = Duration::from_millis(5);
const SHARE: u32 = 10;
/// And not more often than this while there is enough to do.
const OFTEN: Duration = Duration::from_secs(1);

/// What a relay remembers between claims in order. All of it can be lost.
#[derive(Debug)]
pub(super) struct Ordered {
    ahead: Ahead,
    /// Everything was read since it began.
    at_end: bool,
    /// It was put off once, for what is new.
    owed: bool,
    /// When the last reading of everything ended.
    ended: Instant,
    /// What that has cost until now, and what it did the last time.
    cost: Duration,
    last_cost: Duration,
    /// The less of the last two times: a machine that stood still once says nothing about the table.
    usual_cost: Duration,
}

impl Ordered {
    pub(super) fn new(on_dead: OnDead) -> Self {
        let (cost, last_cost, usual_cost) = (Duration::ZERO, Duration::MAX, Duration::MAX);
        let (ahead, ended) = (Ahead::new(on_dead), Instant::now());
        Self { ahead, at_end: false, owed: false, ended, cost, last_cost, usual_cost }
    }

    /// Whether everything shall be read again, since that is over and affordable: for rows that others gave back, replayed or
    /// discarded.
    fn is_due(&self) -> bool {
        let (ready, ago) = (self.ahead.has_ready(), self.ended.elapsed());
        let due = ago >= self.usual_cost.saturating_mul(SHARE) && (!ready || ago >= OFTEN);
        let wanted = !ready && (self.usual_cost < CHEAP || self.ahead.hungry);
        self.at_end && (due || wanted)
    }

    /// Not while rows are chosen and not leased yet: they would be taken for rows that were given back.
    fn begin_again(&mut self) {
        self.ahead.restart();
        (self.at_end, self.owed, self.cost) = (false, false, Duration::ZERO);
    }

    fn read(&mut self, rows: usize, took: Duration) {
        self.cost += took;
        if rows < CHUNK && !self.at_end {
            (self.at_end, self.ended) = (true, Instant::now());
            self.usual_cost = self.cost.min(self.last_cost);
            self.last_cost = self.cost;
        }
    }
}

/// Whether the table has what order needs.
pub(super) fn expect_order(names: &Template, table: &TableName) -> Result<(), StoreError> {
    if !names.fill("{{by_sequence}}").is_empty() && !names.fill("{{by_dead_aggregate}}").is_empty() {
        return Ok(());
    }
    let message = format!(
        "{table} has no index for ordering = \"aggregate\" ({name}_unpublished_by_sequence, {name}_dead_by_aggregate): run \
         `postbox migrate up --table {table}`, which adds it",
        name = table.table()
    );
    Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
}

/// What a settlement means for the row's place in its strand.
pub(super) fn fate(settlement: &Settlement) -> Fate {
    let until = |after: Duration| now().saturating_add(span(after).min(MAX_WAIT));
    let attempts = i64::from(settlement.lease.attempts);
    match &settlement.verdict {
        Verdict::Delivered => Fate::Delivered,
        Verdict::Dead { .. } => Fate::Dead,
        Verdict::Retry { after, .. } => Fate::Back { attempts, until: Some(until(*after)) },
        Verdict::Release { after, .. } => {
            Fate::Back { attempts: (attempts - 1).max(0), until: after.map(until) }
        }
    }
}

impl Inner {
    /// Remembers what became of rows, for the next claim.
    pub(super) fn tell(&self, news: impl Iterator<Item = (i64, Fate)>) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).extend(news);
        self.turned.notify_one();
    }

    pub(super) async fn claim_in_order(
        &self,
        ordered: &mut Ordered,
        opened: &Opened,
        request: &ClaimRequest,
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        // Before the first look: what it does not show was settled later.
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        let at = now();
        for (sequence, fate) in news {
            ordered.ahead.settled(sequence, fate, at);
        }
        let mut chosen = Vec::new();
        let taken = match self.choose(ordered, opened, request, claim, &mut chosen).await {
            Ok(()) if chosen.is_empty() => return Ok(()),
            Ok(()) => self.take_in_order(&mut ordered.ahead, opened, request, &chosen, claim).await,
            Err(error) => Err(error),
        };
        if taken.is_err() {
            // Whether they are leased nobody knows.
            for row in &chosen {
                ordered.ahead.settled(row.sequence, Fate::Lost, at);
            }
        }
        taken
    }

    /// Chooses rows, reading on in the table as long as there are too few of them.
    async fn choose(
        &self,
        ordered: &mut Ordered,
        opened: &Opened,
        request: &ClaimRequest,
        claim: &mut Claim,
        chosen: &mut Vec<Row>,
    ) -> Result<(), StoreError> {
        let exclude: HashSet<u64> =
            request.exclude.iter().map(|topic| topic_number(topic.as_str())).collect();
        let wanted = Wanted {
            now: now(),
            limit: request.limit,
            max_bytes: request.max_bytes,
            max_attempts: request.max_attempts.into(),
            exclude: &exclude,
        };
        let topics: HashSet<u64> = match &request.mode {
            ClaimMode::Probe(topics) => topics.iter().map(|topic| topic_number(topic.as_str())).collect(),
            ClaimMode::Waiting | ClaimMode::Suspect => HashSet::new(),
        };
        let mut looked = 0;
        if ordered.is_due() {
            // What is new does not wait until all that is old was read, but all of that must not wait for ever.
            if !ordered.owed && self.read_on(ordered, opened, request, wanted.now).await? > 0 {
                ordered.owed = true;
            } else {
                ordered.begin_again();
            }
        }
        loop {
            match &request.mode {
                ClaimMode::Waiting => {
                    ordered.ahead.wake(wanted);
                    ordered.ahead.choose(wanted, chosen);
                }
                ClaimMode::Suspect => chosen.extend(ordered.ahead.choose_suspect(&exclude)),
                ClaimMode::Probe(_) => chosen.extend(ordered.ahead.choose_probe(&topics, wanted.now)),
            }
            if chosen.len() >= request.limit
                || ordered.ahead.has_ready() && !chosen.is_empty()
                || looked >= LOOK
            {
                break;
            }
            let read = self.read_on(ordered, opened, request, wanted.now).await?;
            looked += read;
            if read == 0 {
                break;
            }
        }
        claim.more = chosen.len() >= request.limit || !ordered.at_end || ordered.ahead.has_ready();
        claim.suspects = match request.mode {
            ClaimMode::Probe(_) => {
                chosen.is_empty() && ordered.ahead.has_suspects(|topic| topics.contains(&topic))
            }
            ClaimMode::Waiting | ClaimMode::Suspect => {
                ordered.ahead.has_suspects(|topic| !exclude.contains(&topic))
            }
        };
        Ok(())
    }

    /// Reads on; answers how many rows.
    async fn read_on(
        &self,
        ordered: &mut Ordered,
        opened: &Opened,
        request: &ClaimRequest,
        at: i64,
    ) -> Result<usize, StoreError> {
        let asked = Instant::now();
        let mut reader = self.reader.take().await?;
        let look = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(opened.statements.ahead.as_str()))
            .bind(ordered.ahead.cursor)
            .bind(now().saturating_sub(span(request.lock_ttl)))
            .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
            .fetch_one(&mut reader.connection);
        let answer = within(OPERATION_LIMIT, look).await?.unwrap_or_default();
        reader.keep();
        let mut seen: Vec<Seen> = answer.split(';').filter_map(Seen::read).collect();
        // An aggregate function promises no order.
        seen.sort_unstable_by_key(|seen| seen.row.sequence);
        let read = seen.len();
        ordered.ahead.take_in(seen.into_iter(), at);
        ordered.read(read, asked.elapsed());
        Ok(read)
    }

    /// Leases what was chosen. A run ends at the first row that could not be had or read: what was leased behind it goes back.
    async fn take_in_order(
        &self,
        ahead: &mut Ahead,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Row],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let suspect = request.mode == ClaimMode::Suspect;
        let (exhausted, rows): (Vec<Row>, Vec<Row>) =
            chosen.iter().partition(|row| row.attempts >= i64::from(request.max_attempts));
        let candidates =
            |rows: &[Row]| rows.iter().map(|row| row.candidate(suspect)).collect::<Vec<Candidate>>();
        if !exhausted.is_empty() {
            claim.buried = self.bury(opened, request, &candidates(&exhausted)).await?;
            for row in &exhausted {
                let dead = claim.buried.iter().any(|buried| buried.sequence == row.sequence);
                ahead.settled(row.sequence, if dead { Fate::Dead } else { Fate::Lost }, now());
            }
            claim.more = true;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let (token, candidates) = (self.token(), candidates(&rows));
        // First: what cannot be read must not be leased.
        let contents = self.contents(opened, &candidates).await?;
        let (at, leased) = self.lease(opened, request, &candidates, &token).await?;
        let mut contents: HashMap<i64, Content> =
            contents.into_iter().map(|content| (content.sequence, content)).collect();
        let mut ended: HashSet<i64> = HashSet::new();
        for row in &rows {
            let content = contents.remove(&row.sequence);
            let Some((attempts, content)) = leased.attempts(row.sequence).zip(content) else {
                ended.insert(row.strand);
                ahead.settled(row.sequence, Fate::Lost, at);
                continue;
            };
            if ended.contains(&row.strand) {
                claim.returned.push(lease(row.sequence, &token, at, attempts));
                continue;
            }
            let unreadable = claim.undecodable.len();
            content.leased(&token, at, attempts, row.bound.then_some(row.strand), claim);
            if claim.undecodable.len() > unreadable {
                ended.insert(row.strand);
            }
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
    }
}
