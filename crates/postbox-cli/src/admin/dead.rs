//! Dead events: by cause, counted, listed; replayed and discarded by filter, after a preview.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use postbox_core::{Browse as _, DeadCause, DeadFilter, DeadLetters as _};
use serde_json::{Value, json};

use super::access::By;
use super::answer::{Answer, Refusal, exact, ok, time, with_status};
use super::fields::{DEAD_FILTER, Fields};
use super::jobs::{Kind, Plan};
use super::table::{Command, Table};
use super::{Admin, Shared};
use crate::cmd::chosen::{Began, Chosen, MOST_CAUSES, as_of, cause_id};

/// What comes beside a filter.
const CHOICE: [&str; 2] = ["all", "first"];

/// What a change is told besides.
const CHANGE: [&str; 5] = ["rows", "at", "rate", "watch", "confirm"];

/// How long a job looks at what becomes of events where nobody says.
pub(super) const WATCH_SECONDS: u64 = 30;

async fn causes_of(table: &Table, filter: &DeadFilter) -> Result<Vec<DeadCause>, Refusal> {
    table.ask(table.admin.causes(filter)).await
}

/// The filter of a request, narrowed to its cause; none if nothing has died of that, or not any more. Who looks sees none then, who
/// would change something is told. Ages are of when they `began`, or of now.
async fn filter_of(
    table: &Table,
    fields: &Fields,
    began: Option<Began>,
) -> Result<Option<DeadFilter>, Refusal> {
    let filter = fields.dead_filter()?;
    let Some(wanted) = fields.text("cause")? else { return Ok(Some(filter)) };
    let causes = match began {
        Some(began) => {
            let asked = async { table.admin.causes(&as_of(&table.admin, began, &filter).await?).await };
            table.ask(asked).await?
        }
        None => causes_of(table, &filter).await?,
    };
    let mut found = causes.iter().filter(|cause| cause_id(cause) == wanted);
    match (found.next(), found.next()) {
        (Some(cause), None) => {
            let (topic, cause) = (Some(cause.topic.clone()), Some(cause.cause.clone()));
            Ok(Some(DeadFilter { topic, cause, ..filter }))
        }
        (Some(_), Some(_)) => {
            Err(Refusal::conflict("two causes share this id; give a topic or a text of the error as well"))
        }
        (None, _) => Ok(None),
    }
}

/// Dead events by what they died of.
pub(super) async fn causes(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&DEAD_FILTER])?;
    let filter = filter_of(table, &fields, None).await?;
    let causes = match &filter {
        Some(filter) => causes_of(table, filter).await?,
        None => Vec::new(),
    };
    let complete = causes.len() < MOST_CAUSES;
    let events = match &filter {
        Some(filter) if !complete => table.ask(table.admin.count(filter)).await?,
        _ => causes.iter().map(|cause| cause.events).sum(),
    };
    let cause = |(at, cause): (usize, &DeadCause)| {
        let id = cause_id(cause);
        let mut value = json!(cause);
        value["number"] = Value::from(at + 1);
        value["command"] = Value::from(table.command("dead list").flag("cause", Some(&id)).line());
        value["id"] = Value::from(id);
        value
    };
    let causes: Vec<Value> = causes.iter().enumerate().map(cause).collect();
    Ok(ok(&json!({ "id": table.id, "events": events, "causes": causes, "complete": complete })))
}

/// Dead events, those that died first before others.
pub(super) async fn list(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&DEAD_FILTER, &["limit"]])?;
    let limit = fields.limit(1000)?;
    let (events, count) = match filter_of(table, &fields, None).await? {
        Some(filter) => {
            let asked =
                async { Ok((table.admin.query(&filter, limit).await?, table.admin.count(&filter).await?)) };
            table.ask(asked).await?
        }
        None => (Vec::new(), 0),
    };
    let events: Vec<Value> = events.iter().map(|event| exact(json!(event))).collect();
    Ok(ok(&json!({ "id": table.id, "count": count, "events": events })))
}

/// How many.
pub(super) async fn count(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&DEAD_FILTER])?;
    let count = match filter_of(table, &fields, None).await? {
        Some(filter) => table.ask(table.admin.count(&filter)).await?,
        None => 0,
    };
    Ok(ok(&json!({ "id": table.id, "count": count })))
}

/// Which dead events a change is about. Never all of them by silence.
async fn chosen_of(table: &Table, fields: &Fields, ids: &str, began: Began) -> Result<Chosen, Refusal> {
    let events = fields.event_ids(ids)?;
    let filter = filter_of(table, fields, Some(began)).await?.ok_or_else(|| {
        Refusal::conflict("nothing is dead of this cause (any more)").next("look at the causes again")
    })?;
    let ways = [!events.is_empty(), filter != DeadFilter::default(), fields.on("all")?];
    match ways.iter().filter(|way| **way).count() {
        1 if !events.is_empty() => Ok(Chosen::Events(events)),
        1 => Ok(Chosen::Matching(filter)),
        0 => Err(Refusal::request(format!("it is not said which dead events: give {ids}, a filter, or all"))),
        _ => Err(Refusal::request("event ids, a filter and all exclude each other")),
    }
}

/// The time by which the ages of a filter go: that of the preview, where the request says when it was. What has died since was not
/// seen, and shall not be changed.
async fn began_of(table: &Table, fields: &Fields) -> Result<Began, Refusal> {
    let now = table.ask(table.admin.now()).await?;
    Ok(Began::at(fields.moment("at", now)?.unwrap_or(now), now))
}

/// The command that does the same.
fn command(table: &Table, words: &str, fields: &Fields, chosen: &Chosen) -> Result<Command, Refusal> {
    let mut command = table.command(words);
    if let Chosen::Events(ids) = chosen {
        for id in ids.iter().take(20) {
            command = command.word(&id.to_string());
        }
        return Ok(command);
    }
    let (kind, id) = (fields.text("aggregate_type")?, fields.text("aggregate_id")?);
    command = command.flag("topic", fields.text("topic")?).aggregate(kind.as_deref(), id.as_deref());
    for (field, flag) in [
        ("tenant", "tenant"),
        ("older_than", "older-than"),
        ("since", "since"),
        ("error", "error"),
        ("cause", "cause"),
    ] {
        command = command.flag(flag, fields.text(field)?);
    }
    Ok(command.switch("all", fields.on("all")?))
}

/// The statement in words, as the program shows it.
fn statement(table: &Table, kind: Kind, chosen: &Chosen, rows: u64, matched: u64) -> String {
    let (name, which) = (&table.name, chosen.describe());
    if kind == Kind::DiscardDead {
        return format!("DELETE FROM {name} WHERE dead, {which}: for good");
    }
    let first = if rows < matched { format!(", the first {rows} of {matched}") } else { String::new() };
    format!(
        "UPDATE {name} SET attempts = 0, available_at = now(), dead_at = NULL, last_error = NULL, … WHERE dead, {which}{first}"
    )
}

/// What a change would do.
pub(super) async fn preview(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&DEAD_FILTER, &CHOICE, &["action", "event_id"]])?;
    let (kind, words) = match fields.text("action")?.as_deref() {
        None | Some("replay") => (Kind::ReplayDead, "dead replay"),
        Some("discard") => (Kind::DiscardDead, "dead discard"),
        Some(_) => return Err(Refusal::request("action cannot be used: give replay or discard")),
    };
    let first = fields.number("first", 1, u64::MAX)?.filter(|_| kind == Kind::ReplayDead);
    let at = table.ask(table.admin.now()).await?;
    let began = Began::at(at, at);
    let chosen = chosen_of(table, &fields, "event_id", began).await?;
    let matched = table.ask(chosen.count(&table.admin, began)).await?;
    let rows = first.map_or(matched, |first| matched.min(first));
    let command = command(table, words, &fields, &chosen)?.flag("first", first).line();
    Ok(ok(&json!({
        "id": table.id,
        "at": time(at),
        "action": if kind == Kind::DiscardDead { "discard" } else { "replay" },
        "rows": rows,
        "matched": matched,
        "where": chosen.describe(),
        "sql": statement(table, kind, &chosen, rows, matched),
        "command": command,
        "place": table.site.database.address(),
        "confirm": table.confirmation(),
    })))
}

/// Gives dead events all their attempts again.
pub(super) async fn replay(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let fields = Fields::of_body(body, &[&DEAD_FILTER, &CHOICE, &CHANGE, &["event_ids"]]).await?;
    start(&admin, &id, who, Kind::ReplayDead, &fields).await
}

/// Deletes dead events for good.
pub(super) async fn discard(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let fields =
        Fields::of_body(body, &[&DEAD_FILTER, &["all", "rows", "at", "confirm", "event_ids"]]).await?;
    start(&admin, &id, who, Kind::DiscardDead, &fields).await
}

/// What is asked of every change of many rows.
pub(super) struct Agreed {
    rows: u64,
    first: Option<u64>,
    rate: Option<f64>,
    watch: u64,
}

impl Agreed {
    /// What was agreed to, if that is what the preview asked for.
    pub(super) fn of(table: &Table, fields: &Fields) -> Result<Self, Refusal> {
        let rows = fields.number("rows", 1, u64::MAX)?;
        let rows = rows.ok_or_else(|| {
            Refusal::request("rows is missing: how many the preview said, since never more are changed")
        })?;
        if let Some(expected) = table.confirmation() {
            let given = fields.text("confirm")?.unwrap_or_default();
            if given != expected {
                let message = "the database is not on this machine: confirm must be its name";
                return Err(
                    Refusal::conflict(message).next("type the name of the database, as the preview has it")
                );
            }
        }
        let first = fields.number("first", 1, u64::MAX)?;
        let watch = fields.number("watch", 0, 600)?.unwrap_or(WATCH_SECONDS);
        Ok(Self { rows, first, rate: fields.rate()?, watch })
    }

    /// What is to be done with those that are there.
    pub(super) fn plan(
        &self,
        kind: Kind,
        who: String,
        what: String,
        command: Command,
        matched: u64,
    ) -> Result<Plan, Refusal> {
        let rows = matched.min(self.rows).min(self.first.unwrap_or(u64::MAX));
        if rows == 0 {
            return Err(Refusal::conflict("nothing matches (any more)"));
        }
        let command = command.flag("first", self.first).flag("rate", self.rate.map(pace)).line();
        let (rate, watch) = (self.rate, Duration::from_secs(self.watch));
        Ok(Plan { kind, who, what, command, rows, rate, watch })
    }
}

/// A rate as the program takes it, which is whole.
fn pace(rate: f64) -> String {
    if rate >= 1.0 { format!("{rate:.0}/s") } else { format!("{:.0}/m", (rate * 60.0).max(1.0)) }
}

async fn start(admin: &Admin, id: &str, who: String, kind: Kind, fields: &Fields) -> Answer {
    let table = admin.table(id)?;
    let agreed = Agreed::of(table, fields)?;
    let began = began_of(table, fields).await?;
    let chosen = chosen_of(table, fields, "event_ids", began).await?;
    let matched = table.ask(chosen.count(&table.admin, began)).await?;
    let words = if kind == Kind::DiscardDead { "dead discard" } else { "dead replay" };
    let command = command(table, words, fields, &chosen)?;
    let plan = agreed.plan(kind, who, chosen.describe(), command, matched)?;
    let job = admin.jobs.start(table, plan, super::run::Work::Dead(chosen, began))?;
    Ok(with_status(StatusCode::ACCEPTED, &job))
}
