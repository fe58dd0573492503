//! The built example under its chaos switch, for some seconds.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::process::Command;
use std::time::Duration;

use postbox_testkit::{NatsServer, Program, broker_or_skip};

/// As long as the audit waits at most, and some.
const LONG: Duration = Duration::from_mins(2);

#[test]
fn the_books_balance_whatever_is_killed() {
    // The example starts one of its own; this only says whether the machine has one.
    drop(broker_or_skip!(NatsServer::try_start()));
    let mut program = Program::spawn(
        env!("CARGO_BIN_EXE_exactly-once"),
        &["--chaos", "--for", "8s", "--customers", "4"],
        &[],
    );
    let status = program.wait(LONG);
    let said = program.stdout();
    assert!(status.success(), "{said}\n{}", program.stderr());
    assert!(said.contains("the books balance") && said.contains("killed: "), "{said}");
    assert!(!said.contains("killed: nothing"), "{said}");
}

#[test]
fn what_it_does_not_know_it_says() {
    let run = Command::new(env!("CARGO_BIN_EXE_exactly-once")).arg("--cahos").output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("what is \"--cahos\"?"));
}
