//! The private PostgreSQL: it starts, crashes on request, and never outlives its test.

#[path = "common/victim.rs"]
mod victim;

use std::path::PathBuf;
use std::time::Duration;

use postbox_testkit::{PgServer, Program, eventually_blocking, postgres_or_skip};

#[test]
fn a_fresh_database_is_dropped_with_its_value_despite_open_sessions() {
    let server = postgres_or_skip!();
    let (one, two) = (server.database(), server.database());
    assert_ne!(one.name, two.name);
    one.psql("create table t (n int); insert into t values (1), (2);");
    assert_eq!(one.psql("select n, n * 10 from t order by n"), "1|10\n2|20");
    assert!(two.try_psql("select * from t").unwrap_err().contains("does not exist"));

    let session = Program::spawn("psql", &["-X", "-d", &one.url, "-c", "select pg_sleep(60)"], &[]);
    eventually_blocking("the session to sleep", Duration::from_secs(20), || {
        one.psql("select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()")
            == "1"
    });
    let name = one.name.clone();
    drop(one);
    assert_eq!(
        server.psql("postgres", &format!("select count(*) from pg_database where datname = '{name}'")),
        "0"
    );
    drop(session);
}

#[test]
fn statements_are_transactions_of_their_own() {
    let db = postgres_or_skip!().database();
    let error = db.try_psql("create table kept (); select 1/0; create table never ();").unwrap_err();
    assert!(error.contains("division by zero"), "{error}");
    assert_eq!(db.psql("select to_regclass('kept') is not null, to_regclass('never') is null"), "t|t");
}

#[test]
fn settings_restarts_and_crashes() {
    let server = PgServer::with(&["fsync=on", "cluster_name=it's ours"]);
    assert_eq!(
        server.psql("postgres", "show fsync; show max_connections; show cluster_name"),
        "on\n200\nit's ours"
    );
    let dir = server.dir().unwrap().to_owned();
    let data = PathBuf::from(server.psql("postgres", "show data_directory"));
    assert!(data.starts_with(&dir), "{} is not in {}", data.display(), dir.display());

    server.create_database("odd \"name");
    let port = server.port();
    server.restart();
    assert_eq!((server.port(), server.addr().port()), (port, port));
    assert_eq!(server.psql("postgres", "select count(*) from pg_database where datname like 'odd%'"), "1");
    server.stop_immediate();
    assert!(server.try_psql("postgres", "select 1").is_err());
    server.start_again();
    assert_eq!(server.psql("postgres", "select 1"), "1");

    drop(server);
    assert!(!dir.exists(), "{} is left behind", dir.display());
}

#[test]
fn a_server_that_the_test_stopped_is_removed_too() {
    let server = PgServer::start();
    let dir = server.dir().unwrap().to_owned();
    server.stop_immediate();
    drop(server);
    assert!(!dir.exists(), "{} is left behind", dir.display());
}

#[test]
fn a_bad_setting_is_told_with_the_servers_own_words() {
    let error = PgServer::try_with(&["max_connections=many"]).unwrap_err();
    assert!(error.contains("max_connections"), "{error}");
    assert!(PgServer::try_with(&["fsync"]).unwrap_err().contains("name=value"));
}

#[test]
fn kill_9_leaves_nothing_behind() {
    // Whether this server is shared or private, the victim's must be one of its own.
    victim::leaves_nothing_behind(&["POSTBOX_TEST_PG_URL"]);
}

/// Not a test by itself: started by [`kill_9_leaves_nothing_behind`], which kills it.
#[test]
fn victim() {
    if victim::is_one() {
        let dir = PgServer::shared().dir().unwrap();
        let pid = std::fs::read_to_string(dir.join("data/postmaster.pid")).unwrap();
        victim::wait_for_the_end(dir, pid.lines().next().unwrap());
    }
}
