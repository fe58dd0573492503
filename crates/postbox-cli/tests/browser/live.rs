//! What pages show by themselves while time goes by: and what they do not, once they are told to stop.

use postbox_testkit::{Browser, broker_or_skip};

use crate::common::{LONG, Place};
use crate::desk::{Desk, desk};

/// Notes every request and every stream of the page from now on.
const NOTE: &str = "window.asked = []; window.streams = []; window.unanswered = 0;
    const [ask, Stream] = [window.fetch, window.EventSource];
    window.fetch = (...about) => {
        window.asked.push(String(about[0]));
        window.unanswered += 1;
        return ask(...about).finally(() => { window.unanswered -= 1; });
    };
    window.EventSource = class extends Stream {
        constructor(...about) { super(...about); window.asked.push(String(about[0])); window.streams.push(this); }
    };";

#[test]
fn a_page_that_is_stopped_asks_for_nothing_until_it_goes_on() {
    let desk = desk!(Place::new());
    desk.goto("events");
    desk.browser.see("live");
    desk.browser.run(NOTE, &[]);
    // Once off and on, so that the stream is one that is noted.
    desk.browser.keys("p");
    desk.browser.see("stopped");
    desk.browser.keys("p");
    desk.browser.wait("a stream and a page of events", "window.streams.length && window.asked.length > 1");
    desk.browser.see("live");
    desk.browser.keys("p");
    desk.browser.see("stopped");
    // What was asked before may still be shown.
    desk.browser.wait("the last answer", "window.unanswered === 0");
    desk.place.insert(1);
    desk.place.wait_for_delivered(1);
    // Events are asked for every 4 seconds, overviews come every 2: what is shown by the absence of both needs its time.
    desk.browser.run("window.asked = []; window.since = performance.now()", &[]);
    desk.browser.wait("two rounds to pass", "performance.now() - window.since > 9000");
    let asked = desk.browser.run("return JSON.stringify(window.asked)", &[]);
    assert_eq!(asked, "[]", "while it is stopped");
    let open = "return window.streams.filter((one) => one.readyState !== 2).length";
    assert_eq!(desk.browser.run(open, &[]), 0, "a stream is open");
    assert!(!desk.browser.text().contains("org.organization.created.v1"), "{}", desk.browser.text());
    desk.browser.keys("p");
    desk.browser.see("org.organization.created.v1");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_take_over_is_marked_on_the_charts() {
    let browser = broker_or_skip!(Browser::open());
    let place = Place::new();
    let mut leader = place.relay(&["--listen", "127.0.0.1:0"]);
    leader.wait_for_line("standing=Active", LONG);
    let desk = Desk::open(browser, place, &[], &[]);
    desk.goto("table");
    desk.browser.see("epoch 1");
    desk.browser.see("standby");
    let marks = "document.querySelectorAll('.chart-mark').length";
    desk.browser.wait("a chart", "document.querySelector('.chart')");
    assert_eq!(desk.browser.run(&format!("return {marks}"), &[]), 0, "nobody has taken over");
    leader.kill9();
    desk.browser.see("epoch 2");
    // On each of the four.
    desk.browser.wait("marks", &format!("{marks} === 4"));
    let says = desk.browser.run("return document.querySelector('.chart-mark title').textContent", &[]);
    assert_eq!(says, "another relay took over: epoch 2");
    desk.browser.see("┊ another relay took over");
    // The server remembers it for those who come later.
    desk.goto("overview");
    desk.browser.wait("a mark there", &format!("{marks} > 0"));
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_next_probe_of_a_sink_is_counted_down() {
    let place = Place::new();
    place.insert(1);
    let mut desk = desk!(place, &["--sink", "file:missing/out.jsonl"], &[]);
    desk.goto("sinks");
    desk.browser.see("circuit open");
    let left = "Number(document.body.innerText.match(/next probe in (\\d+)s/)?.[1] ?? 0)";
    desk.browser.wait("some seconds to the next probe", &format!("{left} >= 5"));
    // By the page's own clock: it goes on while the server says nothing.
    desk.relay.sigstop();
    desk.browser.wait("the last of them", &format!("[1, 2].includes({left})"));
    desk.browser.see("probing now");
    desk.relay.sigcont();
    desk.browser.see("missing");
    std::fs::create_dir(desk.place.dir.path().join("missing")).unwrap();
    desk.wait_for_rows(1, "published_at IS NOT NULL");
    desk.browser.see("works");
    desk.browser.wait("no countdown", "!document.body.innerText.includes('next probe')");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_overview_has_rates_and_lag_of_each_table_and_sink() {
    let desk = desk!(Place::new());
    desk.goto("overview");
    desk.browser.see("live");
    desk.place.insert(5);
    desk.browser.see("Lag p50 / p99");
    for what in ["Tables", "Sinks"] {
        let cells = format!("[...document.querySelectorAll('[aria-label=\"{what}: rows\"] tbody td')]");
        let lag = format!("{cells}.some((cell) => /^[\\d.]+m?s \\/ [\\d.]+m?s$/.test(cell.textContent))");
        desk.browser.wait(&format!("the lag of {what}"), &lag);
    }
    desk.goto("sinks");
    let delivers =
        "[...document.querySelectorAll('dd')].some((fact) => /\\/s, lag .* \\/ /.test(fact.textContent))";
    desk.browser.wait("what goes there", delivers);
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_is_not_known_is_not_said_to_be_well_or_amiss() {
    let desk = desk!(Place::new());
    let script = "const tell = arguments[arguments.length - 1];
        import(new URL('assets/pages/overview.js', document.baseURI)).then(({ nobody, seen, waits }) => {
            const text = (part) => part.textContent ?? String(part);
            const table = { layout: 'full', single_active: true };
            tell([
                nobody(table, 'no leader'), nobody({ ...table, single_active: false }, 'no leader'),
                nobody({ ...table, layout: 'bare' }, 'no leader'), nobody({ layout: null }, 'no leader'),
                waits(null, null), waits(0, 0), waits(2, 38),
                seen({ error: null, at: '2026-01-01T00:00:00Z' }), seen({ error: {}, at: '2026-01-01T00:00:00Z' }),
            ].map((part) => part === null ? 'null' : text(part).replace(/of .* ago/, 'of then')).join('|'));
        });";
    let said = desk.browser.run_async(script, &[]);
    let known = "no leader|none is needed: relays may share it|not known: the table is bare|–|false|nothing waits|oldest 38s|null|numbers of then";
    assert_eq!(said.as_str(), Some(known));
}
