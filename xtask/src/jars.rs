//! Brokers that no package has: their jars, fetched by Maven into the target folder, once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postbox_testkit::server::java::failure;

use crate::run::root;

/// Those that are Java programs, each with a `pom.xml` in a folder of this name that tells the versions.
const BROKERS: [&str; 2] = ["kafka", "pulsar"];

/// Copies what a `pom.xml` asks for. Named in full: a later version might need a later Maven than Debian's.
const GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies";

/// Seconds. Pulsar's jars are 240 MB.
const LIMIT: &str = "900";

/// Fetches what is not there yet. What cannot be had is told, and the tests of that broker skip with the reason.
pub(crate) fn fetch(target: &Path) -> Result<(), String> {
    let brokers = target.join("brokers");
    fs::create_dir_all(&brokers).map_err(|error| format!("cannot make {}: {error}", brokers.display()))?;
    for broker in BROKERS {
        let failed = failure(&brokers, broker);
        let noted = match fetch_one(&brokers, broker) {
            Ok(()) if failed.exists() => fs::remove_file(&failed),
            Ok(()) => Ok(()),
            Err(why) => {
                let reason = format!("Maven could not fetch {broker}: {why}");
                eprintln!("skipped: {reason}");
                fs::write(&failed, reason)
            }
        };
        noted.map_err(|error| format!("cannot note in {}: {error}", failed.display()))?;
    }
    Ok(())
}

fn fetch_one(brokers: &Path, broker: &str) -> Result<(), String> {
    let (pom, into, new) = (pom(broker), brokers.join(broker), brokers.join(format!("{broker}.new")));
    let wanted = fs::read(&pom).map_err(|error| format!("{}: {error}", pom.display()))?;
    // A copy of the file that they were fetched for lies with the jars.
    if fs::read(into.join("pom.xml")).is_ok_and(|had| had == wanted) {
        return Ok(());
    }
    eprintln!("==> mvn copies the jars of {broker}");
    for old in [&into, &new] {
        if old.exists() {
            fs::remove_dir_all(old).map_err(|error| format!("cannot remove {}: {error}", old.display()))?;
        }
    }
    let mut maven = Command::new("timeout");
    maven.args([LIMIT, "mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "--file"]).arg(&pom);
    maven.args([GOAL, "-DincludeScope=runtime"]).arg(format!("-DoutputDirectory={}", new.display()));
    let done = maven.output().map_err(|error| format!("cannot run timeout: {error}"))?;
    if !done.status.success() {
        return Err(cause(&String::from_utf8_lossy(&done.stdout), &String::from_utf8_lossy(&done.stderr)));
    }
    // By one step at the end: whatever is there is complete.
    fs::write(new.join("pom.xml"), wanted)
        .and_then(|()| fs::rename(&new, &into))
        .map_err(|error| format!("cannot write {}: {error}", into.display()))
}

/// The first complaint.
fn cause(stdout: &str, stderr: &str) -> String {
    let complaint = stdout.lines().find_map(|line| line.trim().strip_prefix("[ERROR] "));
    let cause = complaint.or_else(|| stderr.lines().next()).unwrap_or("it took too long, or gave no reason");
    cause.to_owned()
}

fn pom(broker: &str) -> PathBuf {
    root().join("xtask/brokers").join(broker).join("pom.xml")
}

#[cfg(test)]
mod tests {
    use super::{BROKERS, cause, pom};

    #[test]
    fn every_version_is_pinned() {
        for broker in BROKERS {
            let pom = std::fs::read_to_string(pom(broker)).unwrap();
            let count = |tag: &str| pom.matches(tag).count();
            // The project has a version too.
            assert_eq!(count("<version>"), count("<dependency>") + 1, "{broker}");
        }
    }

    #[test]
    fn the_cause_is_the_first_complaint() {
        let stdout = "noise\n[ERROR] no such host -> [Help 1]\n[ERROR] \n";
        assert_eq!(cause(stdout, "warning"), "no such host -> [Help 1]");
        assert_eq!(
            cause("", "timeout: failed to run command 'mvn'\n"),
            "timeout: failed to run command 'mvn'"
        );
        assert_eq!(cause("", ""), "it took too long, or gave no reason");
    }
}
