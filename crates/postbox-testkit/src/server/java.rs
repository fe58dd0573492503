//! Brokers that are Java programs: their jars are fetched by Maven, not installed by a package.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::broker::find_program;

/// Names the folder that has a folder of jars for each such broker, when it is not `brokers` in the target folder.
pub const JARS_ENV: &str = "POSTBOX_TEST_JARS";

/// Little memory, and compiled once and quickly: these processes live for seconds.
const FLAGS: &[&str] = &[
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
];

/// The beginning of a command that runs one of a broker's classes; flags and the class are to follow. Libraries that are unpacked at
/// each start go into the broker's folder, and with it.
pub(crate) fn command(broker: &str, dir: &Path) -> Result<Vec<OsString>, String> {
    let jars = find_jars(broker)?;
    let java = find_program("java")?;
    let mut command = vec![OsString::from(java)];
    command.extend(FLAGS.iter().map(OsString::from));
    command.push(format!("-Djava.io.tmpdir={}", dir.display()).into());
    command.extend(["-cp".into(), jars.join("*").into()]);
    Ok(command)
}

/// The folder with a broker's jars.
pub(crate) fn find_jars(broker: &str) -> Result<PathBuf, String> {
    let parents = match std::env::var_os(JARS_ENV) {
        Some(parent) => vec![PathBuf::from(parent)],
        // A test program is somewhere in the target folder.
        None => std::env::current_exe()
            .map(|program| program.ancestors().skip(1).map(|folder| folder.join("brokers")).collect())
            .unwrap_or_default(),
    };
    parents.iter().map(|parent| parent.join(broker)).find(|jars| jars.is_dir()).ok_or_else(|| {
        parents
            .iter()
            .find_map(|parent| fs::read_to_string(failure(parent, broker)).ok())
            .unwrap_or_else(|| format!("no {broker} found: run `cargo xtask test`, which fetches it"))
    })
}

/// The file that tells why there are no jars.
pub fn failure(parent: &Path, broker: &str) -> PathBuf {
    parent.join(format!("{broker}.failed"))
}
