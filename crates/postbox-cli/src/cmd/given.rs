//! The values of the operators' flags, read with the errors of all others.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use postbox_core::{Code, DeadFilter, EventFilter, EventId, TenantId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::cli::Call;
use crate::config::{self, parse_delay, shown};
use crate::report::{Failure, Problem};

/// The most rows of a page.
const MOST_ROWS: u32 = 100_000;

/// A value that cannot be used.
pub(crate) fn wrong(flag: &str, given: &str, next: &str) -> Failure {
    let message = format!("--{flag} = {} cannot be used", shown(given));
    Problem::new(Code::ConfigInvalid, message).next(next).into()
}

/// A duration, if it is given.
pub(crate) fn duration(call: &Call<'_>, flag: &str) -> Result<Option<Duration>, Failure> {
    let read = |given: &str| {
        parse_delay(given)
            .map_err(|reason| wrong(flag, given, &format!("it {reason}; give a duration such as 5s or 2h")))
    };
    call.text(flag).map(read).transpose()
}

/// The longest text that somebody gives, on the command line or by the admin API.
const TEXT_BYTES: usize = 1024;

/// A text without what a database refuses, or a terminal would obey; the error follows its name.
pub(crate) fn plain(text: &str) -> Result<&str, String> {
    if text.len() > TEXT_BYTES {
        return Err(format!("it is longer than {TEXT_BYTES} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("it has a control character in it".to_owned());
    }
    Ok(text)
}

/// A text that says something, if it is given.
pub(crate) fn text<'a>(call: &'a Call<'_>, flag: &str) -> Result<Option<&'a str>, Failure> {
    call.text(flag).map(|given| filled(flag, given)).transpose()
}

/// The same of a value. An empty one is what a script gives whose variable is not set, and would stand for everything.
pub(crate) fn filled<'a>(flag: &str, given: &'a str) -> Result<&'a str, Failure> {
    if given.trim().is_empty() {
        return Err(wrong(flag, given, &format!("it is empty; give a text, or leave --{flag} out")));
    }
    plain(given).map_err(|why| wrong(flag, given, &why))
}

/// A whole number within bounds, if it is given.
pub(crate) fn number<T>(call: &Call<'_>, flag: &str, bounds: RangeInclusive<T>) -> Result<Option<T>, Failure>
where
    T: FromStr + PartialOrd + Display,
{
    let read = |given: &str| {
        let number = given.parse::<T>().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| {
            let next = format!("give a whole number from {} to {}", bounds.start(), bounds.end());
            wrong(flag, given, &next)
        })
    };
    call.text(flag).map(read).transpose()
}

/// How many rows of a list that has pages.
pub(crate) fn limit(call: &Call<'_>) -> Result<u32, Failure> {
    Ok(number(call, "limit", 1..=MOST_ROWS)?.unwrap_or(50))
}

/// What a moment is given as.
pub(crate) const MOMENT: &str = "give how long ago, such as 2h, or a time such as 2026-11-15T12:00:00Z";

/// A moment: how long ago, or a time as RFC 3339 has it.
pub(crate) fn moment_of(given: &str, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let ago = || now.checked_sub(parse_delay(given).ok()?.try_into().ok()?);
    OffsetDateTime::parse(given, &Rfc3339).ok().or_else(ago)
}

/// A moment, if it is given.
pub(crate) fn moment(
    call: &Call<'_>,
    flag: &str,
    now: OffsetDateTime,
) -> Result<Option<OffsetDateTime>, Failure> {
    let read = |given: &str| moment_of(given, now).ok_or_else(|| wrong(flag, given, MOMENT));
    call.text(flag).map(read).transpose()
}

/// A range of time, `--since` to `--until`, as far as it is given.
pub(crate) fn range(
    call: &Call<'_>,
    now: OffsetDateTime,
) -> Result<(Option<OffsetDateTime>, Option<OffsetDateTime>), Failure> {
    let (since, until) = (moment(call, "since", now)?, moment(call, "until", now)?);
    match (since, until) {
        (Some(from), Some(to)) if to <= from => {
            let next = "it is not after --since; --since 2h --until 1h is from two hours ago to one hour ago";
            Err(wrong("until", call.text("until").unwrap_or_default(), next))
        }
        range => Ok(range),
    }
}

/// Event ids that stand by themselves.
pub(crate) fn event_ids(call: &Call<'_>) -> Result<Vec<EventId>, Failure> {
    let given = call.matches.try_get_many::<String>("id").ok().flatten().into_iter().flatten();
    let mut ids = Vec::new();
    for given in given {
        let id = Uuid::try_parse(given).map_err(|_| {
            let message = format!("{} is not an event id", shown(given));
            Problem::new(Code::ConfigInvalid, message).next("give UUIDs; postbox events list shows them")
        })?;
        if !ids.contains(&EventId(id)) {
            ids.push(EventId(id));
        }
    }
    Ok(ids)
}

fn tenant(call: &Call<'_>) -> Result<Option<TenantId>, Failure> {
    Ok(text(call, "tenant")?.map(config::tenant))
}

fn aggregate(call: &Call<'_>) -> Result<(Option<String>, Option<String>), Failure> {
    let Some(given) = text(call, "aggregate")? else { return Ok((None, None)) };
    let (kind, id) = given.split_once('/').map_or((given, None), |(kind, id)| (kind, Some(id)));
    if kind.is_empty() || id == Some("") {
        return Err(wrong("aggregate", given, "give a type, or type and id, such as organization/42"));
    }
    Ok((Some(kind.to_owned()), id.map(str::to_owned)))
}

/// Which events.
pub(crate) fn event_filter(call: &Call<'_>, now: OffsetDateTime) -> Result<EventFilter, Failure> {
    let (aggregate_type, aggregate_id) = aggregate(call)?;
    let status = call.text("status").map(|given| {
        given.parse().map_err(|error: postbox_core::browse::UnknownStatus| {
            wrong("status", given, &format!("it {error}"))
        })
    });
    Ok(EventFilter {
        topic: text(call, "topic")?.map(str::to_owned),
        tenant_id: tenant(call)?,
        aggregate_type,
        aggregate_id,
        status: status.transpose()?,
        error: text(call, "error")?.map(str::to_owned),
        since: moment(call, "since", now)?,
    })
}

/// Which dead events, apart from their cause.
pub(crate) fn dead_filter(call: &Call<'_>) -> Result<DeadFilter, Failure> {
    let (aggregate_type, aggregate_id) = aggregate(call)?;
    Ok(DeadFilter {
        topic: text(call, "topic")?.map(str::to_owned),
        aggregate_type,
        aggregate_id,
        tenant_id: tenant(call)?,
        older_than: duration(call, "older-than")?,
        newer_than: duration(call, "since")?,
        error: text(call, "error")?.map(str::to_owned),
        cause: None,
    })
}

/// So many per second.
pub(crate) fn rate(call: &Call<'_>) -> Result<Option<f64>, Failure> {
    let read = |given: &str| {
        let (number, per) = given.split_once('/').unwrap_or((given, "s"));
        let per = match per {
            "s" => Some(1.0),
            "m" => Some(60.0),
            "h" => Some(3600.0),
            _ => None,
        };
        let number = number.parse::<u32>().ok().filter(|number| *number > 0);
        let rate = number.zip(per).map(|(number, per)| f64::from(number) / per);
        rate.ok_or_else(|| wrong("rate", given, "give a number per second or minute, such as 50/s"))
    };
    call.text("rate").map(read).transpose()
}
