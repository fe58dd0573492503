//! Canaries (hazard 49): secrets stand wherever there can be one, everything fails that can, and all that anybody gets to read is
//! looked through for them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "the tests of the admin API use more of it")]
#[path = "admin/client.rs"]
mod client;
mod common;
#[allow(dead_code, reason = "the tests of the admin API use more of it")]
#[path = "admin/site.rs"]
mod site;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use common::{LONG, address, finish, get, url_as};
use postbox_testkit::{PgServer, eventually_blocking};
use serde_json::json;
use site::{SENT, Site};

/// In every secret, and nowhere else; and the login to the receiver as it is sent.
const CANARIES: [&str; 2] = ["Zq9", "YXBwOlpxOXBhc3M"];

const TOKEN: &str = "Zq9-0123456789abcdef";

/// A receiver that answers with all that it was sent.
struct Echo {
    addr: SocketAddr,
    /// 0 hangs up.
    status: Arc<AtomicU16>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, status) = (listener.local_addr().unwrap(), Arc::new(AtomicU16::new(500)));
        let answers = Arc::clone(&status);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || answer(stream, &answers));
            }
        });
        Self { addr, status }
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

/// Requests until the client hangs up, or is hung up on.
fn answer(mut stream: TcpStream, status: &AtomicU16) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut said, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
                length = number.trim().parse().ok()?;
            }
            said += &line;
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        said += &String::from_utf8_lossy(&body);
        let status = status.load(Ordering::SeqCst);
        if status == 0 {
            return None;
        }
        let length = said.len();
        write!(stream, "HTTP/1.1 {status} Whatever\r\nContent-Length: {length}\r\n\r\n{said}").ok()?;
    }
}

/// What was shown, and where.
#[derive(Default)]
struct Shown(Vec<(String, String)>);

impl Shown {
    fn add(&mut self, place: &str, text: impl Into<String>) {
        self.0.push((place.to_owned(), text.into()));
    }

    /// Everything that a command says, whatever becomes of it; answers whether it worked.
    fn run(&mut self, site: &Site, url: &str, args: &[&str]) -> bool {
        let mut command = site.command(args);
        command.env("DATABASE_URL", url).env("RUST_LOG", "debug");
        let done = finish(command, "");
        self.add(&format!("{args:?}"), done.stdout + &done.stderr);
        done.code == 0
    }

    fn has_none(&self) {
        for (place, text) in &self.0 {
            for line in text.lines() {
                assert!(!CANARIES.iter().any(|canary| line.contains(canary)), "{place}: {line}");
            }
        }
    }
}

#[test]
fn hazard_49_no_secret_is_shown_whatever_fails() {
    let (server, echo) = (PgServer::start(), Echo::start());
    let mut site = Site::postgres();
    site.db = Some(server.database());
    let db = site.db.as_ref().unwrap();
    let url = url_as(&db.url, "postgres:Zq9pass");
    site.ok(&["migrate", "up", "--table", site.table]);
    let config = format!(
        "sink = \"hook\"\n[relay]\ntables = [\"{}\"]\n[sinks.hook]\nurl = \"http://app:Zq9pass@{}/Zq9path/{{topic}}?key=Zq9query\"\nallow = [\"127.0.0.1\"]\n\
         secret = \"whsec_Zq9AAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"\nheaders = {{ x-api-key = \"Zq9key\" }}\n",
        site.table, echo.addr
    );
    std::fs::write(site.dir.path().join("postbox.toml"), config).unwrap();
    let mut written = 0;
    let mut write = || {
        db.psql(&format!(
            "INSERT INTO org_outbox (tenant_id, topic, event_id, payload, payload_raw, headers, metadata)
             SELECT gen_random_uuid(), '{SENT}', gen_random_uuid(), p, r, h, '{{\"who\": \"Zq9who\"}}'
             FROM (VALUES ('{{\"card\": \"Zq9card\"}}'::jsonb, NULL::bytea, '{{}}'::jsonb),
                          ('{{}}', 'Zq9bytes', '{{}}'), ('{{}}', NULL, '\"no headers\"')) AS v (p, r, h)"
        ));
        written += 3;
        written
    };
    let (relay, client) = site.relay(
        &["--config", "postbox.toml", "--listen", "127.0.0.1:0"],
        &[
            ("DATABASE_URL", &url),
            ("RUST_LOG", "debug"),
            ("OUTBOX_ADMIN_OPERATOR_TOKENS", &format!("alice:{TOKEN}")),
        ],
    );
    let (client, health) = (client.bearer(TOKEN), address(&relay));
    let count = |condition: &str| -> usize {
        db.psql(&format!("SELECT count(*) FROM org_outbox WHERE {condition}")).parse().unwrap()
    };
    // It refuses, hangs up, rejects; the database goes away; then another login is wanted.
    let mut shown = Shown::default();
    for (status, what, condition) in [
        (500, "failures", "last_error IS NOT NULL"),
        (0, "more failures", "last_error IS NOT NULL"),
        (400, "deaths", "dead_at IS NOT NULL"),
    ] {
        echo.answers(status);
        let all = write();
        eventually_blocking(what, LONG, || count(condition) == all);
    }
    // Answers what did not work.
    let ask = |shown: &mut Shown| {
        let mut failed = look(&site, &url, shown);
        for path in PATHS {
            let path = path.replace("{table}", site.table);
            let answer = client.get(&format!("/api/v1{path}"));
            failed.extend((answer.status != 200).then(|| path.clone()));
            shown.add(&path, answer.body);
        }
        for path in ["/metrics", "/readyz", "/healthz"] {
            shown.add(path, get(&health, path).1);
        }
        failed
    };
    // The doctor has found something.
    assert_eq!(ask(&mut shown), ["doctor", NOT_A_TOPIC], "all else has something to show");
    let events = client.json(&site.path("/events"));
    let id = events["events"][0]["event_id"].as_str().unwrap().to_owned();
    shown.add("an event", client.get(&format!("/api/v1{}", site.path(&format!("/events/{id}")))).body);
    shown.add("a login", client.post("/login", &json!({ "token": "Zq9-wrong-0123456789abcdef" })).body);
    shown.add("a wrong token", client.bearer("Zq9-wrong-0123456789abcdef").get("/api/v1/overview").body);
    for command in ["events", "dead"] {
        assert!(shown.run(&site, &url, &[command, "show", &id, "--table", site.table]));
    }
    server.stop_immediate();
    eventually_blocking("the outage", LONG, || relay.stderr().contains("OUTBOX_DB_UNREACHABLE"));
    ask(&mut shown);
    server.start_again();
    echo.answers(401);
    write();
    eventually_blocking("an open circuit", LONG, || {
        client.get("/api/v1/sinks").body.contains("answered 401")
    });
    ask(&mut shown);
    shown.run(
        &site,
        "postgres://app:Zq9pass@127.0.0.1:1/app?sslrootcert=Zq9",
        &["status", "--table", site.table],
    );
    shown.add("the log", relay.stdout() + &relay.stderr());
    let rows =
        "SELECT (to_jsonb(t) - '{payload,payload_raw,headers,metadata}'::text[])::text FROM org_outbox t";
    shown.add("the table", db.psql(rows));
    shown.has_none();
    // Else nothing was looked for.
    assert!(relay.stderr().contains("dispatch failed") && db.psql(rows).contains("400"), "{}", db.psql(rows));
}

const PATHS: [&str; 14] = [
    "/overview",
    "/tables",
    "/tables/{table}",
    "/tables/{table}/history",
    "/tables/{table}/events",
    "/tables/{table}/dead",
    "/tables/{table}/dead/causes",
    "/tables/{table}/dead/preview?all=true",
    "/tables/{table}/blocked",
    "/tables/{table}/audit",
    "/sinks",
    "/doctor",
    "/jobs",
    "/session",
];

const NOT_A_TOPIC: &str = "enqueue --topic no_topic --payload {}";

/// What an operator would ask; answers what did not work.
fn look(site: &Site, url: &str, shown: &mut Shown) -> Vec<String> {
    let mut failed = Vec::new();
    for args in
        ["status", "events list", "dead list --json", "doctor", "config show", "config check", NOT_A_TOPIC]
    {
        if !shown.run(site, url, &args.split(' ').collect::<Vec<_>>()) {
            failed.push(args.to_owned());
        }
    }
    failed
}
