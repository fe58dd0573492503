//! ④ Reading beside the claims: the next rows are looked for while the last are being written down, several batches ahead.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use postbox_core::store::{ClaimRequest, Spent};
use postbox_core::{StoreError, StoreErrorKind, Topic};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::error::classify;
use super::reading::{ATTEMPTS, AVAILABLE_AT, BYTES, Batch, LOCKED, Limits};
use super::store::Inner;
use crate::cursor::{Cursor, Key};
use crate::owned;
use crate::row::Cells as _;

/// What was read ahead is not used when it is older than this.
const FRESH: Duration = Duration::from_millis(500);

/// A reader beside the claims goes on while batches are not larger than this share of the room there is: so that some can wait, some be
/// read, and some have come into flight before the first of them is taken.
const SHARES: usize = 16;

/// It reads up to so many batches at once, as long as they are taken soon.
pub(super) const MOST: usize = 4;
const SOON: Duration = Duration::from_millis(50);

/// A batch that was read before it was asked for, and under what conditions.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Decoded by a task of its own: neither the next read nor the claim before it waits for that.
    pub(super) batch: JoinHandle<Option<Batch>>,
    read: Instant,
    exclude: Arc<[Topic]>,
    spent: Arc<[Spent]>,
}

impl Ahead {
    /// Whether it is what this request would find.
    pub(super) fn serves(&self, request: &ClaimRequest) -> bool {
        self.read.elapsed() < FRESH && self.exclude == request.exclude && self.spent == request.spent
    }
}

/// Why a reader has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// There is no more, or it is time to go back to the start.
    AtEnd,
    /// Something was out of the ordinary.
    InVain,
}

impl Inner {
    /// Looks at the next rows for a reader: they are not even decoded, as long as all is well with them. None if it is not: then the
    /// cursor stays where it was.
    async fn look_ahead(
        &self,
        cursor: &mut Cursor,
        request: &ClaimRequest,
        asked: Instant,
    ) -> Result<Option<(Vec<MySqlRow>, usize)>, StoreError> {
        let opened = self.opened().await?;
        let Some(own) = &opened.statements.own else { return Ok(None) };
        let mut link = self.claims.take().await?;
        let (from, from_start) = cursor.next(asked);
        let rows = self.look_behind(&mut link, own, from, request).await;
        if rows.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Connection) {
            return rows.map(|_| None);
        }
        link.keep();
        let rows = rows?;
        let Some((bytes, last)) = extent_if_all_go(&rows, Limits::of(request)).map_err(classify)? else {
            return Ok(None);
        };
        cursor.read(from_start, asked, Some(last), rows.len() < request.limit);
        Ok(Some((rows, bytes)))
    }

    /// Rows that were looked at, decoded; none if they cannot be.
    fn decoded(&self, rows: &[MySqlRow], epoch: i64, more: bool) -> Option<Batch> {
        let (token, mut batch) = (owned::token(epoch), Batch::default());
        let limits = Limits { share: usize::MAX, bytes: usize::MAX, attempts: i32::MAX };
        for row in rows {
            batch.take_in(row, &self.label, &token, limits, |_| false).ok()?;
        }
        batch.claim.more = more;
        batch.put_in_order();
        Some(batch)
    }
}

/// How many bytes an answer has and where it ends, if each row of it can go as it is.
fn extent_if_all_go(rows: &[MySqlRow], limits: Limits) -> Result<Option<(usize, Key)>, sqlx::Error> {
    let Some(last) = rows.last() else { return Ok(None) };
    let mut bytes = 0;
    for row in rows {
        let stored = usize::try_from(row.try_get::<i64, _>(BYTES)?).unwrap_or(usize::MAX);
        if row.try_get(LOCKED)?
            || row.try_get::<i32, _>(ATTEMPTS)? >= limits.attempts
            || stored > limits.share
        {
            return Ok(None);
        }
        bytes += stored;
    }
    Ok(Some((bytes, (last.known_time(AVAILABLE_AT)?, last.try_get(0)?))))
}

/// Reads on beside the claims, and answers where it has come to. Does not keep the store alive: whoever drops it waits for nobody.
pub(super) async fn read_beside(
    store: Weak<Inner>,
    mut cursor: Cursor,
    epoch: i64,
    one: ClaimRequest,
    batches: mpsc::Sender<Ahead>,
) -> (Cursor, Ended) {
    let (mut several, mut asked) = (1, Instant::now());
    loop {
        let (limit, small) = (one.limit * several, one.max_bytes / SHARES * several);
        let max_bytes = if several == 1 { one.max_bytes / 2 } else { small };
        let request = ClaimRequest { limit, max_bytes, ..one.clone() };
        // From the start on, a read would find again what is not yet known to be in flight.
        if cursor.next(asked).1 {
            return (cursor, Ended::AtEnd);
        }
        let Some(inner) = store.upgrade() else { return (cursor, Ended::AtEnd) };
        // What cannot be read, or go, is for the next claim to find out.
        let Ok(Some((rows, bytes))) = inner.look_ahead(&mut cursor, &request, asked).await else {
            return (cursor, Ended::InVain);
        };
        drop(inner);
        let (count, mut rows) = (rows.len(), rows.into_iter());
        while rows.len() > 0 {
            let batch: Vec<MySqlRow> = rows.by_ref().take(one.limit).collect();
            let (more, store) = (count >= limit || rows.len() > 0, Weak::clone(&store));
            let task =
                tokio::spawn(
                    async move { store.upgrade().and_then(|inner| inner.decoded(&batch, epoch, more)) },
                );
            let (exclude, spent) = (Arc::clone(&one.exclude), Arc::clone(&one.spent));
            if batches.send(Ahead { batch: task, read: asked, exclude, spent }).await.is_err() {
                cursor.go_back();
                return (cursor, Ended::AtEnd);
            }
        }
        several = if asked.elapsed() < SOON { (several * 2).min(MOST) } else { 1 };
        asked = Instant::now();
        if count < limit || bytes > small {
            return (cursor, Ended::AtEnd);
        }
    }
}
