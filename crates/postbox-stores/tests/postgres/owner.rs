//! A relay that owns its rows, on PostgreSQL: the suite, also behind a transaction pooler and with least privilege, and what settles and
//! take-overs that meet do to each other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimMode, Standing, Verdict};
use postbox_core::{Code, Store as _};
use postbox_stores::postgres::{PgStore, Strategy, connect_options};
use postbox_testkit::suite::owner::{Claimer, OwnerSubject};
use postbox_testkit::suite::{PATIENCE, Subject as _, claim, enqueue, events, request, settle_all, state};
use postbox_testkit::{Proxy, eventually_blocking};

use crate::common::KILL_LEADER;
use crate::subject::{Shape, Table};

postbox_testkit::owner_suite!(migrated, Table::new(Shape::Migrated));

// What is different where rows leave the table.
postbox_testkit::store_suite! { @mod moving, Table::new(Shape::Moving) =>
    owner: hazard_1_an_owner_that_was_taken_over_settles_nothing,
    owner_window: what_an_owner_has_in_flight_is_publishing,
    owner_window: hazard_25_a_repeated_settle_does_not_undo_a_replay,
}

// What is different where no session belongs to a relay.
postbox_testkit::store_suite! { @mod pooled, Table::new(Shape::Pooled) =>
    owner: hazard_1_an_owner_that_was_taken_over_settles_nothing,
    owner_window: what_an_owner_has_in_flight_is_publishing,
    owner_window: what_commits_behind_the_reader_is_found,
}

// What operators see with a relay's grants.
postbox_testkit::store_suite! { @mod least_privilege, Table::new(Shape::Grants) =>
    owner_window: what_an_owner_has_in_flight_is_publishing,
}

impl OwnerSubject for Table {
    fn claimer(&self, how: Claimer) -> PgStore {
        let through = |proxy| connect_options(&self.db.url_through(proxy)).unwrap();
        let options = how.through.map_or_else(|| self.relay.clone(), through);
        let strategy = if how.leases { Strategy::Lease } else { Strategy::Auto };
        let store = PgStore::builder(options, self.name.clone()).history(self.history());
        store.single_active(!how.shared).strategy(strategy).leader_ttl(how.leader_ttl).build()
    }

    fn addr(&self) -> SocketAddr {
        self.db.addr()
    }

    /// The row's id: whoever reads on beside the claim does not name it.
    fn words_of_settle(&self, claim: &Claim) -> Vec<u8> {
        claim.rows[0].lease.row.as_bytes().to_vec()
    }

    /// Of the statement itself: it is sent when it runs for the first time.
    fn words_of_journal(&self) -> Vec<u8> {
        b"SET win = ".to_vec()
    }

    async fn sql(&self, sql: &'static str) {
        self.db.psql(sql);
    }

    async fn count(&self, condition: &'static str) -> i64 {
        self.db.psql(&format!("SELECT count(*) FROM org_outbox WHERE {condition}")).parse().unwrap()
    }

    /// The server ends the session of a leader that is late, and with it its lock.
    async fn end_reign(&self) {
        self.db.psql("UPDATE postbox_relay SET expires_at = now() - interval '1 second'");
        self.db.psql(KILL_LEADER);
    }

    async fn end_sessions(&self) {
        eventually_blocking("a leader to kill", PATIENCE, || self.db.psql(KILL_LEADER) == "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_owned_is_refused_in_words() {
    for (shape, single) in [(Shape::Bare, true), (Shape::Migrated, false)] {
        let table = Table::new(shape).await;
        let store = PgStore::builder(table.relay.clone(), table.name.clone()).strategy(Strategy::Owner);
        let refused = store.single_active(single).build().open().await.unwrap_err();
        assert_eq!(refused.code(), Code::ConfigUnsupported, "{refused}");
    }
}

/// An orderly stop gives back the lock before it says that it is over; the end of the session comes when the server gets to it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_relay_leads_at_once_after_an_orderly_stop() {
    for shape in [Shape::Migrated, Shape::Bare] {
        let table = Table::new(shape).await;
        let proxy = Proxy::start(table.db.addr());
        let through = Claimer { through: Some(proxy.addr()), ..Claimer::default() };
        let (first, next) = (table.claimer(through), table.store(true));
        assert_eq!(claim(&first, 1).await.standing, Standing::Active);
        assert_eq!(claim(&next, 1).await.standing, Standing::Standby);
        // The server hears of the end of the sessions long after the relay has gone.
        proxy.delay(Duration::from_millis(300));
        first.close().await;
        assert_eq!(claim(&next, 1).await.standing, Standing::Active);
    }
}

/// A take-over waits for a settle that is under way, and then knows what that did.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_take_over_waits_for_a_settle() {
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    for verdict in [Verdict::Delivered, Verdict::Retry { after: Duration::from_hours(1), reason }] {
        let mut tries = 0;
        while !a_take_over_during_a_settle(&verdict).await {
            tries += 1;
            assert!(tries < 20, "a machine that is never quick enough");
        }
    }
}

/// False if it came to nothing: relays wait for a lock for half a second, and a busy machine may need longer until both wait.
async fn a_take_over_during_a_settle(verdict: &Verdict) -> bool {
    let table = Table::new(Shape::Pooled).await;
    let (old, new) = (table.store(true), table.store(true));
    let ids = enqueue(&table, events(2)).await;
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.end_reign().await;
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(ids[1].0);
    lock.fetch_one(&mut *tx).await.unwrap();
    let wait = Waiting::begin(&table);
    let settlements = settle_all(&claimed, verdict);
    let settle = tokio::spawn(async move { old.settle(&settlements).await });
    wait.until(1).await;
    let takes_over = tokio::spawn(async move { new.claim(request(ClaimMode::Waiting, 10)).await });
    wait.until(2).await;
    let both_wait = wait.in_time();
    assert!(!both_wait || !takes_over.is_finished());
    tx.rollback().await.unwrap();
    let (settled, next) = (settle.await.unwrap(), takes_over.await.unwrap());
    if both_wait {
        assert!(settled.unwrap().lost.is_empty(), "it was in time");
        let next = next.unwrap();
        let nothing_left = (next.standing, next.suspects) == (Standing::Active, false);
        assert!(nothing_left, "nothing was left behind: {next:?}");
        for id in ids {
            let row = state(&table, id).await;
            assert!(row.published == (*verdict == Verdict::Delivered) && row.attempts == 1, "{row:?}");
        }
    }
    both_wait
}

/// A settle that begins while another takes over waits for that, and is too late then: also where somebody has made the rows look as
/// they did before it gets to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_settle_does_not_slip_in_behind_a_take_over() {
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    for verdict in [Verdict::Delivered, Verdict::Retry { after: Duration::from_hours(1), reason }] {
        let mut tries = 0;
        while !a_settle_during_a_take_over(&verdict).await {
            tries += 1;
            assert!(tries < 20, "a machine that is never quick enough");
        }
    }
}

/// False if it came to nothing, as above.
async fn a_settle_during_a_take_over(verdict: &Verdict) -> bool {
    let table = Table::new(Shape::Pooled).await;
    let (old, new) = (table.store(true), table.store(true));
    let id = enqueue(&table, events(1)).await[0];
    let claimed = claim(&old, 10).await;
    new.open().await.unwrap();
    table.end_reign().await;
    // The take-over stays in the middle of its statement: it has the owner's row, and the one that was in flight.
    table.db.psql(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(7, 7); RETURN NEW; END';
         CREATE TRIGGER hold BEFORE UPDATE ON org_outbox FOR EACH ROW WHEN (NEW.locked_by = 'left behind')
            EXECUTE FUNCTION hold()",
    );
    let mut tx = table.owner.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(7, 7)").execute(&mut *tx).await.unwrap();
    let wait = Waiting::begin(&table);
    let takes_over = tokio::spawn(async move { new.claim(request(ClaimMode::Waiting, 10)).await });
    wait.until(1).await;
    let pool = table.owner.clone();
    let replay = tokio::spawn(async move {
        let replay = "UPDATE org_outbox SET attempts = 0, locked_at = NULL, locked_by = NULL";
        sqlx::query(replay).execute(&pool).await
    });
    wait.until(2).await;
    let settlements = settle_all(&claimed, verdict);
    let settle = tokio::spawn(async move { old.settle(&settlements).await });
    wait.until(3).await;
    let all_wait = wait.in_time();
    tx.rollback().await.unwrap();
    let (next, settled) = (takes_over.await.unwrap(), settle.await.unwrap());
    replay.await.unwrap().unwrap();
    if all_wait {
        assert_eq!(next.unwrap().standing, Standing::Active);
        assert_eq!(settled.unwrap().lost.len(), 1, "it is another's");
        let row = state(&table, id).await;
        assert!(!row.published && row.last_error.is_none(), "{row:?}");
    }
    all_wait
}

/// Waits until others wait for locks, for less than relays do.
struct Waiting {
    began: Instant,
    pool: sqlx::PgPool,
}

impl Waiting {
    fn begin(table: &Table) -> Self {
        Self { began: Instant::now(), pool: table.owner.clone() }
    }

    fn in_time(&self) -> bool {
        self.began.elapsed() < Duration::from_millis(350)
    }

    async fn until(&self, others: i64) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let count = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(&self.pool).await.unwrap();
        while self.in_time() && count().await < others {}
    }
}
