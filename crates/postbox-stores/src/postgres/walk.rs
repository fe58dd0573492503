//! ④ Reading in order: an owner walks along the strands, and takes of each what can go, from its head on and without a gap.
//!
//! There are several ways along. While much waits, those strands are read whose events have waited longest (`turns.rs`). To read all rows,
//! strand after strand, is the quicker one of the others as long as strands are short and most of what waits can go. Otherwise the
//! heads are looked for first. And one strand that is far longer than the others has a read of its own now and then, or it would be
//! left when all others are done.

use std::time::Instant;

use futures_util::TryStreamExt as _;
use postbox_core::StoreError;
use postbox_core::store::{ClaimMode, ClaimRequest, Claimed};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::beside::Waiting;
use super::by_time::fetch_payloads;
use super::claim::Position;
use super::error::within;
use super::link::OPERATION_LIMIT;
use super::ordered::{OrderedClaims, place};
use super::reading::{Batch, Reign};
use super::row::{COLUMNS, Found, Reader};
use super::store::{Inner, Opened};
use super::strands::{FEWEST, FIRST_STRAND, HEADS_LOOKED_AT, Round, Seen};
use super::topics;
use super::turns::Asked;
use super::window::{InFlight, Spot};
use crate::owned;

/// The places of the event, of its strand, and of what is known of heads, in an answer.
const EVENT: usize = 5;
const STRAND: usize = EVENT + COLUMNS;
const HEADS: usize = STRAND + 1;

/// What a row of the answer is, as the statements say it.
const GOES: i32 = 0;
const EXHAUSTED: i32 = 1;
const SUSPECT: i32 = 2;

/// The way along the strands.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// All rows, strand after strand.
    All,
    /// Those of this one.
    One(i64),
    /// From head to head.
    Heads,
    /// The first rows of those whose turn it is.
    Turns(Asked),
}

/// What is known of the heads that were looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Heads {
    looked: i64,
    last: Option<i64>,
    suspect: Option<i64>,
    enough: i64,
}

impl Heads {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let number = |place: usize| row.try_get::<Option<i64>, _>(HEADS + place);
        Ok(Self {
            looked: number(0)?.unwrap_or(0),
            last: number(1)?,
            suspect: number(2)?,
            enough: number(3)?.unwrap_or(0),
        })
    }
}

/// A walk along the rows of one answer.
struct Walk {
    way: Way,
    batch: Batch,
    heads: Heads,
    in_flight: InFlight,
    /// What one row, and all together, may have.
    share: usize,
    max_bytes: usize,
    /// The longest run of one strand.
    longest: usize,
    /// The strand that is being walked along, the last sequence of it, how many were taken, and whether it goes on.
    strand: Option<i64>,
    sequence: i64,
    run: usize,
    goes_on: bool,
    /// Strands of which something was taken, and the last one that had more than the longest run.
    strands: usize,
    long: Option<i64>,
    suspect: Option<i64>,
    large: Vec<Uuid>,
}

impl Walk {
    fn new(way: Way, request: &ClaimRequest, from: i64, in_flight: InFlight) -> Self {
        let share = request.max_bytes / request.limit.max(1);
        let longest = match &way {
            Way::All => usize::try_from(Round::longest_run(request.limit)).unwrap_or(usize::MAX),
            // The statement has seen to it.
            Way::One(_) | Way::Heads | Way::Turns(_) => usize::MAX,
        };
        Self {
            way,
            batch: Batch { from, ..Batch::default() },
            heads: Heads::default(),
            in_flight,
            share,
            max_bytes: request.max_bytes,
            longest,
            strand: None,
            sequence: i64::MIN,
            run: 0,
            goes_on: false,
            strands: 0,
            long: None,
            suspect: None,
            large: Vec::new(),
        }
    }

    fn take_in(&mut self, row: &PgRow, reader: &mut Reader<'_>) -> Result<(), sqlx::Error> {
        let batch = &mut self.batch;
        if batch.gate.is_none() {
            batch.gate = Some((row.try_get(0)?, row.try_get(1)?));
            if self.way == Way::Heads {
                self.heads = Heads::read(row)?;
            }
        }
        let Some(strand) = row.try_get_unchecked::<Option<i64>, _>(STRAND)? else { return Ok(()) };
        let sequence: i64 = row.try_get_unchecked(EVENT + 4)?;
        // Nothing behind what does not fit is taken: it is read again.
        if batch.left_out || matches!(self.way, Way::One(only) if only != strand) {
            return Ok(());
        }
        batch.picked += 1;
        if self.strand != Some(strand) {
            // Rows come in order. Should they ever not, nothing is taken that could overtake another.
            self.goes_on =
                self.strand.is_none_or(|last| last < strand) && !self.in_flight.contains_key(&strand);
            (self.strand, self.run) = (Some(strand), 0);
        } else if sequence <= self.sequence {
            self.goes_on = false;
        }
        self.sequence = sequence;
        if !self.goes_on {
            return Ok(());
        }
        let state: i32 = row.try_get_unchecked(2)?;
        if state != GOES || self.run >= self.longest {
            self.goes_on = false;
            // Only the first of a strand is asked for what it is.
            match (self.run, state) {
                (0, EXHAUSTED) => batch.exhausted.push(row.try_get_unchecked(EVENT)?),
                (0, SUSPECT) => self.suspect = self.suspect.or(Some(strand)),
                (_, GOES) => self.long = Some(strand),
                _ => {}
            }
            return Ok(());
        }
        if !batch.rows.is_empty() && batch.bytes >= self.max_bytes {
            batch.left_out = true;
            return Ok(());
        }
        self.run += 1;
        self.strands += usize::from(self.run == 1);
        let spot = Spot {
            key: (reader.due(row)?, sequence),
            place: row.try_get_unchecked(3)?,
            strand: Some(strand),
        };
        match reader.read(row)? {
            Some(Found::Delivery(claimed)) => {
                let stored = usize::try_from(row.try_get_unchecked::<i64, _>(4)?).unwrap_or(usize::MAX);
                if stored > self.share {
                    self.large.push(claimed.lease.row);
                }
                batch.bytes += claimed.delivery.payload.len().max(stored);
                batch.rows.push((claimed.lease.row, spot));
                batch.claim.rows.push(Claimed { strand: Some(strand), ..claimed });
            }
            Some(Found::Undecodable(undecodable)) => {
                // It dies; what that means for those behind it is for the next claim to say.
                self.goes_on = false;
                batch.rows.push((undecodable.lease.row, spot));
                batch.claim.undecodable.push(undecodable);
            }
            Some(Found::Buried(_)) | None => {}
        }
        Ok(())
    }
}

impl Inner {
    /// Reads rows in order. What a strand has in flight is settled before more of it is read: the relay may be giving it back at
    /// this moment.
    pub(super) async fn read_in_order(
        &self,
        at: &mut Position,
        connection: &mut PgConnection,
        Reign { opened, own, epoch, .. }: Reign<'_>,
        claims: &OrderedClaims,
        request: &ClaimRequest,
        waiting: &Waiting,
    ) -> Result<Batch, StoreError> {
        let asked = Instant::now();
        let mut in_flight = self.window().strands.clone();
        waiting.add_to(&mut in_flight);
        let (from, heads) = place(at, request);
        let way = match request.mode {
            ClaimMode::Waiting => match at.round.long.next(&in_flight) {
                Some(strand) => Way::One(strand),
                None => match self.whose_turn(at, connection, (opened, claims), request, &in_flight).await? {
                    Some(asked) => Way::Turns(asked),
                    None if at.round.reads_all() => Way::All,
                    None => Way::Heads,
                },
            },
            ClaimMode::Suspect | ClaimMode::Probe(_) => Way::Heads,
        };
        let mut walk = Walk::new(way, request, from, in_flight);
        let query = self.walk_along(&walk, opened, claims, request, heads);
        let token = owned::token(epoch);
        let read = async {
            let mut rows = query.fetch(&mut *connection);
            let mut reader = Reader::new(EVENT, &self.label, &token);
            while let Some(row) = rows.try_next().await? {
                walk.take_in(&row, &mut reader)?;
            }
            Ok(())
        };
        within(OPERATION_LIMIT, read).await?;
        let large = std::mem::take(&mut walk.large);
        if !large.is_empty() {
            fetch_payloads(connection, opened, own, &mut walk.batch, large).await?;
        }
        match &walk.way {
            Way::One(strand) => {
                // Or it waits for something, and is not worth a read every other time.
                if walk.batch.rows.len() < request.limit {
                    at.round.long.no_longer(*strand);
                }
                // Others wait as well.
                (walk.batch.claim.more, walk.batch.others_follow) = (true, true);
                return Ok(walk.batch);
            }
            Way::Turns(asked) => {
                at.turns.read(asked, &walk.batch);
                at.round.suspect = walk.suspect.or(at.round.suspect);
                walk.batch.claim.suspects = walk.suspect.is_some();
                (walk.batch.claim.more, walk.batch.others_follow) = (true, !walk.batch.left_out);
                return Ok(walk.batch);
            }
            Way::All | Way::Heads => {}
        }
        if request.mode == ClaimMode::Waiting {
            at.turns.much_goes(walk.batch.rows.len() * 2 >= request.limit);
            go_on(at, request, &mut walk, (asked, from, heads));
            walk.batch.others_follow = !walk.batch.left_out && at.round.next() > from;
        } else {
            // Only heads can go: what lies behind one is nothing to stop the others for.
            walk.batch.claim.suspects = walk.batch.claim.rows.is_empty() && walk.heads.suspect.is_some();
            at.round.suspect = walk.heads.suspect.or(at.round.suspect);
            // The search goes on where it ended.
            let on = walk.heads.last.filter(|_| walk.heads.looked >= HEADS_LOOKED_AT);
            at.round.probe = on.map_or(FIRST_STRAND, |head| head.saturating_add(1));
        }
        Ok(walk.batch)
    }

    /// The statement for a walk.
    fn walk_along<'q>(
        &'q self,
        walk: &Walk,
        opened: &'q Opened,
        claims: &'q OrderedClaims,
        request: &ClaimRequest,
        heads: i64,
    ) -> Query<'q, Postgres, PgArguments> {
        let (sql, topics) = match (&request.mode, &walk.way) {
            (ClaimMode::Probe(topics), _) => (&claims.own_probe, topics),
            (_, Way::Heads) => (&claims.own_heads, &request.exclude),
            (_, Way::All | Way::One(_)) => (&claims.own_range, &request.exclude),
            (_, Way::Turns(_)) => (&claims.own_strands, &request.exclude),
        };
        let query = opened.query(sql).bind(&self.settings.holder).bind(&opened.key);
        let query = match &walk.way {
            Way::Turns(asked) => query.bind(asked.strands()),
            Way::One(strand) => query.bind(*strand),
            Way::All | Way::Heads => query.bind(walk.batch.from),
        };
        let share = i64::try_from(walk.share).unwrap_or(i64::MAX);
        let query = query.bind(share).bind(request.lock_ttl.as_secs_f64());
        if let Way::Turns(asked) = &walk.way {
            return query.bind(asked.rows()).bind(request.max_attempts);
        }
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        let query = query.bind(topics::list(topics, &request.spent)).bind(limit).bind(request.max_attempts);
        if walk.way != Way::Heads {
            return query;
        }
        let in_flight: Vec<i64> = walk.in_flight.keys().copied().collect();
        let query = query.bind(in_flight).bind(heads).bind(HEADS_LOOKED_AT);
        query.bind(Round::longest_run(request.limit))
    }
}

/// Takes in how far a walk has come.
fn go_on(
    at: &mut Position,
    request: &ClaimRequest,
    walk: &mut Walk,
    (asked, from, heads): (Instant, i64, i64),
) {
    let Walk { way, batch, strands, strand, heads: seen, .. } = walk;
    let full = batch.picked >= request.limit;
    let events = batch.rows.len() + batch.exhausted.len();
    // What had to stay comes first the next time; what found no place in the batch was not even looked at.
    let (stopped, last) = match way {
        _ if batch.left_out => (true, strand.map(|strand| strand.saturating_sub(1))),
        _ if full => (true, *strand),
        Way::Heads => (seen.enough >= heads || seen.looked >= HEADS_LOOKED_AT, seen.last),
        Way::All | Way::One(_) | Way::Turns(_) => (false, *strand),
    };
    // Where the batch ends in a strand that has much already, it may have far more.
    let cut = (full && walk.run >= walk.longest / 4).then_some(*strand).flatten();
    let alone = walk.long.or(cut).is_some_and(|long| at.round.long.note(long));
    if *way == Way::All && full && !alone && (events * 2 < batch.picked || *strands < FEWEST) {
        at.round.look_at_heads();
    }
    let suspect = walk.suspect.or(seen.suspect);
    batch.claim.suspects = suspect.is_some();
    at.round.suspect = suspect.or(at.round.suspect);
    batch.claim.more =
        at.round.read(Seen { from, last, stopped, events, strands: *strands, took: asked.elapsed() });
}
