//! ④ ⑥ Ownership: the active relay reads its table and writes no claim. What it has in flight, its window, stands in its row of
//! `postbox_relay`, so that a successor knows it; that row is also the fence of every settle.
//!
//! Rows that are locked are left alone: hot ones belong to the process that wrote them, and those whose lease ran out, or
//! that a predecessor left behind, are claimed one by one, by lease.

use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use postbox_core::store::{Buried, Lease, Settlement, Standing, Verdict};
use postbox_core::{EventId, StoreError};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::place::{self, Place};
use super::reading::{Batch, Reign};
use super::settling::Verdicts;
use super::statements::Own;
use super::store::{Inner, Opened};
use super::topics;
use super::window::{Spot, Window};
use crate::cursor::START;
use crate::gate::{no_answer_in, standing};
use crate::owned::{epoch_of, is_owned};

impl Inner {
    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        // No change can panic half-way: the window stays whole whatever panics beside it.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only claims put rows into the window, one claim after the other.
    pub(super) fn has_nothing_in_flight(&self) -> bool {
        self.window().rows.is_empty()
    }

    /// These rows are not in flight any more, if they were. One that had a lease of its own was not: its settle may be known here after
    /// the owner has read what it gave back, and that is in flight.
    pub(super) fn let_go<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        let mut window = self.window();
        for lease in leases.into_iter().filter(|lease| is_owned(lease)) {
            window.remove(epoch_of(&lease.token), lease.row);
        }
    }

    /// The same, of rows that nobody has been handed.
    pub(super) fn let_go_of(&self, epoch: i64, rows: &[(Uuid, Spot)]) {
        let mut window = self.window();
        for (id, _) in rows {
            window.remove(epoch, *id);
        }
    }

    /// This relay reigns, in this epoch: what it read in another one is not in flight for it. What it reads no more because its session
    /// is gone stays where it is until then: it may come back to its own place, and what ran meanwhile must not be read again.
    pub(super) fn reigns(&self, epoch: i64) {
        self.window().keep(epoch);
    }

    /// Rows are about to be in flight: nobody reads them any more.
    pub(super) fn reserve(&self, epoch: i64, batch: &Batch) {
        let mut window = self.window();
        for (id, spot) in &batch.rows {
            window.put(epoch, *id, *spot);
        }
    }

    /// Writes down the window, with these rows in it; they are in flight from then on. Nobody has been handed rows that could not be
    /// written down, or that were refused. On a connection of its own: the next rows are read meanwhile. `seen` is when these were read.
    pub(super) async fn admit(
        &self,
        reign: Reign<'_>,
        rows: &[(Uuid, Spot)],
        seen: Instant,
    ) -> Result<Standing, StoreError> {
        let waits = !self.durable.has(seen);
        let written = async {
            let mut link = self.journals.take().await?;
            let begun = Instant::now();
            let standing = self.journal(&mut link.connection, reign, waits).await?;
            link.keep().await?;
            if waits && standing != Standing::Standby {
                self.durable.up_to(begun);
            }
            Ok(standing)
        };
        let standing = written.await;
        match standing {
            Ok(Standing::Active) => {}
            Ok(Standing::Standby | Standing::Paused) | Err(_) => self.let_go_of(reign.epoch, rows),
        }
        standing
    }

    /// Writes down what is in flight, and renews the owner's time. Answers whether the relay may still work.
    async fn journal(
        &self,
        connection: &mut PgConnection,
        Reign { opened, own, epoch, ttl, .. }: Reign<'_>,
        waits: bool,
    ) -> Result<Standing, StoreError> {
        let (bounds, (from, to)) = {
            let mut window = self.window();
            (window.keys.bounds(), window.keys.span().unzip())
        };
        // What is available since ever lies before all times that can be written here.
        let from = from.filter(|from| *from > START.0);
        let journal = opened
            .query(if waits { &own.journal } else { &own.journal_soon })
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(epoch)
            .bind(bounds)
            .bind(from)
            .bind(to)
            .bind(ttl.as_secs_f64())
            .fetch_optional(connection);
        let row = within(OPERATION_LIMIT, journal).await?;
        let paused = row.map(|row| row.try_get(0)).transpose().map_err(classify)?;
        Ok(standing(paused == Some(true), paused.is_some()))
    }

    /// Rows that have used up their attempts without being in flight: the limit was lowered.
    pub(super) async fn bury_exhausted(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        rows: &[Uuid],
        max_attempts: i32,
    ) -> Result<Vec<Buried>, StoreError> {
        let bury = opened
            .query(&own.bury)
            .bind(rows)
            .bind(no_answer_in(max_attempts))
            .bind(max_attempts)
            .fetch_all(connection);
        let read = |row: &PgRow| -> Result<Buried, sqlx::Error> {
            Ok(Buried {
                topic: row.try_get(0)?,
                event_id: EventId(row.try_get(1)?),
                sequence: row.try_get(2)?,
            })
        };
        within(OPERATION_LIMIT, bury).await?.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    /// The settle of rows that were read in one epoch.
    pub(super) fn settle_own<'q>(
        &'q self,
        opened: &'q Opened,
        own: &'q Own,
        settlements: &[&'q Settlement],
    ) -> Query<'q, Postgres, PgArguments> {
        let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.row).collect();
        let attempts: Vec<i32> = settlements.iter().map(|s| s.lease.attempts).collect();
        let Verdicts { numbers, waits, errors, failures } = Verdicts::of(settlements);
        let query = opened.query(&own.settle).bind(ids).bind(attempts).bind(numbers).bind(waits);
        let query = query.bind(errors).bind(failures).bind(&opened.key).bind(&self.settings.holder);
        query
            .bind(settlements.first().map_or(-1, |s| epoch_of(&s.lease.token)))
            .bind(topics::confirmed(settlements))
    }

    /// The settle of rows that all arrived at the same attempt, in one epoch, where they were read. Answers those that are not
    /// settled: they have moved, or are not this relay's any more.
    pub(super) async fn settle_alike(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        settlements: &[&Settlement],
    ) -> Result<Vec<Uuid>, StoreError> {
        let Some(Settlement { lease, .. }) = settlements.first() else { return Ok(Vec::new()) };
        let mut rows: Vec<(Uuid, Option<Place>)> = {
            let window = self.window();
            let place = |id: Uuid| (id, window.rows.get(&id).map(|(_, spot)| spot.place));
            settlements.iter().map(|s| place(s.lease.row)).collect()
        };
        // The order of locking, the same for everybody (hazard 18).
        rows.sort_unstable_by_key(|(id, _)| *id);
        let (ids, places): (Vec<Uuid>, Vec<Option<Place>>) = rows.into_iter().unzip();
        let query = opened.query(&own.settle_delivered).bind(&ids).bind(lease.attempts);
        let query = query.bind(&opened.key).bind(&self.settings.holder).bind(epoch_of(&lease.token));
        let query = if opened.pooled { query.bind(place::literal(&places)) } else { query.bind(places) };
        let settled = within(OPERATION_LIMIT, query.execute(&mut *connection)).await?.rows_affected();
        if settled == settlements.len() as u64 {
            return Ok(Vec::new());
        }
        if settled == 0 {
            return Ok(ids);
        }
        let unsettled = opened.scalar::<Uuid>(&own.unsettled).bind(ids).fetch_all(connection);
        within(OPERATION_LIMIT, unsettled).await
    }

    /// Whether the table is still this relay's, in the epoch that these rows were read in.
    pub(super) async fn is_mine(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        own: &Own,
        lease: &Lease,
    ) -> Result<bool, StoreError> {
        let mine = opened
            .scalar::<bool>(&own.is_mine)
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(epoch_of(&lease.token))
            .fetch_one(connection);
        within(OPERATION_LIMIT, mine).await
    }
}

/// Whether all of these are an owner's, of one reign, and arrived at the same attempt.
pub(super) fn are_alike(settlements: &[&Settlement]) -> bool {
    let Some(Settlement { lease: first, .. }) = settlements.first() else { return false };
    let same = |s: &&Settlement| {
        s.verdict == Verdict::Delivered && s.lease.attempts == first.attempts && s.lease.token == first.token
    };
    is_owned(first) && settlements.iter().all(same)
}
