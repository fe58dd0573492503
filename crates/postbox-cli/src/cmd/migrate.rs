//! `postbox migrate up|down|print`.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use postbox_core::{Code, StoreError, TableName};
use postbox_stores::postgres::classify;
use postbox_stores::postgres::migrate::{self, Format, Grants, Plan, Step, StepLock};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{block_on, named_tables, tables};
use crate::assemble::Database;
use crate::cli::Call;
use crate::report::{Exit, Failure, Problem, say, say_json};

/// Makes or upgrades tables, or shows how it would.
pub(crate) fn up(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = tables(&call.config)?;
    let grants = grants(call)?;
    let database = Database::of(&call.config)?;
    let dry = call.on("dry-run");
    block_on(async {
        let mut connection = database.connect().await?;
        let mut results = Vec::new();
        for table in &tables {
            let done = if dry {
                migrate::plan(&mut connection, table).await
            } else {
                migrate::up(&mut connection, table, |step| announce(call, table, step)).await
            };
            let plan = done.map_err(|error| Problem::about(table, &error))?;
            if let (Some(grants), false) = (&grants, dry) {
                grant(&mut connection, &plan.table, grants).await?;
            }
            if !call.json {
                say(&summary(table, &plan, grants.is_some(), dry))?;
            }
            results.push(to_json(&plan, grants.is_some()));
        }
        if call.json {
            say_json(&json!({ "dry_run": dry, "tables": results }))?;
        }
        Ok(Exit::Done)
    })
}

/// One line before each step, so that a long one can be seen to run.
fn announce(call: &Call<'_>, table: &TableName, step: &Step) {
    if !call.json {
        // A migration goes on also when nobody watches it.
        let _ = say(&format!("{table}: {}", step.what));
    }
}

fn summary(table: &TableName, plan: &Plan, granted: bool, dry: bool) -> String {
    let grants = if granted { ", grants given" } else { "" };
    match (plan.steps.len(), dry) {
        (0, true) => format!("{table}: nothing to do"),
        (0, false) => format!("{table}: nothing to do{grants}"),
        (steps, false) => format!("{table}: done, {steps} steps{grants}"),
        (_, true) => {
            let step = |step: &Step| match step.lock {
                StepLock::None => format!("{table}: {}", step.what),
                StepLock::Short => format!(
                    "{table}: {}      (short lock, given up and tried again if others wait)",
                    step.what
                ),
                StepLock::Concurrent => format!("{table}: {}      (beside others' work)", step.what),
            };
            let mut lines: Vec<String> = plan.steps.iter().map(step).collect();
            if granted {
                lines.push(format!("{table}: + grants"));
            }
            lines.push(format!(
                "{table}: {} steps, no rewrite, no long lock; nothing was changed",
                plan.steps.len()
            ));
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
        };
        json!({ "what": step.what, "lock": lock, "sql": step.sql })
    };
    let steps: Vec<Value> = plan.steps.iter().map(step).collect();
    json!({ "table": plan.table.to_string(), "steps": steps, "grants": granted })
}

fn grants(call: &Call<'_>) -> Result<Option<Grants>, Failure> {
    let refused = |reason: String| {
        let message = format!("--grants: {reason}");
        Failure::from(
            Problem::new(Code::ConfigInvalid, message)
                .next("write --grants writer=app,relay=postbox,viewer=ops"),
        )
    };
    call.text("grants").map(|text| text.parse::<Grants>().map_err(refused)).transpose()
}

async fn grant(connection: &mut PgConnection, table: &TableName, grants: &Grants) -> Result<(), Failure> {
    let sql = migrate::print_grants(table, grants);
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await;
    done.map(drop).map_err(|error| {
        let error = classify(error);
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

/// Removes tables, after a question.
pub(crate) fn down(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = named_tables(&call.config)?;
    let database = Database::of(&call.config)?;
    let discard = call.on("discard-unpublished");
    if !call.on("yes") && !confirmed(&tables, &database, discard)? {
        say("nothing was changed")?;
        return Ok(Exit::Failed);
    }
    block_on(async {
        let mut connection = database.connect().await?;
        for table in &tables {
            let done: Result<(), StoreError> = migrate::down(&mut connection, table, discard).await;
            done.map_err(|error| match error.code() {
                Code::TableMissing => {
                    Problem::about(table, &error).next("nothing is left to do, or correct the name")
                }
                _ => Problem::about(table, &error),
            })?;
            if !call.json {
                say(&format!("removed {table}"))?;
            }
        }
        if call.json {
            let removed: Vec<String> = tables.iter().map(ToString::to_string).collect();
            say_json(&json!({ "removed": removed }))?;
        }
        Ok(Exit::Done)
    })
}

fn confirmed(tables: &[TableName], database: &Database, discard: bool) -> Result<bool, Failure> {
    let mut input = std::io::stdin().lock();
    if !input.is_terminal() {
        let message = "removing a table needs a yes, and there is no terminal to ask on";
        return Err(Problem::new(Code::ConfigMissing, message).next("pass --yes").into());
    }
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let lost = if discard { ", together with events that were not published" } else { "" };
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "Remove {} @ {} with its history{lost}? [y/N] ", names.join(", "), database.place());
    let _ = out.flush();
    let mut answer = String::new();
    // No answer is a no.
    let read = input.read_line(&mut answer).unwrap_or(0);
    Ok(read > 0 && matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints SQL; needs no database.
pub(crate) fn print(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = tables(&call.config)?;
    let grants = grants(call)?;
    let goose = call.text("format") == Some("goose");
    let down = call.on("down");
    if goose && (down || tables.len() > 1) {
        let message =
            if down { "a goose file has up and down in one" } else { "a goose file is for one table" };
        let next = if down { "leave out --down" } else { "give --table once for each file" };
        return Err(Problem::new(Code::ConfigInvalid, message).next(next).into());
    }
    let sql: Vec<String> = tables
        .iter()
        .map(|table| match (down, goose) {
            (true, _) => migrate::print_down(table),
            (false, true) => in_goose(migrate::print_up(table, Format::Goose), table, grants.as_ref()),
            (false, false) => {
                let grants = grants.as_ref().map(|grants| migrate::print_grants(table, grants));
                format!("{}{}", migrate::print_up(table, Format::Sql), grants.unwrap_or_default())
            }
        })
        .collect();
    let sql = sql.join("\n");
    if call.json {
        say_json(&json!({ "sql": sql }))?;
    } else {
        say(sql.trim_end())?;
    }
    Ok(Exit::Done)
}

/// Grants are part of the way up.
fn in_goose(file: String, table: &TableName, grants: Option<&Grants>) -> String {
    const DOWN: &str = "-- +goose Down";
    match (grants, file.split_once(DOWN)) {
        (Some(grants), Some((up, down))) => {
            format!("{up}{}{DOWN}{down}", migrate::print_grants(table, grants))
        }
        _ => file,
    }
}
