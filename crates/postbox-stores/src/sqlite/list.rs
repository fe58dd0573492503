//! Lists of events in order of sequence, which is the table's key here: a walk along it needs no other index.
//!
//! A walk alone would look at very many events to find a few of one kind far back, so what is rare is taken from the
//! index that holds it apart. Both look at a bounded number of rows, and a list is exact wherever either of them is.

use postbox_core::{Direction, EventFilter, EventStatus, EventSummary, ListRequest, StoreError};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};

use super::admin::Looked;
use super::clock::{micros, now};
use super::error::classify;
use crate::shown;

/// As the status view derives it.
pub(super) const STATUS: &str =
    "CASE WHEN published_at IS NOT NULL THEN 'SENT' WHEN dead_at IS NOT NULL THEN 'DEAD'
    WHEN locked_at IS NOT NULL THEN 'PUBLISHING' WHEN attempts > 0 THEN 'FAILED' ELSE 'NEW' END";

/// The columns of an [`EventSummary`], in the order of [`shown::summary`]. No payload: not everybody may read it.
pub(super) const SUMMARY: &str = "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, {{status}},
    attempts, created_at, available_at, published_at, CASE WHEN published_at IS NULL THEN dead_at END, last_error";

/// What the summary and the filter are made of.
const COLUMNS: &str =
    "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, attempts, created_at,
    available_at, published_at, locked_at, dead_at, last_error";

/// `?1` topic `?2` tenant `?3` aggregate type `?4` aggregate `?5` status `?6` error `?7` after `?8` rows `?9` depth
/// `?10` since `?11` now; each condition left out where it is null.
const FILTER: &str = "(?1 IS NULL OR topic = ?1) AND (?2 IS NULL OR tenant_id = ?2)
    AND (?3 IS NULL OR aggregate_type = ?3) AND (?4 IS NULL OR aggregate_id = ?4)
    AND (?5 IS NULL OR {{status}} = ?5) AND (?6 IS NULL OR instr(last_error, ?6) > 0)
    AND created_at >= ?10 AND ?11 IS NOT NULL";

/// Where to look: an index, the condition that it serves, and the order it serves it in, newest first and oldest first.
type Branch = (&'static str, &'static str, &'static str, &'static str);

const DUE: Branch = (
    "{{by_pending}}",
    "published_at IS NULL AND dead_at IS NULL AND available_at <= ?11",
    "available_at DESC, sequence DESC",
    "available_at, sequence",
);
/// Apart from what is due, which events for next year would hide.
const LATER: Branch = (
    "{{by_pending}}",
    "published_at IS NULL AND dead_at IS NULL AND available_at > ?11",
    "available_at, sequence",
    "available_at, sequence",
);
/// What was published before `since` was written before it too.
const SENT: Branch =
    ("{{by_published}}", "published_at >= ?10", "published_at DESC, sequence DESC", "published_at, sequence");
/// The same, moved to the history.
const MOVED: Branch =
    ("{{by_history}}", "published_at >= ?10", "published_at DESC, sequence DESC", "published_at, sequence");
const DEAD: Branch = (
    "{{by_dead}}",
    "dead_at IS NOT NULL AND published_at IS NULL",
    "dead_at DESC, sequence DESC",
    "dead_at, sequence",
);

/// A tenant has an index of its own, in which what is not published stands in order of sequence.
const TENANT_OPEN: Branch =
    ("{{by_tenant}}", "tenant_id = ?2 AND published_at IS NULL", "sequence DESC", "sequence");
const TENANT_SENT: Branch = (
    "{{by_tenant}}",
    "tenant_id = ?2 AND published_at >= ?10",
    "published_at DESC, sequence DESC",
    "published_at, sequence",
);

fn branches(filter: &EventFilter) -> &'static [Branch] {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    match (filter.status, filter.tenant_id.is_some()) {
        (None, false) => &[DUE, LATER, SENT, DEAD],
        (Some(New | Publishing | Failed), false) => &[DUE, LATER],
        (Some(Sent), false) => &[SENT],
        (Some(Dead), false) => &[DEAD],
        (None, true) => &[TENANT_OPEN, TENANT_SENT],
        (Some(New | Publishing | Failed | Dead), true) => &[TENANT_OPEN],
        (Some(Sent), true) => &[TENANT_SENT],
    }
}

/// Where to look in the history. It has no index by tenant: the filter finds what is a tenant's.
fn history_branches(looked: &Looked, filter: &EventFilter) -> &'static [Branch] {
    match filter.status {
        None | Some(EventStatus::Sent) if looked.history.is_some() => &[MOVED],
        _ => &[],
    }
}

/// Every place to look for what a filter asks for: the table, and where it is.
fn places<'a>(
    looked: &'a Looked,
    filter: &'a EventFilter,
) -> impl Iterator<Item = (&'static str, Branch)> + 'a {
    let moved = history_branches(looked, filter).iter().map(|branch| ("{{history}}", *branch));
    branches(filter).iter().map(|branch| ("{{table}}", *branch)).chain(moved)
}

/// The tables that a walk goes along.
fn tables(looked: &Looked) -> &'static [&'static str] {
    if looked.history.is_some() { &["{{table}}", "{{history}}"] } else { &["{{table}}"] }
}

/// Whether an index holds what is asked for apart from most of the table.
fn is_narrow(filter: &EventFilter) -> bool {
    filter.tenant_id.is_some() || filter.status.is_some_and(|status| status != EventStatus::Sent)
}

pub(super) fn fill(looked: &Looked, sql: &str) -> String {
    let sql =
        sql.replace("{{summary}}", SUMMARY).replace("{{filter}}", FILTER).replace("{{columns}}", COLUMNS);
    looked.template.fill(&sql.replace("{{status}}", STATUS))
}

/// The walk along the sequence: the rows that are looked at, then those that match.
fn walk_sql(looked: &Looked, direction: Direction) -> String {
    let (after, order) = along(direction);
    let one = |table: &&str| {
        format!(
            "SELECT {{{{summary}}}} FROM (
                 SELECT {{{{columns}}}} FROM {table} WHERE {after} ORDER BY sequence {order} LIMIT ?9
             ) WHERE {{{{filter}}}}"
        )
    };
    let all: Vec<String> = tables(looked).iter().map(one).collect();
    // By place: the second column is the sequence.
    fill(looked, &format!("{} ORDER BY 2 {order} LIMIT ?8", all.join(" UNION ALL ")))
}

/// Whether the walk ends before it has seen everything.
fn walk_ends_sql(looked: &Looked, direction: Direction) -> String {
    let (after, order) = along(direction);
    let one = |table: &&str| {
        format!("EXISTS (SELECT 1 FROM {table} WHERE {after} ORDER BY sequence {order} LIMIT 1 OFFSET ?9)")
    };
    let all: Vec<String> = tables(looked).iter().map(one).collect();
    looked.template.fill(&format!("SELECT {}", all.join(" OR ")))
}

fn along(direction: Direction) -> (&'static str, &'static str) {
    match direction {
        Direction::NewestFirst => ("sequence < coalesce(?7, 9223372036854775807)", "DESC"),
        Direction::OldestFirst => ("sequence > coalesce(?7, -9223372036854775808)", "ASC"),
    }
}

/// The rows that match from the ends of the indexes.
fn kinds_sql(looked: &Looked, request: &ListRequest) -> String {
    let (after, order) = along(request.direction);
    let one = |(table, (index, condition, down, up)): (&str, Branch)| {
        let by = if request.direction == Direction::NewestFirst { down } else { up };
        format!(
            "SELECT {{{{summary}}}} FROM (
                 SELECT {{{{columns}}}} FROM {table} {index} WHERE {condition} ORDER BY {by} LIMIT ?9
             ) WHERE {after} AND {{{{filter}}}}"
        )
    };
    let all: Vec<String> = places(looked, &request.filter).map(one).collect();
    // By place: the second column is the sequence.
    fill(looked, &format!("{} ORDER BY 2 {order} LIMIT ?8", all.join(" UNION ALL ")))
}

/// Whether one of the indexes holds more than is looked at.
fn kinds_end_sql(looked: &Looked, request: &ListRequest) -> String {
    let one = |(table, (index, condition, ..)): (&str, Branch)| {
        format!("(SELECT count(*) FROM (SELECT 1 FROM {table} {index} WHERE {condition} LIMIT ?9 + 1)) > ?9")
    };
    let all: Vec<String> = places(looked, &request.filter).map(one).collect();
    looked.template.fill(&format!("SELECT {}", all.join(" OR ")))
}

/// What a list found: at most one event more than was asked for, and whether there may be others.
pub(super) async fn list(
    connection: &mut SqliteConnection,
    looked: &Looked,
    request: &ListRequest,
) -> Result<(Vec<EventSummary>, bool), StoreError> {
    let mut look = Look { connection, request };
    let narrow = is_narrow(&request.filter);
    if narrow && !look.answer(&kinds_end_sql(looked, request)).await? {
        return Ok((look.events(&kinds_sql(looked, request)).await?, false));
    }
    let mut events = look.events(&walk_sql(looked, request.direction)).await?;
    let filled = events.len() > request.limit as usize;
    if filled || !look.answer(&walk_ends_sql(looked, request.direction)).await? {
        return Ok((events, false));
    }
    // The walk ended too soon: what is farther away may still stand in an index.
    let bounded = narrow || look.answer(&kinds_end_sql(looked, request)).await?;
    events.extend(look.events(&kinds_sql(looked, request)).await?);
    match request.direction {
        Direction::NewestFirst => events.sort_by_key(|event| std::cmp::Reverse(event.sequence)),
        Direction::OldestFirst => events.sort_by_key(|event| event.sequence),
    }
    events.dedup_by_key(|event| event.sequence);
    Ok((events, bounded))
}

/// One list under way.
struct Look<'a> {
    connection: &'a mut SqliteConnection,
    request: &'a ListRequest,
}

impl Look<'_> {
    /// One more than was asked for, to know whether there are more.
    fn rows(&self) -> i64 {
        i64::from(self.request.limit) + 1
    }

    fn bind<'q>(&self, sql: &'q str) -> Query<'q, Sqlite, SqliteArguments> {
        let ListRequest { filter, after, depth, .. } = self.request;
        sqlx::query(AssertSqlSafe(sql))
            .bind(filter.topic.clone())
            .bind(filter.tenant_id.map(|tenant| tenant.0))
            .bind(filter.aggregate_type.clone())
            .bind(filter.aggregate_id.clone())
            .bind(filter.status.map(EventStatus::as_str))
            .bind(filter.error.clone())
            .bind(*after)
            .bind(self.rows())
            // A page that nothing is left out of needs no more than its own rows; -1 is no limit.
            .bind(depth.map_or(-1, |depth| i64::from(depth).max(self.rows())))
            .bind(filter.since.map_or(i64::MIN, micros))
            .bind(now())
            // Not kept: many forms, each used rarely.
            .persistent(false)
    }

    async fn events(&mut self, sql: &str) -> Result<Vec<EventSummary>, StoreError> {
        let rows = self.bind(sql).fetch_all(&mut *self.connection).await.map_err(classify)?;
        rows.iter().map(shown::summary).collect::<Result<_, _>>().map_err(classify)
    }

    async fn answer(&mut self, sql: &str) -> Result<bool, StoreError> {
        // Without a bound there is no end.
        if self.request.depth.is_none() {
            return Ok(false);
        }
        let row = self.bind(sql).fetch_one(&mut *self.connection).await.map_err(classify)?;
        row.try_get(0).map_err(classify)
    }
}

#[cfg(test)]
mod tests {
    use postbox_core::TenantId;

    use super::super::plans::{lives, plan};
    use super::*;

    /// No list reads more of a table than its depth.
    #[tokio::test]
    async fn every_list_has_a_plan_that_fits_a_large_table() {
        for (life, mut connection, template) in lives().await {
            let looked = Looked { key: String::new(), template, history: None };
            let statuses = EventStatus::ALL.into_iter().map(Some).chain([None]);
            for (status, of_tenant) in statuses.flat_map(|status| [(status, false), (status, true)]) {
                let tenant_id = of_tenant.then(|| TenantId::from_name("acme"));
                let filter = EventFilter { status, tenant_id, ..EventFilter::default() };
                for direction in [Direction::NewestFirst, Direction::OldestFirst] {
                    let request = ListRequest { filter: filter.clone(), direction, ..ListRequest::default() };
                    let branches = branches(&request.filter).len();
                    for (sql, wanted, sorts) in [
                        // What the indexes bring is put in order of sequence, a part at a time.
                        (kinds_sql(&looked, &request), indexes(status, of_tenant), branches),
                        (kinds_end_sql(&looked, &request), indexes(status, of_tenant), 0),
                        (walk_sql(&looked, direction), vec!["USING INTEGER PRIMARY KEY (rowid"], 0),
                        (walk_ends_sql(&looked, direction), vec!["USING INTEGER PRIMARY KEY (rowid"], 0),
                    ] {
                        let plan = plan(&mut connection, &sql).await;
                        for part in wanted {
                            assert!(plan.contains(part), "{life}: no {part} in:\n{plan}\n{sql}");
                        }
                        assert!(!plan.contains("SCAN org_outbox"), "{life}:\n{plan}\n{sql}");
                        assert!(plan.matches("USE TEMP B-TREE").count() <= sorts, "{life}:\n{plan}\n{sql}");
                    }
                }
            }
        }
    }

    fn indexes(status: Option<EventStatus>, of_tenant: bool) -> Vec<&'static str> {
        let (pending, published, dead, tenant) = (
            "INDEX org_outbox_pending_by_available (available_at",
            "INDEX org_outbox_published_by_time (published_at>?)",
            "INDEX org_outbox_dead_by_time (dead_at>?)",
            "INDEX org_outbox_tenant_published (tenant_id=? AND published_at",
        );
        match status {
            _ if of_tenant => vec![tenant],
            None => vec![pending, published, dead],
            Some(EventStatus::Sent) => vec![published],
            Some(EventStatus::Dead) => vec![dead],
            Some(EventStatus::New | EventStatus::Publishing | EventStatus::Failed) => vec![pending],
        }
    }
}
