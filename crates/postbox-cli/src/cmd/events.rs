//! `postbox events list|show|replay`. `tail.rs` is about following them.

use postbox_core::{
    Browse, Code, Direction, EventDetail, EventId, EventStatus, EventSummary, ListRequest, Page, Published,
    StoreError, TableName,
};
use time::OffsetDateTime;

use super::chosen::Act;
use super::dead::unchanged;
use super::replay::{self, Pace};
use super::{block_on, given, named_table, one_table, within_patience};
use crate::ask::Change;
use crate::assemble::operator;
use crate::cli::Call;
use crate::database::Database;
use crate::render::{
    Cell, TOPIC_WIDTH, Tint, ago, counted, moment, printable, short, table as columns, thousands,
};
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_as_json};

/// Lists events.
pub(crate) fn list(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let database = Database::of(&call.config)?;
    block_on(within_patience(async {
        drop(database.connect().await?);
        list_of(call, &database.admin(&table, &call.config), &table).await
    }))
}

async fn list_of(call: &Call<'_>, store: &impl Browse, table: &TableName) -> Result<Exit, Failure> {
    let about = |error: StoreError| Problem::about(table, &error);
    let now = store.now().await.map_err(about)?;
    let default = ListRequest::default();
    let request = ListRequest {
        filter: given::event_filter(call, now)?,
        direction: if call.on("oldest") { Direction::OldestFirst } else { Direction::NewestFirst },
        after: given::number(call, "after", 0..=i64::MAX)?,
        limit: given::limit(call)?,
        depth: if call.on("deep") { None } else { default.depth },
    };
    let page = store.list(&request).await.map_err(about)?;
    if call.json {
        #[derive(serde::Serialize)]
        struct Listed<'a> {
            table: String,
            #[serde(flatten)]
            page: &'a Page,
        }
        say_as_json(&Listed { table: table.to_string(), page: &page })?;
        return Ok(Exit::Done);
    }
    let mut lines = Vec::new();
    if page.events.is_empty() {
        lines.push("no event matches".to_owned());
    } else {
        let head = ["SEQUENCE", "STATUS", "ATTEMPTS", "AGE", "TOPIC", "AGGREGATE", "EVENT", "ERROR"];
        let rows: Vec<Vec<Cell>> = page.events.iter().map(|event| row(event, now)).collect();
        lines.push(columns(&head, &rows));
    }
    if let Some(next) = page.next {
        lines.push(format!("more with --after {next}"));
    }
    if page.bounded {
        let depth = thousands(request.depth.unwrap_or_default().into());
        let end = if request.direction == Direction::NewestFirst { "latest" } else { "oldest" };
        lines.push(format!(
            "looked at the {end} {depth} of each kind only; --deep looks through the whole table"
        ));
    }
    say(&lines.join("\n"))?;
    Ok(Exit::Done)
}

/// The colour of a status.
pub(crate) fn tint(status: EventStatus) -> Tint {
    match status {
        EventStatus::New => Tint::Plain,
        EventStatus::Publishing => Tint::Faint,
        EventStatus::Failed => Tint::Doubtful,
        EventStatus::Sent => Tint::Good,
        EventStatus::Dead => Tint::Bad,
    }
}

/// What an event is about, in a few words.
pub(crate) fn aggregate(event: &EventSummary) -> String {
    match (&event.aggregate_type, &event.aggregate_id) {
        (Some(kind), Some(id)) => format!("{kind}/{id}"),
        (kind, id) => kind.as_ref().or(id.as_ref()).cloned().unwrap_or_else(|| "-".to_owned()),
    }
}

fn row(event: &EventSummary, now: OffsetDateTime) -> Vec<Cell> {
    vec![
        Cell::right(event.sequence.to_string()),
        Cell::text(event.status.as_str()).tint(tint(event.status)),
        Cell::number(event.attempts.unsigned_abs().into()),
        Cell::right(ago(event.created_at, now)),
        Cell::text(short(&event.topic, TOPIC_WIDTH)),
        Cell::text(short(&aggregate(event), 40)),
        Cell::text(event.event_id.to_string()),
        Cell::text(short(event.last_error.as_deref().unwrap_or_default(), 60)),
    ]
}

/// Shows everything about an event, its payload only where it is asked for.
pub(crate) fn show(call: &Call<'_>) -> Result<Exit, Failure> {
    show_if(call, |_| true, "")
}

/// Shows an event if its status is a wanted one.
pub(crate) fn show_if(
    call: &Call<'_>,
    wanted: impl Fn(EventStatus) -> bool,
    otherwise: &str,
) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let ids = given::event_ids(call)?;
    let database = Database::of(&call.config)?;
    block_on(within_patience(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        for (at, id) in ids.into_iter().enumerate() {
            let event = find(&store, &table, id, call.on("payload")).await?;
            let status = event.summary.status;
            if !wanted(status) {
                let message = format!("{id} {otherwise}: its status is {status}");
                let next = format!("postbox events show --table {table} {id}");
                return Err(Problem::new(Code::EventMissing, message).next(next).into());
            }
            if call.json {
                // One line for each.
                say_as_json(&event)?;
            } else {
                say(&format!("{}{}", if at > 0 { "\n" } else { "" }, describe(&event)))?;
            }
        }
        Ok(Exit::Done)
    }))
}

async fn find(
    store: &impl Browse,
    table: &TableName,
    id: EventId,
    with_content: bool,
) -> Result<EventDetail, Failure> {
    let event = store.show(id, with_content).await.map_err(|error| Problem::about(table, &error))?;
    event.ok_or_else(|| {
        let next = "look for it with postbox events list; what was published long ago is cleaned away";
        Problem::new(Code::EventMissing, format!("{table} has no event {id}")).next(next).into()
    })
}

fn describe(event: &EventDetail) -> String {
    let EventDetail { summary, .. } = event;
    let time = |at: Option<OffsetDateTime>| at.map(moment);
    let text = |text: &Option<String>| text.clone();
    let json = |json: &Option<postbox_core::Json>| json.as_ref().map(|json| json.as_str().to_owned());
    let mut lines = vec![
        ("event_id", Some(summary.event_id.to_string())),
        ("sequence", Some(summary.sequence.to_string())),
        ("topic", Some(summary.topic.clone())),
        (
            "status",
            Some(format!(
                "{}, {}",
                summary.status,
                counted(summary.attempts.unsigned_abs().into(), "attempt")
            )),
        ),
        ("tenant_id", Some(summary.tenant_id.to_string())),
        ("aggregate", Some(aggregate(summary)).filter(|text| text != "-")),
        ("occurred_at", time(event.occurred_at)),
        ("created_at", Some(moment(summary.created_at))),
        ("available_at", Some(moment(summary.available_at))),
        ("locked_at", time(event.locked_at)),
        ("locked_by", text(&event.locked_by)),
        ("published_at", time(summary.published_at)),
        ("dead_at", time(summary.dead_at)),
        ("dlq_at", time(event.dlq_at)),
        ("last_error", text(&summary.last_error)),
        ("routing_key", text(&event.routing_key)),
        ("schema_id", text(&event.schema_id)),
        ("schema_version", event.schema_version.map(|version| version.to_string())),
        ("traceparent", text(&event.traceparent)),
        ("tracestate", text(&event.tracestate)),
        ("sinks_done", event.sinks_done.as_ref().map(|sinks| sinks.join(", "))),
        ("content_type", text(&event.content_type)),
        ("headers", json(&event.headers)),
        ("attempts_log", None),
    ];
    if let Some(log) = json(&event.attempts_log) {
        lines.extend(attempts(&log).into_iter().map(|line| ("attempt", Some(line))));
    }
    match &event.content {
        None => lines.push(("payload", Some("hidden; --payload shows it".to_owned()))),
        Some(content) => {
            let payload = match &content.payload_raw {
                Some(bytes) => format!("{}; --json shows them", counted(bytes.len() as u64, "byte")),
                None => content.payload.as_str().to_owned(),
            };
            lines.extend([("metadata", json(&content.metadata)), ("payload", Some(payload))]);
        }
    }
    let line = |(name, value): (&str, Option<String>)| {
        value.map(|value| format!("{name:<14}  {}", printable(&value)))
    };
    lines.into_iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// One line for each failure of the log; a log that somebody wrote by hand as it is.
fn attempts(log: &str) -> Vec<String> {
    let Ok(serde_json::Value::Array(entries)) = serde_json::from_str(log) else {
        return vec![log.to_owned()];
    };
    let entry = |entry: serde_json::Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
        let took = entry["duration_ms"].as_u64().map(|ms| format!(" after {ms}ms")).unwrap_or_default();
        format!("{}  {}{took} by {}: {}", text("at"), text("outcome"), text("relay"), text("error"))
    };
    entries.into_iter().map(entry).collect()
}

/// Has published events delivered once more, and such tried at once that have failed and wait.
pub(crate) fn replay(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let pace = Pace::of(call)?;
    let ids = given::event_ids(call)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let about = |error: StoreError| Failure::from(Problem::about(&table, &error));
        let asked = async {
            let mut which = published(call, ids, store.now().await.map_err(about)?)?;
            let failed = match &mut which {
                Published::Events { event_ids } => {
                    let failed = failed_of(&store, event_ids).await.map_err(about)?;
                    // They are tried once: one that has come by then is not sent again in the place of another.
                    event_ids.retain(|id| !failed.contains(id));
                    failed
                }
                Published::Between { .. } => Vec::new(),
            };
            let count = store.count_published(&which).await.map_err(about)?;
            Ok((which, count, failed, store.has_history().await.map_err(about)?))
        };
        let (which, published, mut failed, has_history) = within_patience(asked).await?;
        let count = published + failed.len() as u64;
        let rows = pace.first.map_or(count, |first| count.min(first));
        if rows == 0 {
            if let Published::Events { event_ids } = &which {
                let message = format!(
                    "{table} has no such event: not there, or neither published nor waiting for another attempt"
                );
                let next = format!("postbox events show --table {table} {}", event_ids[0]);
                return Err(Problem::new(Code::EventMissing, message).next(next).into());
            }
            return replay::nothing(call, &table, Act::Replay, "no published event matches");
        }
        let moved = if has_history {
            format!(" (and INSERT INTO {table} SELECT … FROM {table}_history for what was moved there)")
        } else {
            String::new()
        };
        let again = format!(
            "UPDATE {table} SET published_at = NULL, attempts = 0, available_at = now(), …{moved} WHERE {}: \
             they are delivered once more",
            describe_published(&which)
        );
        let now = format!(
            "UPDATE {table} SET available_at = now() WHERE {} that failed: tried at once, with the attempts that are left",
            counted(failed.len() as u64, "event")
        );
        let meaning = match (published, failed.is_empty()) {
            (_, true) => again,
            (0, false) => now,
            (_, false) => format!("{again}; {now}"),
        };
        let change = Change { verb: "replay", meaning, rows, table: &table, database: &database };
        if !change.confirmed(call)? {
            return unchanged(call);
        }
        let who = operator();
        let mut which = which;
        let next = async |take: u32| {
            while !failed.is_empty() {
                let some: Vec<EventId> = failed.drain(..failed.len().min(take as usize)).collect();
                // None if a relay was quicker with all of these: then the next ones.
                let done = store.retry_now(&some, &who).await?;
                if !done.is_empty() {
                    return Ok(done);
                }
            }
            if published == 0 {
                return Ok(Vec::new());
            }
            let done = store.replay_published(&which, take, &who).await?;
            // What is delivered meanwhile is not replayed a second time.
            if let Published::Events { event_ids } = &mut which {
                event_ids.retain(|id| !done.contains(id));
            }
            Ok(done)
        };
        replay::run(call, &store, &table, &pace, rows, next).await
    })
}

/// Those of these events that have failed and will be tried again.
async fn failed_of(store: &impl Browse, events: &[EventId]) -> Result<Vec<EventId>, StoreError> {
    let found = store.statuses(events).await?;
    let failed = found.into_iter().filter(|(_, status)| *status == EventStatus::Failed);
    Ok(failed.map(|(event, _)| event).collect())
}

fn published(call: &Call<'_>, event_ids: Vec<EventId>, now: OffsetDateTime) -> Result<Published, Failure> {
    let (since, until) = given::range(call, now)?;
    let topic = given::text(call, "topic")?.map(str::to_owned);
    let ranged = since.is_some() || until.is_some() || topic.is_some();
    match (event_ids.is_empty(), since) {
        (false, _) if ranged => {
            let message = "event ids and a time range exclude each other";
            Err(Problem::new(Code::ConfigInvalid, message).next("give one of them").into())
        }
        (false, _) => Ok(Published::Events { event_ids }),
        // What is published from now on is not meant.
        (true, Some(since)) => Ok(Published::Between { since, until: until.unwrap_or(now).min(now), topic }),
        (true, None) => {
            let message = "it is not said which published events";
            let next = "give event ids, or --since and perhaps --until, such as --since 2h --until 1h";
            Err(Problem::new(Code::ConfigMissing, message).next(next).into())
        }
    }
}

fn describe_published(which: &Published) -> String {
    match which {
        Published::Events { event_ids } if event_ids.len() == 1 => format!("event {}", event_ids[0]),
        Published::Events { event_ids } => format!("{} by id", counted(event_ids.len() as u64, "event")),
        Published::Between { since, until, topic } => {
            let topic = topic.as_ref().map(|topic| format!(" and topic = {topic}")).unwrap_or_default();
            format!("published from {} to {}{topic}", moment(*since), moment(*until))
        }
    }
}
