//! What `dead replay`, `dead discard` and `events replay` share: a question, a pace, and a truthful result.

use std::pin::Pin;
use std::time::Duration;

use postbox_core::{Browse, EventId, EventStatus, StoreError, TableName};
use serde_json::json;
use tokio::time::Instant;

use super::chosen::Act;
use super::{given, within_patience};
use crate::ask::Progress;
use crate::cli::Call;
use crate::render::{Tint, paint, thousands};
use crate::report::{Exit, Failure, Problem, in_database};
use crate::say::{say, say_json};

/// Rows per transaction: small enough to be in nobody's way.
pub(crate) const BATCH: u32 = 500;

/// How often the replayed events are looked at, and how many at a time.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_AT: usize = 5_000;

/// How long it is watched where nobody says.
const WATCH: Duration = Duration::from_secs(10);

/// How carefully to go.
pub(crate) struct Pace {
    /// Not more than so many in all; `rows` of what follows have it in them.
    pub(crate) first: Option<u64>,
    rate: Option<f64>,
    watch: Duration,
}

impl Pace {
    /// As the flags say.
    pub(crate) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let first = given::number(call, "first", 1..=u64::MAX)?;
        let watch = given::duration(call, "watch")?.unwrap_or(WATCH);
        Ok(Self { first, rate: given::rate(call)?, watch })
    }

    /// How many to take at once, and how long to wait afterwards.
    fn step(&self) -> (u32, Duration) {
        step(self.rate)
    }
}

/// How many to take at once at a rate per second, and how long to wait afterwards.
pub(crate) fn step(rate: Option<f64>) -> (u32, Duration) {
    let Some(rate) = rate else { return (BATCH, Duration::ZERO) };
    let mut batch = 1;
    while batch < BATCH && f64::from(batch * 2) <= rate / 4.0 {
        batch *= 2;
    }
    (batch, Duration::from_secs_f64(f64::from(batch) / rate))
}

/// When the step after one that was due then is due. What a slow database has delayed is not made up for: the pace is what receivers
/// can take.
pub(crate) fn next_due(due: Instant, pause: Duration, now: Instant) -> Instant {
    (due + pause).max(now)
}

/// What was done.
#[derive(Default)]
struct Done {
    events: Vec<EventId>,
    /// Whether somebody stopped it half-way.
    stopped: bool,
}

impl Done {
    /// How many of those that were counted are left, and nobody said to leave them.
    fn left_of(&self, rows: u64) -> u64 {
        if self.stopped { 0 } else { rows.saturating_sub(self.events.len() as u64) }
    }
}

/// Replays batch after batch at the pace, watches what becomes of the events, and reports it. `next` replays at most so
/// many and answers which; none is the end.
pub(crate) async fn run(
    call: &Call<'_>,
    store: &impl Browse,
    table: &TableName,
    pace: &Pace,
    rows: u64,
    next: impl AsyncFnMut(u32) -> Result<Vec<EventId>, StoreError>,
) -> Result<Exit, Failure> {
    let started = Instant::now();
    let progress = Progress::new(call.json);
    // One for both: a Ctrl-C between two of them would be nobody's.
    let mut stop = std::pin::pin!(interrupted());
    let done = in_batches(table, pace.step(), rows, Act::Replay, &progress, next, stop.as_mut()).await?;
    let became = watch(store, table, &done, pace.watch, &progress, stop).await?;
    drop(progress);
    became.report(call, table, &done, rows, started.elapsed())
}

/// Discards batch after batch, and reports it. `next` discards at most so many and answers which; none is the end.
pub(crate) async fn discard(
    call: &Call<'_>,
    table: &TableName,
    rows: u64,
    next: impl AsyncFnMut(u32) -> Result<Vec<EventId>, StoreError>,
) -> Result<Exit, Failure> {
    let progress = Progress::new(call.json);
    let stop = std::pin::pin!(interrupted());
    let done = in_batches(table, step(None), rows, Act::Discard, &progress, next, stop).await?;
    drop(progress);
    discarded(call, table, &done, rows)
}

fn discarded(call: &Call<'_>, table: &TableName, done: &Done, rows: u64) -> Result<Exit, Failure> {
    let discarded = done.events.len() as u64;
    let left = done.left_of(rows);
    if call.json {
        say_json(&json!({
            "table": table.to_string(), "matched": rows, "discarded": discarded, "stopped": done.stopped, "left": left,
        }))?;
    } else {
        let stopped = if done.stopped { "  stopped before the end" } else { "" };
        say(&format!("discarded {}{}{stopped}", thousands(discarded), left_alone(left)))?;
    }
    Ok(match () {
        () if done.stopped => Exit::Failed,
        () if left > 0 => Exit::Problems,
        () => Exit::Done,
    })
}

/// Somebody has pressed Ctrl-C.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // It cannot be heard here, and ends the program.
        std::future::pending::<()>().await;
    }
}

async fn in_batches(
    table: &TableName,
    (batch, pause): (u32, Duration),
    rows: u64,
    act: Act,
    progress: &Progress,
    mut next: impl AsyncFnMut(u32) -> Result<Vec<EventId>, StoreError>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Done, Failure> {
    let mut done = Done::default();
    let mut due = Instant::now();
    loop {
        // Never more than was agreed to, whatever has died or was published meanwhile.
        let left = rows.saturating_sub(done.events.len() as u64);
        let take = u32::try_from(left).unwrap_or(batch).min(batch);
        if take == 0 {
            return Ok(done);
        }
        let (so_far, past) = (done.events.len(), act.past());
        let so_far = (so_far > 0).then(|| format!("{so_far} were {past} before"));
        let failed = |error: StoreError| Failure::from(Problem::about(table, &error));
        let got = within_patience(async { next(take).await.map_err(failed) }).await;
        let got = got.map_err(|failure| failure.after(so_far))?;
        if got.is_empty() {
            return Ok(done);
        }
        done.events.extend(got);
        progress.at(&format!("{past} {} of {}", thousands(done.events.len() as u64), thousands(rows)));
        due = next_due(due, pause, Instant::now());
        tokio::select! {
            biased;
            () = &mut stop => {
                done.stopped = true;
                return Ok(done);
            }
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

/// What became of replayed events.
#[derive(Debug, Default)]
struct Became {
    delivered: u64,
    dead: u64,
    gone: u64,
    waiting: u64,
}

async fn watch(
    store: &impl Browse,
    table: &TableName,
    done: &Done,
    limit: Duration,
    progress: &Progress,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Became, Failure> {
    let mut became = Became { waiting: done.events.len() as u64, ..Became::default() };
    if limit.is_zero() || done.stopped {
        return Ok(became);
    }
    let end = Instant::now() + limit;
    let mut waiting = done.events.clone();
    loop {
        let mut still = Vec::new();
        for some in waiting.chunks(LOOK_AT) {
            let look = async {
                store.statuses(some).await.map_err(|error| Failure::from(Problem::about(table, &error)))
            };
            let found = within_patience(look).await?;
            became.gone += (some.len() - found.len().min(some.len())) as u64;
            for (event, status) in found {
                match status {
                    EventStatus::Sent => became.delivered += 1,
                    EventStatus::Dead => became.dead += 1,
                    EventStatus::New | EventStatus::Publishing | EventStatus::Failed => still.push(event),
                }
            }
        }
        became.waiting = still.len() as u64;
        waiting = still;
        if waiting.is_empty() || Instant::now() >= end {
            return Ok(became);
        }
        progress.at(&format!(
            "delivered {}, dead again {}, waiting {}",
            thousands(became.delivered),
            thousands(became.dead),
            thousands(became.waiting)
        ));
        tokio::select! {
            () = &mut stop => return Ok(became),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// What was counted and then not changed, in words.
pub(crate) fn left_alone(events: u64) -> String {
    if events == 0 {
        return String::new();
    }
    format!("  left alone {}: others changed them meanwhile, or hold them", thousands(events))
}

/// There is nothing to change: in the form of what was changed, or in these words.
pub(crate) fn nothing(call: &Call<'_>, table: &TableName, act: Act, words: &str) -> Result<Exit, Failure> {
    match (call.json, act) {
        (true, Act::Replay) => Became::default().report(call, table, &Done::default(), 0, Duration::ZERO),
        (true, Act::Discard) => discarded(call, table, &Done::default(), 0),
        (false, _) => say(words).map(|()| Exit::Done),
    }
}

impl Became {
    fn report(
        &self,
        call: &Call<'_>,
        table: &TableName,
        done: &Done,
        rows: u64,
        took: Duration,
    ) -> Result<Exit, Failure> {
        let replayed = done.events.len() as u64;
        let left = done.left_of(rows);
        if call.json {
            say_json(&json!({
                "table": table.to_string(), "matched": rows, "replayed": replayed, "stopped": done.stopped,
                "delivered": self.delivered, "dead_again": self.dead, "waiting": self.waiting, "gone": self.gone,
                "left": left,
            }))?;
        } else {
            let mut parts = vec![format!("replayed {}{}", thousands(replayed), left_alone(left))];
            if self.delivered > 0 {
                parts.push(paint(&format!("✓ delivered {}", thousands(self.delivered)), Tint::Good));
            }
            if self.gone > 0 {
                parts.push(format!("gone {}", thousands(self.gone)));
            }
            if self.waiting > 0 {
                let what = format!("waiting {} → postbox status --table {table}", thousands(self.waiting));
                parts.push(in_database(&what, call.config.database.as_deref()));
            }
            if self.dead > 0 {
                let minutes = took.as_secs() / 60 + 1;
                let what = format!(
                    "✗ dead again {} → postbox dead list --table {table} --since {minutes}m",
                    thousands(self.dead)
                );
                parts.push(paint(&in_database(&what, call.config.database.as_deref()), Tint::Bad));
            }
            if done.stopped {
                parts.push("stopped before the end".to_owned());
            }
            say(&parts.join("  "))?;
        }
        Ok(match () {
            () if done.stopped => Exit::Failed,
            () if self.dead > 0 || left > 0 => Exit::Problems,
            () => Exit::Done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, Pace, next_due};
    use std::time::Duration;
    use tokio::time::Instant;

    #[test]
    fn a_rate_is_kept_in_small_steps() {
        let step = |rate| Pace { first: None, rate, watch: Duration::ZERO }.step();
        assert_eq!(step(None), (BATCH, Duration::ZERO));
        assert_eq!(step(Some(1.0)), (1, Duration::from_secs(1)));
        assert_eq!(step(Some(64.0)), (16, Duration::from_millis(250)));
        assert!(step(Some(1e6)).0 <= BATCH * 2);
    }

    #[test]
    fn after_a_delay_the_rate_is_what_it_was() {
        let (start, pause) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(next_due(start, pause, start), start + pause);
        // Woken late: the next one comes when it would have.
        assert_eq!(next_due(start, pause, start + pause / 2), start + pause);
        // Four steps late: they do not follow at once, one upon the other.
        let late = start + 4 * pause;
        let next = next_due(start, pause, late);
        assert_eq!((next, next_due(next, pause, late)), (late, late + pause));
    }
}
