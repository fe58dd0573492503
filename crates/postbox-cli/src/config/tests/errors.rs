//! Every kind of error, in the words that people see.

use super::super::{Config, SETTINGS, environment};
use super::Start;

const INVALID: &str = "OUTBOX_CONFIG_INVALID";
const UNSUPPORTED: &str = "OUTBOX_CONFIG_UNSUPPORTED";
const UNKNOWN: &str = "OUTBOX_CONFIG_UNKNOWN_KEY";
const FILE: &str = "OUTBOX_CONFIG_FILE";

fn file(text: impl Into<Vec<u8>>) -> Start {
    Start::default().file(text)
}

#[test]
fn unknown_keys_have_their_path_line_and_a_guess() {
    assert_eq!(
        file("sink = \"stdout:\"\n\n[relay]\nbatchsize = 5\n").error(UNKNOWN),
        "error[OUTBOX_CONFIG_UNKNOWN_KEY]: unknown key relay.batchsize. Did you mean relay.batch_size? (from postbox.toml:4)\n  \
         next: correct or remove it; `postbox config show` lists every setting      more: postbox explain OUTBOX_CONFIG_UNKNOWN_KEY"
    );
    for (text, guess) in [
        ("batch_size = 5", "relay.batch_size"),
        ("databse_url = \"x\"", "database_url"),
        ("relay.lock-ttl = \"1m\"", "relay.lock_ttl"),
        ("[realy]\nbatch_size = 1", "relay"),
        ("[cleaner]\nbatch_size = 1", "relay.batch_size"),
        ("[[routes]]\ntopic = \"**\"", "route"),
        ("[sink.a]\nurl = \"stdout:\"", "sink"),
        ("[[route]]\ntopic = \"**\"\nsink = \"stdout:\"\nsnik = 1", "sink"),
    ] {
        let errors = file(text).errors();
        let (_, error) = &errors[0];
        let wanted = if text.starts_with("[sink.a]") {
            "sink has the wrong type".to_owned()
        } else {
            format!("Did you mean {guess}?")
        };
        assert!(error.contains(&wanted), "{text}: {error}");
    }
    for text in [
        "colour = 1",
        "[relay]\ncolour = 1",
        "[relay.deep.er]\nx = 1",
        "\"\" = 1",
        "\"a\\nb\\u0000\" = 1",
        "[x]",
    ] {
        let error = file(text).error(UNKNOWN);
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(!error.contains('\u{0}'));
    }
    let error = file(format!("{} = 1", "k".repeat(10_000))).error(UNKNOWN);
    assert!(error.len() < 500, "{error}");
}

#[test]
fn unknown_variables_of_ours_are_errors() {
    let error = Start::default().env("OUTBOX_RELAY_BATCHSIZE", "secret5").error(UNKNOWN);
    assert!(error.contains("OUTBOX_RELAY_BATCHSIZE. Did you mean OUTBOX_RELAY_BATCH_SIZE?"), "{error}");
    assert!(!error.contains("secret5"));
    let error = Start::default().env("OUTBOX_CLEANER_COLOUR", "").error(UNKNOWN);
    assert!(error.contains("no such setting"), "{error}");
    Start::default().env("OUTBOX_RELAY_", "x").error(UNKNOWN);
    Start::default().env("OUTBOX_RELAY_PORT", "9000").error(UNKNOWN);
    // Others' names, also those of other programs that use an outbox, are none of our business.
    Start::default().env("OUTBOX_COLOUR", "1").env("PATH", "x").env("POSTBOX_X", "y").config();
}

#[test]
fn a_slip_of_the_finger_in_a_shared_name_is_an_error() {
    for (name, guess) in [
        ("OUTBOX_SNIK", "OUTBOX_SINK"),
        ("OUTBOX_DASHBORD", "OUTBOX_DASHBOARD"),
        ("OUTBOX_DIRECT_ULR", "OUTBOX_DIRECT_URL"),
        ("OUTBOX_RELYA_TABLES", "OUTBOX_RELAY_TABLES"),
        ("OUTBOX_DEADLETTER", "OUTBOX_DEAD_LETTER"),
    ] {
        let error = Start::default().env(name, "secret5").error(UNKNOWN);
        assert!(error.contains(&format!("variable {name}. Did you mean {guess}?")), "{error}");
        assert!(!error.contains("secret5"), "{error}");
    }
    for name in
        ["OUTBOX_TOPIC", "OUTBOX_TABLE", "OUTBOX_HOST", "OUTBOX_DB_URL", "OUTBOX_", "OUTBOX_DIRECT_URL_EU"]
    {
        Start::default().env(name, "x").config();
    }
}

/// Other commands take these settings: only a relay cannot work with them.
#[test]
fn what_no_relay_can_do() {
    for (given, code, says) in [
        (&["--tenants=acme"][..], INVALID, "relay.tenants needs relay.single_active = false"),
        (&["--tenants=acme", "--single-active=false", "--ordering=aggregate"], INVALID, "do not go together"),
        (&["--fair-tenants", "--ordering=aggregate"], INVALID, "relay.fair_tenants and relay.ordering"),
        (&["--claim=owner", "--single-active=false"], UNSUPPORTED, "several relays share the table"),
        (&["--claim=owner", "--fair-tenants"], UNSUPPORTED, "tenants share the table"),
    ] {
        let config = Start::default().flags(given.iter().copied()).config();
        let errors = config.check_relay();
        let [error] = errors.as_slice() else { panic!("{given:?}: {errors:?}") };
        let text = error.to_string();
        assert!(error.code.as_str() == code && text.contains(says) && text.contains("(from --"), "{text}");
    }
    for given in [&["--tenants=acme", "--single-active=false"][..], &["--fair-tenants"], &["--claim=owner"]] {
        let config = Start::default().flags(given.iter().copied()).config();
        assert!(config.check_relay().is_empty(), "{given:?}");
    }
}

#[test]
fn what_a_relay_needs_is_named() {
    let needed = |text: &str| file(text).config().needed().join(", ");
    assert_eq!(needed(""), "relay.tables, sink");
    assert_eq!(needed("sink = \"null:\"\nrelay.tables = [\"a\"]"), "");
    assert_eq!(needed("relay.enabled = false\ncleaner.tables = [\"a\"]"), "");
    assert_eq!(needed("relay.enabled = false"), "relay.tables");
    assert_eq!(needed("relay.enabled = false\ncleaner.enabled = false"), "");
    assert_eq!(
        needed("relay.enabled = false\ncleaner.enabled = false\nadmin.enabled = true"),
        "relay.tables"
    );
    let two = "sink = \"null:\"\n[[database]]\nname = \"a\"\nurl = \"sqlite:a\"\ntables = [\"a\"]\n\
               [[database]]\nname = \"b\"\nurl = \"sqlite:b\"\n";
    assert_eq!(needed(two), "tables of the database b");
}

#[test]
fn a_kubernetes_service_called_outbox_relay_does_no_harm() {
    let mut start = Start::default();
    for (name, value) in [
        ("OUTBOX_RELAY_SERVICE_HOST", "10.0.0.1"),
        ("OUTBOX_RELAY_SERVICE_PORT", "9000"),
        ("OUTBOX_RELAY_SERVICE_PORT_METRICS", "9000"),
        ("OUTBOX_RELAY_PORT", "tcp://10.0.0.1:9000"),
        ("OUTBOX_RELAY_PORT_9000_TCP", "tcp://10.0.0.1:9000"),
        ("OUTBOX_RELAY_PORT_9000_TCP_PROTO", "tcp"),
        ("OUTBOX_RELAY_PORT_9000_TCP_ADDR", "10.0.0.1"),
        ("OUTBOX_CLEANER_EU_SERVICE_HOST", "10.0.0.2"),
    ] {
        start = start.env(name, value);
    }
    start.config();
}

#[test]
fn every_choice_of_the_contract_is_known() {
    for (name, value) in [
        ("OUTBOX_RELAY_CLAIM", "auto"),
        ("OUTBOX_RELAY_CLAIM", "lease"),
        ("OUTBOX_RELAY_CLAIM", "owner"),
        ("OUTBOX_RELAY_HISTORY", "keep"),
        ("OUTBOX_RELAY_HISTORY", "move"),
        ("OUTBOX_RELAY_HISTORY", "none"),
        ("OUTBOX_RELAY_ORDERING", "none"),
        ("OUTBOX_RELAY_ORDERING", "aggregate"),
        ("OUTBOX_RELAY_FAIR_TENANTS", "0"),
        ("OUTBOX_RELAY_FAIR_TENANTS", "1"),
        ("OUTBOX_RELAY_TENANTS", "11111111-1111-4111-8111-111111111111,acme"),
    ] {
        Start::default().env(name, value).config();
    }
    file("relay.tenants = []").config();
}

#[test]
fn a_file_that_cannot_be_read() {
    let error = Start::default().env("POSTBOX_CONFIG", "nowhere.toml").error(FILE);
    assert!(error.contains("nowhere.toml") && error.contains("POSTBOX_CONFIG"), "{error}");
    let error = Start::default().flags(["--config", "."]).error(FILE);
    assert!(error.contains("(from --config)"), "{error}");
    let error = file(b"# ok\nsink = \"\xff\"").error(FILE);
    assert!(error.contains("not UTF-8 in line 2") && error.contains("next: save it as UTF-8"), "{error}");
    assert!(file("#".repeat(1_048_577)).error(FILE).contains("more than 1MiB"));
    file("#".repeat(1_048_576)).config();
    if std::path::Path::new("/dev/zero").exists() {
        Start::default().flags(["--config", "/dev/zero"]).error(FILE);
    }
    file("\u{feff}relay.batch_size = 5\r\n").config();
    let deep = format!("x = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(file(deep).load().is_err());
}

#[test]
fn a_syntax_error_does_not_repeat_the_line() {
    let errors = file("\ndatabase_url = \"postgres://app:Zq9@db\nbatch_size = 1\n").errors();
    assert!(errors.iter().all(|(code, _)| *code == FILE), "{errors:?}");
    assert!(errors[0].1.contains("postbox.toml:2"), "{errors:?}");
    assert!(!format!("{errors:?}").contains("Zq9"));
    for text in [
        "database_url = postgres://app:Zq9@db",
        "database_url = 'postgres://app:Zq9@db",
        "database_url = \"\\Zq9\"",
        "database_url = \"a\" Zq9",
        "database_url: \"Zq9\"",
        "Zq9",
        "[Zq9",
        "sink = { url = Zq9 }",
    ] {
        let errors = file(text).errors();
        assert!(
            errors.iter().all(|(code, error)| *code == FILE && error.contains("postbox.toml:1")),
            "{errors:?}"
        );
        assert!(!format!("{errors:?}").contains("Zq9"), "{errors:?}");
    }
    assert!(file("relay.batch_size = 1\nrelay.batch_size = 2").error(FILE).contains("postbox.toml:2"));
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let start = file("colour = 1\nsink = \"nobody\"\n[relay]\nlock_ttl = \"10s\"\nmax_attempts = 0\n")
        .env("OUTBOX_RELAY_BATCH_SIZE", "many")
        .env("OUTBOX_RELAY_COLOUR", "1")
        .flags(["--tenants", "acme,acme"]);
    let errors = start.errors();
    let seen = |code: &str, text: &str| {
        assert!(
            errors.iter().any(|(found, error)| *found == code && error.contains(text)),
            "{text}: {errors:#?}"
        );
    };
    seen(UNKNOWN, "colour");
    seen(UNKNOWN, "OUTBOX_RELAY_COLOUR");
    seen(INVALID, "relay.batch_size = \"many\" is not a whole number (from OUTBOX_RELAY_BATCH_SIZE)");
    seen(INVALID, "relay.max_attempts = \"0\" is out of range (from postbox.toml:5)");
    seen(INVALID, "relay.lock_ttl = 10s is less than 1.5 × relay.dispatch_timeout = 30s");
    seen(INVALID, "sink = \"nobody\" is not in [sinks]");
    seen(INVALID, "relay.tenants = \"acme,acme\" names \"acme\" twice (from --tenants)");
    assert_eq!(errors.len(), 7, "{errors:#?}");
    let json = start.load().unwrap_err().to_json();
    assert_eq!(json["errors"].as_array().unwrap().len(), 7);
    assert_eq!(json["errors"][0]["code"], UNKNOWN);
}

#[test]
fn a_lease_must_cover_a_dispatch() {
    Start::default().flags(["--lock-ttl=45s"]).config();
    let error = Start::default().flags(["--lock-ttl=44999ms"]).error(INVALID);
    assert!(
        error.contains(
            "give --lock-ttl at least 45s, or set OUTBOX_RELAY_DISPATCH_TIMEOUT to at most 29999ms"
        ),
        "{error}"
    );
    // The one that somebody set is at fault.
    let error = Start::default().env("OUTBOX_RELAY_DISPATCH_TIMEOUT", "41s").error(INVALID);
    assert!(
        error.contains("(from OUTBOX_RELAY_DISPATCH_TIMEOUT)") && error.contains("at most 40s"),
        "{error}"
    );
    // A broken one is one error, not two.
    Start::default().flags(["--lock-ttl=1s", "--dispatch-timeout=x"]).error(INVALID);
}

#[test]
fn hazard_45_an_inbox_remembers_as_long_as_its_source_repeats() {
    let start = |given: &[&str]| Start::default().flags(given.iter().copied());
    let kept = |given: &[&str]| start(given).config().inbox_retention().map(|r| r.keep().as_secs() / 3600);
    assert_eq!(kept(&[]), None, "for ever");
    assert_eq!(kept(&["--inbox-retention=30d", "--inbox-source-retention=30d"]), Some(720));
    assert_eq!(kept(&["--inbox-retention=37d", "--cleaner-dead-retention=30d"]), Some(37 * 24));
    // Whoever receives from elsewhere declares what holds there.
    let elsewhere = ["--inbox-retention=2d", "--inbox-source-retention=1d", "--cleaner-dead-retention=30d"];
    assert_eq!(kept(&elsewhere), Some(48));

    let error = start(&["--inbox-retention=29d", "--inbox-source-retention=30d"]).error(INVALID);
    assert!(error.contains("inbox.retention = 29d is less than 30d (inbox.source_retention)"), "{error}");
    assert!(error.contains("next: give --inbox-retention at least 30d"), "{error}");
    let error = start(&["--inbox-retention=30d", "--cleaner-dead-retention=30d"]).error(INVALID);
    assert!(error.contains("is less than 37d (cleaner.retention + cleaner.dead_retention"), "{error}");
    let error = Start::default().env("OUTBOX_INBOX_RETENTION", "3650d").error(INVALID);
    assert!(
        error.contains("dead events are kept for ever") && error.contains("OUTBOX_INBOX_RETENTION"),
        "{error}"
    );
    assert!(error.contains("next: set OUTBOX_INBOX_SOURCE_RETENTION to"), "{error}");
    // A broken one is one error, not two.
    start(&["--inbox-retention=1d", "--inbox-source-retention=x"]).error(INVALID);
    let file = file("[inbox]\nretention = \"1d\"\n").error(INVALID);
    assert!(file.contains("postbox.toml:2"), "{file}");
    let warned = start(&["--inbox-source-retention=1d"]).config().warnings;
    assert_eq!(warned, ["inbox.source_retention has no effect without inbox.retention"]);
}

#[test]
fn wrong_shapes_of_tables() {
    for text in [
        "relay = 1",
        "sinks = 1",
        "route = 1",
        "route = [1]",
        "[[sinks]]\nurl = \"x\"",
        "sinks.a = 1",
        "[[relay]]\nx = 1",
    ] {
        file(text).error(INVALID);
    }
    for setting in SETTINGS {
        let error = file(format!("{} = 1979-05-27", setting.path)).error(INVALID);
        assert!(error.contains(setting.path) && error.contains("postbox.toml:1"), "{error}");
    }
}

#[test]
fn what_a_command_needs_and_nobody_set() {
    let config = Start::default().config();
    let errors = config.require(&["relay.tables", "sink"]).unwrap_err();
    assert_eq!(errors.0.len(), 2);
    let text = errors.to_string();
    assert!(text.contains("error[OUTBOX_CONFIG_MISSING]: relay.tables is not set."), "{text}");
    assert!(
        text.contains("set OUTBOX_RELAY_TABLES or relay.tables in postbox.toml, or give --table"),
        "{text}"
    );
    let routed: Config =
        file("relay.tables = [\"a\"]\n[[route]]\ntopic = \"a.**\"\nsink = \"null:\"").config();
    routed.require(&["relay.tables", "sink"]).unwrap();
}

#[cfg(unix)]
#[test]
fn variables_that_are_not_unicode() {
    use std::os::unix::ffi::OsStringExt as _;
    let bad = std::ffi::OsString::from_vec(b"postgres://app:\xff@db".to_vec());
    let env = environment([("DATABASE_URL".into(), bad.clone()), (bad.clone(), bad)].into_iter());
    let error = Start { env, ..Start::default() }.error(INVALID);
    assert!(error.contains("database_url") && error.contains("not valid Unicode"), "{error}");
}
