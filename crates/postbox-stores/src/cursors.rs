//! [`Others`]: the cursors of claims that leave out something else, and how far a look has come that found nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use postbox_core::Topic;
use postbox_core::store::{ClaimRequest, Spent};
use time::{Duration, OffsetDateTime};

use crate::cursor::{Cursor, Key};

/// The place that a look has come to which found nothing, at this time of the database. What becomes due from now on lies behind it,
/// and so does what commits within these seconds; the rest is found as all is that commits behind a cursor.
pub(crate) fn end(now: OffsetDateTime) -> Key {
    (now.saturating_sub(Duration::seconds(2)), i64::MIN)
}

/// What a claim leaves out.
type LeftOut = (Arc<[Topic]>, Arc<[Spent]>);

/// So many are kept besides the one that is in use.
const KEPT: usize = 4;

/// The cursors of claims that leave out something else. What one has passed by may be just what another looks for, and a sink that is
/// down for an hour, or full for a moment, is not to cost each claim a look at all that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// What is left out with the cursor that is in use.
    left_out: LeftOut,
    kept: VecDeque<(LeftOut, Cursor)>,
}

impl Others {
    /// Puts the cursor for such claims in the place of the one that is in use.
    pub(crate) fn turn_to(&mut self, cursor: &mut Cursor, request: &ClaimRequest) {
        if (&self.left_out.0, &self.left_out.1) == (&request.exclude, &request.spent) {
            return;
        }
        let wanted = (Arc::clone(&request.exclude), Arc::clone(&request.spent));
        let known = self.kept.iter().position(|(left_out, _)| *left_out == wanted);
        let known = known.and_then(|at| self.kept.remove(at));
        let mut next = known.map_or_else(Cursor::new, |(_, cursor)| cursor);
        next.meet(cursor.suspect.take());
        let before = (std::mem::replace(&mut self.left_out, wanted), std::mem::replace(cursor, next));
        self.kept.push_back(before);
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use postbox_core::store::ClaimMode;
    use time::macros::datetime;

    use super::{Arc, ClaimRequest, Cursor, KEPT, Key, Others, Topic, end};
    use crate::cursor::START;

    const KEY: Key = (datetime!(2026-01-01 0:00 UTC), 7);

    #[test]
    fn a_look_in_vain_leaves_a_place_to_read_on_from() {
        let (mut cursor, slow) = (Cursor::new(), Duration::from_secs(3));
        let nothing = Some(end(KEY.0));
        for _ in 0..2 {
            cursor.read(true, Instant::now().checked_sub(slow).unwrap(), nothing, true);
        }
        let (place, from_start) = cursor.next(Instant::now() + slow);
        assert!(!from_start && place < KEY && place > (KEY.0 - slow, 0));
        assert_eq!(cursor.next(Instant::now() + slow * 11), (START, true));
    }

    fn leaves_out(topics: &[&str]) -> ClaimRequest {
        let exclude = topics.iter().map(|topic| Topic::parse(*topic).unwrap()).collect();
        ClaimRequest {
            mode: ClaimMode::Waiting,
            limit: 1,
            max_bytes: 1,
            lock_ttl: Duration::ZERO,
            max_attempts: 1,
            poll_interval: Duration::ZERO,
            exclude,
            spent: Arc::default(),
            crowding: Arc::default(),
        }
    }

    #[test]
    fn claims_that_leave_out_something_else_have_a_cursor_of_their_own() {
        let (mut cursor, mut others) = (Cursor::new(), Others::default());
        let (all, some) = (leaves_out(&[]), leaves_out(&["org.a.b.v1"]));
        cursor.read(true, Instant::now(), Some(KEY), false);
        others.turn_to(&mut cursor, &all);
        assert_eq!(cursor.next(Instant::now()), (KEY, false), "nothing is left out at first");
        cursor.meet(Some(KEY));
        others.turn_to(&mut cursor, &some);
        assert_eq!((cursor.next(Instant::now()), cursor.suspect), ((START, true), Some(KEY)));
        let next = (KEY.0, 8);
        cursor.read(true, Instant::now(), Some(next), false);
        others.turn_to(&mut cursor, &all);
        assert_eq!((cursor.next(Instant::now()), cursor.suspect), ((KEY, false), Some(KEY)));
        others.turn_to(&mut cursor, &some);
        assert_eq!(cursor.next(Instant::now()), (next, false));
        for name in ["org.a.c.v1", "org.a.d.v1", "org.a.e.v1", "org.a.f.v1", "org.a.g.v1"] {
            others.turn_to(&mut cursor, &leaves_out(&[name]));
        }
        assert_eq!(others.kept.len(), KEPT);
        others.turn_to(&mut cursor, &some);
        assert_eq!(cursor.next(Instant::now()), (START, true), "not all are kept");
    }
}
