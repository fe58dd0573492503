//! Published events, delivered once more by the time of their publication.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use postbox_core::{Browse as _, Published};
use serde_json::json;
use time::OffsetDateTime;

use super::Shared;
use super::access::By;
use super::answer::{Answer, Refusal, ok, time, with_status};
use super::dead::Agreed;
use super::fields::Fields;
use super::jobs::Kind;
use super::run::Work;
use super::table::{Command, Table};

const WHICH: [&str; 4] = ["since", "until", "topic", "first"];

struct Range {
    since: OffsetDateTime,
    until: OffsetDateTime,
    topic: Option<String>,
}

impl Range {
    async fn of(table: &Table, fields: &Fields) -> Result<Self, Refusal> {
        let now = table.ask(table.admin.now()).await?;
        let since = fields.moment("since", now)?;
        let since = since.ok_or_else(|| Refusal::request("since is missing: how long ago, or a time"))?;
        // What was published from now on is not meant: it would come again and again.
        let until = fields.moment("until", now)?.map_or(now, |until| until.min(now));
        Ok(Self { since, until, topic: fields.text("topic")? })
    }

    fn published(&self) -> Published {
        Published::Between { since: self.since, until: self.until, topic: self.topic.clone() }
    }

    fn describe(&self) -> String {
        let topic = self.topic.as_ref().map(|topic| format!(" and topic = {topic}")).unwrap_or_default();
        format!("published_at >= {} and published_at < {}{topic}", time(self.since), time(self.until))
    }

    fn command(&self, table: &Table) -> Command {
        let (since, until) = (Some(time(self.since)), Some(time(self.until)));
        table
            .command("events replay")
            .flag("since", since)
            .flag("until", until)
            .flag("topic", self.topic.as_ref())
    }
}

/// What a replay would do.
pub(super) async fn preview(State(admin): Shared, Path(id): Path<String>, uri: Uri) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_query(&uri, &[&WHICH])?;
    let first = fields.number("first", 1, u64::MAX)?;
    let range = Range::of(table, &fields).await?;
    let matched = table.ask(table.admin.count_published(&range.published())).await?;
    let rows = first.map_or(matched, |first| matched.min(first));
    let sql = format!(
        "UPDATE {} SET published_at = NULL, attempts = 0, available_at = now(), … WHERE {}",
        table.name,
        range.describe()
    );
    Ok(ok(&json!({
        "id": table.id,
        "action": "replay_published",
        "rows": rows,
        "matched": matched,
        "where": range.describe(),
        "since": time(range.since),
        "until": time(range.until),
        "sql": sql,
        "command": range.command(table).flag("first", first).line(),
        "place": table.site.database.address(),
        "confirm": table.confirmation(),
    })))
}

/// Has them delivered once more.
pub(super) async fn replay(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let fields = Fields::of_body(body, &[&WHICH, &["rows", "rate", "watch", "confirm"]]).await?;
    let table = admin.table(&id)?;
    let agreed = Agreed::of(table, &fields)?;
    let range = Range::of(table, &fields).await?;
    let matched = table.ask(table.admin.count_published(&range.published())).await?;
    let plan = agreed.plan(Kind::ReplayPublished, who, range.describe(), range.command(table), matched)?;
    let job = admin.jobs.start(table, plan, Work::Published(range.published()))?;
    Ok(with_status(StatusCode::ACCEPTED, &job))
}
