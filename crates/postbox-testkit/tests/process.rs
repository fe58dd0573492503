//! Programs under test: lines, signals, ends.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use postbox_testkit::{Program, eventually_blocking};

const LIMIT: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Program {
    Program::spawn("sh", &["-c", script], &[("GREETING", "hello")])
}

#[test]
fn lines_of_both_streams_are_seen_and_kept_apart() {
    let mut program = sh("echo $GREETING; echo oops >&2; printf 'no end'; exit 3");
    assert_eq!(program.wait_for_line("ell", LIMIT), "hello");
    assert_eq!(program.wait_for_line("oops", LIMIT), "oops");
    // Once more: a line that has been seen can be asked for again.
    assert_eq!(program.wait_for_line("ell", LIMIT), "hello");
    assert_eq!(program.wait(LIMIT).code(), Some(3));
    assert_eq!(program.stdout(), "hello\nno end\n");
    assert_eq!(program.stderr(), "oops\n");
    assert!(!program.is_running());
    program.sigterm();
}

#[test]
fn sigterm_can_be_answered() {
    let mut program = sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done");
    program.wait_for_line("up", LIMIT);
    program.sigterm();
    assert!(program.wait(LIMIT).success());
    assert_eq!(program.stdout(), "up\nbye\n");
}

#[test]
fn a_stopped_program_stands_still_until_it_may_go_on() {
    let mut program = sh("echo up; while :; do sleep 0.01; done");
    program.wait_for_line("up", LIMIT);
    let stat = PathBuf::from(format!("/proc/{}/stat", program.id()));
    let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
    program.sigstop();
    eventually_blocking("the stop", LIMIT, is_stopped);
    program.sigcont();
    eventually_blocking("the continuation", LIMIT, || !is_stopped());
    assert_eq!(program.kill9().signal(), Some(9));
}

#[test]
fn a_dropped_program_is_dead_even_if_stopped() {
    let mut program = sh("exec sleep 100");
    let process = PathBuf::from(format!("/proc/{}", program.id()));
    program.sigstop();
    assert!(process.exists());
    drop(program);
    assert!(!process.exists());
}

#[test]
#[should_panic(expected = "without a line containing \"never\"")]
fn a_program_that_ends_silently_is_not_waited_for() {
    sh("echo something else").wait_for_line("never", Duration::from_mins(10));
}

#[test]
#[should_panic(expected = "still runs after")]
fn waiting_has_a_limit() {
    sh("exec sleep 100").wait(Duration::from_millis(50));
}
