//! `postbox bench`: what Postbox does on the user's own database.
//!
//! `site` is where it works and what it takes back, `schema` for PostgreSQL and `folder` for SQLite; `enqueue` and `deliver` are
//! the steps, `run` what they share; `figures` and `facts` are what is told at the end.

mod deliver;
mod enqueue;
mod facts;
mod figures;
mod folder;
mod progress;
mod run;
mod schema;
mod site;
mod wanted;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::within_patience;
use crate::ask::tell;
use crate::cli::Call;
use crate::control;
use crate::database::Database;
use crate::http::Endpoints;
use crate::render::counted;
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_json};
use figures::{Account, Measured};
use run::{Halt, Run};
use site::{Site, Target};
use wanted::Wanted;

/// Measures, or removes what was left behind.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let wanted = Arc::new(Wanted::read(call)?);
    let database = Database::of(&call.config)?;
    database.expect_file()?;
    let target = Target::of(&call.config, &database)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Problem::system("the program cannot start", &error, "check the limits of this user (ulimit -a)")
    })?;
    let stop = watch::Sender::new(false);
    control::start(None, Endpoints { relays: Vec::new(), metrics: None }, None, stop.clone())?;
    let result = runtime.block_on(async {
        if call.on("clean-up") {
            clean_up(call, &target).await
        } else {
            Box::pin(bench(call, wanted, &database, &target, stop.subscribe())).await
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn clean_up(call: &Call<'_>, target: &Target) -> Result<Exit, Failure> {
    let removed = target.clean_up().await?;
    if call.json {
        say_json(&json!({ "removed": removed }))?;
    } else if removed.is_empty() {
        say("no bench has left anything behind")?;
    }
    for name in removed.iter().filter(|_| !call.json) {
        say(&format!("removed {name}"))?;
    }
    Ok(Exit::Done)
}

async fn bench(
    call: &Call<'_>,
    wanted: Arc<Wanted>,
    database: &Database,
    target: &Target,
    stop: watch::Receiver<bool>,
) -> Result<Exit, Failure> {
    if let Target::Postgres(_) = target {
        // Who cannot be reached is named better here than by its driver.
        drop(database.connect().await?);
    }
    let leftovers = within_patience(target.leftovers()).await?;
    if !leftovers.is_empty() && !call.json {
        let what = counted(leftovers.len() as u64, "bench");
        tell(&format!(
            "! {what} that ended early left behind: {}; remove: postbox bench --clean-up\n",
            leftovers.join(", ")
        ));
    }
    let mut site = within_patience(Site::make(target, database)).await?;
    if !call.json {
        tell(&format!(
            "measuring {} in {}, removed at the end; the database is under full load meanwhile\n",
            database.place(),
            site.describe()
        ));
    }
    let measured = async {
        let facts = within_patience(site.facts(database.place())).await?;
        let mut account = Account { facts, steps: Vec::new(), stopped: false, leftovers };
        let run = Run { call, wanted: Arc::clone(&wanted), site: &mut site, stop };
        match measure(run, &mut account.steps).await {
            Ok(()) => Ok(account),
            Err(Halt::Stopped) => Ok(Account { stopped: true, ..account }),
            Err(Halt::Failed(failure)) => Err(failure),
        }
    };
    let measured = measured.await;
    if matches!(&measured, Ok(account) if account.stopped) && !call.json {
        tell("stopping: what the bench made is removed; again to stop at once, and leave it\n");
    }
    let removed = site.remove().await;
    let account = match (measured, removed) {
        (Ok(account), Ok(())) => account,
        (Err(first), Err(second)) => return Err(first.and(second)),
        (Err(failure), Ok(())) | (Ok(_), Err(failure)) => return Err(failure),
    };
    if call.json {
        say_json(&account.to_json(&wanted, &call.config))?;
    } else {
        say(&account.to_text(&wanted, &call.config))?;
    }
    Ok(if account.stopped { Exit::Failed } else { Exit::Done })
}

/// One step after the other, each on a table that is as fresh as it can be.
async fn measure(mut run: Run<'_>, steps: &mut Vec<Measured>) -> Result<(), Halt> {
    let run = &mut run;
    let wanted = Arc::clone(&run.wanted);
    if wanted.enqueue {
        for &connections in &wanted.connections {
            run.table_up().await?;
            steps.push(enqueue::one_by_one(run, connections).await?);
            run.table_down().await?;
        }
    }
    if wanted.enqueue || wanted.drain {
        run.table_up().await?;
        let filled = enqueue::in_bulk(run).await?;
        if wanted.enqueue {
            steps.push(filled);
        }
        if wanted.drain {
            run.settle_down().await?;
            steps.push(deliver::drain(run).await?);
        }
        run.table_down().await?;
    }
    if wanted.latency {
        run.table_up().await?;
        steps.push(deliver::latency(run).await?);
        run.table_down().await?;
    }
    Ok(())
}
