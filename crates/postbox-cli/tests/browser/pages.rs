//! Every page, without complaints, open to all, and as a picture in the book.

use postbox_testkit::browser::{axe, keep};

use crate::common::{Place, TABLE, TOPIC};
use crate::desk::{Desk, bury, desk, pictures, sent};

/// The pages: the name of the picture, the address, and an expression that is true once it shows what it is for.
fn pages(desk: &Desk) -> Vec<(&'static str, String, &'static str)> {
    let event = desk.place.db.psql(&format!(
        "SELECT event_id FROM {TABLE} WHERE dead_at IS NOT NULL ORDER BY attempts_log IS NULL LIMIT 1"
    ));
    let causes = desk.place.json(&["dead", "list", "--table", TABLE]);
    let cause = causes["causes"][0]["id"].as_str().unwrap().to_owned();
    let rows = "document.querySelector('tbody tr')";
    vec![
        (
            "overview",
            "overview".to_owned(),
            "document.querySelector('.health') && document.querySelector('.chart')",
        ),
        (
            "table",
            "table".to_owned(),
            "document.querySelector('.chart') && document.querySelector('.facts') && document.querySelector('.cli')",
        ),
        ("sinks", "sinks".to_owned(), "document.querySelector('.sink')"),
        ("events", "events".to_owned(), rows),
        ("event", format!("event/{event}"), "document.querySelector('.timeline')"),
        ("dead", "dead".to_owned(), "document.querySelector('.cause')"),
        ("cause", format!("dead?cause={cause}"), rows),
        ("blocked", "blocked".to_owned(), rows),
        ("inbox", "inbox".to_owned(), rows),
        ("audit", "audit".to_owned(), rows),
        ("doctor", "doctor".to_owned(), "document.querySelector('.finding')"),
    ]
}

/// A table with a past: something of everything that pages show.
fn lived() -> Place {
    let place = Place::empty();
    place.ok(&["migrate", "up", "--ordered", "--inbox", "--table", TABLE]);
    sent(&place, 3000);
    bury(&place, 38, "org.member.added.v1", "HTTP 410 from https://hooks.example/members:");
    bury(&place, 4, "org.member.left.v1", "schema member-left is not known to the registry, version");
    place.db.psql(&format!(
        "UPDATE {TABLE} SET headers = '{{\"content-type\": \"application/json\", \"x-request-id\": \"8f14e45f\"}}',
                traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
                attempts_log = jsonb_build_array(
                    jsonb_build_object('at', dead_at - interval '9 minutes', 'relay', 'pod-7:12', 'duration_ms', 31, 'outcome', 'retry', 'error', 'HTTP 503 from https://hooks.example/members'),
                    jsonb_build_object('at', dead_at - interval '4 minutes', 'relay', 'pod-7:12', 'duration_ms', 28, 'outcome', 'retry', 'error', 'HTTP 503 from https://hooks.example/members'))
         WHERE dead_at IS NOT NULL AND aggregate_id = '7';
         INSERT INTO {TABLE} (event_id, tenant_id, topic, aggregate_type, aggregate_id, payload)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 'org.member.renamed.v1', 'member', (n % 3 + 1)::text, '{{}}'
         FROM generate_series(1, 17) n;
         INSERT INTO {TABLE} (event_id, tenant_id, topic, payload, available_at)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', '{TOPIC}', '{{}}', now() + interval '1 day' FROM generate_series(1, 3);
         INSERT INTO public.org_inbox (consumer, message_id, processed_at)
         SELECT c, gen_random_uuid()::text, now() - n * interval '7 seconds' FROM generate_series(1, 12) n, unnest(ARRAY['stock', 'billing']) c"
    ));
    place.ok(&["pause", "--table", TABLE, "--reason", "moving the broker"]);
    place.ok(&["resume", "--table", TABLE]);
    place
}

fn open(desk: &Desk, address: &str, shown: &str) {
    desk.goto(address);
    desk.browser.wait(address, shown);
}

#[test]
fn every_page_opens_without_complaints() {
    let desk = desk!(lived(), &["--ordering", "aggregate"], &[]);
    for (name, address, shown) in pages(&desk) {
        open(&desk, &address, shown);
        let title = desk.browser.run("return document.title", &[]);
        assert!(title.as_str().unwrap().ends_with(" · Postbox"), "{name}: {title}");
        assert_eq!(desk.browser.complaints(), Vec::<String>::new(), "{name}");
        // Wherever one is, nothing is wider than the screen.
        desk.browser.resize(390, 844);
        desk.browser.wait(
            "no sideways scrolling",
            "document.documentElement.scrollWidth <= 390 && innerWidth <= 390",
        );
        desk.browser.resize(1280, 900);
    }
    // A page by a click in the navigation is the same one.
    desk.browser.press("Sinks");
    desk.browser.wait("the page of a link", "location.hash.startsWith('#/sinks')");
}

#[test]
fn every_page_is_open_to_all() {
    let axe = postbox_testkit::broker_or_skip!(axe());
    let desk = desk!(lived(), &["--ordering", "aggregate"], &[]);
    let looks = [(1280, 900, false), (1280, 900, true), (390, 844, true), (390, 844, false)];
    let mut barriers = Vec::new();
    for (name, address, shown) in pages(&desk) {
        open(&desk, &address, shown);
        for (width, height, dark) in looks {
            desk.browser.resize(width, height);
            desk.browser.prefer_dark(dark);
            desk.browser.wait("the width", &format!("innerWidth <= {width}"));
            let found = desk.browser.barriers(&axe);
            barriers.extend(found.into_iter().map(|line| format!("{name} {width} dark={dark}: {line}")));
        }
    }
    // And what opens over a page.
    desk.goto("dead");
    desk.browser.press("Discard…");
    desk.browser.see("deleted for good");
    barriers.extend(desk.browser.barriers(&axe).into_iter().map(|line| format!("dialog: {line}")));
    assert!(barriers.is_empty(), "{}", barriers.join("\n"));
}

#[test]
fn empty_pages_teach() {
    let desk = desk!(Place::new());
    for (page, lesson) in [
        ("overview", "Events are written in the transaction that they are about"),
        ("events", "No events here"),
        ("dead", "Nothing is ever dropped in silence"),
        ("blocked", "--ordered"),
        ("inbox", "--inbox"),
        ("audit", "Nobody has changed anything"),
        ("event/0198aa00-0000-7000-8000-000000000001", "This event is not here"),
        ("nowhere", "There is no such page"),
    ] {
        desk.goto(page);
        desk.browser.see(lesson);
    }
}

#[test]
fn pictures_of_every_page() {
    let Some(folder) = pictures() else { return };
    let desk = desk!(lived(), &["--ordering", "aggregate"], &[]);
    // Some life for the charts.
    desk.goto("overview");
    for round in 0..40 {
        desk.place.db.psql(&format!(
            "INSERT INTO {TABLE} (event_id, tenant_id, topic, aggregate_type, aggregate_id, payload)
             SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 'shop.' || (ARRAY['order.placed', 'order.paid', 'parcel.sent', 'invoice.issued'])[n % 4 + 1] || '.v1',
                    (ARRAY['order', 'order', 'parcel', 'invoice'])[n % 4 + 1], ({round} * 1000 + n)::text, '{{}}'
             FROM generate_series(1, {}) n",
            60 + (round % 7) * 25
        ));
        std::thread::sleep(std::time::Duration::from_millis(900));
    }
    let take = |name: &str| {
        // The test's database has a name that nobody would choose.
        let rename = "const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            for (let node = all.nextNode(); node; node = all.nextNode()) {
                if (node.data.includes('pages__')) node.data = node.data.replace(/pages__\\w+/g, 'app');
            }";
        desk.browser.run(rename, &[]);
        keep(&desk.browser.picture(), &folder.join(format!("{name}.png")));
    };
    for (name, address, shown) in pages(&desk) {
        // One of them in the dark: the book has no other picture of it.
        let dark = name == "cause";
        desk.browser.prefer_dark(dark);
        desk.browser.resize(1120, 740);
        open(&desk, &address, shown);
        desk.browser.see("live");
        take(&if dark { format!("{name}-dark") } else { name.to_owned() });
        if matches!(name, "overview" | "dead") {
            desk.browser.resize(390, 844);
            desk.browser.wait("the narrow page", "innerWidth === 390");
            take(&format!("{name}-phone"));
        }
    }
    desk.browser.prefer_dark(false);
    desk.browser.resize(1120, 740);
    desk.goto("dead");
    desk.browser.press("Replay one…");
    desk.browser.see("Replay one event of this cause?");
    take("replay");
    let sizes: Vec<(String, u64)> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().display().to_string(), entry.metadata().unwrap().len()))
        .filter(|(_, size)| *size > 150_000)
        .collect();
    assert!(sizes.is_empty(), "too big for the book: {sizes:?}");
}
