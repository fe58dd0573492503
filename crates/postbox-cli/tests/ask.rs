//! Questions before something is changed for good, on a real terminal.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::terminal::Terminal;
use common::{Place, TABLE, TOPIC};

/// Runs a command on a terminal, answers its question, and gives how it ended and all that was on the screen.
fn asked(place: &Place, words: &str, url: &str, question: &str, answer: &str) -> (Option<i32>, String) {
    let args: Vec<&str> = words.split(' ').chain(["--table", TABLE]).collect();
    let mut command = place.command(&args);
    command.env("DATABASE_URL", url).env("TERM", "xterm");
    let mut terminal = Terminal::start(command, (100, 30));
    terminal.sees(question);
    terminal.press(answer);
    let (status, screen) = terminal.end();
    (status.code(), screen)
}

#[test]
fn a_local_database_wants_a_y_and_another_its_name() {
    let place = Place::new();
    place.insert(9);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'HTTP 410 from ' || sequence"));
    let local = place.db.url.clone();
    // The same server by an address that is not this machine's own name for itself.
    let remote = local.replace("127.0.0.1", "0.0.0.0");
    assert_ne!(local, remote);
    let dead = || place.count("dead_at IS NOT NULL");
    for (url, question, answer) in [
        (&local, "discard them? [y/N] ", "\n"),
        (&local, "discard them? [y/N] ", "no\n"),
        (&local, "discard them? [y/N] ", "\u{4}"),
        (&remote, "to discard: ", "y\n"),
        (&remote, "to discard: ", "\n"),
    ] {
        let (code, screen) = asked(&place, "dead discard --all", url, question, answer);
        assert_eq!((code, dead()), (Some(1), 9), "{answer:?}: {screen}");
        assert!(screen.contains("nothing was changed"), "{screen}");
    }
    let (code, screen) =
        asked(&place, "dead replay --all --first 4 --watch 0", &local, "replay them? [y/N] ", "y\n");
    assert_eq!((code, dead()), (Some(0), 5), "{screen}");
    assert!(screen.contains("UPDATE public.org_outbox SET attempts = 0"), "{screen}");
    let name = place.db.name.clone();
    let question = format!("Type \"{name}\" to discard: ");
    let (code, screen) = asked(&place, "dead discard --all", &remote, &question, &format!("{name}\n"));
    assert_eq!((code, dead()), (Some(0), 0), "{screen}");
}

/// What is asked about is what was there when it was asked.
#[test]
fn what_dies_before_the_answer_is_not_meant() {
    let place = Place::new();
    place.insert(6);
    let bury = |which: &str| {
        place
            .db
            .psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'no' WHERE sequence {which}"));
    };
    for (verb, first, later, left) in [("discard", "<= 2", "= 3", 1), ("replay", "= 4", "> 4", 2)] {
        bury(first);
        let mut command = place.command(&["dead", verb, "--all", "--table", TABLE]);
        command.env("TERM", "xterm");
        if verb == "replay" {
            command.args(["--watch", "0"]);
        }
        let mut terminal = Terminal::start(command, (100, 30));
        terminal.sees("rows in public.org_outbox");
        terminal.sees("them? [y/N] ");
        bury(later);
        terminal.press("y\n");
        let (status, screen) = terminal.end();
        assert_eq!((status.code(), place.count("dead_at IS NOT NULL")), (Some(0), left), "{screen}");
    }
}

/// Somebody locks the table while the question stands, and keeps it.
#[test]
fn a_database_that_hangs_after_the_answer_is_given_up() {
    let place = Place::new();
    place.insert(2);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'no'"));
    let mut command = place.command(&["dead", "discard", "--all", "--table", TABLE]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(command, (100, 30));
    terminal.sees("discard them? [y/N] ");
    let holder = place.hold(&format!("LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE"));
    terminal.press("y\n");
    let (status, screen) = terminal.end();
    assert!(
        status.code() == Some(1) && screen.contains("no answer from the database within 30s"),
        "{screen}"
    );
    drop(holder);
}

#[test]
fn a_table_is_not_removed_by_accident() {
    let place = Place::new();
    let (local, name) = (place.db.url.clone(), place.db.name.clone());
    let remote = local.replace("127.0.0.1", "0.0.0.0");
    let (code, screen) = asked(&place, "migrate down", &local, "remove them? [y/N] ", "n\n");
    assert_eq!((code, place.count("true")), (Some(1), 0), "{screen}");
    let (code, screen) =
        asked(&place, "migrate down", &remote, &format!("Type \"{name}\" to remove: "), "y\n");
    assert_eq!((code, place.count("true")), (Some(1), 0), "{screen}");
    place.ok(&["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "1"]);
    let (code, screen) = asked(&place, "migrate down", &local, "remove them? [y/N] ", "y\n");
    assert!(code == Some(1) && screen.contains("OUTBOX_NOT_EMPTY"), "{screen}");
    let down = "migrate down --discard-unpublished";
    let (code, screen) = asked(&place, down, &remote, "to remove: ", &format!("{name}\n"));
    assert!(code == Some(0) && screen.contains("removed public.org_outbox"), "{screen}");
}

#[test]
fn a_question_that_nobody_would_see_is_not_asked() {
    let place = Place::new();
    place.insert(1);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'no'"));
    let program = place.command(&["dead", "discard", "--all", "--table", TABLE]);
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>said"]).arg(program.get_program()).args(program.get_args());
    let set = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.env_clear().envs(set).current_dir(place.dir.path());
    let mut terminal = Terminal::start(shell, (100, 30));
    let (status, screen) = terminal.end();
    let said = std::fs::read_to_string(place.dir.path().join("said")).unwrap();
    assert_eq!((status.code(), screen.as_str()), (Some(2), ""), "{said}");
    assert!(said.contains("there is no terminal\n  next: pass --yes"), "{said}");
    assert_eq!(place.count("dead_at IS NOT NULL"), 1);
}

/// Whoever is asked sees about what, and gets JSON for an answer if that is wanted.
#[test]
fn a_question_says_what_it_is_about_with_json_too() {
    let place = Place::new();
    place.insert(2);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now(), last_error = 'no' WHERE sequence = 1"));
    let local = place.db.url.clone();
    for (words, verb, about) in [
        ("dead discard --all --json", "discard", "DELETE FROM public.org_outbox WHERE dead"),
        ("dead replay --all --json", "replay", "1 row in public.org_outbox"),
        ("migrate down --json", "remove", "DROP TABLE public.org_outbox: 1 waiting, 1 dead, 0 published"),
    ] {
        let (code, screen) = asked(&place, words, &local, &format!("{verb} them? [y/N] "), "n\n");
        let question = screen.find("[y/N]").unwrap();
        assert_eq!(code, Some(1), "{words}: {screen}");
        assert!(screen[..question].contains(about), "{words}: {screen}");
        assert!(screen[question..].contains("{\"changed\":false}"), "{words}: {screen}");
    }
    assert_eq!(place.count("true"), 2);
}
