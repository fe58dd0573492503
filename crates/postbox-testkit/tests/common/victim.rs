//! A copy of the test program that has a server of its own and is killed: the server must not outlive it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use postbox_testkit::{Program, eventually_blocking};

/// Set for the copy.
const VICTIM: &str = "POSTBOX_TESTKIT_VICTIM";

/// Starts the test `victim` of this program without some variables, kills it, and waits until its server is gone.
pub(crate) fn leaves_nothing_behind(without: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "victim", "--nocapture"]).env(VICTIM, "1");
    for name in without {
        command.env_remove(name);
    }
    let mut victim = Program::from_command(command);
    let line = victim.wait_for_line("victim:", Duration::from_mins(1));
    let mut words = line.split("victim:").nth(1).unwrap().split_whitespace();
    let (dir, pid) = (PathBuf::from(words.next().unwrap()), words.next().unwrap().to_owned());
    let process = Path::new("/proc").join(pid);
    assert!(dir.exists() && process.exists());
    victim.kill9();
    eventually_blocking("the server and its folder to be gone", Duration::from_secs(30), || {
        !dir.exists() && !process.exists()
    });
}

/// Whether this is the copy.
pub(crate) fn is_one() -> bool {
    std::env::var_os(VICTIM).is_some()
}

/// Says where the server is, and waits to be killed.
pub(crate) fn wait_for_the_end(dir: &Path, pid: &str) {
    println!("victim: {} {pid}", dir.display());
    std::thread::sleep(Duration::from_mins(2));
}
