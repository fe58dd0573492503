//! One relay on three databases of three kinds: what happens to one of them, the others do not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod place;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{LONG, get, ready};
use place::{NAMES, Place, TOPIC, insert, only, problems};
use postbox_testkit::{PgServer, Program, eventually_blocking};
use serde_json::Value;
use uuid::Uuid;

#[test]
fn one_database_is_away_for_a_while_and_the_others_do_not_notice() {
    let server = PgServer::start();
    let mut place = Place::on(&server).migrated();
    let (mut relay, address) = place.relay();
    eventually_blocking("all to work", LONG, || problems(&address).is_empty());
    for name in NAMES {
        place.write(name, 50);
    }
    for name in NAMES {
        place.all_arrived(name);
    }

    place.proxy.cut();
    let red = eventually_blocking("red", LONG, || Some(problems(&address)).filter(|red| !red.is_empty()));
    assert!(red["orders"].contains("public.shop_outbox in orders cannot work"), "{red:?}");
    // Meanwhile the others deliver what is written, wave after wave; the one stays red, alone, and waits.
    place.write("orders", 30);
    for _ in 0..5 {
        for name in ["billing", "local"] {
            place.write(name, 100);
            place.all_arrived(name);
        }
        let red = problems(&address);
        assert!(only("orders")(&red), "{red:?}");
        assert_eq!(get(&address, "/healthz").0, 200, "alive all the same");
    }
    assert_eq!(place.arrived("orders"), 50, "it is away");

    place.proxy.pass();
    place.all_arrived("orders");
    eventually_blocking("green", LONG, || problems(&address).is_empty());

    // The same with a server that is stopped, which refuses connections.
    server.stop_immediate();
    eventually_blocking("red again", LONG, || only("orders")(&problems(&address)));
    for name in ["billing", "local"] {
        place.write(name, 100);
        place.all_arrived(name);
    }
    // Who asks sees the others, and which one is missing.
    let done = place.run(&["status"]);
    assert_eq!(done.code, 1, "{done:#?}");
    assert!(
        done.stdout.contains("billing  shop_outbox") && done.stdout.contains("local    shop_outbox"),
        "{done:#?}"
    );
    // What is in front of a server that is stopped may close connections, or refuse them.
    assert!(done.stderr.starts_with("error[OUTBOX_DB_") && done.stderr.contains("]: orders: "), "{done:#?}");
    let done = place.run(&["doctor"]);
    assert_eq!(done.code, 3, "{done:#?}");
    assert!(
        done.stdout.contains("✗ orders: ") && done.stdout.contains("✓ billing: connected to billing ("),
        "{done:#?}"
    );

    server.start_again();
    eventually_blocking("green for good", LONG, || problems(&address).is_empty());
    place.write("orders", 30);
    place.all_arrived("orders");
    let metrics = get(&address, "/metrics").1;
    for (name, table) in
        [("orders", "public.shop_outbox"), ("billing", "shop_outbox"), ("local", "shop_outbox")]
    {
        // What was in flight when its database went away is sent twice.
        let line = format!(
            "outbox_dispatch_total{{database=\"{name}\",table=\"{table}\",topic=\"{TOPIC}\",result=\"success\"}} "
        );
        let counted = metrics.lines().find_map(|text| text.strip_prefix(&line)?.parse::<usize>().ok());
        let written = place.written[name];
        assert!(counted.is_some_and(|counted| counted >= written), "{line} not {written}: {metrics}");
        assert!(
            metrics.contains(&format!("outbox_relay_leader{{database=\"{name}\",table=\"{table}\"}} 1")),
            "{metrics}"
        );
    }
    let nameless = metrics.lines().find(|line| line.contains('{') && !line.contains("database="));
    assert_eq!(nameless, None);
    relay.sigterm();
    assert!(relay.wait(LONG).success(), "{}", relay.stderr());
    let log = relay.stderr();
    assert!(log.contains("database{name=\"orders\"}"), "{log}");
    assert_eq!(lines_with(&log, "relaying shop_outbox in billing → file:out.jsonl"), 1, "{log}");
    // What was in flight when the way was cut may have come twice.
    place.judge(30);
}

fn lines_with(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn who_is_not_there_at_the_start_is_waited_for_and_nobody_waits_with_it() {
    let mut place = Place::empty();
    // The server of one does not answer, the file of another is not there, and the table of the third has to be made.
    place.proxy.cut();
    let (mut relay, address) = place.relay();
    eventually_blocking("all red", LONG, || problems(&address).len() == 3);
    place.ok(&["migrate", "up", "--database", "billing"]);
    eventually_blocking("two red", LONG, || problems(&address).len() == 2);
    place.write("billing", 20);
    place.all_arrived("billing");
    let red = problems(&address);
    assert!(red["local"].contains("local.db"), "{red:?}");
    place.ok(&["migrate", "up", "--database", "local"]);
    eventually_blocking("one red", LONG, || only("orders")(&problems(&address)));
    place.write("local", 20);
    place.all_arrived("local");
    place.proxy.pass();
    place.ok(&["migrate", "up", "--database", "orders"]);
    eventually_blocking("green", LONG, || problems(&address).is_empty());
    place.write("orders", 20);
    place.all_arrived("orders");
    relay.sigterm();
    assert!(relay.wait(LONG).success(), "{}", relay.stderr());
    place.judge(0);
}

#[test]
fn a_stop_does_not_wait_for_who_is_away() {
    let place = Place::new();
    place.proxy.blackhole();
    let (mut relay, address) = place.relay();
    eventually_blocking("the others", LONG, || problems(&address).len() == 1);
    relay.sigterm();
    assert!(relay.wait(Duration::from_secs(20)).success(), "{}", relay.stderr());
}

#[test]
fn kills_lose_nothing_in_any_of_them() {
    const KILLS: usize = 5;
    let place = Place::new();
    let stop = AtomicBool::new(false);
    let (postgres, mariadb, dir, oracle) = (&place.postgres, &place.mariadb, place.dir.path(), &place.oracle);
    std::thread::scope(|scope| {
        for name in NAMES {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let ids: Vec<Uuid> = (0..10).map(|_| Uuid::now_v7()).collect();
                    insert(name, &ids, postgres, mariadb, dir);
                    for id in &ids {
                        oracle.committed(*id);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
        for _ in 0..KILLS {
            let before = place.delivered().len();
            let (mut relay, _) = place.relay();
            let look = || place.delivered().len() > before + 200;
            eventually_blocking("deliveries", LONG, look);
            relay.kill9();
        }
        stop.store(true, Ordering::SeqCst);
    });
    let (mut relay, _) = place.relay();
    let open = |name: &str| match name {
        "orders" => place.postgres.psql("SELECT count(*) FROM shop_outbox WHERE published_at IS NULL"),
        _ => place.mariadb.sql("SELECT count(*) FROM shop_outbox WHERE published_at IS NULL"),
    };
    eventually_blocking("the servers to be empty", LONG, || open("orders") == "0" && open("billing") == "0");
    let all = place.oracle.committed_ids();
    let missing = || {
        let lines = place.delivered();
        let seen: std::collections::BTreeSet<Uuid> =
            lines.iter().filter_map(|line| line["event_id"].as_str()?.parse().ok()).collect();
        all.difference(&seen).count()
    };
    eventually_blocking("everything", LONG, || missing() == 0);
    relay.stop(LONG);
    // At each kill, what was in flight in each of the three.
    place.judge(KILLS * 3 * 400);
}

#[test]
fn commands_are_about_the_database_that_is_named() {
    let mut place = Place::new();
    // Which of the three is not said.
    for args in [
        &["pause", "--table", "shop_outbox"][..],
        &["events", "list"],
        &["dead", "list"],
        &["migrate", "down", "--table", "shop_outbox", "--yes"],
        &["enqueue", "--topic", TOPIC, "--payload", "1"],
    ] {
        let done = place.run(args);
        assert_eq!(done.code, 2, "{args:?}: {done:#?}");
        let says = "error[OUTBOX_CONFIG_MISSING]: this command works on one database, and there are 3: orders, billing, local";
        assert!(
            done.stderr.contains(says) && done.stderr.contains("next: give --database orders"),
            "{done:#?}"
        );
    }
    let done = place.run(&["status", "--table", "shop_outbox"]);
    assert!(done.code == 2 && done.stderr.contains("--table is about one database"), "{done:#?}");
    let done = place.run(&["events", "list", "--database", "biling"]);
    assert!(done.code == 2 && done.stderr.contains("Did you mean billing?"), "{done:#?}");

    let paused = place.ok(&["pause", "--database", "billing", "--table", "shop_outbox"]);
    assert_eq!(paused.trim(), "billing: paused shop_outbox");
    for name in NAMES {
        place.write(name, 5);
    }
    let (mut relay, address) = place.relay();
    place.all_arrived("orders");
    place.all_arrived("local");
    let standing = |name: &str| {
        let tables = ready(&address).1["tables"].as_array().unwrap().clone();
        tables.iter().find(|table| table["database"] == name).unwrap()["standing"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    eventually_blocking("the pause", LONG, || standing("billing") == "paused");
    assert_eq!((standing("orders").as_str(), ready(&address).0), ("active", 200), "a pause is well");
    assert_eq!(place.arrived("billing"), 0);
    place.ok(&["resume", "--database", "billing", "--table", "shop_outbox"]);
    place.all_arrived("billing");
    relay.stop(LONG);
    place.judge(0);

    let listed = place.ok(&["events", "list", "--database", "billing"]);
    assert!(listed.contains("SENT"), "{listed}");
    let status: Value = serde_json::from_str(&place.ok(&["status", "--json"])).unwrap();
    let names: Vec<&str> =
        status["tables"].as_array().unwrap().iter().filter_map(|table| table["database"].as_str()).collect();
    assert_eq!(names, NAMES);
    let checked = place.ok(&["status", "--check", "--format", "nagios"]);
    assert!(checked.contains("OK orders/shop_outbox oldest=0s"), "{checked}");
    let cleaned = place.ok(&["clean"]);
    assert!(cleaned.contains("orders: public.shop_outbox: deleted 0 events"), "{cleaned}");
    // Only one of them: the others have no relay meanwhile.
    let mut alone = Program::from_command(place.command(&["relay", "--database", "local"]));
    alone.wait_for_line("relaying shop_outbox in local → ", LONG);
    place.write("local", 1);
    place.all_arrived("local");
    assert!(!alone.stderr().contains("billing"), "{}", alone.stderr());
    alone.stop(LONG);
    let shown = place.ok(&["config", "show"]);
    assert!(shown.contains("DATABASE_URL_BILLING") && shown.contains("sqlite:local.db"), "{shown}");
    assert!(!shown.contains("sqlite:postbox.db"), "{shown}");
    place.ok(&["config", "check"]);
}
