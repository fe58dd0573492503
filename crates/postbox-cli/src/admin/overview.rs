//! The state of everything in one answer, and in one sentence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox_core::Layout;
use postbox_core::store::Standing;
use postbox_stores::postgres::migrate::Ordered;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::answer::time;
use super::sample::{Flow, Sample};
use super::table::Table;
use crate::late::{FAR_TOO_LATE, LATE};
use crate::render::{age, counted, relay_name, short, thousands};

/// How well a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    Good,
    Unknown,
    Doubtful,
    Bad,
}

impl Health {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unknown => "unknown",
            Self::Doubtful => "doubtful",
            Self::Bad => "bad",
        }
    }
}

/// A sink, as this process sees it.
pub(super) struct SinkNow {
    pub(super) name: Arc<str>,
    pub(super) open: Option<Duration>,
    pub(super) last_error: Option<String>,
    pub(super) probe_in: Option<Duration>,
    /// What goes through it, as of the last look.
    flow: Option<Flow>,
}

/// The relay of this process.
struct Here {
    standing: &'static str,
    problem: Option<String>,
    last_delivery: Option<Duration>,
    sinks: Vec<SinkNow>,
}

fn here(table: &Table) -> Option<Here> {
    let (health, ended) = table.watched.as_ref()?.now();
    let now = health.now();
    let standing = match now.standing {
        _ if !now.opened => "starting",
        Standing::Active => "active",
        Standing::Standby => "standby",
        Standing::Paused => "paused",
    };
    let at = Instant::now();
    let flows = table.seen().last.as_ref().map(|sample| sample.sinks.clone()).unwrap_or_default();
    let sinks = now.sinks.iter().map(|sink| SinkNow {
        name: Arc::clone(&sink.name),
        open: sink.open_since.map(|since| at.saturating_duration_since(since)),
        last_error: sink.last_error.clone(),
        probe_in: sink.probe_at.map(|probe| probe.saturating_duration_since(at)),
        flow: flows.iter().find(|flow| flow.sink == sink.name).cloned(),
    });
    Some(Here {
        standing,
        problem: ended.or_else(|| health.problem()),
        last_delivery: now.last_delivery.map(|last| last.elapsed()),
        sinks: sinks.collect(),
    })
}

/// The sinks of a table's relay.
pub(super) fn sinks(table: &Table) -> Vec<SinkNow> {
    here(table).map(|here| here.sinks).unwrap_or_default()
}

/// A sink as answers have it.
pub(super) fn sink_json(sink: &SinkNow) -> Value {
    let now = OffsetDateTime::now_utc();
    let lag = sink.flow.as_ref().and_then(|flow| flow.lag);
    json!({
        "name": &*sink.name,
        "state": if sink.open.is_some() { "open" } else { "closed" },
        "open_since": sink.open.map(|open| time(now - open)),
        "open_seconds": sink.open.map(|open| open.as_secs()),
        "last_error": sink.last_error,
        "next_probe_at": sink.probe_in.map(|wait| time(now + wait)),
        "next_probe_seconds": sink.probe_in.map(|wait| wait.as_secs_f64().ceil()),
        "out_per_second": sink.flow.as_ref().and_then(|flow| flow.per_second),
        "lag_p50_seconds": lag.map(|(half, _)| half.as_secs_f64()),
        "lag_p99_seconds": lag.map(|(_, most)| most.as_secs_f64()),
    })
}

/// Everything.
pub(super) fn of(tables: &[Arc<Table>], version: u64, jobs_running: usize) -> Value {
    let all: Vec<(Health, String, Value)> = tables.iter().map(|table| of_table(table)).collect();
    let worst = all.iter().max_by_key(|(health, ..)| *health);
    let unwell = all.iter().filter(|(health, ..)| *health > Health::Unknown).count();
    let (health, sentence) = match worst {
        None => (Health::Unknown, "No table is looked at.".to_owned()),
        Some((health, sentence, _)) if all.len() == 1 => (*health, sentence.clone()),
        Some((Health::Good, ..)) => {
            let waiting: u64 = all.iter().filter_map(|(.., value)| value["waiting"].as_u64()).sum();
            (
                Health::Good,
                format!("All {} tables are well: {} waiting.", all.len(), counted(waiting, "event")),
            )
        }
        Some((health, sentence, value)) => {
            let (id, of) = (value["id"].as_str().unwrap_or_default(), all.len());
            let count =
                if unwell > 1 { format!("{unwell} of {of} tables are not well. ") } else { String::new() };
            (*health, format!("{count}{id}: {sentence}"))
        }
    };
    json!({
        "at": time(OffsetDateTime::now_utc()),
        "version": version.to_string(),
        "health": health.as_str(),
        "sentence": sentence,
        "tables": all.into_iter().map(|(.., value)| value).collect::<Vec<_>>(),
        "jobs_running": jobs_running,
    })
}

/// One table: how it is, in a word, in a sentence, and in numbers.
pub(super) fn of_table(table: &Table) -> (Health, String, Value) {
    let (sample, error) = {
        let seen = table.seen();
        (seen.last.clone(), seen.error.clone())
    };
    let here = here(table);
    let (health, sentence) = match (&error, &sample) {
        (Some(error), _) => (
            Health::Bad,
            format!("The table cannot be looked at: {}.", error.message().trim_end_matches('.')),
        ),
        (None, None) => (Health::Unknown, "The table was not looked at yet.".to_owned()),
        (None, Some(sample)) => judge(sample, here.as_ref(), table.site.single_active),
    };
    let mut value = table.to_json();
    let number = |of: fn(&Sample) -> Value| sample.as_ref().map_or(Value::Null, of);
    let more = json!({
        "health": health.as_str(),
        "sentence": sentence,
        "at": number(|sample| Value::from(time(sample.at))),
        "stale_seconds": number(|sample| Value::from(sample.taken.elapsed().as_secs_f64())),
        "error": error.map(|error| error.to_json()),
        "layout": number(|sample| Value::from(if sample.layout == Layout::Full { "full" } else { "bare" })),
        "ordered": number(|sample| match sample.ordered {
            None => Value::Null,
            Some(Ordered::AsItIs) => "no".into(),
            Some(Ordered::Index) => "index".into(),
            Some(Ordered::Writers) => "writers".into(),
        }),
        "has_history": number(|sample| sample.has_history.into()),
        "waiting": number(|sample| sample.counts.pending.into()),
        "oldest_seconds": number(|sample| sample.counts.oldest_pending_age.as_secs_f64().into()),
        "scheduled": number(|sample| sample.counts.scheduled.into()),
        "in_flight": number(|sample| sample.counts.locked.into()),
        "dead": number(|sample| sample.counts.dead.into()),
        "blocked": number(|sample| sample.counts.blocked.into()),
        "estimated": number(|sample| sample.counts.estimated.into()),
        "in_per_second": number(|sample| sample.in_per_second.into()),
        "out_per_second": number(|sample| sample.counts.published_per_second.into()),
        "lag_p50_seconds": number(|sample| sample.lag.map(|(half, _)| half.as_secs_f64()).into()),
        "lag_p99_seconds": number(|sample| sample.lag.map(|(_, most)| most.as_secs_f64()).into()),
        "empty_in_seconds": number(|sample| empty_in(sample).map(|left| left.as_secs_f64()).into()),
        "leader": number(|sample| sample.relay.leader.as_deref().map(relay_name).into()),
        "epoch": number(|sample| sample.relay.epoch.into()),
        "strategy": number(|sample| sample.relay.strategy.clone().into()),
        "here": here.as_ref().map(|here| json!({
            "name": table.site.relay_name,
            "standing": here.standing,
            "problem": here.problem,
            "last_delivery_seconds": here.last_delivery.map(|ago| ago.as_secs_f64()),
        })),
        "paused": number(|sample| paused(&sample.relay)),
        "sinks": here.iter().flat_map(|here| &here.sinks).map(sink_json).collect::<Vec<_>>(),
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    (health, sentence, value)
}

/// Since when a table is paused, by whom and why.
pub(super) fn paused(relay: &postbox_core::TableRelay) -> Value {
    match relay.paused_at {
        Some(at) => json!({ "at": time(at), "by": relay.paused_by, "reason": relay.paused_reason }),
        None => Value::Null,
    }
}

/// A trickle says nothing about when the rest will follow: its sink may be down.
fn empty_in(sample: &Sample) -> Option<Duration> {
    let rate = sample.counts.published_per_second.filter(|rate| *rate >= 1.0)?;
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    let left = Duration::try_from_secs_f64(sample.counts.pending as f64 / rate);
    left.ok().filter(|_| sample.counts.pending > 0)
}

fn judge(sample: &Sample, here: Option<&Here>, single_active: bool) -> (Health, String) {
    let Sample { counts, relay, layout, .. } = sample;
    let (waiting, oldest) = (counts.pending, counts.oldest_pending_age);
    let about = if counts.estimated { "about " } else { "" };
    let wait = match waiting {
        0 => "nothing waits".to_owned(),
        1 => "1 event waits".to_owned(),
        many => format!("{about}{} events wait", thousands(many)),
    };
    let down = here.and_then(|here| here.sinks.iter().find(|sink| sink.open.is_some()));
    if let Some(sink) = down {
        let error = sink.last_error.as_deref().map(|error| format!(" ({})", short(error, 120)));
        let probe =
            sink.probe_in.map(|wait| format!(", next probe in {}", age(wait + Duration::from_millis(999))));
        let text = format!(
            "{} is down for {}{}: {wait}{}.",
            sink.name,
            age(sink.open.unwrap_or_default()),
            error.unwrap_or_default(),
            probe.unwrap_or_default()
        );
        return (if waiting > 0 { Health::Bad } else { Health::Doubtful }, text);
    }
    if relay.paused_at.is_some() {
        let who = relay.paused_by.as_deref().unwrap_or("someone");
        let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" ({})", short(reason, 120))).unwrap_or_default();
        return (Health::Doubtful, format!("Paused by {who}{reason}: {wait}."));
    }
    if here.is_some_and(|here| here.standing == "starting" && here.problem.is_some()) && oldest < LATE {
        return (Health::Doubtful, format!("The relay starts: {wait}."));
    }
    if let Some(problem) = here.and_then(|here| here.problem.as_deref()) {
        return (Health::Bad, format!("{}.", problem.trim_end_matches('.')));
    }
    if *layout == Layout::Full && single_active && relay.leader.is_none() && waiting > 0 {
        return (Health::Bad, format!("Nobody relays, and {wait}."));
    }
    let late = format!("{}, the oldest for {}.", capital(&wait), age(oldest));
    if waiting > 0 && oldest > FAR_TOO_LATE {
        return (Health::Bad, late);
    }
    if counts.dead > 0 {
        let died = if counts.dead == 1 { "event is dead".to_owned() } else { "events are dead".to_owned() };
        return (Health::Doubtful, format!("{} {died}; {wait}.", thousands(counts.dead)));
    }
    if waiting > 0 && oldest > LATE {
        return (Health::Doubtful, late);
    }
    match counts.published_per_second.filter(|rate| *rate > 0.0) {
        Some(rate) => (Health::Good, format!("Events flow: {rate:.1} per second, {wait}.")),
        None => (Health::Good, format!("All is well: {wait}.")),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::{TableCounts, TableRelay};

    fn sample(pending: u64, oldest: u64, dead: u64, leader: bool) -> Sample {
        let counts = TableCounts {
            pending,
            dead,
            oldest_pending_age: Duration::from_secs(oldest),
            ..TableCounts::default()
        };
        let leader = leader.then(|| "pod-7:1/x".to_owned());
        Sample {
            at: OffsetDateTime::now_utc(),
            taken: Instant::now(),
            layout: Layout::Full,
            ordered: None,
            has_history: false,
            counts,
            relay: TableRelay { leader, ..TableRelay::default() },
            lag: None,
            in_per_second: None,
            sinks: Vec::new(),
        }
    }

    #[test]
    fn one_sentence_says_how_it_is() {
        let said = |sample: &Sample, here: Option<&Here>| judge(sample, here, true);
        assert_eq!(
            said(&sample(0, 0, 0, false), None),
            (Health::Good, "All is well: nothing waits.".to_owned())
        );
        let (health, text) = said(&sample(3, 1, 0, false), None);
        assert_eq!((health, text.as_str()), (Health::Bad, "Nobody relays, and 3 events wait."));
        let (health, text) = said(&sample(1204, 38, 0, true), None);
        assert_eq!((health, text.as_str()), (Health::Doubtful, "1,204 events wait, the oldest for 38s."));
        assert_eq!(said(&sample(1, 301, 0, true), None).0, Health::Bad);
        assert_eq!(said(&sample(0, 0, 1, true), None).1, "1 event is dead; nothing waits.");
        let kafka = SinkNow {
            name: "kafka".into(),
            open: Some(Duration::from_secs(124)),
            last_error: Some("broker transport failure".to_owned()),
            probe_in: Some(Duration::from_secs(6)),
            flow: None,
        };
        let here = Here { standing: "active", problem: None, last_delivery: None, sinks: vec![kafka] };
        let (health, text) = said(&sample(2, 1, 0, true), Some(&here));
        let down = "kafka is down for 2m04s (broker transport failure): 2 events wait, next probe in 6s.";
        assert_eq!((health, text.as_str()), (Health::Bad, down));
    }
}
