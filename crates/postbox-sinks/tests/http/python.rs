//! A receiver of webhooks in Python, in a process of its own, and what it wrote down.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// Wants the login `suite:right`, takes whatever comes and keeps it, also over a kill.
pub(crate) struct Hook {
    directory: TempDir,
    addr: SocketAddr,
    process: Mutex<Option<Child>>,
}

impl Hook {
    pub(crate) fn start() -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let (process, addr) = run(directory.path(), 0)?;
        Ok(Self { directory, addr, process: Mutex::new(Some(process)) })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn kill(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// After a kill, on the same port.
    pub(crate) fn start_again(&self) {
        let (process, _) = run(self.directory.path(), self.addr.port()).unwrap();
        *self.process.lock().unwrap() = Some(process);
    }

    /// The requests that it has taken for a path: their `headers`, and their `body` in Base64.
    pub(crate) fn seen(&self, path: &str) -> Vec<Value> {
        let journal = std::fs::read_to_string(self.directory.path().join("journal")).unwrap();
        // A line that a kill cut off was never confirmed.
        let lines = journal.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let seen = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        seen.filter(|seen| seen["path"] == path).collect()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(directory: &Path, port: u16) -> Result<(Child, SocketAddr), String> {
    let mut process = Command::new("python3")
        .args(["-c", include_str!("receiver.py")])
        .arg(port.to_string())
        .arg(directory.join("journal"))
        // Open as long as this process lives: the receiver never outlives it.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no python3 for a receiver: {error}"))?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Ok((process, SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap()))))
}
