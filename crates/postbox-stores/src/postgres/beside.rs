//! ④ Reading beside the claims: the next rows are looked for while the last are being written down, several batches ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use postbox_core::Topic;
use postbox_core::store::{ClaimRequest, Spent};
use sqlx::postgres::PgRow;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::by_time::Sight;
use super::claim::Position;
use super::reading::Batch;
use super::store::Inner;
use super::strands::FIRST_STRAND;
use super::window::InFlight;

/// What was read ahead is not used when it is older than this.
const FRESH: Duration = Duration::from_millis(500);

/// A reader beside the claims goes on while batches are not larger than this share of the room there is: so that some can wait, some be
/// read, and some have come into flight before the first of them is taken.
const SHARES: usize = 16;

/// It reads up to so many batches at once, as long as they are taken soon.
pub(super) const MOST: usize = 4;
const SOON: Duration = Duration::from_millis(50);

/// In order, reads are of fewer, and so many wait to be taken.
pub(super) const MOST_IN_ORDER: usize = 2;

/// After reading several batches at once was wasted, because one of the rows could not simply go, this many reads are of one batch.
const WARY: u32 = 50;

/// A batch that was read before it was asked for, and under what conditions.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) found: Found,
    /// The first strand that was looked at.
    pub(super) from: i64,
    read: Instant,
    /// When the answer was there.
    pub(super) seen: Instant,
    exclude: Arc<[Topic]>,
    spent: Arc<[Spent]>,
    /// Whether the reader has ended with it.
    pub(super) last: bool,
}

#[derive(Debug)]
pub(super) enum Found {
    Batch(Batch),
    /// By a task of its own: neither the next read nor the claim before it waits for that.
    Decoding(JoinHandle<Option<Batch>>),
}

impl Ahead {
    /// Whether it is what this request would find.
    pub(super) fn serves(&self, request: &ClaimRequest) -> bool {
        self.read.elapsed() < FRESH && self.exclude == request.exclude && self.spent == request.spent
    }
}

/// The strands of what a reader has read last, while it may not yet be in flight: what waits to be taken, and what is just being taken.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<InFlight>);

impl Waiting {
    fn push(&mut self, strands: impl Iterator<Item = i64>) {
        if self.0.len() > MOST_IN_ORDER {
            self.0.pop_front();
        }
        let mut rows = InFlight::default();
        strands.for_each(|strand| *rows.entry(strand).or_default() += 1);
        self.0.push_back(rows);
    }

    /// Adds them to those that are known to be in flight. What is among these already is counted twice, which is no more than a guess.
    pub(super) fn add_to(&self, in_flight: &mut InFlight) {
        for (strand, rows) in self.0.iter().flatten() {
            *in_flight.entry(*strand).or_default() += rows;
        }
    }
}

/// Reads on beside the claims, and answers where it has come to. Does not keep the store alive: whoever drops it waits for nobody.
pub(super) async fn read_beside(
    store: Weak<Inner>,
    mut at: Position,
    reign: (i64, Duration),
    one: ClaimRequest,
    batches: mpsc::Sender<Ahead>,
) -> Position {
    let ahead = |found, from, (read, seen), last| {
        let (exclude, spent) = (Arc::clone(&one.exclude), Arc::clone(&one.spent));
        Ahead { found, from, read, seen, exclude, spent, last }
    };
    let (mut several, mut asked, mut waiting) = (1, Instant::now(), Waiting::default());
    loop {
        let (limit, small) = (one.limit * several, one.max_bytes / SHARES * several);
        let max_bytes = if several == 1 { one.max_bytes / 2 } else { small };
        let request = ClaimRequest { limit, max_bytes, ..one.clone() };
        let Some(inner) = store.upgrade() else { return at };
        // What cannot be read is for the next claim to find out.
        let Ok(Some(sight)) = inner.read_ahead(&mut at, reign, &request, asked, &waiting).await else {
            return at;
        };
        drop(inner);
        let seen = Instant::now();
        let (rows, bytes, is_more) = match sight {
            Sight::Rows { rows, bytes, more } => (rows, bytes, more),
            Sight::Batch(batch) => {
                let (from, goes) = (batch.from, batch.goes(&one));
                if several > 1 {
                    at.wary = WARY;
                }
                let sent = ahead(Found::Batch(batch), from, (asked, seen), false);
                if !goes || batches.send(sent).await.is_err() {
                    at.start_again(from);
                }
                return at;
            }
            Sight::Ordered(batch) => {
                let (from, last) = (batch.from, !batch.others_follow || batch.bytes > small);
                waiting.push(batch.rows.iter().filter_map(|(_, spot)| spot.strand));
                let mut parts = batch.in_parts(one.limit).peekable();
                while let Some(part) = parts.next() {
                    let (goes, last) = (part.goes(&one), last && parts.peek().is_none());
                    let sent = ahead(Found::Batch(part), from, (asked, seen), last);
                    if !goes || batches.send(sent).await.is_err() {
                        at.start_again(from);
                        return at;
                    }
                }
                // When there is room for it, not before: what waits grows old. And where strands are few, or one far longer than the
                // others, nothing is to be read of them that only waits.
                let many = at.round.long.is_empty() && at.turns.are_many(one.limit);
                let (room, most) = if many { (1, MOST_IN_ORDER) } else { (MOST_IN_ORDER, 1) };
                if last || batches.reserve_many(room).await.is_err() {
                    return at;
                }
                at.turns.several(if asked.elapsed() < SOON { most } else { 1 });
                asked = Instant::now();
                continue;
            }
        };
        let (count, mut rows) = (rows.len(), rows.into_iter());
        while rows.len() > 0 {
            let batch: Vec<PgRow> = rows.by_ref().take(one.limit).collect();
            let (more, store) = (is_more || rows.len() > 0, Weak::clone(&store));
            let task = tokio::spawn(async move {
                store.upgrade().and_then(|inner| inner.decoded(&batch, reign.0, more))
            });
            let sent = ahead(Found::Decoding(task), FIRST_STRAND, (asked, seen), false);
            if batches.send(sent).await.is_err() {
                at.start_again(FIRST_STRAND);
                return at;
            }
        }
        at.wary = at.wary.saturating_sub(1);
        several = if at.wary == 0 && asked.elapsed() < SOON { (several * 2).min(MOST) } else { 1 };
        asked = Instant::now();
        // From the start on, a read would find again what is not yet known to be in flight.
        if count < limit || bytes > small || at.cursor.next(asked).1 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{InFlight, MOST_IN_ORDER, Waiting};

    #[test]
    fn what_may_not_be_in_flight_yet_is_remembered_and_no_more() {
        let mut waiting = Waiting::default();
        let (most, batches) = (i64::try_from(MOST_IN_ORDER).unwrap(), 9);
        (0..batches).for_each(|batch| waiting.push([batch, 100 + batch, batch].into_iter()));
        let mut known = InFlight::default();
        waiting.add_to(&mut known);
        // As many as wait, and the one that is being taken.
        let expected = (batches - most - 1..batches).flat_map(|batch| [(batch, 2), (100 + batch, 1)]);
        assert_eq!(known.into_iter().collect::<HashMap<_, _>>(), expected.collect());
    }
}
