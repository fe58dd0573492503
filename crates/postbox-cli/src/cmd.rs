//! The commands, one file each, and what several of them share.

pub(crate) mod bench;
pub(crate) mod chosen;
pub(crate) mod clean;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod given;
pub(crate) mod inbox;
pub(crate) mod migrate;
pub(crate) mod pause;
pub(crate) mod relay;
pub(crate) mod replay;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod top;

use std::future::Future;
use std::time::Duration;

use postbox_core::{Code, TableName};

use crate::assemble;
use crate::cli::Call;
use crate::config::{Config, Origin};
use crate::report::{Failure, Problem};

/// How long a short command waits for the database before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tables that a command is about; none is an error.
fn tables(config: &Config) -> Result<Vec<TableName>, Failure> {
    if config.relay.tables.is_empty() {
        return Err(no_tables().into());
    }
    assemble::tables(&config.relay.tables)
}

/// The tables of the command line: what changes a table shall not hit those of a file or variable by accident.
fn named_tables(config: &Config) -> Result<Vec<TableName>, Failure> {
    match config.origin("relay.tables") {
        Some(Origin::Flag(_)) => tables(config),
        _ => Err(no_tables().next("name the table on the command line: --table public.org_outbox").into()),
    }
}

/// The one table that a command is about.
fn one_table(config: &Config) -> Result<TableName, Failure> {
    only(tables(config)?)
}

/// The one table of the command line.
fn named_table(config: &Config) -> Result<TableName, Failure> {
    only(named_tables(config)?)
}

fn only(mut tables: Vec<TableName>) -> Result<TableName, Failure> {
    match (tables.len(), tables.pop()) {
        (1, Some(table)) => Ok(table),
        (count, _) => {
            let message = format!("this command works on one table, and {count} are named");
            Err(Problem::new(Code::ConfigInvalid, message).next("give --table once").into())
        }
    }
}

fn no_tables() -> Problem {
    Problem::new(Code::NoTables, "no outbox table is named")
}

/// Does the same for each database in turn. What fails for one is told when all have had their turn.
fn each_of<T>(
    calls: &[Call<'_>],
    work: impl Fn(&Call<'_>) -> Result<T, Failure>,
) -> (Vec<T>, Option<Failure>) {
    let (mut done, mut failure) = (Vec::new(), None::<Failure>);
    for call in calls {
        match work(call) {
            Ok(result) => done.push(result),
            Err(error) => {
                let error = error.of_database(call.config.database.as_deref());
                failure = Some(match failure.take() {
                    Some(first) => first.and(error),
                    None => error,
                });
            }
        }
    }
    (done, failure)
}

/// Runs a command's work to its end.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Problem::system("the program cannot start", &error, "check the limits of this user (ulimit -a)")
    })?;
    let result = runtime.block_on(work);
    // A connection that does not close must not keep a command that is done.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Gives up on a database that has stopped answering.
async fn within_patience<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let out_of_time = |_| {
        let message = format!(
            "no answer from the database within {PATIENCE:?}: it is overloaded or away, or somebody holds a lock"
        );
        let next = "postbox doctor names transactions that hold others up; check the server and the network";
        Err(Problem::new(Code::DatabaseUnreachable, message).next(next).into())
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(out_of_time)
}
