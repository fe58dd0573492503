//! Who is kept out, of every route that the description has: a new one cannot be forgotten here.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Answer, Client};
use crate::common::LONG;
use crate::site::{OPERATOR, SENT, Site, TOKENS, VIEWER};

/// A route, with values for what its path leaves open.
struct Operation {
    method: String,
    path: String,
    needs: String,
}

fn operations(client: &Client, site: &Site, event: &str) -> Vec<Operation> {
    let document = client.bearer(OPERATOR).json("/openapi.json");
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let path = path.replace("{table}", site.table).replace("{event_id}", event);
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.replace("{job_id}", &Uuid::now_v7().to_string()),
                needs: operation["x-postbox-needs"].as_str().unwrap().to_owned(),
            });
        }
    }
    assert!(all.len() > 25);
    all
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{what}: {answer:?}");
    let error = &answer.json()["error"];
    assert!(error["message"].is_string() && error["next"].is_string(), "{answer:?}");
    for (name, value) in
        [("x-frame-options", "DENY"), ("x-content-type-options", "nosniff"), ("cache-control", "no-store")]
    {
        assert_eq!(answer.header(name), Some(value), "{what}");
    }
    assert!(answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"), "{what}");
    assert_eq!(answer.header("access-control-allow-origin"), None, "{what}");
}

/// A session by its cookie, and what changes in it carry.
fn login(client: &Client, token: &str) -> (Client, String) {
    let answer = client.post("/login", &json!({ "token": token }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict; Path="), "{cookie}");
    assert!(!cookie.contains(token), "{cookie}");
    let value = cookie.split(';').next().unwrap();
    (client.with("cookie", value), answer.json()["csrf"].as_str().unwrap().to_owned())
}

/// Tokens, foreign hosts, requests of other sites (hazard 51).
#[test]
fn every_route_refuses_who_may_not() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    let event = site.enqueue(SENT, "member/1", "1");
    let (mut relay, client) = site.relay(&["--base-path", "/post/box"], &TOKENS);
    let host = client.address.clone();
    let (cookie, csrf) = login(&client, OPERATOR);
    let (viewer, viewer_csrf) = login(&client, VIEWER);
    for Operation { method, path, needs } in operations(&client, &site, &event) {
        let what = format!("{method} {path}");
        let ask = |client: &Client| client.ask(&method, &path, "{}");
        let foreign = client.bearer(OPERATOR).with("host", "evil.example");
        refused(&ask(&foreign), 421, "OUTBOX_ADMIN_HOST", &what);
        let cross = client.bearer(OPERATOR).with("sec-fetch-site", "cross-site");
        refused(&ask(&cross), 403, "OUTBOX_ADMIN_CSRF", &what);
        let framed = cookie.with("x-postbox-csrf", &csrf).with("origin", "https://evil.example");
        refused(&ask(&framed), 403, "OUTBOX_ADMIN_CSRF", &what);
        if method == "POST" {
            let form = cookie.with("content-type", "application/x-www-form-urlencoded");
            refused(&ask(&form), 415, "OUTBOX_ADMIN_REQUEST", &what);
            let form = form.with("origin", "null").with("sec-fetch-site", "cross-site");
            refused(&ask(&form), 403, "OUTBOX_ADMIN_CSRF", &what);
        }
        if needs == "nothing" {
            continue;
        }
        refused(&ask(&client), 401, "OUTBOX_ADMIN_UNAUTHORIZED", &what);
        for token in ["wrong", "", "0123456789abcdef-operatos", "alice"] {
            refused(&ask(&client.bearer(token)), 401, "OUTBOX_ADMIN_UNAUTHORIZED", &what);
        }
        refused(
            &ask(&client.with("cookie", "postbox_session=1.99999999999.x.y")),
            401,
            "OUTBOX_ADMIN_UNAUTHORIZED",
            &what,
        );
        if needs != "viewer" {
            refused(&ask(&cookie), 403, "OUTBOX_ADMIN_CSRF", &what);
            refused(&ask(&cookie.with("x-postbox-csrf", &viewer_csrf)), 403, "OUTBOX_ADMIN_CSRF", &what);
        }
        if needs == "operator" {
            refused(&ask(&client.bearer(VIEWER)), 403, "OUTBOX_ADMIN_FORBIDDEN", &what);
            refused(&ask(&viewer.with("x-postbox-csrf", &viewer_csrf)), 403, "OUTBOX_ADMIN_FORBIDDEN", &what);
        }
        // And that it is not everybody who is refused.
        let good = cookie.with("x-postbox-csrf", &csrf).with("origin", &format!("http://{host}"));
        if needs != "session" && !path.ends_with("/stream") {
            let answer = ask(&good.with("sec-fetch-site", "same-origin"));
            assert!(![401, 403, 421, 415].contains(&answer.status), "{what}: {answer:?}");
            let answer = ask(&client.bearer(OPERATOR));
            assert!(![401, 403, 421, 415].contains(&answer.status), "{what}: {answer:?}");
        }
    }
    // A session ends when it is told to, wherever its cookie still is.
    let leaving = viewer.with("x-postbox-csrf", &viewer_csrf);
    assert_eq!(viewer.get("/api/v1/tables").status, 200);
    // Somebody else's logout, with a token and a cookie that is none, is not about it.
    let other = client.bearer(VIEWER).with("cookie", "postbox_session=1.99999999999.x.y");
    assert_eq!(other.post("/logout", &json!({})).status, 200);
    assert_eq!(viewer.get("/api/v1/tables").status, 200);
    let mut stream = viewer.stream();
    assert_eq!(stream.next().unwrap().0, "overview");
    let left = leaving.post("/logout", &json!({}));
    assert_eq!((left.status, left.json()["authenticated"].as_bool()), (200, Some(false)), "{left:?}");
    assert!(left.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(viewer.get("/api/v1/tables").status, 401);
    // What was on its way when it ended is all that a stream still tells.
    assert!(stream.take(5).count() < 5, "the stream goes on after the logout");
    let log = relay.stderr();
    assert!(log.contains("a wrong token was refused") && !log.contains("0123456789abcdef"), "{log}");
    relay.stop(LONG);
}

#[test]
fn read_only_refuses_every_change_of_everybody() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    let event = site.enqueue(SENT, "member/1", "1");
    let (mut relay, client) = site.relay(&["--read-only"], &TOKENS);
    let operator = client.bearer(OPERATOR);
    let session: Value = operator.json("/session");
    assert_eq!((session["read_only"].as_bool(), session["can_change"].as_bool()), (Some(true), Some(false)));
    let mut changes = 0;
    for Operation { method, path, needs } in operations(&client, &site, &event) {
        if needs == "operator" {
            changes += 1;
            refused(&operator.ask(&method, &path, "{}"), 403, "OUTBOX_ADMIN_READ_ONLY", &path);
        }
    }
    assert!(changes >= 6);
    assert_eq!(site.count("postbox_audit"), 0);
    relay.stop(LONG);
}

/// A page of another site, or a name that was made to point here, is no operator (hazard 51).
#[test]
fn without_tokens_this_machine_may_do_everything_and_no_other_site_anything() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    let (mut relay, client) = site.relay(&[], &[]);
    let session = client.json("/session");
    assert_eq!((session["name"].as_str(), session["login_required"].as_bool()), (Some("local"), Some(false)));
    let pause = site.path("/pause");
    refused(&client.post(&pause, &json!({})), 403, "OUTBOX_ADMIN_CSRF", "no header");
    let csrf = session["csrf"].as_str().unwrap();
    let own = client.with("x-postbox-csrf", csrf);
    refused(
        &own.with("host", "evil.example").post(&pause, &json!({})),
        421,
        "OUTBOX_ADMIN_HOST",
        "rebinding",
    );
    refused(
        &own.with("origin", "http://evil.example").post(&pause, &json!({})),
        403,
        "OUTBOX_ADMIN_CSRF",
        "another page",
    );
    refused(
        &client.with("host", "evil.example").get("/api/v1/tables"),
        421,
        "OUTBOX_ADMIN_HOST",
        "rebinding",
    );
    assert_eq!(own.done(&pause, &json!({}))["changed"], true);
    assert_eq!(site.sql("SELECT who FROM postbox_audit"), "local");
    // A wrong token is not made good by the machine that it comes from.
    assert_eq!(own.bearer("wrong").get("/api/v1/tables").status, 401);
    relay.stop(LONG);
}
