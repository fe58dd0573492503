//! Values of flags that say nothing, too much, or the opposite of what is meant.

use super::common::case::case;
use super::common::{Place, TABLE, TOPIC, finish};

/// A script whose variable is not set gives an empty text, which every error contains.
#[test]
fn an_empty_text_does_not_stand_for_everything() {
    let place = Place::new();
    let on = |words: &'static str, flag, text| {
        words.split(' ').chain([flag, text, "--table", TABLE]).collect::<Vec<&str>>()
    };
    let invalid = "OUTBOX_CONFIG_INVALID";
    for words in ["dead discard --yes", "dead replay --yes", "dead list", "events list"] {
        for flag in ["--error", "--topic", "--tenant", "--aggregate"] {
            case(flag, &on(words, flag, ""), 2, invalid, &["it is empty; give a text, or leave"])
                .check(&place);
        }
    }
    for flag in ["--consumer", "--message"] {
        case(flag, &on("inbox forget --yes", flag, ""), 2, invalid, &["it is empty"]).check(&place);
    }
    case("topic", &on("events replay --since 1h", "--topic", " "), 2, invalid, &["it is empty"])
        .check(&place);

    place.insert(3);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'no'"));
    for words in ["dead discard --yes", "dead replay --yes"] {
        assert_eq!(place.run(&on(words, "--error", "")).code, 2, "{words}");
    }
    assert_eq!(place.count("dead_at IS NOT NULL"), 3);
}

#[test]
fn numbers_and_times() {
    let place = Place::new();
    for (words, says) in [
        ("events list --limit -1", "--limit = \"-1\" cannot be used"),
        ("events list --limit 0", "give a whole number from 1 to 100000"),
        ("events list --limit 99999999999999999999", "give a whole number from 1 to 100000"),
        ("inbox list --limit 0", "give a whole number from 1 to 100000"),
        ("dead list --limit 99999999999999999999", "give a whole number from 1 to 4294967295"),
        ("dead replay --all --yes --first 0", "give a whole number from 1 to 18446744073709551615"),
        ("dead replay --all --yes --rate -5/s", "--rate = \"-5/s\" cannot be used"),
        ("dead list --older-than -5s", "--older-than = \"-5s\" cannot be used"),
        ("events list --since -2h", "--since = \"-2h\" cannot be used"),
        (
            "events replay --since 1h --until 2h --yes",
            "it is not after --since; --since 2h --until 1h is from",
        ),
        ("inbox forget --since 1h --until 1h --yes", "it is not after --since"),
        ("clean --cleaner-retention -5s", "cleaner.retention = \"-5s\""),
    ] {
        let args: Vec<&str> = words.split(' ').chain(["--table", TABLE]).collect();
        case(words, &args, 2, "OUTBOX_CONFIG_INVALID", &[says]).check(&place);
    }
    // A text that was forgotten does not take the flag that follows it.
    let forgotten = ["dead", "discard", "--table", TABLE, "--error", "--yes"];
    case("forgotten", &forgotten, 2, "OUTBOX_CONFIG_INVALID", &["a value is required"]).check(&place);
}

#[test]
fn texts_of_events_and_pauses() {
    let place = Place::new();
    let enqueue = |flag: &'static str, value: &'static str| {
        ["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "1", flag, value]
    };
    let long = "x".repeat(1025);
    let pause = |reason: &str| {
        let done = place.run(&["pause", "--table", TABLE, "--reason", reason]);
        assert!(
            place.db.psql("SELECT count(*) FROM postbox_relay WHERE paused_at IS NOT NULL") == "0",
            "{done:?}"
        );
        done
    };
    let invalid = "OUTBOX_CONFIG_INVALID";
    for case in [
        case("tenant", &enqueue("--tenant", ""), 2, invalid, &["it is empty"]),
        case(
            "header",
            &enqueue("--header", "=x"),
            2,
            invalid,
            &["next: give name and value, such as region=eu"],
        ),
        case("delay", &enqueue("--delay", "-5s"), 2, invalid, &["--delay = \"-5s\" cannot be used"]),
        case(
            "topic",
            &["enqueue", "--table", TABLE, "--topic", "Org", "--payload", "1"],
            2,
            "OUTBOX_TOPIC_INVALID",
            &["next: write it as <module>.<aggregate>.<event>.vN"],
        ),
        case("url", &["status", "--table", TABLE], 2, "OUTBOX_DB_URL", &["as in mysql://host/database"])
            .env("DATABASE_URL", "mysql://x"),
    ] {
        case.check(&place);
    }
    for (reason, says) in [(long.as_str(), "longer than 1024 bytes"), ("a\u{1b}[31m", "a control character")]
    {
        let done = pause(reason);
        assert!(done.code == 2 && done.stderr.contains(invalid) && done.stderr.contains(says), "{done:?}");
    }
    assert_eq!(place.run(&["pause", "--table", TABLE, "--reason", &long[1..]]).code, 0);
}

#[test]
fn two_forms_of_a_result_and_what_a_token_is() {
    let place = Place::new();
    let both = ["status", "--check", "--format", "nagios", "--json", "--table", TABLE];
    let done = finish(place.command(&both), "");
    assert!(done.code == 2 && done.stdout.is_empty(), "{done:?}");
    assert!(done.stderr.contains("--format nagios and --json exclude each other"), "{done:?}");
    assert_eq!(place.run(&["status", "--check", "--format", "text", "--json", "--table", TABLE]).code, 0);
    let help = place.ok(&["relay", "--help"]);
    assert!(help.contains("--viewer-tokens <TOKEN>") && help.contains("--operator-tokens <TOKEN>"), "{help}");
}
