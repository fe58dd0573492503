//! Each fault of the proxy, seen from the client's side.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use postbox_testkit::{Program, Proxy, eventually_blocking, postgres_or_skip};

const LIMIT: Duration = Duration::from_secs(20);
/// Long enough that an answer would have come; used only to see that none does.
const SILENCE: Duration = Duration::from_millis(200);

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    addr
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(word)?;
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Whether the other side has closed; waits for it.
fn closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Whether the socket stays open and silent.
fn silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let result = stream.read(&mut [0; 16]);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn passes_and_delays() {
    let proxy = Proxy::start(echo());
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, b"hello").unwrap(), b"hello");
    proxy.delay(Duration::from_millis(50));
    let began = Instant::now();
    assert_eq!(ask(&mut client, b"slow").unwrap(), b"slow");
    assert!(
        began.elapsed() >= Duration::from_millis(100),
        "both directions are delayed: {:?}",
        began.elapsed()
    );
    proxy.pass();
    assert_eq!(ask(&mut client, b"again").unwrap(), b"again");
    assert_eq!(proxy.accepted(), 1);
}

#[test]
fn much_passes_in_both_directions_at_once() {
    let proxy = Proxy::start(echo());
    let mut client = connect(&proxy);
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[2]).collect();
    let mut writer = client.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            // The end of the stream must be passed on as well, or the echo never ends.
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes sent, {} came back", sent.len(), got.len());
    });
}

#[test]
fn a_cut_closes_what_is_there_and_what_comes() {
    let proxy = Proxy::start(echo());
    let mut before = connect(&proxy);
    ask(&mut before, b"hello").unwrap();
    proxy.cut();
    assert!(closed(&mut before));
    assert!(closed(&mut connect(&proxy)));
    proxy.pass();
    assert_eq!(ask(&mut connect(&proxy), b"back").unwrap(), b"back");
}

#[test]
fn a_cut_that_is_lifted_at_once_still_cuts() {
    let proxy = Proxy::start(echo());
    let mut client = connect(&proxy);
    ask(&mut client, b"hello").unwrap();
    proxy.cut();
    proxy.pass();
    assert!(closed(&mut client));
}

#[test]
fn a_black_hole_is_silent_and_never_heals_a_stream() {
    let proxy = Proxy::start(echo());
    let mut old = connect(&proxy);
    ask(&mut old, b"hello").unwrap();
    proxy.blackhole();
    old.write_all(b"lost").unwrap();
    let mut new = connect(&proxy);
    new.write_all(b"lost").unwrap();
    assert!(silent(&mut old) && silent(&mut new));
    proxy.pass();
    assert!(closed(&mut old) && closed(&mut new));
}

#[test]
fn an_idle_connection_survives_a_black_hole() {
    let proxy = Proxy::start(echo());
    let mut client = connect(&proxy);
    ask(&mut client, b"hello").unwrap();
    proxy.blackhole();
    proxy.pass();
    assert_eq!(ask(&mut client, b"still here").unwrap(), b"still here");
}

#[test]
fn swallowed_replies_belong_to_requests_that_arrived() {
    let db = postgres_or_skip!().database();
    db.psql("create table t (n int)");
    let proxy = Proxy::start(db.addr());
    let url = db.url_through(proxy.addr());
    let mut client = Program::spawn(
        "psql",
        &[
            "-X",
            "-d",
            &url,
            "-c",
            "select 'connected'",
            "-c",
            "select pg_sleep(0.3)",
            "-c",
            "insert into t values (1)",
        ],
        &[],
    );
    client.wait_for_line("connected", LIMIT);
    proxy.swallow_replies();
    // Its pg_sleep ends unheard, so it never gets to the insert.
    eventually_blocking("the sleep to be over", LIMIT, || {
        db.psql("select count(*) from pg_stat_activity where query like '%pg_sleep(0.3)' and state = 'idle'")
            == "1"
    });
    assert!(client.is_running());
    assert_eq!(db.psql("select count(*) from t"), "0");
    proxy.cut();
    assert!(!client.wait(LIMIT).success());
}

#[test]
fn one_reply_is_lost_after_the_request_was_carried_out() {
    let db = postgres_or_skip!().database();
    db.psql("create table t (n int)");
    let proxy = Proxy::start(db.addr());
    let url = db.url_through(proxy.addr());
    let psql = |sql: &str| Program::spawn("psql", &["-X", "-d", &url, "-c", sql], &[]);

    let cut = proxy.cut_replies_after_requests_containing("values (42)");
    assert!(psql("insert into t values (1)").wait(LIMIT).success());
    assert!(!cut.has_fired());
    let mut unlucky = psql("insert into t values (42)");
    cut.wait(LIMIT);
    assert!(!unlucky.wait(LIMIT).success());
    assert!(unlucky.stderr().contains("server closed the connection"), "{}", unlucky.stderr());
    assert_eq!(db.psql("select string_agg(n::text, ',') from t"), "1,42");
    assert!(psql("insert into t values (42)").wait(LIMIT).success(), "only once");
}

#[tokio::test]
async fn a_needle_across_two_pieces_is_found_on_a_blocked_runtime() {
    let proxy = Proxy::start(echo());
    let mut cut = proxy.cut_replies_after_requests_containing(*b"COMMIT");
    let mut other = connect(&proxy);
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, b"..COM").unwrap(), b"..COM");
    client.write_all(b"MIT;").unwrap();
    assert!(closed(&mut client));
    cut.fired().await;
    assert_eq!(ask(&mut other, b"COMMIT").unwrap(), b"COMMIT");
}

#[test]
fn the_end_of_the_proxy_ends_its_connections() {
    let proxy = Proxy::start(echo());
    let mut client = connect(&proxy);
    ask(&mut client, b"hello").unwrap();
    drop(proxy);
    assert!(closed(&mut client));
}
