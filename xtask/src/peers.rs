//! What `cargo xtask bench peers` needs from package registries: the programs in `bench/peers`, each built by its own tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{cargo, output, root, step, works};

/// Read by the benchmark: a line `FOLDER: REASON` for each that could not be built.
pub(crate) const MISSING: &str = "POSTBOX_BENCH_PEERS_MISSING";

/// A folder of `bench/peers`.
struct Folder {
    name: &'static str,
    /// Who lives there, by the names that `--only` takes.
    peers: &'static [&'static str],
    tool: Tool,
}

#[derive(Clone, Copy)]
enum Tool {
    Npm,
    Cargo,
    Go,
    Maven,
}

const FOLDERS: &[Folder] = &[
    Folder { name: "graphile-worker", peers: &["graphile-worker"], tool: Tool::Npm },
    Folder { name: "pg-boss", peers: &["pg-boss"], tool: Tool::Npm },
    Folder {
        name: "rust",
        peers: &["graphile_worker", "outbox-core", "apalis-postgres", "hexeract"],
        tool: Tool::Cargo,
    },
    Folder { name: "river", peers: &["river"], tool: Tool::Go },
    Folder { name: "watermill", peers: &["watermill-sql"], tool: Tool::Go },
    Folder { name: "transaction-outbox", peers: &["transaction-outbox"], tool: Tool::Maven },
    Folder { name: "namastack-outbox", peers: &["namastack-outbox"], tool: Tool::Maven },
];

/// Builds what these arguments of the benchmark ask for. What cannot be had is told, and left out.
pub(crate) fn prepare(args: &[&str], target: &Path) -> String {
    let only = args.iter().position(|arg| *arg == "--only").and_then(|place| args.get(place + 1));
    let mut missing = Vec::new();
    for folder in FOLDERS.iter().filter(|folder| folder.wanted(only.copied())) {
        if let Err(why) = folder.build(target) {
            eprintln!("skipped: {}: {why}", folder.peers.join(", "));
            missing.push(format!("{}: {}", folder.name, why.lines().next().unwrap_or("no reason given")));
        }
    }
    missing.join("\n")
}

impl Folder {
    fn wanted(&self, only: Option<&str>) -> bool {
        only.is_none_or(|only| only.split(',').any(|name| self.peers.contains(&name)))
    }

    fn path(&self) -> PathBuf {
        root().join("bench/peers").join(self.name)
    }

    fn build(&self, target: &Path) -> Result<(), String> {
        let (path, into) = (self.path(), target.join("peers"));
        match self.tool {
            Tool::Npm => {
                needs("node")?;
                needs("npm")?;
                // Without a lock file: that would record where packages were downloaded from. Versions are exact.
                let mut npm = Command::new("npm");
                npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]);
                step(&format!("npm install in {}", self.name), npm.current_dir(path))
            }
            Tool::Cargo => {
                let mut build = cargo();
                build.args(["build", "--release", "--locked", "--target-dir"]).arg(into).current_dir(path);
                step("cargo build --release of peers", &mut build)
            }
            Tool::Go => {
                needs("go")?;
                let mut build = Command::new("go");
                build.arg("build").arg("-o").arg(into.join("release").join(self.name)).arg(".");
                step(&format!("go build of {}", self.name), build.current_dir(path))
            }
            Tool::Maven => {
                needs("java")?;
                needs("mvn")?;
                let mut package = Command::new("mvn");
                let into = format!("-Dinto={}", into.join(self.name).display());
                package.args(["--quiet", "--batch-mode", "package", &into]);
                step(&format!("mvn package of {}", self.name), package.current_dir(path))
            }
        }
    }
}

fn needs(program: &str) -> Result<(), String> {
    // Go knows no `--version`.
    let there = works(program, &["--version"]) || output(Command::new(program).arg("version")).is_ok();
    if there { Ok(()) } else { Err(format!("{program} is not installed")) }
}

#[cfg(test)]
mod tests {
    use super::{FOLDERS, Tool};

    #[test]
    fn every_folder_is_there() {
        for folder in FOLDERS {
            let manifest = match folder.tool {
                Tool::Npm => "package.json",
                Tool::Cargo => "Cargo.toml",
                Tool::Go => "go.mod",
                Tool::Maven => "pom.xml",
            };
            assert!(folder.path().join(manifest).exists(), "{} has no {manifest}", folder.name);
        }
    }

    #[test]
    fn only_what_is_asked_for_is_built() {
        let built = |only| FOLDERS.iter().filter(|f| f.wanted(only)).map(|f| f.name).collect::<Vec<_>>();
        assert_eq!(built(Some("keep,hexeract,pg-boss")), ["pg-boss", "rust"]);
        assert_eq!(built(Some("keep")), [""; 0]);
        assert_eq!(built(None).len(), FOLDERS.len());
    }
}
