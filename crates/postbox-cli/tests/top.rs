//! `postbox top` on a real terminal, and without one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::terminal::{Terminal, resize};
use common::{LONG, Place, TABLE};
use postbox_testkit::{Program, eventually_blocking};
use serde_json::Value;

fn late(place: &Place, events: usize) {
    place.insert(events);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET created_at = now() - interval '5 minutes', available_at = now() - interval '5 minutes'"
    ));
}

#[test]
fn a_terminal_shows_the_tables_live() {
    let place = Place::new();
    let mut command = place.command(&["top", "--table", TABLE, "--every", "100ms"]);
    command.env("TERM", "xterm-256color");
    let mut terminal = Terminal::start(command, (80, 24));
    terminal.sees("✓ events flow");
    terminal.sees("q quit");
    late(&place, 7);
    terminal.sees("✗ public.org_outbox: nobody relays, 7 events wait");
    let relay = place.relay(&[]);
    terminal.sees("testhost:");
    place.wait_for_delivered(7);
    eventually_blocking("all is well again", LONG, || terminal.screen().contains("✓ events flow"));
    // What was given up, and of what it died.
    place.insert(1);
    place.wait_for_delivered(8);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET published_at = NULL, dead_at = now(), last_error = 'HTTP 410 from the moon' WHERE sequence = 8"
    ));
    terminal.sees("1 event dead: postbox dead list");
    assert!(!terminal.screen().contains("from the moon"), "{}", terminal.screen());
    terminal.press("d");
    terminal.sees("HTTP # from the moon");
    // A held picture does not change.
    terminal.press("p");
    terminal.sees("  held");
    place.db.psql(&format!("DELETE FROM {TABLE} WHERE dead_at IS NOT NULL"));
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(terminal.screen().contains("1 event dead"), "{}", terminal.screen());
    terminal.press("p");
    terminal.sees("✓ events flow");
    // Smaller, in the middle of it.
    resize(&terminal.keyboard, 40, 6);
    terminal.press("j");
    eventually_blocking("it fits", LONG, || {
        let screen = terminal.screen();
        let fits =
            screen.lines().count() <= 6 && screen.lines().all(|line| line.trim_end().chars().count() <= 40);
        fits && !screen.is_empty()
    });
    terminal.press("q");
    let (status, written) = terminal.end();
    assert!(status.success(), "{status:?}");
    assert!(written.ends_with("\u{1b}[?1049l"), "the terminal is given back");
    drop(relay);
}

#[test]
fn without_a_terminal_it_is_one_picture() {
    let place = Place::new();
    late(&place, 3);
    let picture = place.ok(&["top", "--table", TABLE, "--every", "100ms"]);
    assert!(!picture.contains('\u{1b}'), "{picture}");
    assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    let lines: Vec<&str> = picture.lines().collect();
    assert!(lines[0].starts_with("postbox top  ") && lines[0].ends_with(" UTC  1 table"), "{picture}");
    assert_eq!(lines[1], "✗ public.org_outbox: nobody relays, 3 events wait");
    assert!(lines[3].starts_with("TABLE ") && lines[4].starts_with("public.org_outbox nobody "), "{picture}");
    assert!(!picture.contains("q quit"), "{picture}");
    // One that is not there is said so, and is a failure if there is no other.
    let done = place.run(&["top", "--table", "public.ogr_outbox", "--once", "--every", "100ms"]);
    assert!(done.code == 1 && done.stdout.contains("Did you mean public.org_outbox?"), "{done:#?}");
}

#[test]
fn other_programs_read_a_line_for_each_look() {
    let place = Place::new();
    late(&place, 3);
    let mut top =
        Program::from_command(place.command(&["top", "--table", TABLE, "--every", "100ms", "--json"]));
    eventually_blocking("three looks", LONG, || top.stdout().lines().count() >= 3);
    top.sigint();
    assert!(top.wait(LONG).success());
    for line in top.stdout().lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&value["tables"][0]["table"], &value["tables"][0]["counts"]["pending"]),
            (&Value::from(TABLE), &Value::from(3))
        );
    }
    let rate = |value: &Value| value["tables"][0]["written_per_second"].as_f64();
    let all: Vec<Value> = top.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rate(&all[0]), rate(&all[1])), (None, Some(0.0)));
}
