//! What a bench was asked for, within what makes sense.

use std::time::Duration;

use postbox_core::{Limits, Record, RecordBuilder, Topic};
use uuid::Uuid;

use crate::cli::Call;
use crate::cmd::given::wrong;
use crate::config::Ordering;
use crate::render::thousands;
use crate::report::Failure;

const TOPIC: Topic = Topic::from_static("bench.thing.happened.v1");

const MOST_EVENTS: u64 = 10_000_000;
const MOST_SECONDS: u64 = 600;
const MOST_RATE: u64 = 100_000;
const MOST_CONNECTIONS: u64 = 1_000;
/// Each takes its time.
const MOST_TURNS: usize = 8;
/// The shortest payload that still is a text in an object.
const LEAST_PAYLOAD: u64 = 16;
/// Payloads alone; with rows and indexes it is more than twice as much on disk.
const MOST_BYTES: u64 = 10 << 30;
/// Events in a transaction that writes in bulk, and their bytes at most.
const BULK: u64 = 1_000;
const BULK_BYTES: u64 = 8 << 20;
const AGGREGATES: u64 = 1_000;

/// What is measured, and how.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) enqueue: bool,
    pub(super) drain: bool,
    pub(super) latency: bool,
    /// In bulk, and drained.
    pub(super) events: u64,
    /// Of single events, and of latency.
    pub(super) time: Duration,
    pub(super) rate: u64,
    pub(super) connections: Vec<u64>,
    pub(super) payload_bytes: u64,
    payload: String,
    /// How many things events are about, where their order is kept.
    aggregates: Option<u64>,
}

impl Wanted {
    pub(super) fn read(call: &Call<'_>) -> Result<Self, Failure> {
        let what = call.text("what").unwrap_or("all");
        let is = |name| what == "all" || what == name;
        let payload_most = Limits::default().payload_bytes as u64;
        let events = number(call, "events", 1, MOST_EVENTS)?;
        let seconds = number(call, "seconds", 1, MOST_SECONDS)?;
        let rate = number(call, "rate", 1, MOST_RATE)?;
        let payload_bytes = number(call, "payload-bytes", LEAST_PAYLOAD, payload_most)?;
        let wanted = Self {
            enqueue: is("enqueue"),
            drain: is("drain"),
            latency: is("latency"),
            events,
            time: Duration::from_secs(seconds),
            rate,
            connections: connections(call)?,
            payload_bytes,
            payload: payload(payload_bytes),
            aggregates: (call.config.relay.ordering == Ordering::Aggregate).then_some(AGGREGATES),
        };
        let too_much = |flag: &str, events: u64| {
            let next = format!(
                "{} events of {} bytes are more than {} GiB of payload; give fewer or smaller ones",
                thousands(events),
                thousands(payload_bytes),
                MOST_BYTES >> 30
            );
            Err(wrong(flag, call.text(flag).unwrap_or_default(), &next))
        };
        if events > wanted.most_written() && (wanted.enqueue || wanted.drain) {
            return too_much("events", events);
        }
        if wanted.latency && rate * seconds > wanted.most_written() {
            return too_much("rate", rate * seconds);
        }
        Ok(wanted)
    }

    /// How many events a step writes at most, however fast it is.
    pub(super) fn most_written(&self) -> u64 {
        (MOST_BYTES / self.payload_bytes).min(MOST_EVENTS)
    }

    /// How many events a transaction in bulk has.
    pub(super) fn bulk(&self) -> u64 {
        (BULK_BYTES / self.payload_bytes).clamp(1, BULK)
    }

    /// The most connections that single events are written on.
    pub(super) fn most_connections(&self) -> u64 {
        self.connections.iter().copied().max().unwrap_or(1)
    }

    /// The next event to write.
    pub(super) fn event(&self, id: Uuid, number: u64) -> RecordBuilder {
        let event = Record::builder(TOPIC).raw_json(self.payload.clone()).event_id(id);
        match self.aggregates {
            Some(aggregates) => event.aggregate("thing", number % aggregates),
            None => event,
        }
    }
}

/// A JSON object of so many bytes. Its text does not shrink much: databases compress what is long.
fn payload(bytes: u64) -> String {
    const AROUND: [&str; 2] = ["{\"text\":\"", "\"}"];
    let length = usize::try_from(bytes).unwrap_or_default().saturating_sub(AROUND.concat().len());
    let mut text = String::with_capacity(length + 32);
    while text.len() < length {
        text.push_str(&Uuid::new_v4().simple().to_string());
    }
    text.truncate(length);
    format!("{}{text}{}", AROUND[0], AROUND[1])
}

fn number(call: &Call<'_>, flag: &str, least: u64, most: u64) -> Result<u64, Failure> {
    within(flag, call.text(flag).unwrap_or_default(), least, most)
}

fn within(flag: &str, given: &str, least: u64, most: u64) -> Result<u64, Failure> {
    let number = given.parse().ok().filter(|number| (least..=most).contains(number));
    let next = || format!("give a whole number from {least} to {most}");
    number.ok_or_else(|| wrong(flag, given, &next()))
}

fn connections(call: &Call<'_>) -> Result<Vec<u64>, Failure> {
    const FLAG: &str = "connections";
    let given = call.text(FLAG).unwrap_or_default();
    let numbers = given.split(',').map(|number| within(FLAG, number.trim(), 1, MOST_CONNECTIONS));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    if numbers.len() > MOST_TURNS {
        return Err(wrong(FLAG, given, &format!("give at most {MOST_TURNS} numbers, such as 1,8,32")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::{LEAST_PAYLOAD, payload, within};

    #[test]
    fn a_payload_has_its_size_to_the_byte_and_is_json() {
        for bytes in [LEAST_PAYLOAD, 17, 300, 1 << 20] {
            let text = payload(bytes);
            assert_eq!(text.len() as u64, bytes);
            assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["text"].is_string());
        }
    }

    #[test]
    fn a_number_that_makes_no_sense_is_refused_with_what_would() {
        assert_eq!(within("events", "7", 1, 9).unwrap(), 7);
        for given in ["0", "10", "-1", "1e3", "", "99999999999999999999999"] {
            let (cause, next) = within("events", given, 1, 9).unwrap_err().first();
            assert!(cause.contains("--events") && next.contains("from 1 to 9"), "{cause} {next}");
        }
    }
}
