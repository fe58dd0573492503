//! Tokens: who may look, who may change, and what a browser keeps of them.

use postbox_testkit::browser::{axe, keep};

use crate::common::{Place, TOPIC};
use crate::desk::{bury, desk, pictures};

const VIEWER: &str = "a-viewers-token-of-some-length-0123456789";
const OPERATOR: &str = "an-operators-token-of-some-length-0123456";

#[test]
fn a_token_lets_in_and_a_viewer_changes_nothing() {
    let place = Place::new();
    bury(&place, 2, TOPIC, "HTTP 410 from a");
    let tokens = [("OUTBOX_ADMIN_VIEWER_TOKENS", VIEWER), ("OUTBOX_ADMIN_OPERATOR_TOKENS", OPERATOR)];
    let desk = desk!(place, &["--base-path", "/ops/postbox"], &tokens);
    let browser = &desk.browser;
    assert!(desk.url.ends_with("/ops/postbox/"), "{}", desk.url);
    browser.see("Log in with");
    assert!(!browser.text().contains("dead"), "nothing is told to strangers");
    if let Some(folder) = pictures() {
        browser.resize(1120, 740);
        keep(&browser.picture(), &folder.join("login.png"));
    }
    browser.fill("#token", "not-a-token-of-anybody-0123456789");
    browser.press("Log in");
    browser.see("the token is not known");
    // Without axe the test of the other pages says that it is skipped.
    let barriers = axe().map(|axe| browser.barriers(&axe)).unwrap_or_default();
    assert_eq!(barriers, Vec::<String>::new());
    browser.fill("#token", VIEWER);
    browser.press("Log in");
    browser.wait("the overview", "document.querySelector('.health')");
    assert_eq!(browser.run("return document.cookie", &[]), "", "scripts see no cookie");
    assert_eq!(
        browser.run("return JSON.stringify([{...localStorage}, {...sessionStorage}])", &[]),
        "[{},{}]"
    );
    desk.goto("dead");
    browser.see("2 events, 1 cause");
    let pressable = "return [...document.querySelectorAll('main button')].filter((one) => /…$/.test(one.innerText) && !one.disabled).length";
    assert_eq!(browser.run(pressable, &[]), 0, "a viewer can press nothing");
    browser.press("Log out");
    browser.see("Log in with");
    browser.fill("#token", OPERATOR);
    browser.press("Log in");
    // Where one wanted to go one comes to.
    browser.see("2 events, 1 cause");
    assert_ne!(browser.run(pressable, &[]), 0);
    // A wrong token is noted by the browser as a refused request; nothing else is.
    let mut complaints = browser.complaints();
    complaints.retain(|line| !line.contains("401"));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn a_read_only_dashboard_says_so_and_still_shows_the_lines() {
    let place = Place::new();
    bury(&place, 2, TOPIC, "HTTP 410 from a");
    let desk = desk!(place, &["--read-only"], &[]);
    desk.goto("table");
    desk.browser.see("postbox pause");
    let button = "return document.querySelector('[data-key=pause]')";
    desk.browser.wait("a button", "document.querySelector('[data-key=pause]')");
    assert_eq!(desk.browser.run(&format!("{button}.disabled"), &[]), true);
    assert!(desk.browser.run(&format!("{button}.title"), &[]).as_str().unwrap().contains("read-only"));
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}
