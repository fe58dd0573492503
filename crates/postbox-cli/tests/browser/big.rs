//! Many rows: the one dead event is found, and a million do not hurt.

use crate::common::{Place, TABLE, TOPIC, distinct};
use crate::desk::{Desk, bury, desk, sent};

#[test]
fn a_newcomer_replays_the_one_dead_event_among_100_000_in_three_clicks() {
    let place = Place::new();
    sent(&place, 100_000);
    bury(&place, 1, TOPIC, "HTTP 410 from https://hooks.example/members");
    let desk = desk!(place);
    // The first page says what is wrong, and where to go.
    desk.browser.see("1 event is dead");
    desk.browser.press("See what events died of, and replay them →");
    desk.browser.see("HTTP # from https://hooks.example/members");
    desk.browser.press("Replay…");
    desk.browser.see("Replay this event?");
    desk.browser.press("Replay 1");
    // And then the proof.
    desk.browser.wait("the end of the job", "document.querySelector('[data-job=done]')");
    desk.browser.see("1 delivered");
    desk.browser.see("Nothing is dead");
    assert_eq!(distinct(&desk.place.wait_for_delivered(1)), 1);
    desk.wait_for_rows(0, "dead_at IS NOT NULL");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

/// Rows of the table that the server has read so far, by whatever way.
fn rows_read(place: &Place) -> i64 {
    let sql = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'org_outbox'";
    place.db.psql(sql).parse().unwrap()
}

/// How often the program has looked at its tables: once for all who watch.
fn looks(desk: &Desk) -> i64 {
    let script = "const done = arguments[0];
        fetch('api/v1/overview').then((answer) => answer.json()).then(({ version }) => done(version))";
    desk.browser.run_async(script, &[]).as_str().unwrap().parse().unwrap()
}

/// A look may read so many rows, whatever the table holds: less than a tenth of this one, and not all of it.
const MOST_READ: i64 = 100_000;

#[test]
fn a_million_rows_stay_quick() {
    let place = Place::new();
    sent(&place, 900_000);
    place.ok(&["pause", "--table", TABLE]);
    place.insert(100_000);
    bury(&place, 500, TOPIC, "HTTP 410 from a");
    place.db.psql(&format!("VACUUM ANALYZE {TABLE}"));
    let desk = desk!(place);
    desk.browser.see("paused");
    let before = (rows_read(&desk.place), looks(&desk));
    let mut requests = 0;
    for page in [
        "overview",
        "table",
        "events",
        "events?status=dead",
        "events?status=sent",
        "events?order=oldest",
        "dead",
        "blocked",
        "sinks",
        "audit",
    ] {
        desk.goto(page);
        desk.browser.wait("a page", "document.querySelector('h1')");
        desk.browser.wait("an end of looking", "!document.body.innerText.includes('Looking…')");
        assert!(!desk.browser.text().contains("does not answer"), "{page}: {}", desk.browser.text());
        requests += 1;
    }
    desk.goto("events");
    desk.browser.wait("rows", "document.querySelectorAll('tbody tr').length === 50");
    desk.browser.press("Further →");
    desk.browser.wait("the next page", "location.hash.includes('after=')");
    desk.browser.wait("its rows", "document.querySelectorAll('tbody tr').length === 50");
    let (rows, looks) = (rows_read(&desk.place) - before.0, looks(&desk) - before.1 + requests);
    assert!(rows / looks < MOST_READ, "{looks} looks have read {rows} rows");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}
