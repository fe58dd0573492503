//! A process that outlives ours by a moment and cleans up after it.
//!
//! Statics are not dropped and `kill -9` runs no code of the victim. But the kernel closes its pipes: a shell that reads
//! from one learns of our end, whatever it was, and stops the server then.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// `$1` is the folder to remove, the rest the command that stops the server. A server that was still starting when
/// we died may have no pid file yet, hence the second try.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
dir=$1
shift
if read -r word && [ "$word" = stopped ]; then
    exec rm -rf -- "$dir"
fi
"$@" || { sleep 1; "$@"; }
rm -rf -- "$dir" || { sleep 1; rm -rf -- "$dir"; }
"#;

/// Stops a server and removes its folder when this process ends, in whatever way.
#[derive(Debug)]
pub(crate) struct Watchdog {
    child: Child,
    line: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts watching; to be called before the server starts, so that no moment is unwatched.
    pub(crate) fn spawn(dir: &Path, stop: &Command) -> Result<Self, String> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "postbox-watchdog"])
            .arg(dir)
            .arg(stop.get_program())
            .args(stop.get_args())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group: Ctrl-C is for us, not for the one who cleans up after us.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start the watchdog: {error}"))?;
        let line = child.stdin.take();
        Ok(Self { child, line })
    }

    /// Tells it that the server is already stopped, and waits until the folder is gone.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut line) = self.line.take() {
            line.write_all(b"stopped\n").ok();
        }
        self.child.wait().ok();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Not dismissed: the closed pipe makes it stop the server; wait, so that no process is left unreaped.
        if self.line.take().is_some() {
            self.child.wait().ok();
        }
    }
}
