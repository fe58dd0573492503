//! Running other programs, with the time each took.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The top of the workspace.
pub(crate) fn root() -> PathBuf {
    // Asked for at run time: two checkouts may share one target folder.
    let here =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// The cargo that runs us, as if it had not.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What `cargo run` tells us about this package would reach build scripts, and make them run again each time
    // that cargo is called directly in between.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|p| name.starts_with(p))
        {
            command.env_remove(&*name);
        }
    }
    command
}

/// Runs a command in the open and says how long it took.
pub(crate) fn step(name: &str, command: &mut Command) -> Result<(), String> {
    eprintln!("==> {name}");
    let began = Instant::now();
    let status = command.status().map_err(|error| format!("{name}: cannot run it: {error}"))?;
    let took = began.elapsed().as_secs_f32();
    if status.success() {
        eprintln!("<== {name}: ok, {took:.1} s");
        Ok(())
    } else {
        eprintln!("<== {name}: FAILED, {took:.1} s");
        Err(format!("{name} failed ({status})"))
    }
}

/// Runs a command silently: its output, or what it said on standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Whether a command succeeds, silently.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    output(Command::new(program).args(args)).is_ok()
}

/// Whether a command succeeds within the limit, silently; one that takes longer is ended.
pub(crate) fn works_within(limit: Duration, command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = silent.spawn() else { return false };
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().ok();
    child.wait().ok();
    false
}
