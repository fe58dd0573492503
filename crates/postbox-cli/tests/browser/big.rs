//! Many rows: the one dead event is found, and a million do not hurt.

use postbox_testkit::eventually_blocking;

use crate::common::{LONG, Place, TABLE, TOPIC, distinct};
use crate::desk::{bury, desk, sent};

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
    // What is looked at all the time: half a minute's worth of looks reads less than one look at everything would.
    let before = rows_read(&desk.place);
    for page in ["overview", "table", "events", "events?status=dead", "events?status=sent", "events?order=oldest", "dead", "blocked", "sinks", "audit"] {
        desk.goto(page);
        desk.browser.wait("a page", "document.querySelector('h1')");
        desk.browser.wait("an end of looking", "!document.body.innerText.includes('Looking…')");
        assert!(!desk.browser.text().contains("does not answer"), "{page}: {}", desk.browser.text());
    }
    desk.goto("events");
    desk.browser.wait("rows", "document.querySelectorAll('tbody tr').length === 50");
    desk.browser.press("Further →");
    desk.browser.wait("the next page", "location.hash.includes('after=')");
    desk.browser.wait("its rows", "document.querySelectorAll('tbody tr').length === 50");
    // The server's own counts come a moment later.
    let mut last = -1;
    eventually_blocking("counts that stand still", LONG, || {
        let now = rows_read(&desk.place);
        std::mem::replace(&mut last, now) == now
    });
    let read = last - before;
    assert!(read < 1_000_000, "{read} rows were read for a dozen pages");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}
