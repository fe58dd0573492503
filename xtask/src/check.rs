//! `cargo xtask check`: everything about the code but whether it works.

use std::process::Command;
use std::time::Duration;

use crate::run::{cargo, step, works, works_within};
use crate::{book, cancel, metadata};

/// The cargo-deny that `deny.toml` was written for.
const DENY_VERSION: &str = "0.18.9";

/// Runs all checks, also after one has failed: one run tells all there is to mend.
pub(crate) fn run() -> Result<(), String> {
    let mut failed = Vec::new();
    let mut check = |name: &str, command: &mut Command| failed.extend(step(name, command).err());

    check("format", cargo().args(["fmt", "--all", "--check"]));
    check(
        "clippy",
        cargo().args(["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]),
    );
    // Libraries only: the program is called `postbox` like the facade, and would overwrite the facade's pages. With the features of the
    // check before it, which has looked at the dependencies already.
    check(
        "docs",
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--lib", "--all-features"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    for library in metadata::read()?.libraries {
        let alone = |args: &[&str]| {
            let mut command = cargo();
            command
                .args(["clippy", "--quiet", "--lib", "--no-default-features", "-p", &library.name])
                .args(args)
                .args(["--", "-D", "warnings"]);
            command
        };
        check(&format!("{} without features", library.name), &mut alone(&[]));
        for feature in &library.features {
            check(&format!("{} with {feature} alone", library.name), &mut alone(&["--features", feature]));
        }
    }
    if !works("cargo-deny", &["--version"]) {
        // Unoptimised: that takes half the time to build, and it reads one file.
        let version = ["install", "cargo-deny", "--version", DENY_VERSION, "--locked", "--debug"];
        check("install cargo-deny", cargo().args(version).env("CARGO_PROFILE_DEV_DEBUG", "0"));
    }
    check("licenses, bans, sources", cargo().args(["deny", "check", "licenses", "bans", "sources"]));
    // Advisories come from outside the package registry, which not every machine reaches.
    if works_within(Duration::from_mins(1), cargo().args(["deny", "fetch", "db"])) {
        check("advisories", cargo().args(["deny", "check", "advisories"]));
    } else {
        eprintln!("skipped: advisories (no advisory database)");
    }
    failed.extend(cancel::run().err());
    failed.extend(book::run().err());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n       ")) }
}
