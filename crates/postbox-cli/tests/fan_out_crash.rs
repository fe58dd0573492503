//! Crashes of the built program on the way to several sinks, and to that for dead events.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::fan_out::{CONFIG, lines, relay, wait_for};
use common::{LONG, Place, TABLE, distinct};
use postbox_testkit::eventually_blocking;

#[test]
fn a_crash_between_the_sinks_and_the_settle_loses_nothing() {
    for strategy in ["lease", "owner"] {
        let place = Place::new();
        place.file("postbox.toml", CONFIG);
        std::fs::create_dir(place.dir.path().join("later")).unwrap();
        place.insert(30);
        for _ in 0..2 {
            let mut program =
                relay(&place, &["--claim", strategy], &[("POSTBOX_FAILPOINTS", "settle.before=abort")]);
            assert_eq!(program.wait(LONG).code(), None, "aborted");
        }
        let mut program = relay(&place, &["--claim", strategy], &[]);
        eventually_blocking("all to be published", LONG, || place.count("published_at IS NULL") == 0);
        program.sigterm();
        assert_eq!(program.wait(LONG).code(), Some(0));
        for file in ["main.jsonl", "later/audit.jsonl"] {
            let delivered = lines(&place, file);
            assert_eq!(distinct(&delivered), 30, "{strategy} {file}");
            assert!(delivered.len() <= 90, "{strategy} {file}: once more for each crash at most");
        }
    }
}

#[test]
fn a_crash_before_a_dead_letter_is_settled_repeats_it_and_does_not_spin() {
    let place = Place::new();
    place.file("postbox.toml", CONFIG);
    place.ok(&["enqueue", "--table", TABLE, "--topic", "nowhere.to.go.v1", "--payload", "7"]);
    let mut program = relay(&place, &[], &[("POSTBOX_FAILPOINTS", "letters.settle=abort")]);
    assert_eq!(program.wait(LONG).code(), None, "aborted");
    assert_eq!(lines(&place, "dead.jsonl").len(), 1);
    assert_eq!(place.count("dead_at IS NOT NULL AND dlq_at IS NULL AND locked_by IS NOT NULL"), 1);
    // Its lease has to run out; it is then sent by itself, after it was put off for the case that it kills again.
    let mut program = relay(&place, &[], &[("POSTBOX_FAILPOINTS", "letters.settle=abort")]);
    assert_eq!(program.wait(LONG).code(), None, "aborted");
    assert_eq!(place.count("available_at > now() + interval '30 seconds' AND attempts = 1"), 1);
    assert_eq!(lines(&place, "dead.jsonl").len(), 2);
    // In the meantime everybody else goes on.
    let mut program = relay(&place, &[], &[]);
    place.ok(&["enqueue", "--table", TABLE, "--topic", "nowhere.else.to.v1", "--payload", "8"]);
    wait_for(&place, "dead.jsonl", 3);
    eventually_blocking("the other to be settled", LONG, || place.count("dlq_at IS NOT NULL") == 1);
    assert_eq!(lines(&place, "dead.jsonl").len(), 3);
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
}
