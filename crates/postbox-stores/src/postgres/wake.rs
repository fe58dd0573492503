//! Wake-ups: a relay with nothing to do hears of the next commit at once, and no commit pays for that while the relay is awake.
//!
//! A NOTIFY in every commit would make all commits of the database wait for each other (hazard 38). So writers notify only while a
//! relay sleeps, and an advisory lock tells them: who writes an event tries to share it until the end of the transaction, and
//! notifies when that is refused; the relay has it alone while it sleeps. A relay that gets the lock knows that nobody is about to
//! commit without a word. What was committed just before that, it finds by one more claim, and only then it sleeps. (A flag in a
//! table would not do: a writer may read "awake", and commit after the relay has looked for the last time.)
//!
//! While a writer holds the lock the relay cannot sleep. It looks again soon, and less often the longer that lasts: a transaction
//! may stay open for hours. One relay sleeps for each table; the others take their looks at `poll_interval`, as everybody does
//! behind a transaction pooler, where no session listens.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::within;
use super::link::OPERATION_LIMIT;

/// The first key of the lock that writers share; the second is the table's oid.
pub(super) const LOCK: i32 = 0x706f_7374;

/// The same for the lock of the one relay that may sleep.
pub(super) const SLEEPER: i32 = 0x706f_7375;

/// The trigger that wakes a relay for those who write rows by SQL of their own, and its function.
pub(super) const TRIGGER: &str = "postbox_wake";

/// How soon to look again while a writer keeps the relay awake, at first and at last.
const SOON: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(64);
/// So many looks go by before the next have twice as much time. Where commits come one after the other and wait for a slow disk, a
/// writer is met almost always, and never the same one: the second look must not come later than the first.
const LOOKS: u32 = 4;

/// A sleeper that has gone silent for so long is missed by the server, which ends its session and with it the lock.
const SILENT: Duration = Duration::from_secs(15);

/// How long the end of a session is waited for.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// What an INSERT returns beside its rows to wake a sleeping relay: asked once for the whole statement, and only if it wrote a
/// row. `table` is an expression for the table's oid.
pub(super) fn ring(table: &str) -> String {
    format!(
        "(SELECT pg_notify('postbox_' || {table}, '') WHERE NOT pg_try_advisory_xact_lock_shared({LOCK}, {table}::int)) IS NULL"
    )
}

/// What the relay wants of its sleeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// There is work: writers need not notify.
    Awake,
    /// To sleep, asked for the n-th time.
    Asleep(u64),
    /// Somebody else relays: the session is given up, so that they can sleep.
    Away,
    /// For good.
    Gone,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Which wish this answers.
    answered: u64,
    phase: Phase,
    /// How often it was woken.
    rings: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Awake,
    /// Every commit from now on rings.
    Asleep,
    /// A writer has not committed yet.
    Kept,
    /// Another relay sleeps, or nobody can listen at present.
    Unable,
}

/// How one relay waits.
#[derive(Debug)]
pub(super) struct Wake {
    wish: watch::Sender<Wish>,
    state: watch::Receiver<State>,
    /// Which wish a claim has been empty after.
    checked: AtomicU64,
    /// After how many milliseconds that claim has to be followed by another.
    again: AtomicU64,
    /// How often in a row a writer kept it awake.
    kept: AtomicU32,
    sleeper: Mutex<Option<JoinHandle<()>>>,
}

impl Wake {
    /// Connects when it first waits.
    pub(super) fn new(options: PgConnectOptions, table: u32) -> Self {
        let (wish, wishes) = watch::channel(Wish::Awake);
        let (sender, state) = watch::channel(State { answered: 0, phase: Phase::Awake, rings: 0 });
        let sleeper = Sleeper { options: options.disable_statement_logging(), table, state: sender };
        let sleeper = Mutex::new(Some(tokio::spawn(sleeper.run(wishes))));
        Self {
            wish,
            state,
            checked: AtomicU64::new(0),
            again: AtomicU64::new(u64::MAX),
            kept: AtomicU32::new(0),
            sleeper,
        }
    }

    /// Which sleep a claim that begins now is made in.
    pub(super) fn sleeping(&self) -> Option<u64> {
        let state = self.state.borrow();
        (state.phase == Phase::Asleep).then_some(state.answered)
    }

    /// Takes in what a claim brought that looked at the table in that sleep, if in any. `again` is how soon it looks at what it has
    /// passed by: somebody may have committed there before the relay fell asleep, without a word.
    pub(super) fn claimed(
        &self,
        sleep: Option<u64>,
        request: &ClaimRequest,
        claim: &Claim,
        again: Option<Duration>,
    ) {
        if !claim.rows.is_empty() || !claim.undecodable.is_empty() {
            self.kept.store(0, Ordering::Relaxed);
            self.wish(Wish::Awake);
        } else if let Some(sleep) = sleep.filter(|_| looked(request) && !claim.more) {
            self.checked.store(sleep, Ordering::Relaxed);
            let again = again.map_or(u64::MAX, |again| u64::try_from(again.as_millis()).unwrap_or(u64::MAX));
            self.again.store(again, Ordering::Relaxed);
        }
    }

    /// This relay stands by: it gives up its session, so that the active one can sleep.
    pub(super) fn stand_by(&self) {
        self.wish(Wish::Away);
    }

    fn wish(&self, new: Wish) {
        self.wish.send_if_modified(|wish| std::mem::replace(wish, new) != new);
    }

    /// Waits until a claim may find something. Cancel safe.
    pub(super) async fn wait(&self, at_most: Duration) {
        let mut state = self.state.clone();
        let seen = *state.borrow_and_update();
        if seen.phase == Phase::Asleep && *self.wish.borrow() == Wish::Asleep(seen.answered) {
            if self.checked.load(Ordering::Relaxed) == seen.answered {
                let again = Duration::from_millis(self.again.load(Ordering::Relaxed)).max(SOON);
                let rung = state.wait_for(|state| state.rings != seen.rings);
                let _ = tokio::time::timeout(at_most.min(again), rung).await;
            }
            // Else what was committed just before is still to be looked for.
            return;
        }
        let until = Instant::now() + at_most;
        let number = seen.answered + 1;
        self.wish(Wish::Asleep(number));
        let answer =
            async { state.wait_for(|state| state.answered >= number).await.map(|state| state.phase) };
        let answer = tokio::time::timeout_at(until, answer).await;
        match answer.map_or(Phase::Unable, |phase| phase.unwrap_or(Phase::Unable)) {
            Phase::Asleep | Phase::Awake => self.kept.store(0, Ordering::Relaxed),
            Phase::Kept => {
                let again = Instant::now() + pause(self.kept.fetch_add(1, Ordering::Relaxed));
                tokio::time::sleep_until(again.min(until)).await;
            }
            Phase::Unable => tokio::time::sleep_until(until).await,
        }
    }

    /// Ends the sleeper, and its session with all locks.
    pub(super) async fn close(&self) {
        self.wish(Wish::Gone);
        if let Some(sleeper) = self.sleeper.lock().await.take() {
            let _ = tokio::time::timeout(CLOSE_LIMIT, sleeper).await;
        }
    }
}

/// How long until the next look, when writers have kept the relay awake so often.
fn pause(kept: u32) -> Duration {
    (SOON * (1 << (kept / LOOKS).min(8))).min(LATE)
}

/// Whether a claim looks at all that waits.
fn looked(request: &ClaimRequest) -> bool {
    request.mode == ClaimMode::Waiting && request.limit > 0
}

/// The task that has the session: what it is asked is never left half-way.
struct Sleeper {
    options: PgConnectOptions,
    table: u32,
    state: watch::Sender<State>,
}

/// A session that listens.
struct Session {
    listener: PgListener,
    pool: PgPool,
    /// Whether this is the relay that may sleep.
    elected: bool,
    asleep: bool,
}

impl Sleeper {
    async fn run(self, mut wishes: watch::Receiver<Wish>) {
        let mut session: Option<Session> = None;
        loop {
            let wish = *wishes.borrow_and_update();
            if let Err(error) = self.follow(wish, &mut session).await {
                tracing::debug!(%error, "no wake-ups for now: the relay looks at its poll interval");
                session = None;
            }
            self.state.send_modify(|state| match wish {
                Wish::Asleep(number) => {
                    let phase = session.as_ref().map_or(Phase::Unable, Session::phase);
                    (state.answered, state.phase) = (number, phase);
                }
                Wish::Awake | Wish::Away | Wish::Gone => state.phase = Phase::Awake,
            });
            if wish == Wish::Gone || !self.rest(&mut wishes, &mut session).await {
                return;
            }
        }
    }

    /// Does what is wished.
    async fn follow(&self, wish: Wish, session: &mut Option<Session>) -> Result<(), StoreError> {
        match (wish, &mut *session) {
            (Wish::Awake, Some(open)) if open.asleep => open.unlock(self.table).await,
            (Wish::Awake, _) => Ok(()),
            (Wish::Away | Wish::Gone, _) => {
                if let Some(Session { listener, pool, .. }) = session.take() {
                    drop(listener);
                    pool.close().await;
                }
                Ok(())
            }
            (Wish::Asleep(_), Some(open)) => open.lock(self.table).await,
            (Wish::Asleep(_), None) => {
                let open = session.insert(self.connect().await?);
                open.lock(self.table).await
            }
        }
    }

    /// Waits for another wish, or for a ring while the relay sleeps. No if there will be no more wishes.
    async fn rest(&self, wishes: &mut watch::Receiver<Wish>, session: &mut Option<Session>) -> bool {
        loop {
            let Some(open) = session else { return wishes.changed().await.is_ok() };
            let rung = tokio::select! {
                changed = wishes.changed() => return changed.is_ok(),
                rung = open.listener.try_recv(), if open.asleep => matches!(rung, Ok(Some(_))),
                () = tokio::time::sleep(SILENT / 3) => {
                    if open.say("SELECT 1").await.is_ok() {
                        continue;
                    }
                    false
                }
            };
            // First: the relay need not wait until the lock is given back. A session that is lost has missed what it should hear.
            self.state.send_modify(|state| (state.phase, state.rings) = (Phase::Awake, state.rings + 1));
            if !rung || open.unlock(self.table).await.is_err() {
                *session = None;
            }
        }
    }

    async fn connect(&self) -> Result<Session, StoreError> {
        // A pool of one, since the driver wants one; the session must be this and no other.
        let pool: PgPool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(OPERATION_LIMIT)
            .connect_lazy_with(self.options.clone());
        let mut listener = within(OPERATION_LIMIT, PgListener::connect_with(&pool)).await?;
        listener.eager_reconnect(false);
        within(OPERATION_LIMIT, listener.listen(&format!("postbox_{}", self.table))).await?;
        let mut session = Session { listener, pool, elected: false, asleep: false };
        session.say(&format!("SET idle_session_timeout = {}", SILENT.as_millis())).await?;
        Ok(session)
    }
}

impl Session {
    fn phase(&self) -> Phase {
        match (self.elected, self.asleep) {
            (true, true) => Phase::Asleep,
            (true, false) => Phase::Kept,
            (false, _) => Phase::Unable,
        }
    }

    async fn lock(&mut self, table: u32) -> Result<(), StoreError> {
        if !self.elected {
            self.elected = self.try_lock(SLEEPER, table).await?;
        }
        if self.elected && !self.asleep {
            self.asleep = self.try_lock(LOCK, table).await?;
            // Older than the look that comes now.
            while self.listener.next_buffered().is_some() {}
        }
        Ok(())
    }

    async fn unlock(&mut self, table: u32) -> Result<(), StoreError> {
        self.asleep = false;
        self.say(&format!("SELECT pg_advisory_unlock({LOCK}, {})", table.cast_signed())).await
    }

    async fn try_lock(&mut self, class: i32, table: u32) -> Result<bool, StoreError> {
        let lock =
            sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)").bind(class).bind(table.cast_signed());
        within(OPERATION_LIMIT, lock.fetch_one(&mut self.listener)).await
    }

    async fn say(&mut self, sql: &str) -> Result<(), StoreError> {
        let said = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.listener);
        within(OPERATION_LIMIT, said).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn request(mode: ClaimMode, limit: usize) -> ClaimRequest {
        ClaimRequest {
            mode,
            limit,
            max_bytes: 1,
            lock_ttl: Duration::from_mins(1),
            max_attempts: 1,
            poll_interval: Duration::from_secs(1),
            exclude: Arc::from([]),
            spent: Arc::from([]),
            crowding: Arc::from([]),
        }
    }

    /// Connected to nothing: only what it remembers is looked at.
    #[tokio::test]
    async fn only_a_look_at_everything_lets_the_relay_sleep() {
        let wake = Wake::new(PgConnectOptions::new_without_pgpass(), 1);
        let checked = || wake.checked.load(Ordering::Relaxed);
        let nothing = Claim::default();
        wake.claimed(Some(3), &request(ClaimMode::Waiting, 0), &nothing, None);
        wake.claimed(Some(3), &request(ClaimMode::Suspect, 1), &nothing, None);
        wake.claimed(
            Some(3),
            &request(ClaimMode::Waiting, 9),
            &Claim { more: true, ..Claim::default() },
            None,
        );
        wake.claimed(None, &request(ClaimMode::Waiting, 9), &nothing, None);
        assert_eq!(checked(), 0);
        wake.claimed(Some(3), &request(ClaimMode::Waiting, 9), &nothing, Some(Duration::from_millis(70)));
        assert_eq!((checked(), wake.again.load(Ordering::Relaxed)), (3, 70));
        wake.claimed(Some(4), &request(ClaimMode::Waiting, 9), &nothing, None);
        assert_eq!((checked(), wake.again.load(Ordering::Relaxed)), (4, u64::MAX));
    }

    #[test]
    fn a_writer_that_stays_is_looked_for_less_and_less_often() {
        let pauses = [0, 3, 4, 8, 19, 20, u32::MAX].map(|kept| pause(kept).as_millis());
        assert_eq!(pauses, [2, 2, 4, 8, 32, 64, 64]);
    }
}
