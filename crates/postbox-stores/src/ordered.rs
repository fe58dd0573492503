//! [`Ordered`]: how a relay reads on in a table whose events go in order, and what it chooses of what it has read. For stores
//! that read by sequence; what is known is in `ahead.rs`.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Lease, Settlement, Verdict};
use postbox_core::{OnDead, Order};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::ahead::{Ahead, Fate, Wanted};
use crate::clock::span;
use crate::left_out::LeftOut;
use crate::seen::{Row, Seen};
use crate::sequenced::{MAX_WAIT, sequence_of};

/// How many rows are read at a time, and how many one claim reads at most: it has to end, whatever is in front.
pub(crate) const CHUNK: usize = 500;
const LOOK: usize = 2_000;

/// To begin again is free below this; otherwise it may take about one part in this many of the time.
const CHEAP: Duration = Duration::from_millis(5);
const SHARE: u32 = 10;
/// And not more often than this while there is enough to do.
const OFTEN: Duration = Duration::from_secs(1);

/// What a relay remembers between claims in order. All of it can be lost.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) ahead: Ahead,
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

/// What became of rows since the last claim.
#[derive(Debug, Default)]
pub(crate) struct News {
    fates: Mutex<Vec<(i64, Fate)>>,
    came: Notify,
}

impl News {
    /// Rows were settled, at a time of the database; some of their leases were lost.
    pub(crate) fn settled<'a>(
        &self,
        settlements: impl IntoIterator<Item = &'a Settlement>,
        lost: &[Uuid],
        now: i64,
    ) {
        self.tell(settlements.into_iter().map(|settlement| {
            let row = settlement.lease.row;
            (sequence_of(row), if lost.contains(&row) { Fate::Lost } else { fate(settlement, now) })
        }));
    }

    /// Nobody knows what became of these.
    pub(crate) fn lost(&self, leases: &[Lease]) {
        self.tell(leases.iter().map(|lease| (sequence_of(lease.row), Fate::Lost)));
    }

    fn tell(&self, fates: impl Iterator<Item = (i64, Fate)>) {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner).extend(fates);
        self.came.notify_one();
    }

    /// Ends when there are some: what was behind a row that is settled now can be claimed.
    pub(crate) async fn came(&self) {
        self.came.notified().await;
    }

    fn take(&self) -> Vec<(i64, Fate)> {
        std::mem::take(&mut *self.fates.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One claim under way: what it wants, and what it has chosen.
pub(crate) struct Choice<'a> {
    mode: &'a ClaimMode,
    limit: usize,
    max_bytes: usize,
    max_attempts: i64,
    now: i64,
    left_out: LeftOut,
    /// Those that a probe is for.
    topics: HashSet<u64>,
    looked: usize,
    turn: Turn,
    pub(crate) chosen: Vec<Row>,
}

/// What comes next.
enum Turn {
    Begin,
    /// What is new was looked for, before all is read again; so many rows were found.
    New(usize),
    Choose,
    /// So many rows were read on.
    On(usize),
}

impl<'a> Choice<'a> {
    /// For a request, at a time of the database; `topic` gives the numbers of topics.
    pub(crate) fn new(request: &'a ClaimRequest, now: i64, topic: impl Fn(&str) -> u64) -> Self {
        let topics = match &request.mode {
            ClaimMode::Probe(topics) => topics.iter().map(|one| topic(one.as_str())).collect(),
            ClaimMode::Waiting | ClaimMode::Suspect => HashSet::new(),
        };
        Self {
            mode: &request.mode,
            limit: request.limit,
            max_bytes: request.max_bytes,
            max_attempts: request.max_attempts.into(),
            now,
            left_out: LeftOut {
                topics: request.exclude.iter().map(|one| topic(one.as_str())).collect(),
                spent: request
                    .spent
                    .iter()
                    .map(|one| (topic(one.topic.as_str()), one.sinks.clone()))
                    .collect(),
            },
            topics,
            looked: 0,
            turn: Turn::Begin,
            chosen: Vec::new(),
        }
    }

    fn wanted(&self) -> Wanted<'_> {
        let Self { now, limit, max_bytes, max_attempts, left_out, .. } = self;
        Wanted { now: *now, limit: *limit, max_bytes: *max_bytes, max_attempts: *max_attempts, left_out }
    }
}

impl Ordered {
    fn new(on_dead: OnDead) -> Self {
        let (cost, last_cost, usual_cost) = (Duration::ZERO, Duration::MAX, Duration::MAX);
        let (ahead, ended) = (Ahead::new(on_dead), Instant::now());
        Self { ahead, at_end: false, owed: false, ended, cost, last_cost, usual_cost }
    }

    /// What order asks a relay to remember; nothing where there is none.
    pub(crate) fn of(order: Order) -> Option<Self> {
        match order {
            Order::None => None,
            Order::Aggregate(on_dead) => Some(Self::new(on_dead)),
        }
    }

    /// Takes in what is new, at a time of the database. Before the first look: what it does not show was settled later.
    pub(crate) fn hear(&mut self, news: &News, now: i64) {
        for (sequence, fate) in news.take() {
            self.ahead.settled(sequence, fate, now);
        }
    }

    /// Whether what was chosen is leased nobody knows.
    pub(crate) fn lose(&mut self, choice: &Choice<'_>) {
        for row in &choice.chosen {
            self.ahead.settled(row.sequence, Fate::Lost, choice.now);
        }
    }

    /// Chooses rows; answers whether to [`read`](Self::read) on in the table, since there are too few of them.
    pub(crate) fn wants_more(&mut self, choice: &mut Choice<'_>) -> bool {
        loop {
            choice.turn = match choice.turn {
                Turn::Begin if self.is_due() && !self.owed => {
                    // What is new does not wait until all that is old was read, but all of that must not wait for ever.
                    choice.turn = Turn::New(0);
                    return true;
                }
                Turn::Begin => {
                    if self.is_due() {
                        self.begin_again();
                    }
                    Turn::Choose
                }
                Turn::New(rows) => {
                    if rows > 0 {
                        self.owed = true;
                    } else {
                        self.begin_again();
                    }
                    Turn::Choose
                }
                Turn::Choose => {
                    self.choose(choice);
                    let Choice { chosen, limit, looked, .. } = choice;
                    let enough = chosen.len() >= *limit || self.ahead.has_ready() && !chosen.is_empty();
                    if enough || *looked >= LOOK {
                        return false;
                    }
                    choice.turn = Turn::On(0);
                    return true;
                }
                Turn::On(0) => return false,
                Turn::On(rows) => {
                    choice.looked += rows;
                    Turn::Choose
                }
            };
        }
    }

    fn choose(&mut self, choice: &mut Choice<'_>) {
        let mut chosen = std::mem::take(&mut choice.chosen);
        match choice.mode {
            ClaimMode::Waiting => {
                self.ahead.wake(choice.wanted());
                self.ahead.choose(choice.wanted(), &mut chosen);
            }
            ClaimMode::Suspect => chosen.extend(self.ahead.choose_suspect(&choice.left_out)),
            ClaimMode::Probe(_) => {
                chosen.extend(self.ahead.choose_probe(&choice.topics, choice.wanted()));
            }
        }
        choice.chosen = chosen;
    }

    /// Takes in what was read behind the cursor, in order of sequence, since then.
    pub(crate) fn read(&mut self, choice: &mut Choice<'_>, seen: Vec<Seen>, asked: Instant) {
        let rows = seen.len();
        self.ahead.take_in(seen.into_iter(), choice.now);
        self.cost += asked.elapsed();
        if rows < CHUNK && !self.at_end {
            (self.at_end, self.ended) = (true, Instant::now());
            self.usual_cost = self.cost.min(self.last_cost);
            self.last_cost = self.cost;
        }
        if let Turn::New(read) | Turn::On(read) = &mut choice.turn {
            *read = rows;
        }
    }

    /// What the claim says beside its rows.
    pub(crate) fn sum_up(&self, choice: &Choice<'_>, claim: &mut Claim) {
        claim.more = choice.chosen.len() >= choice.limit || !self.at_end || self.ahead.has_ready();
        let Choice { left_out, topics, .. } = choice;
        claim.suspects = match choice.mode {
            ClaimMode::Probe(_) => {
                choice.chosen.is_empty()
                    && self.ahead.has_suspects(|lane, confirmed| {
                        topics.contains(&lane.topic) && !left_out.is_spent(lane, confirmed)
                    })
            }
            ClaimMode::Waiting | ClaimMode::Suspect => {
                self.ahead.has_suspects(|lane, confirmed| !left_out.holds(lane, confirmed))
            }
        };
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
}

/// What a settlement means for the row's place in its strand.
fn fate(settlement: &Settlement, now: i64) -> Fate {
    let until = |after: Duration| now.saturating_add(span(after).min(MAX_WAIT));
    let (attempts, done) = (i64::from(settlement.lease.attempts), settlement.sinks_done.clone());
    match &settlement.verdict {
        Verdict::Delivered => Fate::Delivered,
        Verdict::Dead { .. } => Fate::Dead,
        Verdict::Retry { after, .. } => Fate::Back { attempts, until: Some(until(*after)), done },
        Verdict::Release { after, .. } => {
            Fate::Back { attempts: (attempts - 1).max(0), until: after.map(until), done }
        }
    }
}
