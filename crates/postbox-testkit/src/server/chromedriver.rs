//! A `chromedriver` of our own, which starts Chromium without a screen for each session.

use std::path::Path;
use std::time::Duration;

use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;
use super::room::on_disk;

server! {
    /// A `chromedriver`: `WebDriver` for Chromium. Browsers that its sessions have started end with it.
    ChromeDriver, "POSTBOX_TEST_CHROMEDRIVER_URL", plan, on_disk
}

/// The programs that are needed.
pub const PROGRAMS: [&str; 2] = ["chromium", "chromedriver"];

fn plan(dir: &Path, _: &ServerOptions) -> Result<Plan, String> {
    // Looked for now: a session without a browser would tell less.
    let [chromium, driver] = PROGRAMS.map(find_program);
    let (_, driver) = (chromium?, driver?);
    let addr = free_addr()?;
    Ok(Plan {
        launch: Launch {
            command: vec![driver.into(), format!("--port={}", addr.port()).into()],
            // Whatever browsers leave behind goes with the folder.
            env: vec![("TMPDIR", dir.into()), ("HOME", dir.into())],
            // It answers no request of HTTP/1.0, which the other look would be.
            ready: Ready::Logs("was started successfully"),
            limit: Duration::from_mins(1),
            sick: None,
        },
        url: format!("http://{addr}"),
        also: None,
        addr,
    })
}

/// The file that tells why `axe.min.js` is not beside it.
pub fn failure(axe: &Path) -> std::path::PathBuf {
    axe.with_extension("failed")
}
