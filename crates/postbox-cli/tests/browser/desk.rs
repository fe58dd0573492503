//! Somebody at a desk: a table with some history, a relay that serves the dashboard, and a browser that looks at it.

use std::path::Path;

use postbox_testkit::{Browser, Program, eventually_blocking};

use crate::common::{LONG, Place, TABLE, TOPIC};

/// The database, the relay and the browser of a test.
pub(crate) struct Desk {
    pub(crate) browser: Browser,
    pub(crate) relay: Program,
    pub(crate) place: Place,
    /// Where the dashboard is, with a slash at the end.
    pub(crate) url: String,
}

/// A desk, or leaves the current test with the reason why there is no browser.
macro_rules! desk {
    ($place:expr) => {
        desk!($place, &[], &[])
    };
    ($place:expr, $args:expr, $env:expr) => {{
        let browser = postbox_testkit::broker_or_skip!(postbox_testkit::Browser::open());
        crate::desk::Desk::open(browser, $place, $args, $env)
    }};
}
pub(crate) use desk;

impl Desk {
    /// Starts the relay with the dashboard, and opens its first page.
    pub(crate) fn open(browser: Browser, place: Place, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut all = vec!["--dashboard", "--admin-listen", "127.0.0.1:0"];
        all.extend(args);
        let relay = place.relay_with(&all, env);
        let line = relay.wait_for_line("dashboard on http://", LONG);
        let url = format!("http://{}", line.split("http://").nth(1).unwrap().trim());
        let desk = Self { browser, relay, place, url };
        desk.browser.goto(&desk.url);
        desk
    }

    /// Goes to a page by its address, as from a link in an alert.
    #[track_caller]
    pub(crate) fn goto(&self, page: &str) {
        // Away first: another part of the same address is no new page to the browser.
        self.browser.goto("about:blank");
        self.browser.goto(&format!("{}#/{page}", self.url));
    }

    /// Waits until this many rows meet a condition.
    #[track_caller]
    pub(crate) fn wait_for_rows(&self, rows: usize, condition: &str) {
        let look = || self.place.count(condition) == rows;
        eventually_blocking(&format!("{rows} rows with {condition}"), LONG, look);
    }
}

/// Events that were published an hour ago, one a second.
pub(crate) fn sent(place: &Place, events: usize) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, aggregate_type, aggregate_id, payload, created_at, available_at, published_at)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', '{TOPIC}', 'organization', n::text,
                jsonb_build_object('n', n), t, t, t + interval '12 ms'
         FROM generate_series(1, {events}) n, LATERAL (SELECT now() - interval '1 hour' + n * interval '10 ms' AS t) x"
    ));
}

/// Events that died of one thing.
pub(crate) fn bury(place: &Place, events: usize, topic: &str, error: &str) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, aggregate_type, aggregate_id, payload, created_at, available_at, dead_at, attempts, last_error)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', '{topic}', 'member', n::text, '{{\"member\": 7}}',
                now() - interval '20 minutes', now() - interval '10 minutes', now() - n * interval '1 second', 25, $error${error} $error$ || n
         FROM generate_series(1, {events}) n"
    ));
}

/// Where the book keeps the pictures of pages.
pub(crate) fn pictures() -> Option<std::path::PathBuf> {
    let wanted = std::env::var_os("POSTBOX_PICTURES")?;
    (wanted != "0").then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/img/dashboard"))
}
