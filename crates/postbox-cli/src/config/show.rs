//! `config show` and `config check`: what is in force and where it came from, without secrets.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::kind::Shape;
use super::layers::Effective;
use super::{Config, database};
use crate::render::{Cell, table};

/// The configuration for people.
pub(crate) fn text(config: &Config) -> String {
    let rows: Vec<[String; 4]> = config
        .effective
        .iter()
        .filter(|effective| config.databases.is_empty() || !database::is_own(effective.setting.path))
        .map(|effective| {
            let setting = effective.setting;
            let value = masked(effective).join(",");
            let value = if value.is_empty() { "-".to_owned() } else { value };
            [setting.path.to_owned(), value, effective.origin.to_string(), setting.env.to_owned()]
        })
        .collect();
    let mut out = aligned(["SETTING", "VALUE", "FROM", "ENVIRONMENT"], &rows);
    let databases: Vec<[String; 4]> = config
        .databases
        .iter()
        .flat_map(|database| database::shown_settings(database).into_iter().map(move |own| (database, own)))
        .map(|(database, (key, value, from))| [database.name.clone(), key.to_owned(), value, from])
        .collect();
    if !databases.is_empty() {
        out.push('\n');
        out.push_str(&aligned(["DATABASE", "SETTING", "VALUE", "FROM"], &databases));
    }
    if !config.routes.is_empty() || config.dead_letter.is_some() {
        let mut rows: Vec<[String; 4]> = config
            .routes
            .iter()
            .flat_map(|route| route.sinks.iter().map(move |sink| (route, sink)))
            .map(|(route, name)| {
                let url = config.sink(name).map(|sink| sink.url.to_string()).unwrap_or_default();
                let topic = match &route.destination {
                    Some(template) => format!("{} → {template}", route.topic),
                    None => route.topic.clone(),
                };
                [topic, name.clone(), route.origin.to_string(), url]
            })
            .collect();
        rows.extend(config.dead_letter.iter().map(|name| {
            let url = config.sink(name).map(|sink| sink.url.to_string()).unwrap_or_default();
            let origin = config.origin("dead_letter").map(ToString::to_string).unwrap_or_default();
            ["(dead events)".to_owned(), name.clone(), origin, url]
        }));
        out.push('\n');
        out.push_str(&aligned(["ROUTE", "SINK", "FROM", "URL"], &rows));
    }
    let options: Vec<[String; 4]> = config
        .sinks
        .iter()
        .flat_map(|sink| sink.options.shown().map(move |option| (sink, option)))
        .map(|(sink, (name, value))| [sink.name.clone(), name.to_owned(), value, sink.origin.to_string()])
        .collect();
    if !options.is_empty() {
        out.push('\n');
        out.push_str(&aligned(["SINK", "OPTION", "VALUE", "FROM"], &options));
    }
    for warning in &config.warnings {
        let _ = write!(out, "\nwarning: {warning}");
    }
    if !config.warnings.is_empty() {
        out.push('\n');
    }
    out
}

/// The configuration for `--json`.
pub(crate) fn json(config: &Config) -> Value {
    let settings: Vec<Value> = config
        .effective
        .iter()
        .filter(|effective| config.databases.is_empty() || !database::is_own(effective.setting.path))
        .map(|effective| {
            json!({
                "name": effective.setting.path,
                "value": value(effective),
                "layer": effective.origin.layer(),
                "origin": effective.origin.to_string(),
                "env": effective.setting.env,
                "flag": format!("--{}", effective.setting.flag),
            })
        })
        .collect();
    let sinks: Vec<Value> = config
        .sinks
        .iter()
        .map(|sink| {
            let options: BTreeMap<&str, String> = sink.options.shown().collect();
            let (url, origin) = (sink.url.to_string(), sink.origin.to_string());
            json!({ "name": sink.name, "url": url, "options": options, "origin": origin })
        })
        .collect();
    let routes: Vec<Value> = config
        .routes
        .iter()
        .map(|route| {
            let destination = route.destination.as_ref().map(ToString::to_string);
            let origin = route.origin.to_string();
            json!({ "topic": route.topic, "sinks": route.sinks, "destination": destination, "origin": origin })
        })
        .collect();
    let databases: Vec<Value> = config
        .databases
        .iter()
        .map(|database| {
            let own = database.own().map(|(key, own)| (key.to_owned(), value(own)));
            let mut shown = Value::Object(own.collect());
            shown["name"] = Value::from(database.name.as_str());
            shown["origin"] = Value::from(database.origin.to_string());
            shown
        })
        .collect();
    json!({
        "database": config.database,
        "databases": databases,
        "file": config.file.as_ref().map(|path| path.display().to_string()),
        "settings": settings,
        "sinks": sinks,
        "routes": routes,
        "dead_letter": config.dead_letter,
        "warnings": config.warnings,
    })
}

fn masked(effective: &Effective) -> Vec<String> {
    effective.items.iter().map(|item| effective.setting.shown(item)).collect()
}

fn value(effective: &Effective) -> Value {
    let items = masked(effective);
    let text = || items.first().map_or(Value::Null, |item| Value::from(item.as_str()));
    match effective.setting.shape {
        Shape::List => Value::from(items),
        Shape::Switch => {
            items.first().and_then(|item| item.parse::<bool>().ok()).map_or_else(text, Value::from)
        }
        Shape::Number => {
            items.first().and_then(|item| item.parse::<u64>().ok()).map_or_else(text, Value::from)
        }
        Shape::Text | Shape::Duration | Shape::Size => text(),
    }
}

fn aligned(head: [&str; 4], rows: &[[String; 4]]) -> String {
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
    table(&head, &rows) + "\n"
}
