//! `postbox migrate up|down|print`.

use std::fmt;

use postbox_core::{Code, History, Inbox, StoreError, TableName};
use postbox_stores::any::{AnyConnection, Dialect, Extras, Held};
use postbox_stores::postgres::migrate::{Format, Grants, Ordered, Plan, Step, StepLock, print_grants_with};
use serde_json::{Value, json};

use super::dead::unchanged;
use super::{block_on, each_of, named_tables, tables};
use crate::ask::Change;
use crate::assemble::operator;
use crate::cli::Call;
use crate::database::Database;
use crate::render::{counted, thousands};
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_json};

/// Makes or upgrades tables, or shows how it would. A database file that is not there is made too. Of several databases, one that
/// fails does not keep the others from it.
pub(crate) fn up(call: &Call<'_>) -> Result<Exit, Failure> {
    let calls = call.each();
    if let ([alone], None) = (calls.as_slice(), &calls[0].config.database) {
        let (new_file, tables) = one_up(alone)?;
        if call.json {
            say_json(&json!({ "dry_run": call.on("dry-run"), "new_file": new_file, "tables": tables }))?;
        }
        return Ok(Exit::Done);
    }
    let (done, failure) = each_of(&calls, one_up);
    if call.json {
        let (files, tables): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        let (files, tables): (Vec<_>, Vec<_>) =
            (files.into_iter().flatten().collect(), tables.into_iter().flatten().collect());
        say_json(&json!({ "dry_run": call.on("dry-run"), "new_files": files, "tables": tables }))?;
    }
    failure.map_or(Ok(Exit::Done), Err)
}

/// Makes or upgrades the tables of one database; answers the file that was made, and what was done to each table.
fn one_up(call: &Call<'_>) -> Result<(Option<String>, Vec<Value>), Failure> {
    let tables = tables(&call.config)?;
    let database = Database::of(&call.config)?;
    let grants = grants(call, database.dialect())?;
    let dry = call.on("dry-run");
    let extras = extras(call);
    block_on(async {
        let new_file = database.is_missing_file().then(|| database.place());
        let mut connection = match (&new_file, dry) {
            (Some(_), true) => database.pretend().await?,
            (Some(_), false) => {
                // What cannot be done shall not leave an empty file behind.
                let mut rehearsal = database.pretend().await?;
                for table in &tables {
                    rehearsal.plan(table, extras).await.map_err(|error| database.about(table, &error))?;
                }
                database.connect_or_create().await?
            }
            (None, _) => database.connect().await?,
        };
        if let (Some(file), false) = (&new_file, call.json) {
            call.say(&format!("+ file {file}"))?;
        }
        let mut results = Vec::new();
        for table in &tables {
            let done = if dry {
                connection.plan(table, extras).await
            } else {
                connection.migrate_up(table, extras, |step| announce(call, table, step)).await
            };
            let plan = done.map_err(|error| database.about(table, &error))?;
            if let (Some(grants), false) = (&grants, dry) {
                grant(&mut connection, &plan.table, grants).await?;
            }
            if !call.json {
                call.say(&summary(table, &plan, grants.is_some(), dry))?;
            }
            results.push(call.tagged(to_json(&plan, grants.is_some())));
        }
        Ok((new_file, results))
    })
}

/// What the table is to have beyond what all have: what a relay of this configuration needs, and what order needs. What it has
/// it keeps, so that nothing has to be said twice.
fn extras(call: &Call<'_>) -> Extras {
    let ordered = match (call.on("ordered"), call.on("order-index")) {
        (true, _) => Ordered::Writers,
        (false, true) => Ordered::Index,
        (false, false) => Ordered::AsItIs,
    };
    let relay = &call.config.relay;
    let tenants = relay.fair_tenants || !relay.tenants.is_empty();
    Extras {
        history: relay.history == History::Move,
        ordered,
        wake_trigger: call.on("wake-trigger"),
        tenants,
        inbox: call.on("inbox"),
        idempotency: call.on("idempotency"),
    }
}

/// One line before each step, so that a long one can be seen to run.
fn announce(call: &Call<'_>, table: &TableName, step: &Step) {
    if !call.json {
        // A migration goes on also when nobody watches it.
        let _ = call.say(&format!("{table}: {}", step.what));
    }
}

fn summary(table: &TableName, plan: &Plan, granted: bool, dry: bool) -> String {
    let grants = if granted { ", grants given" } else { "" };
    let steps = counted(plan.steps.len() as u64, "step");
    match (plan.steps.is_empty(), dry) {
        (true, true) if granted => format!("{table}: + grants\n{table}: nothing was changed"),
        (true, _) => format!("{table}: nothing to do{grants}"),
        (false, false) => format!("{table}: done, {steps}{grants}"),
        (false, true) => {
            let step = |step: &Step| match step.lock {
                StepLock::None => format!("{table}: {}", step.what),
                StepLock::Short => format!(
                    "{table}: {}      (short lock, given up and tried again if others wait)",
                    step.what
                ),
                StepLock::Concurrent => format!("{table}: {}      (beside others' work)", step.what),
                StepLock::Writers => format!("{table}: {}      (writers wait meanwhile)", step.what),
            };
            let mut lines: Vec<String> = plan.steps.iter().map(step).collect();
            if granted {
                lines.push(format!("{table}: + grants"));
            }
            let waits = plan.steps.iter().any(|step| step.lock == StepLock::Writers);
            let how = if waits { "in one transaction" } else { "no rewrite, no long lock" };
            lines.push(format!("{table}: {steps}, {how}; nothing was changed"));
            lines.join("\n")
        }
    }
}

fn to_json(plan: &Plan, granted: bool) -> Value {
    let step = |step: &Step| {
        let lock = match step.lock {
            StepLock::None => "none",
            StepLock::Short => "short",
            StepLock::Concurrent => "concurrent",
            StepLock::Writers => "writers",
        };
        json!({ "what": step.what, "lock": lock, "sql": step.sql })
    };
    let steps: Vec<Value> = plan.steps.iter().map(step).collect();
    json!({ "table": plan.table.to_string(), "steps": steps, "grants": granted })
}

fn grants(call: &Call<'_>, dialect: Dialect) -> Result<Option<Grants>, Failure> {
    let refused = |reason: String| {
        let message = format!("--grants: {reason}");
        Failure::from(
            Problem::new(Code::ConfigInvalid, message)
                .next("write --grants writer=app,relay=postbox,viewer=ops"),
        )
    };
    let Some(text) = call.text("grants") else { return Ok(None) };
    let without = match dialect {
        Dialect::Postgres => None,
        Dialect::Sqlite => Some("SQLite has no roles: whoever may write the file may write every table"),
        Dialect::MySql => Some("what a role needs on MySQL and MariaDB is not printed: give it with GRANT"),
    };
    if let Some(why) = without {
        let problem = Problem::new(Code::ConfigInvalid, format!("--grants: {why}"));
        return Err(problem.next("leave out --grants").into());
    }
    text.parse::<Grants>().map(Some).map_err(refused)
}

async fn grant(connection: &mut AnyConnection, table: &TableName, grants: &Grants) -> Result<(), Failure> {
    connection.grant(table, grants).await.map_err(|error| {
        let problem = Problem::about(table, &error);
        // 42704: no such role.
        if error.message().contains("[42704]") {
            problem.next("create the role first: CREATE ROLE …")
        } else {
            problem
        }
        .into()
    })
}

/// A table that is to be removed.
struct Doomed {
    table: TableName,
    held: Held,
    /// The table, and what is removed with it.
    names: Vec<String>,
}

impl Doomed {
    async fn find(connection: &mut AnyConnection, table: &TableName) -> Result<Self, Failure> {
        let held = connection.held(table).await.map_err(|error| not_removed(table, &error))?;
        let mut names = vec![table.to_string()];
        if connection.has_history(table).await.unwrap_or(false) {
            names.push(format!("{table}_history"));
        }
        if connection.has_inbox(table).await.unwrap_or(false) {
            names.push(format!("{} (the memory of what was received)", Inbox::new(table.clone()).table()));
        }
        if connection.has_idempotency(table).await.unwrap_or(false) {
            names.push(format!("{} (calls by idempotency key)", table.idempotency()));
        }
        Ok(Self { table: table.clone(), held, names })
    }

    fn rows(&self) -> u64 {
        self.held.waiting + self.held.dead + self.held.published
    }

    fn to_json(&self) -> Value {
        let Held { waiting, dead, published } = self.held;
        json!({ "table": self.table.to_string(), "waiting": waiting, "dead": dead, "published": published })
    }
}

impl fmt::Display for Doomed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [waiting, dead, published] =
            [self.held.waiting, self.held.dead, self.held.published].map(thousands);
        write!(
            f,
            "DROP TABLE {}: {waiting} waiting, {dead} dead, {published} published",
            self.names.join(", ")
        )
    }
}

fn not_removed(table: &TableName, error: &StoreError) -> Failure {
    let problem = Problem::about(table, error);
    match error.code() {
        Code::TableMissing => problem.next("nothing is left to do, or correct the name"),
        _ => problem,
    }
    .into()
}

/// Removes tables, after a question that says what they hold.
pub(crate) fn down(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = named_tables(&call.config)?;
    let database = Database::of(&call.config)?;
    let doomed = block_on(async {
        let mut connection = database.connect().await?;
        let mut doomed = Vec::new();
        for table in &tables {
            doomed.push(Doomed::find(&mut connection, table).await?);
        }
        Ok(doomed)
    })?;
    let meaning: Vec<String> = doomed.iter().map(ToString::to_string).collect();
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let all = names.join(", ");
    let change = Change {
        verb: "remove",
        meaning: format!("{}: for good", meaning.join("; ")),
        rows: doomed.iter().map(Doomed::rows).sum(),
        table: &all,
        database: &database,
    };
    if !change.confirmed(call)? {
        return unchanged(call);
    }
    let who = operator();
    block_on(async {
        let mut connection = database.connect().await?;
        for Doomed { table, held, .. } in &doomed {
            let removed =
                connection.migrate_down(table, call.on("discard-unpublished"), Some((who.as_str(), *held)));
            removed.await.map_err(|error| not_removed(table, &error))?;
            if !call.json {
                say(&format!("removed {table}"))?;
            }
        }
        if call.json {
            let held: Vec<Value> = doomed.iter().map(Doomed::to_json).collect();
            say_json(&json!({ "removed": names, "held": held }))?;
        }
        Ok(Exit::Done)
    })
}

/// Prints SQL; needs no database, only to know which kind.
pub(crate) fn print(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = tables(&call.config)?;
    let dialect = match call.text("dialect") {
        Some("sqlite") => Dialect::Sqlite,
        Some("mysql") => Dialect::MySql,
        Some(_) => Dialect::Postgres,
        None => match Database::of(&call.config)? {
            // What is printed is for a tool, and tools are for servers.
            database if database.is_default() => Dialect::Postgres,
            database => database.dialect(),
        },
    };
    let grants = grants(call, dialect)?;
    let goose = call.text("format") == Some("goose");
    let down = call.on("down");
    if goose && (down || tables.len() > 1) {
        let message =
            if down { "a goose file has up and down in one" } else { "a goose file is for one table" };
        let next = if down { "leave out --down" } else { "give --table once for each file" };
        return Err(Problem::new(Code::ConfigInvalid, message).next(next).into());
    }
    let extras = extras(call);
    let print = |table: &TableName| -> Result<String, StoreError> {
        let grants =
            grants.as_ref().map(|grants| print_grants_with(table, grants, extras)).unwrap_or_default();
        Ok(match (down, goose) {
            (true, _) => dialect.print_down(table, extras)?,
            (false, true) => in_goose(dialect.print_up(table, Format::Goose, extras)?, &grants),
            (false, false) => format!("{}{grants}", dialect.print_up(table, Format::Sql, extras)?),
        })
    };
    let mut sql = Vec::new();
    for table in &tables {
        sql.push(print(table).map_err(|error| Problem::about(table, &error))?);
    }
    let sql = sql.join("\n");
    if call.json {
        say_json(&json!({ "sql": sql }))?;
    } else {
        say(sql.trim_end())?;
    }
    Ok(Exit::Done)
}

/// Grants are part of the way up.
fn in_goose(file: String, grants: &str) -> String {
    const DOWN: &str = "-- +goose Down";
    match file.split_once(DOWN) {
        Some((up, down)) => format!("{up}{grants}{DOWN}{down}"),
        None => file,
    }
}
