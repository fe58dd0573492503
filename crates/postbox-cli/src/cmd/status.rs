//! `postbox status`: who works on a table and what it holds, in one line.

use std::time::Duration;

use clap::ArgMatches;
use postbox_core::{Code, Inspect as _, Layout, TableCounts, TableName, TableRelay};
use postbox_stores::postgres::migrate::Ordered;
use serde_json::{Value, json};

use super::{block_on, given, tables, within_patience};
use crate::cli::Call;
use crate::config::Config;
use crate::database::Database;
use crate::render::{Tint, age, paint, printable, relay_name, thousands};
use crate::report::{Exit, Failure, Plugin, Problem};
use crate::say::{say, say_json};

struct Status {
    /// The name of its database, where there are several.
    database: Option<String>,
    table: TableName,
    layout: Layout,
    ordered: Option<Ordered>,
    counts: TableCounts,
    relay: TableRelay,
}

/// Shows the state of tables. One that cannot be looked at does not hide the others.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    if call.json && call.text("format") == Some("nagios") {
        let message = "--format nagios and --json exclude each other";
        return Err(Problem::new(Code::ConfigInvalid, message).next("leave one of them out").into());
    }
    match looked(call) {
        Err(failure) if nagios(call) => unknown(&failure),
        result => result,
    }
}

/// A plugin that cannot tell says so in its own words, and never with the number of a judgement.
pub(crate) fn unknown(failure: &Failure) -> Result<Exit, Failure> {
    let (what, _) = failure.first();
    say(&format!("{} postbox: {}", Plugin::Unknown.word(), printable(&what)))?;
    Ok(Exit::Plugin(Plugin::Unknown))
}

fn nagios(call: &Call<'_>) -> bool {
    is_plugin(call.matches, call.json)
}

/// Whether it is asked as a plugin of Nagios; with `--json` it is not, and is refused.
pub(crate) fn is_plugin(matches: &ArgMatches, json: bool) -> bool {
    let format = matches.try_get_one::<String>("format").ok().flatten();
    !json && matches.get_flag("check") && format.is_some_and(|format| format == "nagios")
}

fn looked(call: &Call<'_>) -> Result<Exit, Failure> {
    let calls = call.each();
    block_on(async {
        // Side by side: one that does not answer keeps nobody waiting for the others.
        let looks = calls.iter().map(|call| within_patience(look_at(call)));
        let (mut seen, mut problems) = (Vec::new(), Vec::new());
        for (call, looked) in calls.iter().zip(futures_util::future::join_all(looks).await) {
            let name = call.config.database.as_deref();
            match looked {
                Ok((found, wrong)) => {
                    seen.extend(found);
                    problems.push(Failure::Problems(wrong).of_database(name));
                }
                Err(failure) if name.is_none() => return Err(failure),
                Err(failure) => problems.push(failure.of_database(name)),
            }
        }
        let problems: Vec<Problem> = problems.into_iter().flat_map(Failure::problems).collect();
        if call.on("check") {
            return check(call, &seen, problems);
        }
        if call.json {
            say_json(&json!({ "tables": seen.iter().map(Status::to_json).collect::<Vec<_>>() }))?;
        } else if !seen.is_empty() {
            let longest = |length: fn(&Status) -> usize| seen.iter().map(length).max().unwrap_or_default();
            let names = longest(|status| status.database.as_ref().map_or(0, String::len));
            let tables = longest(|status| status.table.to_string().len());
            let lines = seen.iter().map(|status| {
                let label = status.label(names);
                let width = if names == 0 { tables } else { names + 2 + tables };
                format!("{label:<width$}  {}", status.line())
            });
            say(&lines.collect::<Vec<_>>().join("\n"))?;
        }
        if problems.is_empty() { Ok(Exit::Done) } else { Err(Failure::Problems(problems)) }
    })
}

/// The tables of one database, and what is wrong with those that cannot be looked at.
async fn look_at(call: &Call<'_>) -> Result<(Vec<Status>, Vec<Problem>), Failure> {
    let tables = tables(&call.config)?;
    let database = Database::of(&call.config)?;
    drop(database.connect().await?);
    let (mut seen, mut problems) = (Vec::new(), Vec::new());
    for table in tables {
        match look(&database, &call.config, table).await {
            Ok(status) => seen.push(status),
            Err(problem) => problems.push(problem),
        }
    }
    Ok((seen, problems))
}

async fn look(database: &Database, config: &Config, table: TableName) -> Result<Status, Problem> {
    let admin = database.admin(&table, config);
    let asked = async {
        Ok((admin.layout().await?, admin.ordered().await?, admin.counts().await?, admin.relay().await?))
    };
    let (layout, ordered, counts, relay) = asked.await.map_err(|error| Problem::about(&table, &error))?;
    let database = config.database.clone();
    Ok(Status { database, table, layout, ordered, counts, relay })
}

/// What is still well.
struct Bounds {
    age: Duration,
    dead: u64,
    pending: Option<u64>,
}

/// Judges tables, for monitoring. What cannot be looked at is a failure, not a judgement.
fn check(call: &Call<'_>, seen: &[Status], problems: Vec<Problem>) -> Result<Exit, Failure> {
    let bounds = Bounds {
        age: given::duration(call, "max-age")?.unwrap_or(Duration::from_secs(30)),
        dead: given::number(call, "max-dead", 0..=u64::MAX)?.unwrap_or(0),
        pending: given::number(call, "max-pending", 0..=u64::MAX)?,
    };
    let beyond: Vec<Vec<String>> = seen.iter().map(|status| status.beyond(&bounds)).collect();
    let well = beyond.iter().all(Vec::is_empty);
    let judged = || seen.iter().zip(&beyond);
    if call.json {
        let tables = judged().map(|(status, beyond)| {
            let mut value = status.to_json();
            value["ok"] = Value::from(beyond.is_empty());
            value["beyond"] = Value::from(beyond.as_slice());
            value
        });
        say_json(&json!({ "ok": well && problems.is_empty(), "tables": tables.collect::<Vec<_>>() }))?;
    } else if nagios(call) {
        let said = |(status, beyond): (&Status, &Vec<String>)| status.nagios(&bounds, beyond.is_empty());
        let mut said: Vec<(Plugin, String)> = judged().map(said).collect();
        // The first line is what an alert shows.
        said.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
        if problems.is_empty() {
            let lines: Vec<&str> = said.iter().map(|(_, line)| line.as_str()).collect();
            say(&lines.join("\n"))?;
            return Ok(Exit::Plugin(said.iter().map(|(state, _)| *state).max().unwrap_or(Plugin::Ok)));
        }
    } else if !seen.is_empty() {
        let lines = judged().map(|(status, beyond)| {
            if beyond.is_empty() {
                format!("{} {}  {}", paint("✓", Tint::Good), status.label(0), status.line())
            } else {
                format!("{} {}  {}", paint("✗", Tint::Bad), status.label(0), beyond.join("; "))
            }
        });
        say(&lines.collect::<Vec<_>>().join("\n"))?;
    }
    if !problems.is_empty() {
        return Err(Failure::Problems(problems));
    }
    Ok(if well { Exit::Done } else { Exit::Problems })
}

impl Status {
    /// The table, and the database before it where there are several, so wide.
    fn label(&self, names: usize) -> String {
        match &self.database {
            Some(database) => format!("{database:<names$}  {}", self.table),
            None => self.table.to_string(),
        }
    }

    /// What is beyond its bound, in words.
    fn beyond(&self, bounds: &Bounds) -> Vec<String> {
        let counts = &self.counts;
        let mut beyond = Vec::new();
        if counts.oldest_pending_age > bounds.age {
            beyond.push(format!("oldest {} (max {})", age(counts.oldest_pending_age), age(bounds.age)));
        }
        if counts.dead > bounds.dead {
            beyond.push(format!("dead {} (max {})", thousands(counts.dead), thousands(bounds.dead)));
        }
        if let Some(most) = bounds.pending.filter(|most| counts.pending > *most) {
            beyond.push(format!("waiting {} (max {})", thousands(counts.pending), thousands(most)));
        }
        beyond
    }

    /// One line with values, warning at a third of a bound and critical beyond it: `oldest=38s;10;30`.
    fn nagios(&self, bounds: &Bounds, well: bool) -> (Plugin, String) {
        let counts = &self.counts;
        let name = match self.table.schema() {
            None | Some("public") => self.table.table().to_owned(),
            Some(_) => self.table.to_string(),
        };
        let name = match &self.database {
            Some(database) => format!("{database}/{name}"),
            None => name,
        };
        let (oldest, most) = (counts.oldest_pending_age.as_secs(), bounds.age.as_secs());
        let state = match (well, counts.oldest_pending_age > bounds.age / 3) {
            (false, _) => Plugin::Critical,
            (true, true) => Plugin::Warning,
            (true, false) => Plugin::Ok,
        };
        let mut line = format!("{} {name} oldest={oldest}s;{};{most}", state.word(), most / 3);
        if counts.dead > 0 || bounds.dead > 0 {
            line = format!("{line} dead={};;{}", counts.dead, bounds.dead);
        }
        if let Some(most) = bounds.pending {
            line = format!("{line} pending={};;{most}", counts.pending);
        }
        (state, line)
    }

    fn line(&self) -> String {
        let Self { layout, counts, relay, .. } = self;
        let about = if counts.estimated { "~" } else { "" };
        let mut parts = vec![match (layout, &relay.leader) {
            (Layout::Bare, _) => "bare table (leader unknown)".to_owned(),
            (Layout::Full, Some(leader)) => format!("leader {} (epoch {})", relay_name(leader), relay.epoch),
            (Layout::Full, None) => "no leader".to_owned(),
        }];
        match self.ordered {
            Some(Ordered::Writers) => parts.push("ordered".to_owned()),
            Some(Ordered::Index) => parts.push("ordered by its writers".to_owned()),
            Some(Ordered::AsItIs) | None => {}
        }
        parts.push(format!("waiting {about}{}", thousands(counts.pending)));
        if counts.pending > 0 {
            parts.push(format!("oldest {}", age(counts.oldest_pending_age)));
        }
        if let Some(rate) = counts.published_per_second.filter(|rate| *rate > 0.0) {
            parts.push(format!("out {}/s", per_second(rate)));
            // A trickle says nothing about when the rest will follow: its sink may be down.
            if counts.pending > 0 && rate >= 1.0 {
                #[allow(clippy::cast_precision_loss, reason = "an estimate")]
                let left = Duration::try_from_secs_f64(counts.pending as f64 / rate).unwrap_or(Duration::MAX);
                parts.push(format!("empty in ~{}", age(left)));
            }
        }
        for (name, number) in [
            ("in flight", counts.locked),
            ("dead", counts.dead),
            ("scheduled", counts.scheduled),
            ("blocked", counts.blocked),
        ] {
            if number > 0 {
                parts.push(format!("{name} {about}{}", thousands(number)));
            }
        }
        if relay.paused_at.is_some() {
            let who = relay.paused_by.as_deref().unwrap_or("someone");
            let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            parts.push(printable(&format!("paused by {who}{reason}")));
        }
        parts.join("  ")
    }

    fn to_json(&self) -> Value {
        let layout = match self.layout {
            Layout::Full => "full",
            Layout::Bare => "bare",
        };
        let ordered = self.ordered.map(|ordered| match ordered {
            Ordered::AsItIs => "no",
            Ordered::Index => "index",
            Ordered::Writers => "writers",
        });
        let mut value = json!({
            "table": self.table.to_string(), "layout": layout, "ordered": ordered, "counts": self.counts, "relay": self.relay,
        });
        if let Some(database) = &self.database {
            value["database"] = Value::from(database.as_str());
        }
        value
    }
}

/// Whole where that says enough.
fn per_second(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}
