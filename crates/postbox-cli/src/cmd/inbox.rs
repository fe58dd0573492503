//! `postbox inbox list|forget`: what consumers have seen, and what they are to see again.

use postbox_core::{
    Browse as _, Code, Inbox, InboxAdmin, InboxFilter, InboxKey, InboxPage, InboxRequest, StoreError,
    TableName,
};
use serde_json::json;
use time::OffsetDateTime;

use super::dead::unchanged;
use super::replay::left_alone;
use super::{block_on, given, named_table, one_table, within_patience};
use crate::ask::{Change, Progress};
use crate::assemble::operator;
use crate::cli::Call;
use crate::database::Database;
use crate::render::{Cell, ago, counted, moment, short, table as columns, thousands};
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_as_json, say_json};

/// The inbox beside a table, for people.
fn name_of(table: &TableName) -> String {
    Inbox::new(table.clone()).table().to_string()
}

/// Lists what was recorded, the latest first.
pub(crate) fn list(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let after = call.text("after").map(|given| {
        given.parse::<InboxKey>().map_err(|error| given::wrong("after", given, &format!("it {error}")))
    });
    let after = after.transpose()?;
    let limit = given::limit(call)?;
    block_on(within_patience(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let about = |error: StoreError| Problem::about(&table, &error);
        let now = store.now().await.map_err(about)?;
        let filter = filter(call, now)?;
        let page = store.inbox_list(&InboxRequest { filter, after, limit }).await.map_err(about)?;
        show(call, &table, &page, now)?;
        Ok(Exit::Done)
    }))
}

fn show(call: &Call<'_>, table: &TableName, page: &InboxPage, now: OffsetDateTime) -> Result<(), Failure> {
    if call.json {
        #[derive(serde::Serialize)]
        struct Listed<'a> {
            table: String,
            inbox: String,
            #[serde(flatten)]
            page: &'a InboxPage,
        }
        let listed = Listed { table: table.to_string(), inbox: name_of(table), page };
        return say_as_json(&listed).map(drop);
    }
    if page.messages.is_empty() {
        return say("no message matches");
    }
    let row = |entry: &postbox_core::InboxEntry| {
        vec![
            Cell::text(moment(entry.processed_at)),
            Cell::right(ago(entry.processed_at, now)),
            Cell::text(short(&entry.consumer, 127)),
            Cell::text(short(&entry.message_id, 200)),
        ]
    };
    let rows: Vec<Vec<Cell>> = page.messages.iter().map(row).collect();
    let mut text = columns(&["PROCESSED", "AGO", "CONSUMER", "MESSAGE"], &rows);
    if let Some(next) = &page.next {
        text = format!("{text}\nmore with --after {next}");
    }
    say(&text)
}

/// Which messages.
fn filter(call: &Call<'_>, now: OffsetDateTime) -> Result<InboxFilter, Failure> {
    let ids = call.matches.try_get_many::<String>("message").ok().flatten().into_iter().flatten();
    let mut message_ids = Vec::new();
    for id in ids {
        message_ids.push(given::filled("message", id)?.to_owned());
    }
    message_ids.sort_unstable();
    message_ids.dedup();
    let (since, until) = given::range(call, now)?;
    let consumer = given::text(call, "consumer")?.map(str::to_owned);
    Ok(InboxFilter { consumer, message_ids, since, until })
}

/// Forgets messages: they have their effect again when they come again.
pub(crate) fn forget(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = named_table(&call.config)?;
    let database = Database::of(&call.config)?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let about = |error: StoreError| Failure::from(Problem::about(&table, &error));
        let asked = async {
            let now = store.now().await.map_err(about)?;
            let filter = chosen(call, now)?;
            let rows = store.inbox_count(&filter).await.map_err(about)?;
            Ok((filter, rows))
        };
        let (filter, rows) = within_patience(asked).await?;
        if rows == 0 {
            return nothing(call, &table, &filter);
        }
        let inbox = name_of(&table);
        let meaning = format!(
            "DELETE FROM {inbox} WHERE {}: such a message has its effect again when it comes again",
            describe(&filter)
        );
        let change = Change { verb: "forget", meaning, rows, table: &inbox, database: &database };
        if !change.confirmed(call)? {
            return unchanged(call);
        }
        let progress = Progress::new(call.json);
        progress.at(&format!("forgetting {}", counted(rows, "message")));
        let forgotten = store.inbox_forget(&filter, &operator()).await;
        drop(progress);
        let forgotten = forgotten.map_err(about)?;
        let left = rows.saturating_sub(forgotten);
        if call.json {
            let table = table.to_string();
            say_json(&json!({
                "table": table, "inbox": inbox, "matched": rows, "forgotten": forgotten, "left": left
            }))?;
        } else {
            say(&format!("forgot {}{}", thousands(forgotten), left_alone(left)))?;
        }
        Ok(if left > 0 { Exit::Problems } else { Exit::Done })
    })
}

/// What is to be forgotten. Never all of it by silence, and nothing that is recorded from now on.
fn chosen(call: &Call<'_>, now: OffsetDateTime) -> Result<InboxFilter, Failure> {
    let mut filter = filter(call, now)?;
    let filtered = filter != InboxFilter::default();
    if filtered == call.on("all") {
        let (code, message) = if filtered {
            (Code::ConfigInvalid, "a filter and --all exclude each other")
        } else {
            (Code::ConfigMissing, "it is not said which messages")
        };
        let next = "give --message ID, --consumer NAME, --since or --until, or --all";
        return Err(Problem::new(code, message).next(next).into());
    }
    filter.until = Some(filter.until.map_or(now, |until| until.min(now)));
    Ok(filter)
}

/// That nothing matches is an error only where messages were named.
fn nothing(call: &Call<'_>, table: &TableName, filter: &InboxFilter) -> Result<Exit, Failure> {
    if !filter.message_ids.is_empty() {
        let message = format!("{} does not remember such a message", name_of(table));
        let next = format!("postbox inbox list --table {table}");
        return Err(Problem::new(Code::MessageMissing, message).next(next).into());
    }
    if call.json {
        let table = table.to_string();
        say_json(&json!({ "table": table, "matched": 0, "forgotten": 0, "left": 0 }))?;
    } else {
        say("no message matches")?;
    }
    Ok(Exit::Done)
}

/// The condition in words.
fn describe(filter: &InboxFilter) -> String {
    let messages = match filter.message_ids.as_slice() {
        [] => None,
        [only] => Some(format!("message_id = {only:?}")),
        many => Some(format!("{} by id", counted(many.len() as u64, "message"))),
    };
    let parts: Vec<String> = [
        filter.consumer.as_ref().map(|consumer| format!("consumer = {consumer:?}")),
        messages,
        filter.since.map(|since| format!("processed_at >= {}", moment(since))),
        filter.until.map(|until| format!("processed_at < {}", moment(until))),
    ]
    .into_iter()
    .flatten()
    .collect();
    parts.join(" AND ")
}
