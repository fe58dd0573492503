//! The keyboard alone is enough.

use crate::common::{Place, TOPIC};
use crate::desk::{bury, desk, sent};

#[test]
fn keys_go_everywhere() {
    let place = Place::new();
    bury(&place, 5, TOPIC, "HTTP 410 from a");
    bury(&place, 2, TOPIC, "no route");
    sent(&place, 3);
    let desk = desk!(place);
    let browser = &desk.browser;
    browser.wait("the overview", "document.querySelector('.health')");
    for (keys, title) in [
        ("gt", "public.org_outbox"),
        ("gs", "Sinks"),
        ("ge", "Events"),
        ("gb", "Blocked aggregates"),
        ("ga", "Audit"),
        ("gh", "Doctor"),
        ("gi", "Inbox"),
        ("go", "Overview"),
        ("gd", "Dead"),
    ] {
        browser.keys(keys);
        browser.wait(title, &format!("document.querySelector('h1')?.innerText === '{title}'"));
    }
    browser.see("7 events, 2 causes");
    browser.keys("j");
    browser.wait("a cursor", "document.querySelector('.cause.is-here')");
    browser.keys("\n");
    browser.wait("the cause", "location.hash.includes('cause=')");
    browser.wait("its events", "document.querySelectorAll('tbody tr').length === 5");
    browser.keys("jjx");
    browser.see("Replay 1 chosen…");
    browser.keys("kx");
    browser.see("Replay 2 chosen…");
    browser.keys("\n");
    browser.wait("the event", "location.hash.startsWith('#/event/')");
    browser.see("Timeline");
    browser.keys("ge");
    browser.wait("the events", "document.querySelectorAll('tbody tr').length === 10");
    browser.keys("/");
    browser.keys("state:dead error:\"no route\"\n");
    browser.wait("the filter in the address", "location.hash.includes('status=dead')");
    browser.wait("what it leaves", "document.querySelectorAll('tbody tr').length === 2");
    browser.keys("\u{E00C}");
    browser.keys("?");
    browser.see("Stop or go on refreshing");
    browser.keys("\u{E00C}");
    browser.wait("no dialog", "!document.querySelector('dialog')");
    browser.keys("p");
    browser.see("stopped");
    browser.keys("p");
    browser.see("live");
    // There is no inbox here, which the browser notes as a refused request.
    let mut complaints = browser.complaints();
    complaints.retain(|line| !line.contains("/inbox"));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn a_page_that_hears_nothing_says_so() {
    let place = Place::new();
    let mut desk = desk!(place);
    desk.browser.see("live");
    desk.relay.sigstop();
    desk.browser.see("stale for");
    desk.relay.sigcont();
    desk.browser.see("live");
}
