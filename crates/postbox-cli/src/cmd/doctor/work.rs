//! Whether somebody works on a table, how well, and whether two looks see it go on.

use std::time::Duration;

use postbox_core::{Code, Finding, TableName};

use super::Look;
use crate::config::Relay;
use crate::late::{FAR_TOO_LATE, LATE};
use crate::render::{age, counted, relay_name, thousands};

/// A backlog that is smaller than this may grow as it likes: the next moment it is gone.
const BACKLOG: u64 = 1_000;

/// What one look says.
pub(super) fn findings(table: &TableName, look: &Look, led: bool) -> Vec<Finding> {
    let (counts, relay) = (&look.counts, &look.relay);
    let mut findings = Vec::new();
    if relay.paused_at.is_some() {
        let who = relay.paused_by.as_deref().unwrap_or("someone");
        let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let fix = format!("postbox resume --table {table}");
        findings.push(Finding::doubtful("paused", Code::Paused, format!("paused by {who}{reason}"), fix));
    }
    let waiting = counted(counts.pending, "event");
    let wait = if counts.pending == 1 { "waits" } else { "wait" };
    match &relay.leader {
        Some(leader) => {
            let name = relay_name(leader);
            findings.push(Finding::good("relay", format!("{name} relays (epoch {})", relay.epoch)));
        }
        None if led && counts.pending > 0 => findings.push(Finding::wrong(
            "relay",
            Code::NobodyRelays,
            format!("nobody relays, and {waiting} {wait}"),
            format!("postbox relay --table {table}"),
        )),
        None if led => findings.push(Finding::good("relay", "nobody relays, and nothing waits")),
        None => {}
    }
    let oldest = counts.oldest_pending_age;
    let lag = format!("{waiting} {wait}, the oldest for {}", age(oldest));
    let fix = format!("postbox events list --oldest --limit 5 --table {table} shows what they wait for");
    findings.push(match oldest {
        _ if counts.pending == 0 => Finding::good("lag", "nothing waits"),
        _ if oldest <= LATE => Finding::good("lag", lag),
        _ if oldest <= FAR_TOO_LATE => Finding::doubtful("lag", Code::BacklogLate, lag, fix),
        _ => Finding::wrong("lag", Code::BacklogLate, lag, fix),
    });
    findings.push(if counts.dead == 0 {
        Finding::good("dead", "no dead events")
    } else {
        let more = if counts.estimated { "at least " } else { "" };
        let what = format!("{more}{} dead", counted(counts.dead, "event"));
        Finding::wrong("dead", Code::DeadEvents, what, format!("postbox dead list --table {table}"))
    });
    findings
}

/// What two looks say: delivery that stands still, and a backlog that grows.
pub(super) fn between(table: &TableName, first: &Look, second: &Look, settings: &Relay) -> Vec<Finding> {
    let mut findings = Vec::new();
    let apart = second.at.saturating_duration_since(first.at);
    findings.extend(stuck(table, first, second, settings, apart));
    findings.extend(grows(first, second, apart));
    findings
}

/// The same event is due at both looks, for longer than any attempt takes, and nothing was published meanwhile.
fn stuck(
    table: &TableName,
    first: &Look,
    second: &Look,
    settings: &Relay,
    apart: Duration,
) -> Option<Finding> {
    let (before, now) = (&first.flow, &second.flow);
    let idle = match now.published {
        Some(ago) => ago > apart,
        None => second.counts.published_per_second.is_none_or(|rate| rate <= 0.0),
    };
    let longest = settings.dispatch_timeout.saturating_add(LATE);
    if second.relay.paused_at.is_some()
        || now.first_due.is_none()
        || before.first_due != now.first_due
        || now.due_for < longest
        || !idle
    {
        return None;
    }
    let due = format!(
        "the oldest event has been due for {}, and nothing was published for {}",
        age(now.due_for),
        age(apart)
    );
    match (&first.relay.leader, &second.relay.leader) {
        (Some(before), Some(leader)) if before == leader => {
            let (name, epoch) = (relay_name(leader), second.relay.epoch);
            Some(Finding::wrong(
                "owner",
                Code::OwnerStuck,
                format!("{name} (epoch {epoch}) holds {table} and delivers nothing: {due}"),
                format!("look at the log of {name}, then end that process: another relay takes over"),
            ))
        }
        // Nobody who leads was told of already; where relays share the table, nobody is known.
        (None, None) if !settings.single_active => Some(Finding::wrong(
            "relay",
            Code::NobodyRelays,
            format!("nobody delivers: {due}"),
            format!("postbox relay --table {table}"),
        )),
        _ => None,
    }
}

/// More is written than delivered.
#[allow(clippy::cast_precision_loss, reason = "rates for people")]
fn grows(first: &Look, second: &Look, apart: Duration) -> Option<Finding> {
    let (before, now) = (&first.counts, &second.counts);
    let seconds = apart.as_secs_f64().max(0.001);
    let out = now.published_per_second.unwrap_or(0.0);
    let written = match (first.flow.written, second.flow.written) {
        (Some(before), Some(now)) => Some((now - before).max(0) as f64 / seconds),
        _ => None,
    };
    let by_count = !now.estimated && now.pending > before.pending;
    let by_rate = now.estimated && written.is_some_and(|written| written > out * 1.2);
    if now.pending < BACKLOG || !(by_count || by_rate) {
        return None;
    }
    let rate = written.unwrap_or_else(|| out + (now.pending.saturating_sub(before.pending)) as f64 / seconds);
    Some(Finding::doubtful(
        "backlog",
        Code::BacklogGrows,
        format!(
            "the backlog grows: {rate:.0} events a second come in, {out:.0} go out, {} wait",
            thousands(now.pending)
        ),
        "mend what is slow: a sink; or raise relay.concurrency, a webhook's concurrency or relay.batch_size",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use postbox_core::Level::{Doubtful, Good, Wrong};
    use postbox_core::{Flow, TableCounts, TableRelay};

    use super::*;

    fn look(counts: TableCounts, leader: Option<&str>, flow: Flow) -> Look {
        let relay = TableRelay { leader: leader.map(str::to_owned), epoch: 7, ..TableRelay::default() };
        Look { at: Instant::now(), counts, relay, flow }
    }

    #[test]
    fn nobody_who_relays_is_only_wrong_where_something_waits() {
        let table = "public.org_outbox".parse().unwrap();
        let levels = |pending, seconds, led| {
            let oldest_pending_age = Duration::from_secs(seconds);
            let counts = TableCounts { pending, oldest_pending_age, ..TableCounts::default() };
            let found = findings(&table, &look(counts, None, Flow::default()), led);
            found.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
        };
        assert_eq!(levels(0, 0, true), [("relay", Good), ("lag", Good), ("dead", Good)]);
        assert_eq!(levels(1, 11, true), [("relay", Wrong), ("lag", Doubtful), ("dead", Good)]);
        assert_eq!(levels(1, 301, false), [("lag", Wrong), ("dead", Good)]);
    }

    #[test]
    fn a_backlog_grows_by_its_count_and_by_its_rate_where_it_is_not_counted() {
        let at = |pending, estimated, rate: f64, written| {
            let counts = TableCounts {
                pending,
                estimated,
                published_per_second: Some(rate),
                ..TableCounts::default()
            };
            look(counts, None, Flow { written: Some(written), ..Flow::default() })
        };
        let second = Duration::from_secs(1);
        assert!(grows(&at(2_000, false, 10.0, 0), &at(2_100, false, 10.0, 110), second).is_some());
        assert!(grows(&at(2_000, false, 10.0, 0), &at(1_990, false, 10.0, 0), second).is_none());
        assert!(grows(&at(10, false, 10.0, 0), &at(110, false, 10.0, 110), second).is_none());
        assert!(grows(&at(50_000, true, 10.0, 0), &at(50_000, true, 10.0, 110), second).is_some());
        assert!(grows(&at(50_000, true, 500.0, 0), &at(50_000, true, 500.0, 110), second).is_none());
    }
}
