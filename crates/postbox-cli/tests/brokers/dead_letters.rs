//! Events exhaust while the broker for dead ones is down.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use postbox_testkit::{NatsServer, broker_or_skip, eventually_blocking};

use crate::common::{Place, TOPIC};
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EVENTS: usize = 1_000;

#[test]
fn all_arrive_when_the_broker_for_dead_events_is_back() {
    let nats = broker_or_skip!(NatsServer::private());
    let place = Place::new();
    let letters = format!("dead.{TOPIC}");
    nats.prepare(&letters);
    nats.stop();
    let config = format!(
        "sink = \"hook\"\ndead_letter = \"letters\"\n\
         [sinks.hook]\nurl = \"http://{}/\"\nallow_private = true\n\
         [sinks.letters]\nurl = \"{}\"\ndestination = \"dead.{{topic}}\"\n",
        failing_receiver(),
        nats.url()
    );
    place.file("postbox.toml", &config);
    insert(&place, TOPIC, EVENTS);
    let mut program = relay(&place, 200, &["--max-attempts", "2"]);
    eventually_blocking("all to exhaust", PATIENCE, || place.count("dead_at IS NOT NULL") == EVENTS);
    program.wait_for_line("cannot connect to NATS", PATIENCE);
    assert_eq!(place.count("attempts = 2 AND dlq_at IS NULL"), EVENTS);

    nats.start_again();
    eventually_blocking("all to have gone there", PATIENCE, || place.count("dlq_at IS NOT NULL") == EVENTS);
    program.stop(PATIENCE);
    assert_eq!(place.count("dead_at IS NOT NULL AND attempts = 2"), EVENTS);
    let ids = nats.ids(&letters);
    assert_eq!((ids.len(), distinct(&ids)), (EVENTS, EVENTS));
}

/// A receiver of webhooks that answers each with a failure, as long as the test runs.
fn failing_receiver() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some(body) = body_length(&mut reader) {
                    let read = std::io::copy(&mut reader.by_ref().take(body), &mut std::io::sink());
                    let answer = b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n";
                    if read.is_err() || reader.get_mut().write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

/// Reads the head of a request; none at the end of the connection.
fn body_length(reader: &mut impl BufRead) -> Option<u64> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            None if line.trim_end().is_empty() => return Some(length),
            _ => {}
        }
    }
}
