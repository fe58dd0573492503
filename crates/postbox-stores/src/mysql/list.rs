//! Lists of events in order of sequence, which is the table's key here: a walk along it needs no other index.
//!
//! A walk alone would look at very many events to find a few of one kind far back, so what is rare is taken from the
//! index that holds it apart. Both look at a bounded number of rows, and a list is exact wherever either of them is.

use postbox_core::{Direction, EventFilter, EventStatus, EventSummary, ListRequest, StoreError};
use sqlx::Row as _;

use super::admin::{Looked, MySqlAdmin};
use super::clause::Clause;
use super::clock::at;
use super::error::classify;
use crate::cursor::START;
use crate::shown;

/// As the status view derives it.
pub(super) const STATUS: &str =
    "CASE WHEN published_at IS NOT NULL THEN 'SENT' WHEN dead_at IS NOT NULL THEN 'DEAD'
    WHEN locked_at IS NOT NULL OR {{in_flight}} THEN 'PUBLISHING' WHEN attempts > 0 THEN 'FAILED' ELSE 'NEW' END";

/// The columns of an [`EventSummary`], in the order of [`shown::summary`]. No payload: not everybody may read it.
pub(super) const SUMMARY: &str = "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, {{status}},
    attempts, created_at, available_at, published_at, CASE WHEN published_at IS NULL THEN dead_at END, last_error";

/// What the summary and the filter are made of.
const COLUMNS: &str =
    "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, attempts, created_at,
    available_at, published_at, locked_at, dead_at, last_error";

/// Where to look: an index, the condition that it serves, whether that asks since when, and the order it serves it in, newest
/// first and oldest first.
struct Branch {
    table: &'static str,
    index: &'static str,
    condition: &'static str,
    since: bool,
    down: &'static str,
    up: &'static str,
}

const DUE: Branch = Branch {
    table: "{{table}}",
    index: "{{by_pending}}",
    condition: "published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6)",
    since: false,
    down: "available_at DESC, sequence DESC",
    up: "available_at, sequence",
};
/// Apart from what is due, which events for next year would hide.
const LATER: Branch = Branch {
    table: "{{table}}",
    index: "{{by_pending}}",
    condition: "published_at IS NULL AND dead_at IS NULL AND available_at > UTC_TIMESTAMP(6)",
    since: false,
    down: "available_at, sequence",
    up: "available_at, sequence",
};
/// What was published before `since` was written before it too.
const SENT: Branch = Branch {
    table: "{{table}}",
    index: "{{by_pending}}",
    condition: "published_at >= ?",
    since: true,
    down: "published_at DESC, dead_at DESC, available_at DESC, sequence DESC",
    up: "published_at, dead_at, available_at, sequence",
};
/// The same, moved to the history.
const MOVED: Branch = Branch {
    table: "{{history}}",
    index: "{{by_history}}",
    condition: "published_at >= ?",
    since: true,
    down: "published_at DESC, sequence DESC",
    up: "published_at, sequence",
};
const DEAD: Branch = Branch {
    table: "{{table}}",
    index: "{{by_pending}}",
    condition: "published_at IS NULL AND dead_at IS NOT NULL",
    since: false,
    down: "dead_at DESC, available_at DESC, sequence DESC",
    up: "dead_at, available_at, sequence",
};

/// Every place to look for what a filter asks for.
fn branches(looked: &Looked, filter: &EventFilter) -> Vec<&'static Branch> {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    let mut branches = match filter.status {
        None => vec![&DUE, &LATER, &SENT, &DEAD],
        Some(New | Publishing | Failed) => vec![&DUE, &LATER],
        Some(Sent) => vec![&SENT],
        Some(Dead) => vec![&DEAD],
    };
    if looked.history.is_some() && matches!(filter.status, None | Some(Sent)) {
        branches.push(&MOVED);
    }
    branches
}

/// Whether an index holds what is asked for apart from most of the table.
fn is_narrow(filter: &EventFilter) -> bool {
    filter.status.is_some_and(|status| status != EventStatus::Sent)
}

pub(super) fn fill(looked: &Looked, sql: &str) -> String {
    let sql = sql.replace("{{summary}}", SUMMARY).replace("{{columns}}", COLUMNS);
    looked.template.fill(&sql.replace("{{status}}", STATUS))
}

/// One list under way.
struct Look<'a> {
    admin: &'a MySqlAdmin,
    looked: &'a Looked,
    request: &'a ListRequest,
}

impl Look<'_> {
    /// One more than was asked for, to know whether there are more.
    fn rows(&self) -> i64 {
        i64::from(self.request.limit) + 1
    }

    /// A page that nothing is left out of needs no more than its own rows.
    fn depth(&self) -> i64 {
        self.request.depth.map_or(i64::MAX, |depth| i64::from(depth).max(self.rows()))
    }

    fn since(&self) -> time::PrimitiveDateTime {
        at(self.request.filter.since.unwrap_or(START.0))
    }

    fn order(&self) -> &'static str {
        match self.request.direction {
            Direction::NewestFirst => "DESC",
            Direction::OldestFirst => "ASC",
        }
    }

    /// What lies on the way.
    fn after(&self) -> Clause {
        match (self.request.direction, self.request.after) {
            (_, None) => Clause::new("TRUE"),
            (Direction::NewestFirst, Some(after)) => Clause::new("sequence < ?").with(after),
            (Direction::OldestFirst, Some(after)) => Clause::new("sequence > ?").with(after),
        }
    }

    fn filter(&self) -> Clause {
        let filter = &self.request.filter;
        let mut clause = Clause::new("TRUE");
        clause.and("topic = ?", filter.topic.as_deref());
        clause.and("tenant_id = ?", filter.tenant_id.map(|tenant| tenant.0));
        clause.and("aggregate_type = ?", filter.aggregate_type.as_deref());
        clause.and("aggregate_id = ?", filter.aggregate_id.as_deref());
        clause.and(&format!("{STATUS} = ?"), filter.status.map(EventStatus::as_str));
        clause.and("LOCATE(?, last_error) > 0", filter.error.as_deref());
        clause.and("created_at >= ?", filter.since.map(at));
        clause
    }

    /// The tables that a walk goes along.
    fn tables(&self) -> &'static [&'static str] {
        if self.looked.history.is_some() { &["{{table}}", "{{history}}"] } else { &["{{table}}"] }
    }

    fn filled(&self, mut clause: Clause) -> Clause {
        clause.sql = fill(self.looked, &clause.sql);
        clause
    }

    /// The walk along the sequence: the rows that are looked at, then those that match.
    fn walk(&self) -> Clause {
        let (order, mut clause) = (self.order(), Clause::default());
        for (place, table) in self.tables().iter().enumerate() {
            let union = if place > 0 { " UNION ALL " } else { "" };
            clause.push(
                &format!("{union}SELECT {{{{summary}}}} FROM (SELECT {{{{columns}}}} FROM {table} WHERE "),
                [],
            );
            clause.append(&self.after());
            clause
                .push(&format!(" ORDER BY sequence {order} LIMIT ?) AS walk WHERE "), [self.depth().into()]);
            clause.append(&self.filter());
        }
        // By place: the second column is the sequence.
        clause.push(&format!(" ORDER BY 2 {order} LIMIT ?"), [self.rows().into()]);
        self.filled(clause)
    }

    /// Whether the walk ends before it has seen everything.
    fn walk_ends(&self) -> Clause {
        let mut clause = Clause::new("SELECT ");
        for (place, table) in self.tables().iter().enumerate() {
            let or = if place > 0 { " OR " } else { "" };
            clause.push(&format!("{or}(SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE "), []);
            clause.append(&self.after());
            clause
                .push(" LIMIT ?) AS walk) > ?", [self.depth().saturating_add(1).into(), self.depth().into()]);
        }
        self.filled(clause)
    }

    /// The rows that match from the ends of the indexes.
    fn kinds(&self) -> Clause {
        let (order, mut clause) = (self.order(), Clause::default());
        for (place, branch) in branches(self.looked, &self.request.filter).into_iter().enumerate() {
            let Branch { table, index, condition, since, down, up } = branch;
            let by = if self.request.direction == Direction::NewestFirst { down } else { up };
            let union = if place > 0 { " UNION ALL " } else { "" };
            clause.push(
                &format!(
                    "{union}SELECT {{{{summary}}}} FROM (
                         SELECT {{{{columns}}}} FROM {table} {index} WHERE {condition} ORDER BY {by} LIMIT ?
                     ) AS kind WHERE "
                ),
                since.then(|| self.since().into()).into_iter().chain([self.depth().into()]),
            );
            clause.append(&self.after());
            clause.push(" AND ", []);
            clause.append(&self.filter());
        }
        clause.push(&format!(" ORDER BY 2 {order} LIMIT ?"), [self.rows().into()]);
        self.filled(clause)
    }

    /// Whether one of the indexes holds more than is looked at.
    fn kinds_end(&self) -> Clause {
        let mut clause = Clause::new("SELECT ");
        for (place, branch) in branches(self.looked, &self.request.filter).into_iter().enumerate() {
            let Branch { table, index, condition, since, .. } = branch;
            let or = if place > 0 { " OR " } else { "" };
            let limits = [self.depth().saturating_add(1).into(), self.depth().into()];
            clause.push(
                &format!("{or}(SELECT COUNT(*) FROM (SELECT 1 FROM {table} {index} WHERE {condition} LIMIT ?) AS kind) > ?"),
                since.then(|| self.since().into()).into_iter().chain(limits),
            );
        }
        self.filled(clause)
    }

    async fn events(&self, clause: Clause) -> Result<Vec<EventSummary>, StoreError> {
        let rows = self.admin.0.rows(&clause).await?;
        rows.iter().map(shown::summary).collect::<Result<_, _>>().map_err(classify)
    }

    async fn answer(&self, clause: Clause) -> Result<bool, StoreError> {
        // Without a bound there is no end.
        if self.request.depth.is_none() {
            return Ok(false);
        }
        self.admin.0.row(&clause).await?.try_get(0).map_err(classify)
    }
}

/// What a list found: at most one event more than was asked for, and whether there may be others.
pub(super) async fn list(
    admin: &MySqlAdmin,
    looked: &Looked,
    request: &ListRequest,
) -> Result<(Vec<EventSummary>, bool), StoreError> {
    let look = Look { admin, looked, request };
    let narrow = is_narrow(&request.filter);
    if narrow && !look.answer(look.kinds_end()).await? {
        return Ok((look.events(look.kinds()).await?, false));
    }
    let mut events = look.events(look.walk()).await?;
    let filled = events.len() > request.limit as usize;
    if filled || !look.answer(look.walk_ends()).await? {
        return Ok((events, false));
    }
    // The walk ended too soon: what is farther away may still stand in an index.
    let bounded = narrow || look.answer(look.kinds_end()).await?;
    events.extend(look.events(look.kinds()).await?);
    match request.direction {
        Direction::NewestFirst => events.sort_by_key(|event| std::cmp::Reverse(event.sequence)),
        Direction::OldestFirst => events.sort_by_key(|event| event.sequence),
    }
    events.dedup_by_key(|event| event.sequence);
    Ok((events, bounded))
}
