//! The private brokers: each starts, keeps its data over a stop and a crash, asks for a login where told to, and never
//! outlives its test.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod kafka;
mod nats;
mod pulsar;
mod rabbitmq;
mod redis;
#[path = "../common/victim.rs"]
mod victim;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use postbox_testkit::server::Broker;
use postbox_testkit::{NatsServer, RedisServer, broker_or_skip};

/// Whether anybody listens there.
fn listens(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_ok()
}

/// Says something to a server and gives back what it says until it is silent or gone.
fn tell(addr: SocketAddr, words: &str) -> String {
    tell_within(addr, words, Duration::from_millis(300))
}

/// The same for servers that end the connection after their answer, which may take them a while.
fn tell_until_closed(addr: SocketAddr, words: &str) -> String {
    tell_within(addr, words, Duration::from_secs(20))
}

fn tell_within(addr: SocketAddr, words: &str, silence: Duration) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(silence)).unwrap();
    stream.write_all(words.as_bytes()).unwrap();
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Whether a client that trusts the broker's authority, and nobody else, takes it for what it says it is.
fn is_trusted(broker: &Broker) -> bool {
    let (addr, authority) = (broker.addr().to_string(), broker.authority().unwrap());
    let mut args = vec!["20", "openssl", "s_client", "-connect", &addr, "-verify_ip", "127.0.0.1"];
    args.extend(["-verify_return_error", "-CAfile", authority.to_str().unwrap()]);
    tool("timeout", &args, "").contains("Verify return code: 0 (ok)")
}

/// Runs one of a server's own tools: what it wrote, to either stream.
fn tool(program: &str, args: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    // It may have ended without reading, for a reason that its output tells.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Stops a broker in good order and starts it, then the same by a crash; `holds` says whether its data are there.
fn survives(broker: &Broker, holds: impl Fn() -> bool) {
    assert!(listens(broker.addr()));
    assert!(holds(), "the data were not written: {}", broker.log());
    for end in [Broker::stop, Broker::kill] {
        let (port, pid) = (broker.port(), broker.pid());
        end(broker);
        assert!(!listens(broker.addr()), "something still listens");
        assert_eq!(broker.pid(), None);
        broker.start_again();
        assert_eq!(broker.port(), port);
        assert_ne!(broker.pid(), pid);
        assert!(holds(), "the data are gone: {}", broker.log());
    }
}

#[test]
fn what_is_dropped_is_gone_stopped_or_not() {
    let (running, stopped) =
        (broker_or_skip!(NatsServer::try_start()), broker_or_skip!(RedisServer::try_start()));
    let dirs = [running.dir().unwrap().to_owned(), stopped.dir().unwrap().to_owned()];
    let process = Path::new("/proc").join(running.pid().unwrap().to_string());
    stopped.stop();
    drop((running, stopped));
    assert!(!process.exists());
    for dir in dirs {
        assert!(!dir.exists(), "{} is left behind", dir.display());
    }
}

#[test]
fn the_shared_server_is_one() {
    let one = broker_or_skip!(NatsServer::try_shared());
    assert_eq!(one.url(), NatsServer::shared().url());
}

#[test]
fn kill_9_leaves_nothing_behind() {
    broker_or_skip!(NatsServer::try_start());
    victim::leaves_nothing_behind(&[]);
}

/// Not a test by itself: started by [`kill_9_leaves_nothing_behind`], which kills it.
#[test]
fn victim() {
    if victim::is_one() {
        let server = NatsServer::start();
        victim::wait_for_the_end(server.dir().unwrap(), &server.pid().unwrap().to_string());
    }
}
