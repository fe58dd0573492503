//! The demo as people meet it: on a terminal with somebody at the keys, and in a pipe.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use common::LONG;
use common::terminal::{Terminal, resize, wait, without_escapes};
use postbox_testkit::eventually_blocking;
use rustix::process::Signal;
use tempfile::TempDir;

fn demo(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
    command.arg("demo").args(args).env_clear().env("TERM", "xterm").env("TMPDIR", folder);
    command
}

/// The demo on a terminal, with a folder of its own.
fn on_a_terminal(args: &[&str]) -> (Terminal, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Terminal::start(demo(folder.path(), args), (80, 24)), folder)
}

/// Waits for its end; gives what it left on the terminal.
#[track_caller]
fn end(terminal: &mut Terminal, folder: &TempDir) -> (ExitStatus, String) {
    let (status, written) = terminal.end();
    for (on, off) in [("\u{1b}[?25l", "\u{1b}[?25h"), ("\u{1b}[?7l", "\u{1b}[?7h")] {
        assert!(written.rfind(on) < written.rfind(off), "{on:?} is not taken back");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "it left something in its folder");
    let (_, left) = written.rsplit_once("\u{1b}[?1049l").expect("the screen of before");
    (status, without_escapes(left))
}

#[test]
fn somebody_at_the_keys_kills_and_fails_and_loses_nothing() {
    let (mut terminal, folder) = on_a_terminal(&["--rate", "100"]);
    terminal.sees("k kill the relay · f fail the sink · q end");
    terminal.press("k");
    terminal.sees("relay  ✗ killed; another starts in");
    terminal.sees("from now on trouble comes from you");
    terminal.sees("✓ another relay has taken over: epoch");
    terminal.sees("relay  ● working, epoch");
    terminal.press("f");
    terminal.sees("sink   ✗ the warehouse is closed for");
    terminal.sees("f mend the sink");
    terminal.press("f");
    terminal.sees("sink   ● the warehouse is open");
    terminal.sees("✓ the warehouse is open again");
    // An arrow is no key, and no wish to end.
    terminal.press("\u{1b}[A");
    resize(&terminal.keyboard, 40, 10);
    eventually_blocking("a smaller view", LONG, || {
        let screen = terminal.screen();
        screen.lines().count() <= 10 && screen.lines().all(|line| line.chars().count() <= 40)
    });
    terminal.sees("k kill · f fail · q end");
    terminal.press("q");
    let (status, account) = end(&mut terminal, &folder);
    assert_eq!(status.code(), Some(0), "{account}");
    assert!(account.contains("✓ The books balance."), "{account}");
    assert!(!account.contains("0 kills") && !account.contains("0 outages"), "{account}");
    assert!(account.lines().all(|line| line.chars().count() <= 110), "{account}");
}

#[test]
fn it_ends_by_itself_by_a_signal_or_by_escape_and_gives_the_terminal_back() {
    let mut endings: Vec<(&str, (Terminal, TempDir))> =
        ["by itself", "SIGTERM", "SIGINT", "escape", "Ctrl-C"]
            .map(|name| {
                let args: &[&str] = if name == "by itself" { &["--for", "2s"] } else { &[] };
                (name, on_a_terminal(args))
            })
            .into();
    for (name, (terminal, _)) in &mut endings {
        terminal.sees("written");
        match *name {
            "SIGTERM" => terminal.signal(Signal::TERM),
            "SIGINT" => terminal.signal(Signal::INT),
            "escape" => terminal.press("\u{1b}"),
            "Ctrl-C" => terminal.press("\u{3}"),
            _ => {}
        }
    }
    for (name, (mut terminal, folder)) in endings {
        let (status, account) = end(&mut terminal, &folder);
        assert_eq!(status.code(), Some(0), "{name}: {account}");
        assert!(account.contains("✓ The books balance."), "{name}: {account}");
    }
}

#[test]
fn twice_ends_it_at_once_and_gives_the_terminal_back() {
    let (mut terminal, folder) = on_a_terminal(&[]);
    terminal.sees("written");
    // So that there is something to wait for.
    terminal.press("f");
    terminal.sees("sink   ✗");
    terminal.press("\u{3}\u{3}");
    let (status, words) = end(&mut terminal, &folder);
    assert_eq!((status.code(), words.trim()), (Some(130), "stopped at once: no account"));
}

#[test]
fn in_a_pipe_it_is_plain_lines_and_trouble_comes_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--for", "9s", "--rate", "100"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(output.stderr.is_empty() && !text.contains('\u{1b}'), "{text}");
    for wanted in [
        "  written ",
        "  waiting ",
        "  dead ",
        "✗ the relay was killed",
        "✓ another relay has taken over: epoch 2",
        "✗ the warehouse is closed",
        "The account, after 1 kill of the relay and 1 outage of the sink",
        "✓ The books balance.",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn the_account_is_all_that_json_shows() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--for", "4s", "--rate", "100", "--json"]).output().unwrap();
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &account["balances"]), (Some(0), &true.into()), "{account}");
    for fault in ["missing", "invented", "orders_without_one_event", "events_without_order", "unsettled"] {
        assert_eq!(account[fault], 0, "{account}");
    }
    for fact in ["written", "rolled_back"] {
        assert!(account[fact].as_u64().unwrap() > 0, "{account}");
    }
}

#[test]
fn a_reader_who_has_had_enough_ends_it_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = demo(folder.path(), &[]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
    let mut words = String::new();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(words, "");
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    for (place, args, exit, advice) in [
        (folder.path(), &["--rate", "0"][..], 2, "--rate must be a number from 1 to 1000"),
        (folder.path(), &["--rate", "1000000"], 2, "--rate must be a number from 1 to 1000"),
        (folder.path(), &["--for", "ten"], 2, "--for is not a duration"),
        (&nowhere, &["--for", "1s"], 1, "TMPDIR"),
    ] {
        let output = demo(place, args).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{args:?}: {words}");
        assert!(words.contains(advice), "{args:?}: {words}");
    }
    let output = demo(folder.path(), &["--for", "0s", "--json"]).output().unwrap();
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &account["balances"]), (Some(0), &true.into()), "{account}");
}
