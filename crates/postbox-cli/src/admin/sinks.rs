//! The sinks, as the relays of this process see them.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::ok;
use super::overview::{sink_json, sinks};
use super::{Admin, Shared};

/// All of them, each with the tables that use it.
pub(super) async fn list(State(admin): Shared) -> Response {
    let mut all: Vec<Value> = configured(&admin);
    for table in admin.tables.iter() {
        for sink in sinks(table) {
            let mut state = sink_json(&sink);
            state["id"] = Value::from(table.id.as_str());
            let name = &*sink.name;
            let at = all.iter().position(|known| known["name"] == name).unwrap_or_else(|| {
                // One of the demo, or of code.
                all.push(described(name, "", false, &[]));
                all.len() - 1
            });
            if let Some(Value::Array(tables)) = all[at].get_mut("tables") {
                tables.push(state);
            }
        }
    }
    ok(&json!({ "sinks": all }))
}

fn described(name: &str, url: &str, dead_letter: bool, routes: &[Value]) -> Value {
    let kind = url.split(':').next().filter(|kind| !kind.is_empty()).unwrap_or(name);
    json!({ "name": name, "url": url, "kind": kind, "dead_letter": dead_letter, "routes": routes, "tables": [] })
}

fn configured(admin: &Admin) -> Vec<Value> {
    let Some(config) = &admin.config else { return Vec::new() };
    let sink = |sink: &crate::config::Sink| {
        let routes = config.routes.iter().filter(|route| route.sinks.contains(&sink.name)).map(|route| {
            json!({ "topic": route.topic, "destination": route.destination.as_ref().map(ToString::to_string) })
        });
        let routes: Vec<Value> = routes.collect();
        // Shown without its secrets.
        described(&sink.name, &sink.url.to_string(), config.dead_letter.as_ref() == Some(&sink.name), &routes)
    };
    config.sinks.iter().map(sink).collect()
}
