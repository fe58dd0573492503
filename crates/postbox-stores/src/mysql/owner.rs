//! ④ ⑥ Ownership: the active relay reads its table and writes no claim. What it has in flight, its window, stands in `postbox_window`, so
//! that a successor knows it; the relay's row is the fence of every settle.
//!
//! Rows that are locked are left alone: hot ones belong to the process that wrote them, and those whose lease ran out, or
//! that a predecessor left behind, are claimed one by one, by lease.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use postbox_core::store::{Lease, Settled, Settlement, Token, Verdict};
use postbox_core::{StoreError, StoreErrorKind};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::busy::keys_of;
use super::clause::{bind_list, with_list};
use super::clock::at;
use super::error::{classify, within};
use super::history;
use super::link::{OPERATION_LIMIT, Taken, Tries, say};
use super::statements::CONTENT;
use super::store::Inner;
use super::window::Window;
use crate::cursor::Key;
use crate::history::Sent;
use crate::owned::{epoch_of, is_owned, needs_no_write};
use crate::row::Cells as _;
use crate::sequenced::{fence, sequence_of};
use crate::table::Template;

/// The rows of a reign that all arrived, by the attempts that they had before; none if some did not.
fn all_arrived(settlements: &[&Settlement]) -> Option<BTreeMap<i32, Vec<i64>>> {
    let mut groups: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for Settlement { lease, verdict, .. } in settlements {
        if *verdict != Verdict::Delivered {
            return None;
        }
        groups.entry(lease.attempts - 1).or_default().push(sequence_of(lease.row));
    }
    // Rows are locked in this order by everybody (hazard 18).
    for sequences in groups.values_mut() {
        sequences.sort_unstable();
    }
    Some(groups)
}

impl Inner {
    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        // No change can panic half-way: the window stays whole whatever panics beside it.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These rows are not in flight any more, if they were.
    pub(super) fn let_go<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        let mut window = self.window();
        for lease in leases.into_iter().filter(|lease| is_owned(lease)) {
            window.remove(epoch_of(&lease.token), sequence_of(lease.row));
        }
    }

    /// The same, of rows that nobody has been handed.
    pub(super) fn let_go_of(&self, epoch: i64, rows: &[Key]) {
        let mut window = self.window();
        for (_, sequence) in rows {
            window.remove(epoch, *sequence);
        }
    }

    /// Writes down what is in flight; what comes into it is dispatched after that. Answers whether the table is still this relay's
    /// and not paused: else nothing was written. On a connection of its own, and a row of its own: neither reads nor settles are in
    /// its way.
    pub(super) async fn journal(&self, own: &Own, epoch: i64) -> Result<bool, StoreError> {
        let (written, to) = self.window().written();
        let mut tries = Tries::new();
        loop {
            let mut link = self.journals.take().await?;
            let journal = sqlx::query(AssertSqlSafe(own.journal.as_str()))
                .bind(&written)
                .bind(to.map(at))
                .bind(epoch)
                .bind(&self.settings.holder)
                .bind(epoch)
                .execute(&mut link.connection);
            match within(OPERATION_LIMIT, journal).await {
                Ok(done) => {
                    link.keep();
                    return Ok(done.rows_affected() > 0);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    /// Writes down that nothing is in flight.
    pub(super) async fn clear(&self, own: &Own, epoch: i64) -> Result<(), StoreError> {
        let mut link = self.journals.take().await?;
        let clear = sqlx::query(AssertSqlSafe(own.clear.as_str())).bind(epoch).execute(&mut link.connection);
        within(OPERATION_LIMIT, clear).await?;
        link.keep();
        Ok(())
    }

    /// Writes what became of an owner's rows; answers those that are not its own any more, and those that somebody else has locked.
    pub(super) async fn settle_own(
        &self,
        own: &Own,
        settlements: Vec<&Settlement>,
    ) -> Result<Settled, StoreError> {
        // Rows of one reign have one fence.
        let mut reigns: BTreeMap<&str, Vec<&Settlement>> = BTreeMap::new();
        for settlement in settlements.iter().copied().filter(|s| !needs_no_write(s)) {
            reigns.entry(&settlement.lease.token).or_default().push(settlement);
        }
        let mut settled = Settled::default();
        for (before, (token, settlements)) in reigns.iter().enumerate() {
            let part = self.settle_reign(own, epoch_of(token), settlements).await.inspect_err(|_| {
                // What was settled before it comes again, and is as it was left then.
                if before > 0 {
                    self.unsure.store(true, Ordering::Relaxed);
                }
            })?;
            settled.lost.extend(part.lost);
            settled.busy.extend(part.busy);
        }
        // When nothing of it comes again, and not before: what is in flight no more may be read at once, and a settle that is
        // repeated would end its next flight.
        self.let_go(settlements.iter().map(|s| &s.lease).filter(|lease| !settled.busy.contains(&lease.row)));
        Ok(settled)
    }

    async fn settle_reign(
        &self,
        own: &Own,
        epoch: i64,
        settlements: &[&Settlement],
    ) -> Result<Settled, StoreError> {
        let (mut rest, mut arrived) = (Cow::Borrowed(settlements), all_arrived(settlements));
        let (mut busy, mut tries): (HashSet<i64>, _) = (HashSet::new(), Tries::new());
        loop {
            let mut link = self.settles.take().await?;
            let settled = match &arrived {
                Some(groups) => self.settle_arrived(&mut link, own, epoch, groups).await,
                None => self.settle_each(&mut link, own, epoch, &rest).await.map(Some),
            };
            match settled {
                Ok(Some(lost)) => {
                    link.keep();
                    return Ok(Settled { lost, busy: keys_of(&busy) });
                }
                // Some were not as they had been read: which, is for the longer way to find out.
                Ok(None) => {
                    link.keep();
                    arrived = None;
                }
                Err(error) => {
                    // A refusal is an answer: only a lost one leaves the result unknown.
                    if error.kind() == StoreErrorKind::Connection {
                        self.unsure.store(true, Ordering::Relaxed);
                    }
                    let rows = rest.iter().map(|one| sequence_of(one.lease.row));
                    let locked = self.again(&mut tries, link, error, rows).await?;
                    if !locked.is_empty() {
                        busy.extend(locked);
                        rest.to_mut().retain(|one| !busy.contains(&sequence_of(one.lease.row)));
                        arrived = arrived.and_then(|_| all_arrived(&rest));
                    }
                }
            }
        }
    }

    /// Begins a transaction during which nobody takes the table over; answers whether it is still this relay's.
    async fn begin_fenced(&self, link: &mut Taken<'_>, own: &Own, epoch: i64) -> Result<bool, StoreError> {
        let sql = own.fence.replace("<epoch>", &epoch.to_string());
        let holder = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut link.connection);
        let holder = within(OPERATION_LIMIT, holder).await?;
        let holder = holder.first().map(|row| row.text(0)).transpose().map_err(classify)?;
        Ok(holder.flatten().is_some_and(|holder| holder == self.settings.holder))
    }

    /// Everything arrived: one or two statements, and their usual answer is a number. None if some rows were not as they had been
    /// read: then nothing was done.
    async fn settle_arrived(
        &self,
        link: &mut Taken<'_>,
        own: &Own,
        epoch: i64,
        groups: &BTreeMap<i32, Vec<i64>>,
    ) -> Result<Option<Vec<Uuid>>, StoreError> {
        let mut whole = self.begin_fenced(link, own, epoch).await?;
        'all: for (attempts, sequences) in groups {
            for sql in &own.delivered {
                if !whole {
                    break 'all;
                }
                let query = bind_list(sqlx::query(AssertSqlSafe(with_list(sql, sequences.len()))), sequences);
                let done =
                    within(OPERATION_LIMIT, query.bind(attempts).execute(&mut link.connection)).await?;
                // One that replaces another in the history counts twice.
                whole = done.rows_affected() >= sequences.len() as u64;
            }
        }
        if whole {
            link.commit().await?;
            return Ok(Some(Vec::new()));
        }
        say(&mut link.connection, "ROLLBACK").await?;
        Ok(None)
    }

    /// Some arrived, others did not, or were not as they had been read.
    async fn settle_each(
        &self,
        link: &mut Taken<'_>,
        own: &Own,
        epoch: i64,
        settlements: &[&Settlement],
    ) -> Result<Vec<Uuid>, StoreError> {
        let all = || settlements.iter().map(|settlement| settlement.lease.row);
        let unsure = self.unsure.load(Ordering::Relaxed);
        if !self.begin_fenced(link, own, epoch).await? {
            say(&mut link.connection, "ROLLBACK").await?;
            return Ok(all().collect());
        }
        let mut sorted: Vec<&Lease> = settlements.iter().map(|settlement| &settlement.lease).collect();
        sorted.sort_unstable_by_key(|lease| sequence_of(lease.row));
        let held = sqlx::query_scalar::<_, i64>(AssertSqlSafe(own.held.as_str()))
            .bind(fence(sorted.into_iter()))
            .fetch_all(&mut link.connection);
        let held: HashSet<i64> = within(OPERATION_LIMIT, held).await?.into_iter().collect();
        let is_held = |settlement: &&&Settlement| held.contains(&sequence_of(settlement.lease.row));
        let leaves =
            |settlement: &&&Settlement| settlement.verdict == Verdict::Delivered && !own.gone.is_empty();
        let (gone, rest): (Vec<&&Settlement>, Vec<&&Settlement>) =
            settlements.iter().filter(is_held).partition(leaves);
        let gone: Vec<i64> = gone.iter().map(|settlement| sequence_of(settlement.lease.row)).collect();
        for sql in own.gone.iter().filter(|_| !gone.is_empty()) {
            let query = sqlx::query(AssertSqlSafe(with_list(sql, gone.len())));
            within(OPERATION_LIMIT, bind_list(query, &gone).execute(&mut link.connection)).await?;
        }
        if !rest.is_empty() {
            let document = self.document(rest.into_iter().copied());
            let settle = sqlx::query(AssertSqlSafe(own.settle.as_str())).bind(document);
            within(OPERATION_LIMIT, settle.execute(&mut link.connection)).await?;
        }
        link.commit().await?;
        // After a settle whose answer was lost, the others may be as that one left them, and the table is this relay's.
        Ok(all().filter(|row| !unsure && !held.contains(&sequence_of(*row))).collect())
    }

    /// Which of an owner's rows are another's by now: all of a reign that is over.
    pub(super) async fn lost_reigns(&self, own: &Own, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        if leases.is_empty() {
            return Ok(leases);
        }
        // Of one reign, or of two: what ran when the last one ended may still run.
        let mut reigns: Vec<(Token, bool)> = Vec::new();
        let mut link = self.settles.take().await?;
        for lease in &leases {
            if reigns.iter().any(|(token, _)| *token == lease.token) {
                continue;
            }
            let mine = sqlx::query_scalar::<_, bool>(AssertSqlSafe(own.is_mine.as_str()))
                .bind(&self.settings.holder)
                .bind(epoch_of(&lease.token))
                .fetch_one(&mut link.connection);
            reigns.push((lease.token.clone(), within(OPERATION_LIMIT, mine).await?));
        }
        link.keep();
        let gone = |lease: &Lease| reigns.iter().any(|(token, mine)| !mine && *token == lease.token);
        let lost: Vec<Lease> = leases.into_iter().filter(gone).collect();
        self.let_go(&lost);
        Ok(lost)
    }
}

/// The statements. `<in>`, `<topics>`, `<beyond>` and `<epoch>` are places that are filled when one is used.
#[derive(Debug)]
pub(super) struct Own {
    /// Reads what waits, or what waits of some topics.
    pub(super) waiting: String,
    pub(super) probe: String,
    /// Reads rows by their keys: those whose payloads were too large to come along.
    pub(super) large: String,
    /// Writes down what is in flight, if the table is this relay's and not paused.
    pub(super) journal: String,
    /// Writes down that nothing is.
    pub(super) clear: String,
    /// Begins a transaction during which nobody takes the table over, and answers whose it is.
    pub(super) fence: String,
    pub(super) is_mine: String,
    /// What is done to rows that arrived at one attempt, one statement after the other: sequences, and the attempts before it. Each
    /// answers how many there were.
    pub(super) delivered: Vec<String>,
    /// Which rows are as they were, locked.
    pub(super) held: String,
    /// Writes what became of rows that are locked.
    pub(super) settle: String,
    /// What is done first to those of them that arrived, where they do not stay.
    pub(super) gone: Vec<String>,
}

/// Rows that are as they were when they were read: sequences, and the attempts they had.
const AS_READ: &str = "t.sequence IN (<in>) AND GREATEST(t.attempts, 0) = ? AND t.published_at IS NULL AND t.dead_at IS NULL \
                       AND t.locked_at IS NULL";
const BYTES: &str = "LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0)";

impl Own {
    /// `unlocked` are the conditions for an ordinary claim and for a probe.
    pub(super) fn new(base: &Template, key: &str, sent: &Sent, unlocked: [&str; 2]) -> Self {
        let small = |column: &str| format!("IF({BYTES} <= ?, {column}, NULL)");
        let small = format!("{}, {}", small("payload"), small("payload_raw"));
        let base = base.clone().with("bytes", BYTES).with("key", format!("'{key}'"));
        let reads = base.clone().with("small_content", CONTENT.replace("payload, payload_raw", &small));
        let read =
            |unlocked: &str| reads.fill(&include_str!("sql/own.sql").replace("{{unlocked}}", unlocked));
        let (delivered, gone) = settles(&base, sent);
        Self {
            waiting: read(unlocked[0]),
            probe: read(unlocked[1]),
            large: base.fill(
                "SELECT {{content}}, attempts, UTC_TIMESTAMP(6) FROM {{table}} FORCE INDEX (PRIMARY)
                 WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL",
            ),
            // Another's journal would have another epoch: whoever takes over changes that first, under a lock. That the relay's row is
            // only looked at is enough to see a pause.
            journal: base.fill(
                "UPDATE {{window}} SET win = ?, win_to = ? WHERE tbl = {{key}} AND epoch = ?
                   AND EXISTS (SELECT 1 FROM {{relay}} AS r WHERE r.tbl = {{key}} AND r.holder = ? AND r.epoch = ?
                               AND r.paused_at IS NULL)",
            ),
            clear: base
                .fill("UPDATE {{window}} SET win = NULL WHERE tbl = {{key}} AND epoch = ? AND win IS NOT NULL"),
            // A shared lock: it keeps out a take-over, which locks the row for itself, but not other settles; the journal has another row.
            fence: base.fill(
                "START TRANSACTION; SELECT holder FROM {{relay}} WHERE tbl = {{key}} AND epoch = <epoch> LOCK IN SHARE MODE",
            ),
            is_mine: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = {{key}} AND holder = ? AND epoch = ?)",
            ),
            delivered,
            held: base.fill(include_str!("sql/own_held.sql")),
            settle: base.fill(include_str!("sql/own_settle.sql")),
            gone,
        }
    }
}

/// What is done to rows that arrived: as they were read, and when they are locked already.
fn settles(base: &Template, sent: &Sent) -> (Vec<String>, Vec<String>) {
    const SOURCE: &str = "{{table}} AS t FORCE INDEX (PRIMARY)";
    let history = match sent {
        Sent::Kept => {
            let stay = format!(
                "UPDATE {SOURCE} SET t.published_at = UTC_TIMESTAMP(6), t.attempts = GREATEST(t.attempts, 0) + 1, t.last_error = NULL
                 WHERE {AS_READ}"
            );
            return (vec![base.fill(&stay)], Vec::new());
        }
        Sent::Moved(history) => Some(history::arrive(history, "GREATEST(t.attempts, 0) + 1")),
        Sent::Deleted => None,
    };
    let both = |condition: &str| {
        // With a lock: what is read without one may be another's by the time that it is deleted.
        let arrive =
            history.iter().map(|arrive| format!("{arrive} FROM {SOURCE} WHERE {condition} FOR UPDATE"));
        let leave = format!("DELETE t FROM {SOURCE} WHERE {condition}");
        arrive.chain([leave]).map(|sql| base.fill(&sql)).collect()
    };
    (both(AS_READ), both("t.sequence IN (<in>)"))
}
