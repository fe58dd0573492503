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
    /// Nobody answered to COMMIT; the server knows it by this number.
    Unknown(String),
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
                Fate::Unknown(number) => fate = self.ask(number).await,
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

    /// Asks the server what became of a transaction.
    async fn ask(&self, number: &str) -> Fate {
        loop {
            let mut session = self.connect().await;
            let status = sqlx::query_scalar::<_, Option<String>>("SELECT pg_xact_status($1::text::xid8)")
                .bind(number)
                .fetch_one(&mut session)
                .await;
            match status.ok().flatten().as_deref() {
                Some("committed") => return Fate::Committed,
                Some("aborted") => return Fate::RolledBack,
                // Its session has not noticed yet, or the server went away again.
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

async fn transaction(session: &mut PgConnection, plan: &Plan) -> Fate {
    let Ok(mut tx) = session.begin().await else { return Fate::CutOff };
    let insert = format!(
        "WITH written AS (
             INSERT INTO {TABLE} (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id)
             SELECT '00000000-0000-0000-0000-000000000001', e.topic, '{{\"some\": \"payload\"}}', e.id, 'thing', e.aggregate
             FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS e(id, topic, aggregate, n) ORDER BY e.n
             RETURNING 1)
         SELECT pg_current_xact_id()::text AS number, count(*) FROM written"
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
        Err(_) => Fate::Unknown(written.get("number")),
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
