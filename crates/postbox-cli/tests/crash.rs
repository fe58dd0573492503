//! Crashes of the built program, judged by an oracle: nothing committed is lost, nothing rolled back arrives.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postbox_testkit::{Oracle, PgServer, Program, TestDb, eventually_blocking, read_jsonl};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_mins(2);
const KILLS: usize = 15;
/// What a crash may repeat at most: four batches.
const IN_FLIGHT: usize = 4 * 100;

/// Ends a relay in good order. It may not have started yet: its predecessor may have done all there was to do.
#[track_caller]
fn end(relay: &mut Program) {
    relay.wait_for_line("relaying", LIMIT);
    relay.stop(LIMIT);
}

/// A migrated table, a file to deliver to, and relays that die.
struct Scene {
    db: TestDb,
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { db: PgServer::shared().database(), dir: tempfile::tempdir().unwrap() };
        let mut made = scene.start(&["migrate", "up", "--table", "public.org_outbox"], &[]);
        assert!(made.wait(LIMIT).success());
        scene
    }

    fn start(&self, args: &[&str], env: &[(&str, &str)]) -> Program {
        let env: Vec<_> = [&[("DATABASE_URL", self.db.url.as_str())], env].concat();
        Program::spawn(env!("CARGO_BIN_EXE_postbox"), args, &env)
    }

    /// A relay with short leases, so that what a crash leaves behind is soon taken up.
    fn relay(&self, env: &[(&str, &str)], more: &[&str]) -> Program {
        self.relay_to("out.jsonl", env, more)
    }

    fn relay_to(&self, file: &str, env: &[(&str, &str)], more: &[&str]) -> Program {
        let sink = format!("file:{}", self.dir.path().join(file).display());
        let args = ["relay", "--table", "public.org_outbox", "--sink", &sink, "--poll-interval", "50ms"];
        self.start(&[&args[..], &["--lock-ttl", "1500ms", "--dispatch-timeout", "1s"], more].concat(), env)
    }

    /// What arrived, in all files.
    fn delivered(&self) -> Vec<serde_json::Value> {
        let files = std::fs::read_dir(self.dir.path()).unwrap().map(|file| file.unwrap().path());
        files.flat_map(read_jsonl).collect()
    }

    fn lines(&self) -> usize {
        self.delivered().len()
    }

    fn insert(&self, topic: &str, events: usize) {
        self.db.psql(&format!(
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
             SELECT gen_random_uuid(), '{topic}', jsonb_build_object('n', n), gen_random_uuid()
             FROM generate_series(1, {events}) n"
        ));
    }

    fn count(&self, condition: &str) -> usize {
        self.db.psql(&format!("SELECT count(*) FROM org_outbox WHERE {condition}")).parse().unwrap()
    }

    /// Waits for as long as it goes on: how long it takes in all is the machine's.
    fn everything_published(&self) {
        let left = || self.count("published_at IS NULL");
        let mut waiting = left();
        while waiting > 0 {
            waiting = eventually_blocking("more to be published", LIMIT, || {
                let left = left();
                (left < waiting).then_some(left)
            });
        }
    }

    fn judge(&self, oracle: &Oracle, most_duplicates: usize) {
        for line in self.delivered() {
            oracle.delivered(line["event_id"].as_str().unwrap().parse().unwrap());
        }
        for id in self.db.psql("SELECT event_id FROM org_outbox WHERE dead_at IS NOT NULL").lines() {
            oracle.dead(id.parse().unwrap());
        }
        let report = oracle.verdict(most_duplicates).unwrap();
        println!("{report:?}");
    }

    /// What the table holds counts as committed: the transactions were the test's own and are over.
    fn all_committed(&self) -> Oracle {
        let oracle = Oracle::new();
        for id in self.db.psql("SELECT event_id FROM org_outbox").lines() {
            oracle.committed(id.parse().unwrap());
        }
        oracle
    }
}

/// Writes an equal part after each kill.
async fn write(url: &str, events: usize, kills: &AtomicUsize, oracle: &Oracle) {
    use sqlx::Connection as _;
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let allowed = || events * (kills.load(Ordering::SeqCst) + 1) / KILLS;
    common::writer::write(oracle, events, allowed, async |_, ids, commits| {
        let mut tx = connection.begin().await.unwrap();
        let insert = "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
            SELECT gen_random_uuid(), 'org.thing.happened.v1', '{}', id FROM unnest($1) id";
        sqlx::query(insert).bind(ids).execute(&mut *tx).await.unwrap();
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    })
    .await;
}

/// P2 under kill -9 at any instant, with a standby that takes over.
#[test]
fn twenty_thousand_events_through_fifteen_kills() {
    let scene = Scene::new();
    let oracle = Oracle::new();
    let (kills, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let url = &scene.db.url;
            let write = || write(url, 10_000, &kills, &oracle);
            runtime.block_on(async { tokio::join!(write(), write()) });
            done.store(true, Ordering::SeqCst);
        });
        let mut relays = [scene.relay(&[], &[]), scene.relay(&[], &[])];
        for kill in 0..KILLS {
            let before = scene.lines();
            eventually_blocking("deliveries to go on", LIMIT, || scene.lines() > before + 200);
            kills.store(kill + 1, Ordering::SeqCst);
            relays[kill % 2].kill9();
            relays[kill % 2] = scene.relay(&[], &[]);
        }
        eventually_blocking("the writers to end", LIMIT, || done.load(Ordering::SeqCst));
        scene.everything_published();
        for mut relay in relays {
            // The last kill may have been a moment ago, and the one after it is not up yet.
            end(&mut relay);
        }
    });
    oracle.expect_dead([]);
    // In flight are at most four batches of 100.
    scene.judge(&oracle, KILLS * IN_FLIGHT);
}

/// P6: an orderly stop under load repeats nothing.
#[test]
fn a_sigterm_under_load_repeats_nothing() {
    let scene = Scene::new();
    scene.insert("org.thing.happened.v1", 5_000);
    for _ in 0..5 {
        let before = scene.lines();
        let mut relay = scene.relay(&[], &[]);
        eventually_blocking("some deliveries", LIMIT, || scene.lines() >= (before + 500).min(5_000));
        end(&mut relay);
        assert_eq!(scene.count("locked_at IS NOT NULL"), 0, "nothing stays locked");
    }
    let mut relay = scene.relay(&[], &[]);
    scene.everything_published();
    end(&mut relay);
    scene.judge(&scene.all_committed(), 0);
    assert_eq!(scene.count("attempts <> 1"), 0, "and charges nothing");
}

/// Hazard 21: only the event that kills the process dies.
#[test]
fn poison_that_aborts_the_process_takes_no_innocents_with_it() {
    let scene = Scene::new();
    scene.insert("org.thing.happened.v1", 100);
    scene.insert("org.poison.happened.v1", 1);
    scene.insert("org.thing.happened.v1", 100);
    let env = [("POSTBOX_FAILPOINTS", "dispatch.before=abort@org.poison.happened.v1")];
    let mut crashes = 0;
    let waiting = "published_at IS NULL AND dead_at IS NULL";
    while scene.count(waiting) > 0 {
        let mut relay = scene.relay(&env, &["--max-attempts", "3"]);
        eventually_blocking("a crash, or the end", LIMIT, || {
            !relay.is_running() || scene.count(waiting) == 0
        });
        crashes += usize::from(!relay.is_running());
        assert!(crashes < 10);
    }
    assert_eq!(crashes, 3, "once for each attempt");
    let oracle = scene.all_committed();
    let poison = scene.db.psql("SELECT event_id FROM org_outbox WHERE topic LIKE '%poison%'");
    oracle.expect_dead([poison.parse::<Uuid>().unwrap()]);
    // What was in flight beside it when it first struck; after that it is alone.
    scene.judge(&oracle, IN_FLIGHT);
    let error = scene.db.psql("SELECT last_error FROM org_outbox WHERE dead_at IS NOT NULL");
    assert!(error.starts_with("OUTBOX_EXHAUSTED"), "{error}");
}

/// The process dies at each point of an event's way.
#[test]
fn an_abort_at_any_point_loses_nothing() {
    for (place, sent_before) in [
        ("claim.before", 0),
        ("claim.after", 0),
        ("dispatch.before", 0),
        ("dispatch.after", IN_FLIGHT),
        ("settle.before", IN_FLIGHT),
        ("settle.after", 0),
    ] {
        let scene = Scene::new();
        scene.insert("org.thing.happened.v1", 150);
        let failpoint = format!("{place}=abort");
        let mut dying = scene.relay(&[("POSTBOX_FAILPOINTS", &failpoint)], &[]);
        assert!(!dying.wait(LIMIT).success(), "{place}");
        let mut relay = scene.relay(&[], &[]);
        scene.everything_published();
        end(&mut relay);
        // What was in flight beside the batch that the failpoint hit may have been sent as well.
        scene.judge(&scene.all_committed(), sent_before.max(100));
    }
}

/// The same while leases are renewed, and in the middle of an orderly stop.
#[test]
fn an_abort_during_a_renewal_or_a_stop_loses_nothing() {
    for (failpoints, stops) in [
        ("dispatch.before=hang;extend.before=abort", false),
        ("dispatch.before=hang;extend.after=abort", false),
        ("drain.before=abort", true),
        ("dispatch.before=hang;drain.before=abort", true),
    ] {
        let scene = Scene::new();
        scene.insert("org.thing.happened.v1", 150);
        let mut dying = scene.relay(&[("POSTBOX_FAILPOINTS", failpoints)], &["--claim", "lease"]);
        if stops {
            dying.wait_for_line("relaying", LIMIT);
            eventually_blocking("it to have claimed some", LIMIT, || scene.count("attempts > 0") > 0);
            dying.sigterm();
        }
        assert!(!dying.wait(LIMIT).success(), "{failpoints}");
        let mut relay = scene.relay(&[], &["--claim", "lease"]);
        scene.everything_published();
        end(&mut relay);
        scene.judge(&scene.all_committed(), IN_FLIGHT);
    }
}

/// Hazard 9: a relay that is stopped, not dead, loses its place; when it goes on it does no harm.
#[test]
fn a_stopped_leader_is_replaced_and_harmless_when_it_returns() {
    let scene = Scene::new();
    let mut stopped = scene.relay(&[], &[]);
    stopped.wait_for_line("active relay", LIMIT);
    // To a file of its own: a process that is stopped in the middle of a write keeps its lock on the file.
    let other = scene.relay_to("other.jsonl", &[], &[]);
    other.wait_for_line("relaying", LIMIT);
    scene.insert("org.thing.happened.v1", 500);
    eventually_blocking("the first to deliver", LIMIT, || scene.lines() > 0);
    stopped.sigstop();
    scene.insert("org.thing.happened.v1", 500);
    other.wait_for_line("active relay", LIMIT);
    scene.everything_published();
    stopped.sigcont();
    scene.insert("org.thing.happened.v1", 100);
    scene.everything_published();
    scene.judge(&scene.all_committed(), IN_FLIGHT);
}

/// Hazard 23: a handler that blocks the only threads there are must not keep the place for ever.
#[test]
fn a_relay_whose_threads_are_all_blocked_turns_red() {
    let scene = Scene::new();
    scene.insert("org.thing.happened.v1", 64);
    let env = [("POSTBOX_FAILPOINTS", "dispatch.before=block"), ("TOKIO_WORKER_THREADS", "1")];
    let blocked = scene.relay(&env, &["--listen", "127.0.0.1:0"]);
    let line = blocked.wait_for_line("127.0.0.1:", LIMIT);
    let address = line.split_whitespace().find_map(|word| {
        let word = word.trim_start_matches("address=").trim_start_matches("http://");
        word.parse::<std::net::SocketAddr>().ok()
    });
    let address = address.unwrap_or_else(|| panic!("no address in {line}"));
    eventually_blocking("readyz to turn red", LIMIT, || get(address, "/readyz").starts_with("HTTP/1.1 503"));
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200"));
    let other = scene.relay(&[], &[]);
    other.wait_for_line("active relay", LIMIT);
    scene.everything_published();
}

fn get(address: std::net::SocketAddr, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What is in flight is bounded in bytes, and so is the process.
#[test]
fn a_thousand_payloads_of_a_mebibyte_stay_within_the_bound() {
    let scene = Scene::new();
    scene.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT gen_random_uuid(), 'org.thing.happened.v1', to_jsonb(repeat('x', 1048574)), gen_random_uuid()
         FROM generate_series(1, 1000)",
    );
    let args = ["relay", "--table", "public.org_outbox", "--sink", "null:", "--poll-interval", "50ms"];
    let relay = scene.start(&args, &[]);
    scene.everything_published();
    let status = Path::new("/proc").join(relay.id().to_string()).join("status");
    let status = std::fs::read_to_string(status).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    // 16 MiB in flight, the driver's copy of one batch, the program itself, and what the allocator keeps on each thread for the
    // next: about 110 in all, of the 1,000 that went through.
    assert!(peak < 160 * 1024, "{peak} KiB");
    println!("peak {peak} KiB");
}
