//! Events: listed, shown, their content on request, sent again.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Uri;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use postbox_core::{
    Browse as _, Code, Content, DeadLetters as _, Direction, EventDetail, EventFilter, EventId, EventStatus,
    EventSummary, Json, ListRequest, Published, Survey as _,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::Shared;
use super::access::By;
use super::answer::{Answer, Refusal, exact, ok, time};
use super::fields::{Fields, event_id};
use super::table::Table;

const FILTER: [&str; 7] = ["topic", "tenant", "aggregate_type", "aggregate_id", "status", "error", "since"];

/// A page of events.
pub(super) async fn list(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&FILTER, &["order", "after", "limit", "deep"]])?;
    let default = ListRequest::default();
    let direction = match fields.text("order")?.as_deref() {
        None | Some("newest") => Direction::NewestFirst,
        Some("oldest") => Direction::OldestFirst,
        Some(_) => return Err(Refusal::request("order cannot be used: give newest or oldest")),
    };
    let (after, limit, deep) = (fields.cursor("after")?, fields.limit(500)?, fields.on("deep")?);
    let now = table.ask(table.admin.now()).await?;
    let filter = fields.event_filter(now)?;
    let command = command(table, &fields, &filter)?
        .switch("oldest", direction == Direction::OldestFirst)
        .flag("after", after)
        .flag("limit", fields.text("limit")?)
        .switch("deep", deep)
        .line();
    let depth = if deep { None } else { default.depth };
    let request = ListRequest { filter, direction, after, limit, depth };
    let page = table.ask(table.admin.list(&request)).await?;
    let events: Vec<Value> = page.events.iter().map(|event| exact(json!(event))).collect();
    Ok(ok(&json!({
        "id": table.id,
        "now": time(now),
        "events": events,
        "next": page.next.map(|next| next.to_string()),
        "bounded": page.bounded,
        "command": command,
    })))
}

/// The command line of a list.
fn command(table: &Table, fields: &Fields, filter: &EventFilter) -> Result<super::table::Command, Refusal> {
    let status = filter.status.map(|status| status.as_str().to_lowercase());
    Ok(table
        .command("events list")
        .flag("topic", filter.topic.as_ref())
        .flag("tenant", fields.text("tenant")?)
        .aggregate(filter.aggregate_type.as_deref(), filter.aggregate_id.as_deref())
        .flag("status", status)
        .flag("error", filter.error.as_ref())
        .flag("since", fields.text("since")?))
}

async fn find(table: &Table, event: EventId, content: bool) -> Result<EventDetail, Refusal> {
    let found = table.ask(table.admin.show(event, content)).await?;
    found.ok_or_else(|| Refusal::no_event(&table.name, event))
}

/// What failed can be tried at once as long as it waits.
fn can_replay(event: &EventSummary, now: OffsetDateTime) -> bool {
    match event.status {
        EventStatus::Dead | EventStatus::Sent => true,
        EventStatus::Failed => event.available_at > now,
        EventStatus::New | EventStatus::Publishing => false,
    }
}

/// Everything about an event but its content.
pub(super) async fn show(State(admin): Shared, Path((id, event)): Path<(String, String)>) -> Answer {
    let table = admin.table(&id)?;
    let event = find(table, event_id(&event)?, false).await?;
    let now = table.ask(table.admin.now()).await?;
    let (status, event_id) = (event.summary.status, event.summary.event_id.to_string());
    let can_replay = can_replay(&event.summary, now);
    let headers = event.headers.as_ref().map(texts);
    let trace = event.traceparent.as_deref().and_then(|parent| parent.split('-').nth(1)).map(str::to_owned);
    let log = event.attempts_log.as_ref().map(Json::decode::<Value>).and_then(Result::ok);
    let shown = EventDetail { headers: None, attempts_log: None, content: None, ..event };
    let mut value = exact(json!(shown));
    value["headers"] = json!(headers);
    value["attempts_log"] = json!(log);
    value["trace_id"] = json!(trace);
    let command = |words: &str| Value::from(table.command(words).word(&event_id).line());
    let mut commands = json!({ "show": command("events show") });
    match status {
        EventStatus::Sent | EventStatus::Failed => commands["replay"] = command("events replay"),
        EventStatus::Dead => commands["replay"] = command("dead replay"),
        // A relay will see to it: there is nothing to replay.
        EventStatus::New | EventStatus::Publishing => {}
    }
    Ok(ok(&json!({
        "id": table.id,
        "now": time(now),
        "event": value,
        "can_replay": can_replay,
        "commands": commands,
    })))
}

/// Headers as texts, whatever the table has: a number keeps its digits.
fn texts(headers: &Json) -> BTreeMap<String, String> {
    let text =
        |raw: &RawValue| serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    match serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(headers.as_str()) {
        Ok(map) => map.into_iter().map(|(name, value)| (name, text(&value))).collect(),
        Err(_) => BTreeMap::from([("(not a map)".to_owned(), headers.as_str().to_owned())]),
    }
}

/// An event's content. That somebody read it is written down before they get it.
pub(super) async fn payload(
    State(admin): Shared,
    Path((id, event)): Path<(String, String)>,
    By(who): By,
) -> Answer {
    let table = admin.table(&id)?;
    let event = find(table, event_id(&event)?, true).await?;
    let event_id = event.summary.event_id;
    let what = json!({ "event_id": event_id });
    let logged = match table.ask(async { Ok(table.admin.note(&who, "show_payload", &what).await) }).await? {
        Ok(()) => true,
        // A user that may only read, as the least privilege of a viewer's database role has it: then the log has to do.
        Err(error) if matches!(error.code(), Code::DatabasePermission | Code::DatabaseReadOnly) => {
            tracing::info!(table = %table.name, who, action = "show_payload", %what, "operator");
            false
        }
        Err(error) => return Err(Refusal::store(&table.name, &error)),
    };
    let Some(Content { payload, payload_raw, metadata }) = event.content else {
        return Err(Refusal::no_event(&table.name, event_id));
    };
    let bytes = payload_raw.as_ref().map_or(payload.as_str().len(), Vec::len);
    Ok(ok(&json!({
        "event_id": event_id,
        "content_type": event.content_type,
        "payload": payload_raw.is_none().then(|| payload.as_str()),
        "payload_base64": payload_raw.as_ref().map(|raw| BASE64_STANDARD.encode(raw)),
        "metadata": metadata.as_ref().map(Json::as_str),
        "bytes": bytes,
        "logged": logged,
    })))
}

/// Has one event delivered again, dead or published, or tried at once that waits for its next attempt.
pub(super) async fn replay(
    State(admin): Shared,
    Path((id, event)): Path<(String, String)>,
    By(who): By,
    body: Body,
) -> Answer {
    let table = admin.table(&id)?;
    Fields::of_body(body, &[]).await?;
    let event = event_id(&event)?;
    let was = find(table, event, false).await?.summary.status;
    let replayed = match was {
        EventStatus::Dead => table.ask(table.admin.replay(event, &who)).await?,
        EventStatus::Sent => {
            let which = Published::Events { event_ids: vec![event] };
            let events = table.ask(table.admin.replay_published(&which, 1, &who)).await?;
            !events.is_empty()
        }
        EventStatus::Failed => !table.ask(table.admin.retry_now(&[event], &who)).await?.is_empty(),
        EventStatus::New | EventStatus::Publishing => false,
    };
    if !replayed {
        let message = format!(
            "{event} is neither dead nor published, nor does it wait for another attempt: its status is {was}, and a \
             relay will see to it"
        );
        return Err(
            Refusal::conflict(message).next(table.command("events show").word(&event.to_string()).line())
        );
    }
    admin.pulse.look();
    Ok(ok(&json!({ "event_id": event, "replayed": true, "was": was })))
}

#[cfg(test)]
mod tests {
    use super::{Json, texts};

    #[test]
    fn headers_are_texts_with_every_digit() {
        let headers = Json::trusted(r#"{"a":"x","n":9007199254740993,"o":{"k":1}}"#);
        let texts = texts(&headers);
        assert_eq!(texts["a"], "x");
        assert_eq!(texts["n"], "9007199254740993");
        assert_eq!(texts["o"], r#"{"k":1}"#);
        assert_eq!(super::texts(&Json::trusted("[1]"))["(not a map)"], "[1]");
    }
}
