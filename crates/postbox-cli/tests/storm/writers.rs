//! Writers that know nothing of each other: transactions that commit, roll back, stay open for long, and lose their server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use fastrand::Rng;
use postbox_testkit::Oracle;
use sqlx::{Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use crate::receiver::POISON;
use crate::scene::{Scene, TABLE};

const WRITERS: usize = 3;
const AGGREGATES: u32 = 300;

/// Writers at work.
pub(crate) struct Writers<'scope> {
    stop: Arc<AtomicBool>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
}

impl Writers<'_> {
    /// Ends them, and waits until what became of each transaction is known.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    scene: &'env Scene,
    rng: &mut Rng,
) -> Writers<'scope> {
    // What was committed, whatever becomes of the events.
    scene.db.psql("CREATE TABLE written (id uuid PRIMARY KEY)");
    let stop = Arc::new(AtomicBool::new(false));
    let start = |number| {
        let (mut writer, stop) = (Writer { scene, rng: rng.fork(), number }, Arc::clone(&stop));
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(writer.write(&stop));
        })
    };
    let threads = (0..WRITERS).map(start).collect();
    Writers { stop, threads }
}

struct Writer<'a> {
    scene: &'a Scene,
    rng: Rng,
    number: usize,
}

/// One transaction: its events, and how it goes.
struct Plan {
    ids: Vec<Uuid>,
    aggregates: Vec<String>,
    topics: Vec<&'static str>,
    stays_open: Duration,
    rolls_back: bool,
}

/// What is known of a transaction.
enum Fate {
    Committed,
    RolledBack,
    /// The session ended before COMMIT was sent: nothing was written.
    CutOff,
    /// Nobody answered to COMMIT, in this session.
    Unknown(Session),
}

/// A session as the server knows it: its process, and since when, for numbers of processes come again.
struct Session {
    process: i32,
    since: String,
}

impl Writer<'_> {
    async fn write(&mut self, stop: &AtomicBool) {
        let mut session = None;
        while !stop.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(5..60))).await;
            if self.scene.crowded.load(Ordering::Relaxed) {
                continue;
            }
            let mut open = match session.take() {
                Some(open) => open,
                None => self.connect().await,
            };
            let plan = self.plan();
            let mut fate = transaction(&mut open, &plan).await;
            match &fate {
                Fate::Committed | Fate::RolledBack => session = Some(open),
                Fate::CutOff => {}
                Fate::Unknown(session) => fate = self.ask(session, &plan).await,
            }
            note(&self.scene.oracle, &plan, &fate);
        }
    }

    fn plan(&mut self) -> Plan {
        let events = self.rng.usize(1..=8);
        let long = self.rng.u8(..) < 5;
        // One that stays open for long has aggregates of its own: the others would wait for it, as they should, and write little.
        let aggregate = |rng: &mut Rng| {
            if long {
                format!("late-{}-{}", self.number, rng.u32(..3))
            } else {
                rng.u32(..AGGREGATES).to_string()
            }
        };
        let stays_open = if long { self.rng.u64(500..4_000) } else { self.rng.u64(..4) };
        Plan {
            ids: (0..events).map(|_| Uuid::now_v7()).collect(),
            aggregates: (0..events).map(|_| aggregate(&mut self.rng)).collect(),
            topics: (0..events)
                .map(|_| if self.rng.u16(..1_000) == 0 { POISON } else { "org.thing.happened.v1" })
                .collect(),
            stays_open: Duration::from_millis(stays_open),
            rolls_back: self.rng.u8(..) < 30,
        }
    }

    async fn connect(&self) -> PgConnection {
        loop {
            if let Ok(session) = PgConnection::connect(&self.scene.db.url).await {
                return session;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks the server what became of a transaction, once its session is no more. Not by the transaction's number: a crash makes
    /// that another's, where nothing of the first had reached the disk.
    async fn ask(&self, session: &Session, plan: &Plan) -> Fate {
        loop {
            match self.is_committed(session, plan).await {
                Ok(Some(true)) => return Fate::Committed,
                Ok(Some(false)) => return Fate::RolledBack,
                // The session has not noticed yet, or the server went away again.
                Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// None while its session is there.
    async fn is_committed(&self, session: &Session, plan: &Plan) -> Result<Option<bool>, sqlx::Error> {
        let mut asking = self.connect().await;
        let there =
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2)";
        let there = sqlx::query_scalar(there).bind(session.process).bind(&session.since);
        if there.fetch_one(&mut asking).await? {
            return Ok(None);
        }
        // By a statement of its own: it sees what that session did at last.
        let written =
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM written WHERE id = $1)").bind(plan.ids[0]);
        written.fetch_one(&mut asking).await.map(Some)
    }
}

async fn transaction(session: &mut PgConnection, plan: &Plan) -> Fate {
    let Ok(mut tx) = session.begin().await else { return Fate::CutOff };
    let insert = format!(
        "WITH noted AS (INSERT INTO written VALUES (($1::uuid[])[1])), written AS (
             INSERT INTO {TABLE} (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id)
             SELECT '00000000-0000-0000-0000-000000000001', e.topic, '{{\"some\": \"payload\"}}', e.id, 'thing', e.aggregate
             FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS e(id, topic, aggregate, n) ORDER BY e.n
             RETURNING 1)
         SELECT a.pid, a.backend_start::text, (SELECT count(*) FROM written)
         FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()"
    );
    let written = sqlx::query(sqlx::AssertSqlSafe(insert))
        .bind(&plan.ids)
        .bind(&plan.topics)
        .bind(&plan.aggregates)
        .fetch_one(&mut *tx)
        .await;
    let Ok(written) = written else { return Fate::CutOff };
    tokio::time::sleep(plan.stays_open).await;
    if plan.rolls_back {
        return tx.rollback().await.map_or(Fate::CutOff, |()| Fate::RolledBack);
    }
    match tx.commit().await {
        Ok(()) => Fate::Committed,
        Err(_) => Fate::Unknown(Session { process: written.get(0), since: written.get(1) }),
    }
}

fn note(oracle: &Oracle, plan: &Plan, fate: &Fate) {
    for (id, topic) in plan.ids.iter().zip(&plan.topics) {
        match fate {
            Fate::Committed => oracle.committed(*id),
            Fate::RolledBack | Fate::CutOff | Fate::Unknown(_) => oracle.rolled_back(*id),
        }
        if matches!(fate, Fate::Committed) && *topic == POISON {
            oracle.expect_dead([*id]);
        }
    }
}
