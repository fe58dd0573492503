//! A skip is seen past the harness, and noted where `cargo xtask test` looks.

use std::time::Duration;

use postbox_testkit::Program;

/// Set for the copy of this test program that skips.
const SKIPPER: &str = "POSTBOX_TESTKIT_SKIPPER";

#[test]
fn a_skip_is_printed_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("skips");
    let exe = std::env::current_exe().unwrap();
    let env = [(SKIPPER, "1"), ("POSTBOX_TEST_SKIPS", notes.to_str().unwrap())];
    let mut skipper = Program::spawn(exe, &["--exact", "skipper"], &env);
    assert!(skipper.wait(Duration::from_secs(20)).success());
    assert!(skipper.stderr().contains("skipped: skipper: no moon tonight\n"), "{}", skipper.stderr());
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "skipper\tno moon tonight\n");
}

/// Not a test by itself: started by [`a_skip_is_printed_and_noted`].
#[test]
fn skipper() {
    if std::env::var_os(SKIPPER).is_some() {
        postbox_testkit::skip!("no {} tonight", "moon");
    }
}
