//! The programs of peers: which there are, and how one is run.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// How long one run may take.
const LIMIT: Duration = Duration::from_mins(2);

/// Set by xtask: a line `FOLDER: REASON` for each that could not be built.
const MISSING: &str = "POSTBOX_BENCH_PEERS_MISSING";

/// Some other queue or outbox.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// The one that its folder's manifest asks for.
    pub(crate) version: &'static str,
    pub(crate) language: &'static str,
    /// What becomes of an event that was handled.
    pub(crate) after: &'static str,
    /// A log: it knows how far its reader has come, and nothing of single events.
    pub(crate) log: bool,
    /// So slow that more events would only take time.
    pub(crate) at_most: Option<usize>,
    /// Under `bench/peers`.
    folder: &'static str,
    run_by: RunBy,
}

enum RunBy {
    Node,
    Java,
    /// The name of its program among those that were built.
    Built(&'static str),
}

/// What a program is to do.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    Fill,
    Drain,
}

/// What a program prints.
#[derive(Deserialize)]
struct Answer {
    seconds: f64,
}

const fn peer(name: &'static str, version: &'static str, folder: &'static str, run_by: RunBy) -> Peer {
    Peer { name, version, language: "Rust", after: "kept", log: false, at_most: None, folder, run_by }
}

pub(crate) const PEERS: &[Peer] = &[
    Peer {
        language: "Node.js",
        after: "deleted",
        ..peer("graphile-worker", "0.18.0", "graphile-worker", RunBy::Node)
    },
    Peer { language: "Node.js", ..peer("pg-boss", "12.35.0", "pg-boss", RunBy::Node) },
    Peer { after: "deleted", ..peer("graphile_worker", "0.14.1", "rust", RunBy::Built("graphile_worker")) },
    Peer { language: "Go", ..peer("river", "0.50.0", "river", RunBy::Built("river")) },
    Peer {
        language: "Go",
        after: "kept, in a log",
        log: true,
        ..peer("watermill-sql", "3.1.0", "watermill", RunBy::Built("watermill"))
    },
    Peer {
        language: "Java",
        after: "deleted",
        at_most: Some(50_000),
        ..peer("transaction-outbox", "4.2.268", "transaction-outbox", RunBy::Java)
    },
    Peer {
        language: "Java",
        at_most: Some(50_000),
        ..peer("namastack-outbox", "1.6.0", "namastack-outbox", RunBy::Java)
    },
    peer("outbox-core", "0.6.0", "rust", RunBy::Built("outbox_core")),
    Peer {
        at_most: Some(50_000),
        ..peer("apalis-postgres", "1.0.0", "rust", RunBy::Built("apalis_postgres"))
    },
    Peer { at_most: Some(20_000), ..peer("hexeract", "0.6.0", "rust", RunBy::Built("hexeract")) },
];

impl Peer {
    /// Why it cannot be run.
    pub(crate) fn missing(&self) -> Option<String> {
        reason(&std::env::var(MISSING).unwrap_or_default(), self.folder)
    }

    /// Seconds that it took; one that takes too long is ended.
    pub(crate) async fn run(&self, url: &str, task: Task, events: usize) -> Result<f64, String> {
        let task = match task {
            Task::Fill => "fill",
            Task::Drain => "drain",
        };
        let mut command = self.command();
        command.args([task, &events.to_string()]).env("POSTBOX_BENCH_PG_URL", url);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output())
            .await
            .map_err(|_| format!("{task} of {events} took more than {} s", LIMIT.as_secs()))?
            .map_err(|error| format!("it cannot be run: {error}"))?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        seconds(&out).ok_or_else(|| {
            let said = err.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
            format!("{task} failed ({}), saying: {said}", output.status)
        })
    }

    fn command(&self) -> Command {
        let built = PathBuf::from(std::env::var("POSTBOX_BENCH_FOLDER").unwrap_or_default()).join("peers");
        match self.run_by {
            RunBy::Node => {
                let mut node = Command::new("node");
                node.arg(PathBuf::from("bench/peers").join(self.folder).join("peer.mjs"));
                node
            }
            RunBy::Java => {
                let mut java = Command::new("java");
                java.arg("-jar").arg(built.join(self.folder).join("peer.jar"));
                java
            }
            RunBy::Built(name) => Command::new(built.join("release").join(name)),
        }
    }
}

/// The last line that is an answer: libraries may have said something before it.
fn seconds(printed: &str) -> Option<f64> {
    let answer = printed.lines().rev().find_map(|line| serde_json::from_str::<Answer>(line).ok())?;
    (answer.seconds > 0.0).then_some(answer.seconds)
}

fn reason(missing: &str, folder: &str) -> Option<String> {
    missing.lines().find_map(|line| {
        let (name, why) = line.split_once(": ")?;
        (name == folder).then(|| why.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::{PEERS, reason, seconds};

    #[test]
    fn an_answer_is_found_among_other_lines() {
        assert_eq!(seconds("starting\n{\"seconds\": 1.5}\nbye\n"), Some(1.5));
        assert_eq!(seconds("{\"seconds\": 0}"), None);
        assert_eq!(seconds("nothing"), None);
    }

    #[test]
    fn what_is_missing_is_found_by_its_folder() {
        let missing = "pg-boss: npm is not installed\nrust: cargo build failed";
        assert_eq!(reason(missing, "pg-boss").as_deref(), Some("npm is not installed"));
        assert_eq!(reason(missing, "pg"), None);
    }

    #[test]
    fn versions_are_those_of_the_manifests() {
        for peer in PEERS {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(peer.folder);
            let manifest = ["package.json", "Cargo.toml", "go.mod", "pom.xml"]
                .iter()
                .find_map(|name| std::fs::read_to_string(folder.join(name)).ok())
                .unwrap_or_else(|| panic!("{} has no manifest", folder.display()));
            let stated = manifest.lines().any(|line| line.contains(peer.name) && line.contains(peer.version));
            assert!(stated, "{} {} is not what its manifest asks for", peer.name, peer.version);
        }
    }
}
