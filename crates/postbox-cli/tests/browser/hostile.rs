//! What an attacker can put into events is shown as the text that it is.

use serde_json::json;

use crate::common::{Place, TABLE};
use crate::desk::{Desk, desk};

/// Each sets a mark of its own if anything of it is ever run.
fn attacks() -> Vec<String> {
    let run = |name: &str| format!("(window.ran=window.ran||[]).push('{name}')");
    vec![
        format!("<script>{}</script>", run("script")),
        format!("<img src=x onerror=\"{}\">", run("image")),
        format!("\"><svg onload=\"{}\">", run("svg")),
        format!("javascript:{}", run("address")),
        format!("'-{}-'", run("quote")),
        format!("</textarea><iframe srcdoc=\"<script>parent.{}</script>\">", run("frame")),
        format!("{{{{constructor.constructor('{}')()}}}}", run("template").replace('\'', "\\'")),
        format!("<a href=\"javascript:{}\">x</a>", run("link")),
    ]
}

/// An event that is an attack wherever it can be one.
fn insert(place: &Place, attack: &str, dead: bool) -> String {
    let text = |text: &str| format!("$attack${text}$attack$");
    let value = text(attack);
    let payload = text(&json!({ "evil": attack }).to_string());
    let headers = text(&json!({ "x-evil": attack, attack: "name" }).to_string());
    let log = text(
        &json!([{ "at": "2026-01-01T00:00:00Z", "outcome": attack, "relay": attack, "error": attack }])
            .to_string(),
    );
    let (dead_at, published_at) = if dead { ("now()", "NULL") } else { ("NULL", "now()") };
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, aggregate_type, aggregate_id, payload, headers, attempts_log, traceparent,
                              last_error, dead_at, published_at, attempts)
         VALUES (gen_random_uuid(), '00000000-0000-0000-0000-00000000000a', {value}, {value}, {value}, {payload}, {headers}, {log}, {value},
                 {value}, {dead_at}, {published_at}, 25)
         RETURNING event_id"
    ))
}

/// What was run, and whether a foreign element has come into the page.
fn harm(desk: &Desk) -> String {
    let script = "const foreign = [...document.querySelectorAll('iframe, img, object, embed, body script, [onerror], [onload], \
                  a[href^=\"javascript\"]')].map((one) => one.outerHTML);
                  return JSON.stringify([window.ran ?? [], foreign])";
    desk.browser.run(script, &[]).as_str().unwrap().to_owned()
}

/// Payload, error, topic and headers are shown and never run (hazard 51).
#[test]
fn hostile_events_are_text_on_every_page() {
    let place = Place::new();
    let attacks = attacks();
    let dead: Vec<String> = attacks.iter().map(|attack| insert(&place, attack, true)).collect();
    insert(&place, &attacks[0], false);
    place.db.psql(&format!(
        "INSERT INTO postbox_audit (who, action, tbl, what, events) VALUES ($a${0}$a$, $a${0}$a$, '{TABLE}', jsonb_build_object('event_id', $a${0}$a$, $a${1}$a$, 1), 1)",
        attacks[1], attacks[2]
    ));
    let desk = desk!(place);
    for page in ["overview", "table", "sinks", "events", "dead", "blocked", "audit", "doctor"] {
        desk.goto(page);
        desk.browser.wait("a page", "document.querySelector('h1')");
        if matches!(page, "events" | "dead" | "audit") {
            desk.browser.see(&attacks[1]);
        }
        if matches!(page, "events" | "dead") {
            for attack in &attacks {
                desk.browser.see(attack);
            }
        }
        assert_eq!(harm(&desk), "[[],[]]", "{page}");
    }
    for (id, attack) in dead.iter().zip(&attacks) {
        desk.goto(&format!("event/{id}"));
        desk.browser.see("Headers");
        desk.browser.press("Show the payload");
        desk.browser.see("is in the audit log");
        let verbatim = desk.browser.run(
            "const [attack, json] = arguments; const all = document.body.innerText;
             return [all.split(attack).length - 1, document.querySelector('pre').textContent.includes(json)]",
            &[json!(attack), json!(json!(attack).to_string())],
        );
        assert!(verbatim[0].as_u64().unwrap() >= 5, "{attack} is not shown as it is: {verbatim}");
        assert_eq!(verbatim[1], true, "the payload of {attack}");
        assert_eq!(harm(&desk), "[[],[]]", "{attack}");
    }
    // An address is as much of an attacker's as an event.
    for part in [&attacks[1], &attacks[3]] {
        let encoded = part.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        for page in [
            format!("events?topic={encoded}"),
            format!("event/{encoded}"),
            format!("dead?cause={encoded}"),
            encoded.clone(),
        ] {
            desk.goto(&page);
            desk.browser.wait("a page", "document.querySelector('main')?.innerText.length > 10");
            assert_eq!(harm(&desk), "[[],[]]", "{page}");
        }
    }
    let refused = desk.browser.complaints();
    let policy = refused.iter().filter(|line| line.contains("Content Security Policy"));
    assert_eq!(policy.count(), 0, "the policy had to step in: {refused:?}");
}

#[test]
fn hostile_messages_and_reasons_are_text() {
    let place = Place::empty();
    place.ok(&["migrate", "up", "--inbox", "--table", TABLE]);
    let attacks = attacks();
    for attack in &attacks {
        let message = format!(
            "INSERT INTO public.org_inbox (consumer, message_id) VALUES ($a${attack}$a$, $a${attack}$a$)"
        );
        place.db.psql(&message);
    }
    place.ok(&["pause", "--table", TABLE, "--reason", &attacks.concat()]);
    // Whoever pauses by SQL can call themselves anything.
    place.db.psql(&format!("UPDATE postbox_relay SET paused_by = $a${}$a$", attacks.concat()));
    let desk = desk!(place);
    for page in ["overview", "table", "inbox", "audit"] {
        desk.goto(page);
        for attack in &attacks {
            desk.browser.see(attack);
        }
        assert_eq!(harm(&desk), "[[],[]]", "{page}");
    }
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}
