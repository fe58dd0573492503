//! `cargo xtask services`: the private servers, for as long as somebody wants them.

use std::time::Duration;

use postbox_testkit::server::postgres;
use postbox_testkit::{MariaDbServer, PgServer};

use crate::install;

/// Starts the servers, prints how to reach them, and stays.
pub(crate) fn run() -> Result<(), String> {
    install::test_needs(false)?;
    let server = PgServer::try_with(&[])?;
    println!("export {}={}", postgres::URL_ENV, server.url("postgres"));
    let mariadb = MariaDbServer::try_start()?;
    println!("export {}={}", MariaDbServer::URL_ENV, mariadb.urls());
    // For trying the program by hand, as the README does.
    println!("export DATABASE_URL={}", server.url("postgres"));
    eprintln!("Ctrl-C, or the end of the shell, stops the servers and removes their data.");
    // Ctrl-C ends this process without further ado; the servers' watchdogs see it and clean up. So does the end of the
    // shell that it was started from, also in the background: then it has another parent.
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
