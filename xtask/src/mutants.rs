//! `cargo xtask mutants`: Postbox with one of its rules left out at a time, in a copy of the sources. The tests that watch over the
//! rule must fail; where they pass, a test is missing.

mod rules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postbox_testkit::PgServer;
use postbox_testkit::server::postgres;

use crate::install;
use crate::run::{cargo, output, root};
use rules::{MUTANTS, Mutant};

/// How long the tests of one mutant may take: one that hangs is caught, too. Before, those of all may take as long for each.
const LIMIT: Duration = Duration::from_mins(4);

/// Runs all mutants, or those that are named, and prints a table of them.
pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| MUTANTS.iter().all(|mutant| mutant.name != **name)) {
        let known: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        return Err(format!("no mutant {unknown:?}; there are {}", known.join(", ")));
    }
    install::test_needs(false)?;
    let server = PgServer::try_with(&[])?;
    let copy = Copy::make()?;
    // Before any rule is left out, all of their tests pass: else they would say nothing.
    println!("{:<22} {:>7}  result", "mutant", "seconds");
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| names.is_empty() || names.contains(&mutant.name)).collect();
    let tests: Vec<&str> = chosen.iter().flat_map(|mutant| mutant.tests).copied().collect();
    let began = Instant::now();
    match copy.test(&server, &tests, LIMIT * u32::try_from(chosen.len()).unwrap_or(u32::MAX))? {
        Outcome::Passed => println!("{:<22} {:>7}  passed, as it must", "none", began.elapsed().as_secs()),
        Outcome::Failed(how) => return Err(format!("the tests fail although nothing is left out: {how}")),
    }
    let mut survivors = Vec::new();
    for mutant in chosen {
        let began = Instant::now();
        copy.apply(mutant)?;
        let outcome = copy.test(&server, mutant.tests, LIMIT);
        copy.restore(mutant)?;
        let result = match outcome? {
            Outcome::Passed => {
                survivors.push(mutant.name);
                "SURVIVED".to_owned()
            }
            Outcome::Failed(how) => format!("caught by {how}"),
        };
        println!(
            "{:<22} {:>7}  {result}; without {}",
            mutant.name,
            began.elapsed().as_secs(),
            mutant.without
        );
    }
    if survivors.is_empty() { Ok(()) } else { Err(format!("nobody noticed: {}", survivors.join(", "))) }
}

enum Outcome {
    Passed,
    /// The first test that failed, or what else became of them.
    Failed(String),
}

/// The sources in a folder of their own, with a target folder of their own.
struct Copy {
    from: PathBuf,
    to: PathBuf,
}

impl Copy {
    fn make() -> Result<Self, String> {
        let (from, to) = (root(), root().join("target/mutants"));
        let copy = Self { from, to };
        let files = output(Command::new("git").args(["ls-files"]).current_dir(&copy.from))?;
        for file in files.lines().filter(|file| copy.from.join(file).is_file()) {
            copy.bring(file)?;
        }
        Ok(copy)
    }

    /// Only what differs: cargo builds anew what was written.
    fn bring(&self, file: &str) -> Result<(), String> {
        let text = fs::read(self.from.join(file)).map_err(|error| format!("{file}: {error}"))?;
        let to = self.to.join(file);
        if fs::read(&to).is_ok_and(|old| old == text) {
            return Ok(());
        }
        write(&to, &text)
    }

    fn apply(&self, mutant: &Mutant) -> Result<(), String> {
        for edit in mutant.edits {
            let path = self.to.join(edit.file);
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", edit.file))?;
            if !text.contains(edit.is) {
                return Err(format!(
                    "{}: {} has changed, and with it xtask/src/mutants/rules.rs must",
                    mutant.name, edit.file
                ));
            }
            write(&path, text.replace(edit.is, edit.becomes).as_bytes())?;
        }
        Ok(())
    }

    fn restore(&self, mutant: &Mutant) -> Result<(), String> {
        mutant.edits.iter().try_for_each(|edit| self.bring(edit.file))
    }

    /// Runs these tests of the store on PostgreSQL.
    fn test(&self, server: &PgServer, tests: &[&str], limit: Duration) -> Result<Outcome, String> {
        let ask = |more: &[&str]| {
            let mut command = cargo();
            command.current_dir(&self.to).env("CARGO_TARGET_DIR", self.to.join("target"));
            command.args(["test", "-p", "postbox-stores", "--all-features", "--test", "postgres"]).args(more);
            command
        };
        output(&mut ask(&["--no-run"])).map_err(|error| format!("a mutant does not compile: {error}"))?;
        let log = self.to.join("target/log");
        let file = fs::File::create(&log).map_err(|error| error.to_string())?;
        let child = ask(&["--"])
            .args(tests)
            .env(postgres::URL_ENV, server.url("postgres"))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| format!("cannot run cargo: {error}"))?;
        let deadline = Instant::now() + limit;
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    child.kill().ok();
                    child.wait().ok();
                    return Ok(Outcome::Failed(format!("a test that did not end within {limit:?}")));
                }
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        let text = fs::read_to_string(&log).map_err(|error| error.to_string())?;
        if text.contains("test result: ok. 0 passed") || !text.contains("test result: ") {
            return Err(format!("no such tests: {}", tests.join(", ")));
        }
        let failed = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(match (status.success(), failed) {
            (true, _) => Outcome::Passed,
            (false, failed) => Outcome::Failed(failed.unwrap_or("the end of the test program").to_owned()),
        })
    }
}

fn write(path: &Path, text: &[u8]) -> Result<(), String> {
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)
    };
    write().map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a mutant would be none, and nobody would know before the next run.
    #[test]
    fn every_rule_is_where_it_is_said_to_be() {
        for mutant in MUTANTS {
            for edit in mutant.edits {
                let text = fs::read_to_string(root().join(edit.file)).unwrap();
                assert!(text.contains(edit.is), "{}: {} does not have {:?}", mutant.name, edit.file, edit.is);
                assert_ne!(edit.is, edit.becomes);
            }
        }
    }
}
