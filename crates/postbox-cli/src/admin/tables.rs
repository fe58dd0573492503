//! Tables: what there are, how they are, pause and resume, and what waits, came in and was done.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use postbox_core::survey::MOST_WAITING;
use postbox_core::{
    AuditEntry, BlockedAggregate, Browse as _, Inbox, InboxAdmin as _, InboxFilter, InboxKey, InboxRequest,
    Inspect as _, Survey as _,
};
use serde_json::{Value, json};

use super::Shared;
use super::access::By;
use super::answer::{Answer, Refusal, json_text, ok, time};
use super::fields::Fields;
use super::overview;
use super::sample::fresh;

/// What there are.
pub(super) async fn list(State(admin): Shared) -> Response {
    let tables: Vec<Value> = admin.tables.iter().map(|table| table.to_json()).collect();
    ok(&json!({ "tables": tables }))
}

/// How all of them are.
pub(super) async fn overview(State(admin): Shared) -> Response {
    let snapshot = fresh(&admin.pulse).await;
    if snapshot.made.is_none() {
        // Nothing was looked at yet: the databases are slow, and what is known without them is told.
        return ok(&overview::of(&admin.tables, 0, admin.jobs.running()));
    }
    json_text(StatusCode::OK, snapshot.text.clone())
}

/// How one is.
pub(super) async fn show(State(admin): Shared, Path(id): Path<String>) -> Answer {
    let table = admin.table(&id)?;
    let _ = fresh(&admin.pulse).await;
    let (.., mut value) = overview::of_table(table);
    let command = |words: &str| table.command(words).line();
    value["commands"] = json!({
        "pause": table.command("pause").flag("reason", Some("why")).line(),
        "resume": command("resume"),
        "status": command("status"),
        "dead": command("dead list"),
        "events": command("events list"),
        "doctor": command("doctor"),
    });
    Ok(ok(&value))
}

/// The past of its charts.
pub(super) async fn history(State(admin): Shared, Path(id): Path<String>) -> Answer {
    let table = admin.table(&id)?;
    admin.pulse.look();
    let points = table.seen().points();
    Ok(ok(&json!({ "id": table.id, "points": points })))
}

/// Stops delivery.
pub(super) async fn pause(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_body(body, &[&["reason"]]).await?;
    let reason = fields.text("reason")?.unwrap_or_default();
    let change = async {
        let changed = table.admin.pause(&who, &reason).await?;
        Ok((changed, table.admin.relay().await?))
    };
    let (changed, relay) = table.ask(change).await?;
    admin.pulse.look();
    Ok(ok(&json!({ "id": table.id, "changed": changed, "paused": overview::paused(&relay) })))
}

/// Starts it again.
pub(super) async fn resume(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let table = admin.table(&id)?;
    Fields::of_body(body, &[]).await?;
    let changed = table.ask(table.admin.resume(&who)).await?;
    admin.pulse.look();
    Ok(ok(&json!({ "id": table.id, "changed": changed, "paused": null })))
}

/// Aggregates that wait behind a dead event.
pub(super) async fn blocked(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let limit = Fields::of_query(&uri, &[&["limit"]])?.limit(500)?;
    let found = table.ask(table.admin.blocked(limit)).await?;
    let aggregate = |blocked: &BlockedAggregate| {
        json!({
            "tenant_id": blocked.tenant_id,
            "aggregate_type": blocked.aggregate_type,
            "aggregate_id": blocked.aggregate_id,
            "waiting": blocked.waiting,
            "waiting_bounded": blocked.waiting >= MOST_WAITING.into(),
            "dead": {
                "event_id": blocked.event_id,
                "sequence": blocked.sequence.to_string(),
                "topic": blocked.topic,
                "dead_at": time(blocked.dead_at),
                "last_error": blocked.last_error,
            },
        })
    };
    let aggregates: Vec<Value> = found.iter().flatten().map(aggregate).collect();
    let command = table.command("dead list").line();
    Ok(ok(
        &json!({ "id": table.id, "supported": found.is_some(), "aggregates": aggregates, "command": command }),
    ))
}

/// What its inbox remembers.
pub(super) async fn inbox(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&["consumer", "message", "since", "until", "after", "limit"]])?;
    let after = fields.text("after")?;
    let after = after.map(|given| {
        given
            .parse::<InboxKey>()
            .map_err(|_| Refusal::request("after is not what `next` of the page before says"))
    });
    let (after, limit) = (after.transpose()?, fields.limit(500)?);
    let (consumer, message) = (fields.text("consumer")?, fields.text("message")?);
    let now = table.ask(table.admin.now()).await?;
    let (since, until) = (fields.moment("since", now)?, fields.moment("until", now)?);
    let filter = InboxFilter { consumer, message_ids: message.into_iter().collect(), since, until };
    let request = InboxRequest { filter, after, limit };
    let page = table.ask(table.admin.inbox_list(&request)).await?;
    let inbox = Inbox::new(table.name.clone()).table().to_string();
    let mut value = json!(page);
    value["id"] = Value::from(table.id.as_str());
    value["inbox"] = Value::from(inbox);
    value["now"] = Value::from(time(now));
    Ok(ok(&value))
}

/// What was done to it.
pub(super) async fn audit(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&["before", "limit"]])?;
    let (before, limit) = (fields.cursor("before")?, fields.limit(500)?);
    let mut entries = table.ask(table.admin.audit_log(before, limit + 1)).await?;
    let more = entries.len() > limit as usize;
    entries.truncate(limit as usize);
    let next = entries.last().filter(|_| more).map(|entry| entry.id.to_string());
    let entry = |entry: &AuditEntry| {
        json!({
            "id": entry.id.to_string(),
            "at": time(entry.at),
            "who": entry.who,
            "action": entry.action,
            "table": table.name.to_string(),
            "what": entry.what,
            "events": entry.events,
        })
    };
    let entries: Vec<Value> = entries.iter().map(entry).collect();
    Ok(ok(&json!({ "id": table.id, "entries": entries, "next": next })))
}
