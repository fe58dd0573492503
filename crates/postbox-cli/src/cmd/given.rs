//! The values of the operators' flags, read with the errors of all others.

use std::time::Duration;

use postbox_core::{Code, DeadFilter, EventFilter, EventId, TenantId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::cli::Call;
use crate::config::{self, parse_delay, shown};
use crate::report::{Failure, Problem};

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

/// A whole number, if it is given.
pub(crate) fn number<T: std::str::FromStr>(call: &Call<'_>, flag: &str) -> Result<Option<T>, Failure> {
    let read = |given: &str| {
        given.parse().map_err(|_| wrong(flag, given, "give a whole number that is not negative"))
    };
    call.text(flag).map(read).transpose()
}

/// A moment, if it is given: how long ago, or a time as RFC 3339 has it.
pub(crate) fn moment(
    call: &Call<'_>,
    flag: &str,
    now: OffsetDateTime,
) -> Result<Option<OffsetDateTime>, Failure> {
    let read = |given: &str| {
        if let Ok(at) = OffsetDateTime::parse(given, &Rfc3339) {
            return Ok(at);
        }
        let back = parse_delay(given).ok().and_then(|ago| now.checked_sub(ago.try_into().ok()?));
        back.ok_or_else(|| {
            wrong(flag, given, "give how long ago, such as 2h, or a time such as 2026-11-15T12:00:00Z")
        })
    };
    call.text(flag).map(read).transpose()
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

fn tenant(call: &Call<'_>) -> Option<TenantId> {
    call.text("tenant").map(config::tenant)
}

fn aggregate(call: &Call<'_>) -> Result<(Option<String>, Option<String>), Failure> {
    let Some(given) = call.text("aggregate") else { return Ok((None, None)) };
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
        topic: call.text("topic").map(str::to_owned),
        tenant_id: tenant(call),
        aggregate_type,
        aggregate_id,
        status: status.transpose()?,
        error: call.text("error").map(str::to_owned),
        since: moment(call, "since", now)?,
    })
}

/// Which dead events, apart from their cause.
pub(crate) fn dead_filter(call: &Call<'_>) -> Result<DeadFilter, Failure> {
    let (aggregate_type, aggregate_id) = aggregate(call)?;
    Ok(DeadFilter {
        topic: call.text("topic").map(str::to_owned),
        aggregate_type,
        aggregate_id,
        tenant_id: tenant(call),
        older_than: duration(call, "older-than")?,
        newer_than: duration(call, "since")?,
        error: call.text("error").map(str::to_owned),
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
