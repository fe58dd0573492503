//! Settings, sinks and routes that cannot be used, and the commands that say what a configuration comes to.

use super::CLOSED;
use super::common::case::case;
use super::common::{Place, TABLE, finish};

#[test]
fn settings() {
    let place = Place::new();
    let relay = |more: &[&'static str]| {
        ["relay", "--table", TABLE].into_iter().chain(more.iter().copied()).collect::<Vec<_>>()
    };
    let sunk = |more: &[&'static str]| relay(&[&["--sink", "null:"], more].concat());
    place.file("typo.toml", "[relay]\nbatchsize = 5\n");
    place.file("broken.toml", "database_url = \"postgres://app:Zq9@db\nx");
    let (invalid, unknown) = ("OUTBOX_CONFIG_INVALID", "OUTBOX_CONFIG_UNKNOWN_KEY");
    for case in [
        case(
            "key in the file",
            &sunk(&["--config", "typo.toml"]),
            2,
            unknown,
            &["Did you mean relay.batch_size?", "typo.toml:2"],
        ),
        case("variable", &sunk(&[]), 2, unknown, &["Did you mean OUTBOX_RELAY_BATCH_SIZE?"])
            .env("OUTBOX_RELAY_BATCHSIZE", "5"),
        case(
            "flag",
            &sunk(&["--batchsize", "5"]),
            2,
            unknown,
            &["Did you mean --batch-size?", "next: postbox relay --help"],
        ),
        case("flag with a secret", &sunk(&["--databse-url=postgres://app:Zq9@db/app"]), 2, unknown, &[]),
        case("secret out of place", &sunk(&["postgres://app:Zq9@db/app"]), 2, unknown, &[]),
        case("command", &["realy"], 2, unknown, &["Did you mean relay?"]),
        case("file", &sunk(&["--config", "broken.toml"]), 2, "OUTBOX_CONFIG_FILE", &["broken.toml:1"]),
        case("no file", &sunk(&["--config", "none.toml"]), 2, "OUTBOX_CONFIG_FILE", &["none.toml"]),
        case(
            "batch",
            &sunk(&["--batch-size", "0"]),
            2,
            invalid,
            &["relay.batch_size = \"0\" is out of range (from --batch-size)"],
        ),
        case(
            "lease",
            &sunk(&["--lock-ttl", "10s"]),
            2,
            invalid,
            &["less than 1.5 × relay.dispatch_timeout", "next: give --lock-ttl at least 45s"],
        ),
        case(
            "tenants",
            &sunk(&["--tenants", "acme,acme"]),
            2,
            invalid,
            &["relay.tenants = \"acme,acme\" names \"acme\" twice (from --tenants)"],
        ),
        case("no sink", &relay(&[]), 2, "OUTBOX_CONFIG_MISSING", &["sink is not set", "OUTBOX_SINK"]),
        case("log format", &sunk(&["--log-format", "xml"]), 2, invalid, &["text, json"]),
        case("code", &["explain", "TABEL_MISSING"], 2, invalid, &["Did you mean TABLE_MISSING?"]),
    ] {
        case.check(&place);
    }
}

#[test]
fn sinks_and_routes() {
    let place = Place::new();
    let relay = |more: &[&'static str]| {
        ["relay", "--table", TABLE].into_iter().chain(more.iter().copied()).collect::<Vec<_>>()
    };
    place.file("option.toml", "sink = \"a\"\n[sinks.a]\nurl = \"file:x.jsonl\"\npassword = \"Zq9\"\n");
    place.file("place.toml", "[[route]]\ntopic = \"**\"\nsink = \"null:\"\ndestination = \"{tpoic}\"\n");
    place.file("route.toml", "[[route]]\ntopic = \"org.*x\"\nsink = \"null:\"\n");
    place.file(
        "nowhere.toml",
        "[[route]]\ntopic = \"org.**\"\nsink = \"mian\"\n[sinks.main]\nurl = \"null:\"\n",
    );
    let (invalid, bad_sink) = ("OUTBOX_CONFIG_INVALID", "OUTBOX_SINK_INVALID");
    for case in [
        case("sink", &relay(&["--sink", "ftp://app:Zq9@host/x"]), 2, bad_sink, &["the scheme is not known"]),
        case("sink without a path", &relay(&["--sink", "file:"]), 2, bad_sink, &["the path is empty"]),
        case(
            "option of a sink",
            &relay(&["--config", "option.toml"]),
            2,
            bad_sink,
            &["it has no option password; it takes none", "option.toml:2"],
        ),
        case(
            "destination",
            &relay(&["--config", "place.toml"]),
            2,
            invalid,
            &["{tpoic} is not known; there are {topic}"],
        ),
        case("sink by name", &relay(&["--sink", "nobody"]), 2, invalid, &["not in [sinks]"]),
        case("sink in the file", &relay(&["--config", "nowhere.toml"]), 2, invalid, &["Did you mean main?"]),
        case(
            "pattern",
            &relay(&["--config", "route.toml"]),
            2,
            "OUTBOX_ROUTE_INVALID",
            &["a star stands for a whole segment"],
        ),
        case(
            "check",
            &["config", "check", "--sink", "file:", "--table", "A"],
            2,
            bad_sink,
            &["OUTBOX_TABLE_NAME_INVALID"],
        ),
        case(
            "check the pattern",
            &["config", "check", "--config", "route.toml"],
            2,
            "OUTBOX_ROUTE_INVALID",
            &[],
        ),
    ] {
        case.check(&place);
    }
}

/// What a relay refuses at its start, a check of the configuration refuses too, and a doctor names.
#[test]
fn relay_check_and_doctor_agree() {
    let place = Place::new();
    let (invalid, unsupported) = ("OUTBOX_CONFIG_INVALID", "OUTBOX_CONFIG_UNSUPPORTED");
    for (more, code, says) in [
        (&["--tenants", "acme"][..], invalid, "relay.single_active = false"),
        (&["--fair-tenants", "--ordering", "aggregate"], invalid, "do not go together"),
        (&["--claim", "owner", "--single-active=false"], unsupported, "several relays share the table"),
        (&["--claim", "owner", "--fair-tenants"], unsupported, "tenants share the table"),
        (&["--claim", "owner", "--database-url", "sqlite:postbox.db"], unsupported, "SQLite"),
    ] {
        let on = |words: &[&'static str]| [words, &["--table", TABLE, "--sink", "null:"], more].concat();
        case("relay", &on(&["relay"]), 2, code, &[says]).check(&place);
        case("check", &on(&["config", "check"]), 2, code, &[says]).check(&place);
        let doctor = place.run(&on(&["doctor"]));
        assert!(doctor.code == 3 && doctor.stdout.contains(says), "{doctor:#?}");
    }
    // Who does not relay is not kept from anything.
    let mut command = place.command(&["status", "--table", TABLE]);
    command.envs([("OUTBOX_RELAY_TENANTS", "acme"), ("OUTBOX_RELAY_CLAIM", "owner")]);
    let status = finish(command, "");
    assert_eq!(status.code, 0, "{status:#?}");
}

/// A program that has the sink takes the URL, and waits for the broker.
#[cfg(not(feature = "kafka"))]
#[test]
fn a_sink_of_another_build() {
    let relay = ["relay", "--table", TABLE, "--sink", "kafka://app:Zq9@broker/x"];
    case("kafka", &relay, 2, "OUTBOX_SINK_INVALID", &["no Kafka sink"]).check(&Place::new());
}

#[test]
fn config_check_and_show_and_explain() {
    let place = Place::empty();
    let whole = ["config", "check", "--sink", "null:", "--table", TABLE];
    assert_eq!(place.ok(&whole), "the configuration can be used\n");
    let lacks = |more: &[&str], needed: &str| {
        let said = place.ok(&[&["config", "check"], more].concat());
        assert_eq!(
            said,
            format!("nothing is wrong with these settings; postbox relay also needs {needed}\n")
        );
    };
    lacks(&[], "relay.tables and sink");
    lacks(&["--table", TABLE], "sink");
    lacks(&["--sink", "null:"], "relay.tables");
    assert_eq!(place.json(&["config", "check", "--table", TABLE])["needed"], serde_json::json!(["sink"]));
    let doubtful = place.run(&["config", "check", "--cleaner-dead-retention", "1m"]);
    assert_eq!(doubtful.code, 3, "{doubtful:?}");
    assert!(doubtful.stdout.starts_with("warning: cleaner.dead_retention = 1m"), "{doubtful:?}");
    let mut command = place.command(&["config", "show"]);
    command.env("DATABASE_URL", CLOSED);
    let shown = finish(command, "");
    assert!(
        shown.stdout.contains("postgres://app:***@127.0.0.1:1/app") && !shown.stdout.contains("Zq9"),
        "{shown:?}"
    );
    assert_eq!(place.json(&["config", "show", "--batch-size", "7"])["settings"][12]["value"], 7);
    let explained = place.ok(&["explain", "OUTBOX_TABLE_MISSING"]);
    assert!(explained.contains("does not exist") && explained.contains("next: "), "{explained}");
    assert!(place.ok(&["explain"]).lines().count() >= 30);
    assert!(place.json(&["explain"])["codes"].as_array().unwrap().len() >= 30);
    assert_eq!(place.json(&["explain", "timeout"])["code"], "OUTBOX_TIMEOUT");
    assert!(place.ok(&["--version"]).starts_with("postbox "));
    let help = place.run(&[]);
    assert_eq!(help.code, 2);
}

/// `postbox … | head -0`: the reader goes before the program has written.
#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let place = Place::empty();
    let mut command = place.command(&["migrate", "print", "--table", TABLE]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&["migrate", "print", "--table", TABLE]);
    let output = command.stdout(full).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot write to standard output"));
}
