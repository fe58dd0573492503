//! `postbox events tail`: new events and what becomes of them, as it happens.
//!
//! Sequence order is not commit order (hazard 12): a reader that only goes on behind the highest sequence misses events.
//! This one looks at the latest events again and again and says what is new about them.

use std::collections::HashMap;
use std::time::Duration;

use postbox_core::{Browse, EventId, EventStatus, EventSummary, ListRequest, Page, StoreError, TableName};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::events::{aggregate, tint};
use super::{block_on, given, one_table, within_patience};
use crate::cli::Call;
use crate::database::Database;
use crate::render::{TOPIC_WIDTH, clock, paint, printable, short};
use crate::report::{Exit, Failure, Problem};
use crate::say::{said, say_as_json};

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many of the latest events are looked at; more than a relay delivers between two looks.
const LATEST: u32 = 2_000;

/// Follows the events of a table until Ctrl-C, or for as long as `--for` says.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let table = one_table(&call.config)?;
    let database = Database::of(&call.config)?;
    let limit = given::duration(call, "for")?;
    block_on(async {
        drop(database.connect().await?);
        let store = database.admin(&table, &call.config);
        let end = limit.map(|limit| Instant::now() + limit);
        tokio::select! {
            result = follow(call, &store, &table, end) => result,
            _ = tokio::signal::ctrl_c() => Ok(Exit::Done),
        }
    })
}

async fn follow(
    call: &Call<'_>,
    store: &impl Browse,
    table: &TableName,
    end: Option<Instant>,
) -> Result<Exit, Failure> {
    let about = |error: StoreError| Failure::from(Problem::about(table, &error));
    let now = within_patience(async { store.now().await.map_err(about) }).await?;
    let filter = given::event_filter(call, now)?;
    let request = ListRequest { filter, limit: LATEST, depth: Some(LATEST), ..ListRequest::default() };
    let mut seen: Option<Seen> = None;
    loop {
        let (page, now) = within_patience(async {
            Ok((store.list(&request).await.map_err(about)?, store.now().await.map_err(about)?))
        })
        .await?;
        match &mut seen {
            None => seen = Some(Seen::of(&page)),
            Some(seen) => {
                for event in seen.news(&page) {
                    let heard = if call.json { say_as_json(event)? } else { said(&line(event, now))? };
                    // Who only wanted to see some (`| head`) has gone: nobody is left to follow them for.
                    if !heard {
                        return Ok(Exit::Done);
                    }
                }
            }
        }
        let next = Instant::now() + LOOK_EVERY;
        if end.is_some_and(|end| next >= end) {
            if let Some(end) = end {
                tokio::time::sleep_until(end).await;
            }
            return Ok(Exit::Done);
        }
        tokio::time::sleep_until(next).await;
    }
}

/// What was said before.
struct Seen {
    statuses: HashMap<EventId, (EventStatus, i32)>,
    /// What is older than the first look reached was there before.
    floor: i64,
}

impl Seen {
    fn of(page: &Page) -> Self {
        let statuses = page.events.iter().map(|event| (event.event_id, (event.status, event.attempts)));
        let whole = page.next.is_none() && !page.bounded;
        let floor = page.events.last().filter(|_| !whole).map_or(i64::MIN, |event| event.sequence);
        Self { statuses: statuses.collect(), floor }
    }

    /// New events and those that have changed, in order of sequence.
    fn news<'a>(&mut self, page: &'a Page) -> Vec<&'a EventSummary> {
        let mut news: Vec<&EventSummary> = Vec::new();
        let mut statuses = HashMap::with_capacity(page.events.len());
        for event in page.events.iter().rev() {
            let state = (event.status, event.attempts);
            statuses.insert(event.event_id, state);
            let before = self.statuses.get(&event.event_id);
            if before != Some(&state) && (before.is_some() || event.sequence > self.floor) {
                news.push(event);
            }
        }
        // Those that are no longer among the latest are forgotten; should they come back, they are old.
        if page.next.is_some()
            && let Some(oldest) = page.events.last()
        {
            self.floor = self.floor.max(oldest.sequence);
        }
        self.statuses = statuses;
        news
    }
}

fn line(event: &EventSummary, now: OffsetDateTime) -> String {
    let status = paint(&format!("{:<10}", event.status), tint(event.status));
    let attempts = if event.attempts > 1 { format!("  attempt {}", event.attempts) } else { String::new() };
    let error = event.last_error.as_deref().filter(|_| event.status != EventStatus::Sent);
    let error = error.map(|error| format!("  {}", printable(&short(error, 100)))).unwrap_or_default();
    let what = printable(&format!("{}  {}", short(&event.topic, TOPIC_WIDTH), short(&aggregate(event), 40)));
    format!(
        "{}  {status}  {:>8}  {what}  {}{attempts}{error}",
        clock(now, now),
        event.sequence,
        event.event_id
    )
}
