//! `postbox dead list|show|replay|discard`: what died, why, and how it comes back.

use postbox_core::{
    Browse, DeadCause, DeadEvent, DeadFilter, DeadLetters, EventStatus, StoreError, TableName,
};
use serde_json::{Value, json};

use super::chosen::{Act, Began, Chosen, MOST_CAUSES, cause_id, chosen, next_of, with_cause};
use super::replay::{self, Pace};
use super::{block_on, given, named_table, one_table, within_patience};
use crate::ask::Change;
use crate::cli::Call;
use crate::database::Database;
use crate::render::{
    Cell, TOPIC_WIDTH, Tint, ago, clock, counted, paint, printable, short, table as columns, thousands,
};
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_json};

/// Lists causes, or the events of one.
pub(crate) fn list(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let filter = given::dead_filter(call)?;
    let limit = given::number(call, "limit", 1..=u32::MAX)?.unwrap_or(50);
    block_on(within_patience(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        match call.text("cause") {
            None => list_causes(call, &store, &table, &filter).await,
            Some(cause) => {
                let filter = with_cause(&store, &table, filter, cause).await?;
                list_events(call, &store, &table, &filter, limit).await
            }
        }
    }))
}

async fn list_causes(
    call: &Call<'_>,
    store: &(impl DeadLetters + Browse),
    table: &TableName,
    filter: &DeadFilter,
) -> Result<Exit, Failure> {
    let asked = async { Ok((store.causes(filter).await?, store.now().await?)) };
    let (causes, now) = asked.await.map_err(|error: StoreError| Problem::about(table, &error))?;
    let mut events: u64 = causes.iter().map(|cause| cause.events).sum();
    let most = if causes.len() < MOST_CAUSES { "" } else { " or more" };
    if !most.is_empty() {
        events = store.count(filter).await.map_err(|error| Problem::about(table, &error))?;
    }
    if call.json {
        let cause = |(at, cause): (usize, &DeadCause)| {
            let mut value = json!(cause);
            value["number"] = Value::from(at + 1);
            value["id"] = Value::from(cause_id(cause));
            value
        };
        let causes: Vec<Value> = causes.iter().enumerate().map(cause).collect();
        say_json(&json!({ "table": table.to_string(), "events": events, "causes": causes }))?;
        return Ok(Exit::Done);
    }
    if causes.is_empty() {
        say("no dead events")?;
        return Ok(Exit::Done);
    }
    let row = |(at, cause): (usize, &DeadCause)| {
        let (first, last) = (clock(cause.first, now), clock(cause.last, now));
        let time = if first == last { first } else { format!("{first}–{last}") };
        let text = if cause.cause.is_empty() { "no error is known" } else { &cause.cause };
        vec![
            Cell::right(format!("#{}", at + 1)),
            Cell::text(cause_id(cause)).tint(Tint::Faint),
            Cell::number(cause.events),
            Cell::text(short(text, 80)).tint(Tint::Bad),
            Cell::text(short(&cause.topic, TOPIC_WIDTH)),
            Cell::text(time),
        ]
    };
    let rows: Vec<Vec<Cell>> = causes.iter().enumerate().map(row).collect();
    let mut lines =
        vec![format!("{}{most}, {}", counted(causes.len() as u64, "cause"), counted(events, "event"))];
    for (line, cause) in columns(&[], &rows).lines().zip(&causes) {
        lines.push(line.to_owned());
        // What the cause leaves out may be what somebody needs: a port, a status, a limit.
        if cause.example != cause.cause {
            let example = format!("    such as {}", printable(&short(&cause.example, 120)));
            lines.push(paint(&example, Tint::Faint));
        }
    }
    say(&lines.join("\n"))?;
    Ok(Exit::Done)
}

async fn list_events(
    call: &Call<'_>,
    store: &(impl DeadLetters + Browse),
    table: &TableName,
    filter: &DeadFilter,
    limit: u32,
) -> Result<Exit, Failure> {
    let asked =
        async { Ok((store.query(filter, limit).await?, store.count(filter).await?, store.now().await?)) };
    let (events, count, now) = asked.await.map_err(|error: StoreError| Problem::about(table, &error))?;
    if call.json {
        let cause = filter.cause.as_deref();
        say_json(&json!({ "table": table.to_string(), "cause": cause, "count": count, "events": events }))?;
        return Ok(Exit::Done);
    }
    let row = |event: &DeadEvent| {
        vec![
            Cell::right(event.sequence.to_string()),
            Cell::text(event.event_id.to_string()),
            Cell::text(short(&event.topic, TOPIC_WIDTH)),
            Cell::number(event.attempts.unsigned_abs().into()),
            Cell::right(ago(event.dead_at, now)),
            Cell::text(short(event.last_error.as_deref().unwrap_or_default(), 80)),
        ]
    };
    let rows: Vec<Vec<Cell>> = events.iter().map(row).collect();
    let mut text = columns(&["SEQUENCE", "EVENT", "TOPIC", "ATTEMPTS", "DEAD FOR", "ERROR"], &rows);
    if count > events.len() as u64 {
        text = format!("{text}\n{} of {}; --limit shows more", events.len(), thousands(count));
    }
    say(&text)?;
    Ok(Exit::Done)
}

/// Shows everything about a dead event.
pub(crate) fn show(call: &Call<'_>) -> Result<Exit, Failure> {
    super::events::show_if(call, |status| status == EventStatus::Dead, "is not dead")
}

/// Which events are meant, when that was asked, and how many they are by the ages of then.
async fn counted_choice(
    call: &Call<'_>,
    store: &(impl DeadLetters + Browse),
    table: &TableName,
) -> Result<(Chosen, Began, u64), Failure> {
    let about = |error: StoreError| Problem::about(table, &error);
    let asked = async {
        let began = Began::now(store).await.map_err(about)?;
        let chosen = chosen(call, store, table).await?;
        let count = chosen.count(store, began).await.map_err(about)?;
        Ok((chosen, began, count))
    };
    within_patience(asked).await
}

/// Gives dead events all their attempts again.
pub(crate) fn replay(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let pace = Pace::of(call)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let (chosen, began, count) = counted_choice(call, &store, &table).await?;
        let rows = pace.first.map_or(count, |first| count.min(first));
        if rows == 0 {
            return chosen.nothing(call, &table, Act::Replay);
        }
        let first = if rows < count {
            format!(", the first {} of {}", thousands(rows), thousands(count))
        } else {
            String::new()
        };
        let meaning = format!(
            "UPDATE {table} SET attempts = 0, available_at = now(), dead_at = NULL, last_error = NULL, … WHERE dead, {}{first}",
            chosen.describe()
        );
        let change = Change { verb: "replay", meaning, rows, table: &table, database: &database };
        if !change.confirmed(call)? {
            return unchanged(call);
        }
        let next = next_of(&store, &chosen, began, rows, Act::Replay);
        replay::run(call, &store, &table, &pace, rows, next).await
    })
}

/// Deletes dead events for good.
pub(crate) fn discard(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let (chosen, began, rows) = counted_choice(call, &store, &table).await?;
        if rows == 0 {
            return chosen.nothing(call, &table, Act::Discard);
        }
        let meaning = format!("DELETE FROM {table} WHERE dead, {}: for good", chosen.describe());
        let change = Change { verb: "discard", meaning, rows, table: &table, database: &database };
        if !change.confirmed(call)? {
            return unchanged(call);
        }
        let next = next_of(&store, &chosen, began, rows, Act::Discard);
        replay::discard(call, &table, rows, next).await
    })
}

/// The answer was no.
pub(crate) fn unchanged(call: &Call<'_>) -> Result<Exit, Failure> {
    if call.json {
        say_json(&json!({ "changed": false }))?;
    } else {
        say("nothing was changed")?;
    }
    Ok(Exit::Failed)
}
