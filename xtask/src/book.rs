//! `cargo xtask book`: the book as HTML, with every link in it checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{cargo, output, root, step};
use crate::{links, metadata};

/// The mdBook that the book was written for. One on the PATH of the same minor version is used as it is.
const MDBOOK_VERSION: &str = "0.5.4";

/// Builds the book; answers where it begins.
pub(crate) fn run() -> Result<PathBuf, String> {
    let target = metadata::read()?.target;
    let mdbook = mdbook(&target)?;
    let book = target.join("book");
    let (began, name) = (std::time::Instant::now(), "book");
    eprintln!("==> {name}");
    build(&mdbook, &book)?;
    let mut broken = links::of_pages(&root())?;
    broken.extend(links::of_book(&root(), &book)?);
    let took = began.elapsed().as_secs_f32();
    if broken.is_empty() {
        eprintln!("<== {name}: ok, {took:.1} s");
        Ok(book.join("index.html"))
    } else {
        eprintln!("<== {name}: FAILED, {took:.1} s\n{}", broken.join("\n"));
        Err(format!("{name} has {} broken links", broken.len()))
    }
}

fn build(mdbook: &Path, to: &Path) -> Result<(), String> {
    // What an earlier build left would make links work that no longer do.
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(|error| format!("cannot remove {}: {error}", to.display()))?;
    }
    let mut command = Command::new(mdbook);
    command.arg("build").arg("docs").arg("--dest-dir").arg(to).current_dir(root());
    let done = command.output().map_err(|error| format!("cannot run {}: {error}", mdbook.display()))?;
    let said = String::from_utf8_lossy(&done.stderr);
    // It warns of a page that does not exist and of HTML that is not closed, and succeeds all the same.
    if !done.status.success() || said.contains("WARN") || said.contains("ERROR") {
        return Err(format!("mdbook is not content:\n{said}"));
    }
    Ok(())
}

/// The program, installed where there is none: among the build's own files, so that nobody's other version is touched.
fn mdbook(target: &Path) -> Result<PathBuf, String> {
    let minor = MDBOOK_VERSION.rsplit_once('.').map_or(MDBOOK_VERSION, |(minor, _)| minor);
    let fits = |program: &Path| {
        output(Command::new(program).arg("--version"))
            .is_ok_and(|version| version.trim().starts_with(&format!("mdbook v{minor}.")))
    };
    let tools = target.join("tools");
    for program in [PathBuf::from("mdbook"), tools.join("bin/mdbook")] {
        if fits(&program) {
            return Ok(program);
        }
    }
    // Unoptimised: that takes half the time to build, and the book is small.
    let features = ["--no-default-features", "--features", "search", "--debug"];
    step(
        "install mdbook",
        cargo()
            .args(["install", "mdbook", "--version", MDBOOK_VERSION, "--locked", "--root"])
            .arg(&tools)
            .args(features)
            .env("CARGO_PROFILE_DEV_DEBUG", "0"),
    )?;
    Ok(tools.join("bin/mdbook"))
}
