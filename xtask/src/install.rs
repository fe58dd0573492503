//! What the tests need from the machine, installed where it is missing and can be.

use std::path::Path;
use std::process::Command;

use postbox_testkit::server::{pgbouncer, postgres};

use crate::run::{output, step, works};

/// Makes sure that there are a PostgreSQL server's programs, its pooler, and a C compiler.
pub(crate) fn test_needs() -> Result<(), String> {
    let mut packages = Vec::new();
    if let Err(error) = postgres::find_binaries() {
        // Whoever names a folder wants that one, not a package.
        if std::env::var_os(postgres::BIN_ENV).is_some() {
            return Err(error);
        }
        packages.push("postgresql");
    }
    if pgbouncer::find_program().is_err() {
        packages.push("pgbouncer");
    }
    // Dependencies compile C code.
    if !works("cc", &["--version"]) {
        packages.extend(["gcc", "libc6-dev"]);
    }
    if packages.is_empty() {
        return Ok(());
    }
    apt_get(&packages)?;
    pgbouncer::find_program()?;
    postgres::find_binaries().map(|_| ())
}

/// Installs Debian packages.
fn apt_get(packages: &[&str]) -> Result<(), String> {
    let wanted = packages.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!(
            "this machine lacks {wanted} and has no apt-get: install them by its own means, or set {} to the folder \
             with initdb and pg_ctl",
            postgres::BIN_ENV
        ));
    }
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if !is_root && !works("sudo", &["-n", "true"]) {
        return Err(format!(
            "this machine lacks {wanted}: run `sudo apt-get install -y {wanted}`, then try again"
        ));
    }
    let apt = |args: &[&str]| {
        let mut command = if is_root { Command::new("apt-get") } else { Command::new("sudo") };
        if !is_root {
            command.args(["-n", "--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        }
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    step("apt-get update", &mut apt(&["-q", "update"]))?;
    let mut args = vec!["-q", "install", "-y", "--no-install-recommends"];
    args.extend(packages);
    step(&format!("apt-get install {wanted}"), &mut apt(&args))
}
