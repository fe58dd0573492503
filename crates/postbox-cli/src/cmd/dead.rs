//! `postbox dead list|show|replay|discard`: what died, why, and how it comes back.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use postbox_core::{
    Browse, Code, DeadCause, DeadEvent, DeadFilter, DeadLetters, EventId, EventStatus, StoreError, TableName,
};
use serde_json::{Value, json};

use super::replay::{self, BATCH, Pace};
use super::{block_on, given, named_table, one_table, within_patience};
use crate::ask::{Change, Progress};
use crate::assemble::{Database, operator};
use crate::cli::Call;
use crate::render::{Cell, TOPIC_WIDTH, Tint, ago, clock, counted, short, table as columns, thousands};
use crate::report::{Exit, Failure, Problem, say, say_json};

/// More causes than these are not told apart.
const MOST_CAUSES: usize = 1000;

/// Lists causes, or the events of one.
pub(crate) fn list(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let filter = given::dead_filter(call)?;
    let limit = given::number::<u32>(call, "limit")?.unwrap_or(50);
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

/// Numbers go from the most frequent to the least, and so change as events die and come back; the id of a cause stays.
fn cause_id(cause: &DeadCause) -> String {
    let text = format!("{}\0{}", cause.topic, cause.cause);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("c{:06x}", hash >> 40)
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
    let head = format!("{}{most}, {}", counted(causes.len() as u64, "cause"), counted(events, "event"));
    say(&format!("{head}\n{}", columns(&[], &rows)))?;
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

/// The filter narrowed to a cause, by its number in `dead list` with the same filter or by its id.
async fn with_cause(
    store: &impl DeadLetters,
    table: &TableName,
    filter: DeadFilter,
    wanted: &str,
) -> Result<DeadFilter, Failure> {
    let causes = store.causes(&filter).await.map_err(|error| Problem::about(table, &error))?;
    let number =
        wanted.trim_start_matches('#').parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let by_number = number.and_then(|number| causes.get(number));
    let by_id: Vec<&DeadCause> = causes.iter().filter(|cause| cause_id(cause) == wanted).collect();
    let Some(found) = by_number.or(if let [only] = by_id[..] { Some(only) } else { None }) else {
        let next = format!("postbox dead list --table {table} has their numbers");
        // Ids are short, for people: two causes may share one.
        let which = if by_id.is_empty() { "none" } else { "more than one" };
        let message = format!("there are {}", counted(causes.len() as u64, "cause"));
        let message = format!("--cause = {} is {which} of them: {message}", crate::config::shown(wanted));
        return Err(Problem::new(Code::ConfigInvalid, message).next(next).into());
    };
    Ok(DeadFilter { cause: Some(found.cause.clone()), topic: Some(found.topic.clone()), ..filter })
}

/// Which dead events a change is about. Never all of them by silence.
enum Chosen {
    Events(Vec<EventId>),
    Matching(DeadFilter),
}

async fn chosen(call: &Call<'_>, store: &impl DeadLetters, table: &TableName) -> Result<Chosen, Failure> {
    let ids = given::event_ids(call)?;
    let filter = given::dead_filter(call)?;
    let cause = call.text("cause");
    let filtered = filter != DeadFilter::default() || cause.is_some();
    let ways = usize::from(!ids.is_empty()) + usize::from(filtered) + usize::from(call.on("all"));
    if ways != 1 {
        let (code, message) = match ways {
            0 => (Code::ConfigMissing, "which dead events is not said"),
            _ => (Code::ConfigInvalid, "event ids, a filter and --all exclude each other"),
        };
        let next = "give event ids, --cause N, a filter such as --topic, or --all";
        return Err(Problem::new(code, message).next(next).into());
    }
    if !ids.is_empty() {
        return Ok(Chosen::Events(ids));
    }
    Ok(Chosen::Matching(match cause {
        Some(cause) => with_cause(store, table, filter, cause).await?,
        None => filter,
    }))
}

/// The filter as it was `then`, by the ages of now. Who takes long to answer, or replays slowly, shall neither hit what
/// has died since nor miss what has grown older.
fn as_of(then: Instant, filter: &DeadFilter) -> DeadFilter {
    let passed = then.elapsed();
    let older = |age: Duration| age.saturating_add(passed);
    DeadFilter {
        older_than: Some(older(filter.older_than.unwrap_or_default())),
        newer_than: filter.newer_than.map(older),
        ..filter.clone()
    }
}

impl Chosen {
    async fn count(&self, store: &(impl DeadLetters + Browse)) -> Result<u64, StoreError> {
        match self {
            Self::Matching(filter) => store.count(filter).await,
            Self::Events(ids) => {
                let found = store.statuses(ids).await?;
                Ok(found.iter().filter(|(_, status)| *status == EventStatus::Dead).count() as u64)
            }
        }
    }

    /// The condition in words.
    fn describe(&self) -> String {
        let filter = match self {
            Self::Events(ids) if ids.len() == 1 => return format!("event {}", ids[0]),
            Self::Events(ids) => return format!("{} by id", counted(ids.len() as u64, "event")),
            Self::Matching(filter) => filter,
        };
        let age = |name: &str, age: Option<Duration>| {
            age.map(|age| format!("dead for {name} {}", crate::render::age(age)))
        };
        let parts: Vec<String> = [
            filter.topic.as_ref().map(|topic| format!("topic = {topic}")),
            filter.aggregate_type.as_ref().map(|kind| format!("aggregate type = {kind}")),
            filter.tenant_id.map(|tenant| format!("tenant = {tenant}")),
            age("at least", filter.older_than),
            age("at most", filter.newer_than),
            filter.error.as_ref().map(|error| format!("error contains {error:?}")),
            filter.cause.as_ref().map(|cause| format!("cause = {cause:?}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() { "whatever it died of".to_owned() } else { parts.join(" and ") }
    }

    /// That nothing matches is an error only where events were named.
    fn nothing(&self, call: &Call<'_>, table: &TableName, verb: &str) -> Result<Exit, Failure> {
        if let Self::Events(ids) = self {
            let which = if ids.len() == 1 { "it is" } else { "they are" };
            let message = format!("{table} has no such dead event: {which} not there, or not dead");
            return Err(Problem::new(Code::EventMissing, message)
                .next(format!("postbox events show --table {table} {}", ids[0]))
                .into());
        }
        if call.json {
            let mut value = json!({ "table": table.to_string(), "matched": 0 });
            value[verb] = Value::from(0);
            say_json(&value)?;
        } else {
            say("no dead event matches")?;
        }
        Ok(Exit::Done)
    }
}

/// Shows everything about a dead event.
pub(crate) fn show(call: &Call<'_>) -> Result<Exit, Failure> {
    super::events::show_if(call, |status| status == EventStatus::Dead, "is not dead")
}

/// Gives dead events all their attempts again.
pub(crate) fn replay(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let pace = Pace::of(call)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let began = Instant::now();
        let asked = async {
            let chosen = chosen(call, &store, &table).await?;
            let count = chosen.count(&store).await.map_err(|error| Problem::about(&table, &error))?;
            Ok((chosen, count))
        };
        let (chosen, count) = within_patience(asked).await?;
        let rows = pace.first.map_or(count, |first| count.min(first));
        if rows == 0 {
            return chosen.nothing(call, &table, "replayed");
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
        if !change.confirmed(call.on("yes"), call.json)? {
            return unchanged(call);
        }
        let next = next_of(&store, &chosen, began);
        replay::run(call, &store, &table, &pace, rows, next).await
    })
}

/// Replays the next of the chosen, at most so many, and answers which; none is the end.
fn next_of<'a>(
    store: &'a (impl DeadLetters + Browse),
    chosen: &'a Chosen,
    began: Instant,
) -> impl AsyncFnMut(u32) -> Result<Vec<EventId>, StoreError> + 'a {
    let who = operator();
    let mut ids = match chosen {
        Chosen::Events(ids) => ids.clone(),
        Chosen::Matching(_) => Vec::new(),
    }
    .into_iter();
    // What dies again is not replayed again, and what cannot be had (a row whose id is none) is not asked for for ever.
    let mut tried: HashSet<EventId> = HashSet::new();
    let mut behind = 0;
    async move |take: u32| loop {
        let some: Vec<EventId> = match chosen {
            Chosen::Events(_) => ids.by_ref().take(take as usize).collect(),
            Chosen::Matching(filter) => {
                let most = take.saturating_add(behind);
                let found = store.query(&as_of(began, filter), most).await?;
                let new = found.iter().map(|event| event.event_id).filter(|id| !tried.contains(id));
                let new: Vec<EventId> = new.take(take as usize).collect();
                if new.is_empty() && found.len() >= most as usize {
                    behind = behind.saturating_add(BATCH);
                    continue;
                }
                new
            }
        };
        if some.is_empty() {
            return Ok(Vec::new());
        }
        tried.extend(&some);
        // None if somebody else was quicker with all of these: then the next ones.
        let done = store.replay_dead(&some, &who).await?;
        if !done.is_empty() {
            return Ok(done);
        }
    }
}

/// Deletes dead events for good.
pub(crate) fn discard(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let began = Instant::now();
        let asked = async {
            let chosen = chosen(call, &store, &table).await?;
            let count = chosen.count(&store).await.map_err(|error| Problem::about(&table, &error))?;
            Ok((chosen, count))
        };
        let (chosen, rows) = within_patience(asked).await?;
        if rows == 0 {
            return chosen.nothing(call, &table, "discarded");
        }
        let meaning = format!("DELETE FROM {table} WHERE dead, {}: for good", chosen.describe());
        let change = Change { verb: "discard", meaning, rows, table: &table, database: &database };
        if !change.confirmed(call.on("yes"), call.json)? {
            return unchanged(call);
        }
        let progress = Progress::new(call.json);
        progress.at(&format!("discarding {}", counted(rows, "event")));
        let discarded = discard_chosen(&store, &chosen, began).await;
        drop(progress);
        let discarded = discarded.map_err(|error| Problem::about(&table, &error))?;
        let left = rows.saturating_sub(discarded);
        if call.json {
            let table = table.to_string();
            say_json(&json!({ "table": table, "matched": rows, "discarded": discarded, "left": left }))?;
        } else {
            say(&format!("discarded {}{}", thousands(discarded), replay::left_alone(left)))?;
        }
        Ok(if left > 0 { Exit::Problems } else { Exit::Done })
    })
}

async fn discard_chosen(
    store: &(impl DeadLetters + Browse),
    chosen: &Chosen,
    began: Instant,
) -> Result<u64, StoreError> {
    let who = operator();
    match chosen {
        Chosen::Matching(filter) => store.discard(&as_of(began, filter), &who).await,
        Chosen::Events(ids) => {
            let mut discarded = 0;
            for some in ids.chunks(BATCH as usize) {
                discarded += store.discard_dead(some, &who).await?.len() as u64;
            }
            Ok(discarded)
        }
    }
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
