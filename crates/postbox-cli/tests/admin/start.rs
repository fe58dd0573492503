//! How it is switched on, and what is refused at the start.

use std::process::Stdio;

use postbox_testkit::{MariaDbServer, Program, eventually_blocking};
use serde_json::json;

use crate::client::Client;
use crate::common::{LONG, finish};
use crate::site::{SENT, Site};

#[test]
fn it_is_off_unless_it_is_asked_for() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    let mut relay = Program::from_command(site.command(&["relay", "--table", site.table, "--sink", "null:"]));
    relay.wait_for_line("relaying ", LONG);
    relay.stop(LONG);
    assert!(!relay.stderr().contains("dashboard"), "{}", relay.stderr());
}

/// A service that relays by itself has its dashboard beside it.
#[test]
fn it_can_be_all_that_is_served() {
    for site in Site::both() {
        let off = [
            "--relay-enabled=false",
            "--cleaner-enabled=false",
            "--dashboard",
            "--admin-listen",
            "127.0.0.1:0",
        ];
        let args = [&["relay", "--table", site.table][..], &off].concat();
        let mut relay = Program::from_command(site.command(&args));
        let line = relay.wait_for_line("dashboard on http://", LONG);
        let client = Client::new(line.split("dashboard on ").nth(1).unwrap().trim());
        assert_eq!(client.json("/tables")["tables"][0]["table"], site.table);
        site.ok(&["enqueue", "--table", site.table, "--topic", SENT, "--payload", "1"]);
        eventually_blocking("what waits", LONG, || client.json("/overview")["tables"][0]["waiting"] == 1);
        relay.stop(LONG);
        assert!(relay.stderr().contains("only showing what there is"), "{}", relay.stderr());
    }
}

/// Flags, variables, and what must be said of them.
type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str);

/// Another address than loopback needs a token (hazard 51).
#[test]
fn what_would_open_it_to_others_is_refused() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    let empty = site.dir.path().join("empty");
    std::fs::write(&empty, "# none\n").unwrap();
    let relay = ["relay", "--table", site.table, "--sink", "null:", "--dashboard"];
    let cases: [Case; 9] = [
        (&["--admin-listen", "0.0.0.0:0"], &[], "there is no token"),
        (&["--admin-listen", "[::]:0"], &[("OUTBOX_ADMIN_READ_ONLY", "true")], "there is no token"),
        (&[], &[("OUTBOX_ADMIN_OPERATOR_TOKENS", "alice:secret")], "less than 16 characters"),
        (&["--viewer-tokens-file", "missing"], &[], "missing cannot be read"),
        (&["--viewer-tokens-file", "empty"], &[], "has no token in it"),
        (&["--base-path", "postbox"], &[], "does not start with /"),
        (&["--admin-hosts", "https://a"], &[], "not a host name"),
        // A proxy on this machine would make everybody somebody of this machine.
        (
            &["--admin-hosts", "localhost,ops.example.org"],
            &[],
            "admin.hosts has ops.example.org (from --admin-hosts)",
        ),
        (&["--read-only"], &[("OUTBOX_ADMIN_HOSTS", "10.0.0.7")], "there is no token"),
    ];
    for (more, env, says) in cases {
        for words in [&relay[..], &["config", "check", "--sink", "null:", "--dashboard"]] {
            let mut command = site.command(&[words, more].concat());
            command.envs(env.iter().copied());
            let done = finish(command, "");
            assert_eq!(done.code, 2, "{more:?}: {done:#?}");
            assert!(done.stderr.contains(says) && done.stderr.contains("OUTBOX_CONFIG_INVALID"), "{done:#?}");
            assert!(!done.stderr.contains("secret"), "{done:#?}");
        }
    }
    let local = ["--admin-hosts", "localhost,Postbox.localhost,127.0.0.2,::1"];
    site.ok(&[&["config", "check", "--sink", "null:", "--dashboard"], &local[..]].concat());
    let shown = finish(
        {
            let mut command = site.command(&["config", "show"]);
            command.env("OUTBOX_ADMIN_VIEWER_TOKENS", "bob:0123456789abcdef");
            command
        },
        "",
    );
    assert!(
        shown.code == 0 && shown.stdout.contains("***") && !shown.stdout.contains("0123456789"),
        "{shown:#?}"
    );
}

#[test]
fn tokens_come_from_files_and_other_names_from_the_list() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    std::fs::write(site.dir.path().join("tokens"), "# of the team\ncarol:0123456789abcdef-carol\n\n")
        .unwrap();
    let more = ["--operator-tokens-file", "tokens", "--admin-hosts", "ops.example.org"];
    let (mut relay, client) = site.relay(&more, &[]);
    let carol = client.bearer("0123456789abcdef-carol");
    assert_eq!(carol.json("/session")["name"], "carol");
    assert_eq!(carol.with("host", "ops.example.org").json("/session")["role"], "operator");
    // The page and its files are there for everybody; they hold nothing.
    let page = client.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.contains("<base href=\"/\">") && !page.body.contains("{{"), "{page:?}");
    assert_eq!(client.get("/assets/none.js").status, 404);
    assert_eq!(client.get("/assets/../Cargo.toml").status, 404);
    assert_eq!(client.ask("PUT", "/api/v1/session", "{}").status, 405);
    // Nobody fills the memory by a body.
    let large = json!({ "token": "x".repeat(100_000) });
    assert_eq!(client.post("/login", &large).status, 413);
    relay.stop(LONG);
}

#[test]
fn several_databases_of_three_kinds_are_told_apart() {
    let (site, mariadb) = (Site::postgres(), MariaDbServer::shared().database());
    let config = format!(
        "sink = \"file:out.jsonl\"\n\
         [[database]]\nname = \"orders\"\nurl = \"{}\"\ntables = [\"public.org_outbox\"]\n\
         [[database]]\nname = \"billing\"\nurl = \"{}\"\ntables = [\"org_outbox\"]\n\
         [[database]]\nname = \"local\"\nurl = \"sqlite:local.db?mode=rwc\"\ntables = [\"org_outbox\"]\n",
        site.db.as_ref().unwrap().url,
        mariadb.url
    );
    std::fs::write(site.dir.path().join("postbox.toml"), config).unwrap();
    let command = |args: &[&str]| {
        let mut command = site.command(args);
        command.env_remove("DATABASE_URL");
        command
    };
    let done = finish(command(&["migrate", "up", "--order-index", "--inbox"]), "");
    assert_eq!(done.code, 0, "{done:#?}");
    let relay =
        command(&["relay", "--dashboard", "--admin-listen", "127.0.0.1:0", "--poll-interval", "50ms"]);
    let mut relay = Program::from_command(relay);
    let line = relay.wait_for_line("dashboard on ", LONG);
    let client = Client::new(line.split("dashboard on ").nth(1).unwrap().trim());
    let csrf = client.json("/session")["csrf"].as_str().unwrap().to_owned();
    let own = client.with("x-postbox-csrf", &csrf);
    for (name, table) in [("orders", "public.org_outbox"), ("billing", "org_outbox"), ("local", "org_outbox")]
    {
        let path = |rest: &str| format!("/tables/{name}:{table}{rest}");
        let enqueue = ["enqueue", "--database", name, "--topic", SENT, "--payload", "1", "--json"];
        let done = finish(command(&enqueue), "");
        assert_eq!(done.code, 0, "{done:#?}");
        let event: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let event = event["event_id"].as_str().unwrap();
        let sent = || client.json(&path("/events?status=sent"))["events"][0]["event_id"] == event;
        eventually_blocking("its delivery", LONG, sent);
        let seen = eventually_blocking("the lag", LONG, || {
            Some(client.json(&path(""))).filter(|seen| seen["lag_p50_seconds"].is_number())
        });
        assert_eq!((seen["database"].as_str(), seen["waiting"].as_u64()), (Some(name), Some(0)), "{seen}");
        assert_eq!(seen["commands"]["resume"], format!("postbox resume --database {name} --table {table}"));
        assert_eq!(client.json(&path("/blocked"))["supported"], true);
        assert_eq!(own.done(&path(&format!("/events/{event}/replay")), &json!({}))["was"], "SENT");
        assert!(client.json(&path(&format!("/events/{event}/payload")))["logged"] == true);
        let audit = client.json(&path("/audit"));
        assert_eq!(audit["entries"].as_array().unwrap().len(), 2, "{audit}");
        assert_eq!(audit["entries"][1]["action"], "replay published", "{audit}");
        assert_eq!(client.json(&path("/inbox"))["messages"], json!([]));
    }
    assert_eq!(client.json("/tables")["tables"].as_array().unwrap().len(), 3);
    relay.stop(LONG);
}

#[test]
fn the_demo_has_it_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_postbox"));
    command.args(["demo", "--for", "20s"]).env_clear().env("TMPDIR", folder.path());
    let output = folder.path().join("out");
    command.stdout(std::fs::File::create(&output).unwrap()).stdin(Stdio::null());
    let mut demo = command.spawn().unwrap();
    let url = eventually_blocking("where it is", LONG, || {
        let text = std::fs::read_to_string(&output).unwrap();
        let line = text.lines().find_map(|line| line.split("dashboard ").nth(1))?.trim().to_owned();
        Some(line)
    });
    let client = Client::new(&url);
    eventually_blocking("orders flow", LONG, || {
        let seen = client.json("/overview");
        seen["tables"][0]["out_per_second"].as_f64().is_some_and(|rate| rate > 1.0)
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&demo), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(0));
}
