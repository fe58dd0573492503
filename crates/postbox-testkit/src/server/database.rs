//! A database for one test, and the way to it through `psql`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::url::ServerUrl;

/// A fresh database, dropped together with this value, whoever is still connected.
#[derive(Debug)]
pub struct TestDb {
    /// Its URL.
    pub url: String,
    /// Its name, unique on the server.
    pub name: String,
    server: ServerUrl,
    psql: PathBuf,
}

impl TestDb {
    pub(crate) fn create(server: ServerUrl, psql: PathBuf) -> Self {
        let name = unique_name();
        let db = Self { url: server.database(&name), name, server, psql };
        // template0: a session that somebody has open on template1 would make this fail.
        db.admin(&format!("create database \"{}\" template template0", db.name))
            .unwrap_or_else(|error| panic!("cannot create a test database: {error}"));
        db
    }

    /// Runs statements, each in its own transaction unless they say otherwise; returns the rows, `|` between columns.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`TestDb::psql`], with what psql wrote to standard error instead of a panic.
    pub fn try_psql(&self, sql: &str) -> Result<String, String> {
        psql(&self.psql, &self.url, sql)
    }

    /// The database's URL with another address in it: a [`Proxy`](crate::Proxy)'s.
    pub fn url_through(&self, proxy: SocketAddr) -> String {
        self.server.through(proxy).database(&self.name)
    }

    /// Where the server itself listens: a proxy's upstream.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    fn admin(&self, sql: &str) -> Result<String, String> {
        psql(&self.psql, &self.server.database("postgres"), sql)
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        // A server that is already gone took the database with it.
        self.admin(&format!("drop database if exists \"{}\" with (force)", self.name)).ok();
    }
}

/// Names the test too, so that `\l` shows which one hangs. At most 63 bytes: PostgreSQL cuts the rest off.
fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let thread = std::thread::current();
    let test: String = thread
        .name()
        .unwrap_or("t")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .take(24)
        .collect();
    format!("{test}_{:x}_{count:x}_{nanos:x}", std::process::id())
}

/// Runs a script by psql: unaligned rows without headings or command tags, stopped at the first error.
pub(crate) fn psql(program: &Path, url: &str, sql: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d", url])
        // The caller's own settings for psql and libpq must not change what a test sees.
        .env_remove("PGOPTIONS")
        .env_remove("PGSERVICE")
        .env("PGCONNECT_TIMEOUT", "10")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let mut script = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // Beside the reading: a long script and a long answer would block each other.
        scope.spawn(move || script.as_mut().map(|script| script.write_all(sql.as_bytes())));
        child.wait_with_output()
    })
    .map_err(|error| format!("cannot read from psql: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
