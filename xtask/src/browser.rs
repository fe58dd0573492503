//! What the tests of the dashboard need: a browser, its driver, a font, and axe, which finds what shuts people out.

use std::fs;
use std::path::Path;
use std::process::Command;

use postbox_testkit::server::chromedriver::failure;

use crate::run::output;

/// The packages with such tests.
const PACKAGES: [&str; 1] = ["postbox-cli"];

/// As `BROKER_NEEDS` of `install`.
pub(crate) const NEEDS: &[(&str, &str)] = &[
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    // Without any font there is no text to click on.
    ("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "fonts-dejavu-core"),
    // It knows where this machine gets packages from.
    ("npm", "npm"),
];

/// axe-core as npm has it.
const VERSION: &str = "4.11.0";

/// Whether a run of these packages needs a browser; of all packages, when none is chosen.
pub(crate) fn needed(chosen: &[&str]) -> bool {
    chosen.is_empty() || chosen.iter().any(|package| PACKAGES.contains(package))
}

/// Fetches axe, once. What cannot be had is told, and the tests with it skip with the reason.
pub(crate) fn fetch(target: &Path) -> Result<(), String> {
    let dir = target.join("browser");
    let (file, version) = (dir.join("axe.min.js"), dir.join("version"));
    if file.exists() && fs::read_to_string(&version).is_ok_and(|had| had == VERSION) {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("cannot write in {}: {error}", dir.display());
    fs::create_dir_all(&dir).map_err(failed)?;
    eprintln!("==> fetches axe-core {VERSION}");
    match unpack(&dir) {
        Ok(()) => fs::rename(dir.join("package/axe.min.js"), &file)
            .and_then(|()| fs::remove_dir_all(dir.join("package")))
            .and_then(|()| fs::write(&version, VERSION))
            .map_err(failed),
        Err(why) => {
            let reason = format!("axe-core could not be fetched: {why}");
            eprintln!("skipped: {reason}");
            fs::write(failure(&file), reason).map_err(failed)
        }
    }
}

fn unpack(dir: &Path) -> Result<(), String> {
    let archive = format!("axe-core-{VERSION}.tgz");
    let mut npm = Command::new("timeout");
    npm.args(["120", "npm", "pack", "--silent", &format!("axe-core@{VERSION}")]);
    output(npm.current_dir(dir)).map_err(|error| cause(&error))?;
    output(Command::new("tar").args(["-xzf", &archive]).current_dir(dir)).map_err(|error| cause(&error))?;
    fs::remove_file(dir.join(&archive)).map_err(|error| error.to_string())
}

fn cause(error: &str) -> String {
    error.lines().next().unwrap_or("no reason was given").to_owned()
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn only_the_program_has_pages() {
        assert!(needed(&[]) && needed(&["postbox-core", "postbox-cli"]));
        assert!(!needed(&["postbox-core"]));
    }
}
