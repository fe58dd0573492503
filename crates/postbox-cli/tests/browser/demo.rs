//! The demo, as a newcomer's first page.

use std::process::Command;

use postbox_testkit::{Browser, Program, broker_or_skip};

use crate::common::LONG;

#[test]
fn the_demos_first_page_is_alive() {
    let browser = broker_or_skip!(Browser::open());
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
    command.args(["demo", "--for", "10m", "--rate", "50"]).env_clear().env("TMPDIR", folder.path());
    let mut demo = Program::from_command(command);
    let line = demo.wait_for_line("dashboard http://", LONG);
    browser.goto(line.split_whitespace().find(|word| word.starts_with("http://")).unwrap());
    browser.wait("a sentence", "document.querySelector('.health-text')?.innerText.length > 10");
    browser.wait("events that flow", "/Out\\n[1-9]/.test(document.body.innerText)");
    browser.see("live");
    // One event in 200 dies there: what to do about it is one click away.
    browser.press("See what events died of, and replay them →");
    browser.wait("a cause", "document.querySelector('.cause')");
    browser.press("Replay one…");
    browser.see("postbox dead replay --table shop_outbox");
    browser.press("Replay 1");
    browser.wait("its end", "document.querySelector('[data-job=done]')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    demo.sigint();
    demo.wait(LONG);
}
