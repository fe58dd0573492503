//! The processes of one private broker: a group of their own, in a folder of their own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::watchdog::Watchdog;

/// `$0` is the file for the process id, which is the group's too. Written by the server's process itself: however
/// soon after its start we die, the watchdog finds it.
const LAUNCH: &str = r#"echo $$ >"$0" && exec "$@""#;

/// `$0` is the file with the group's id.
const KILL: &str = r#"kill -s KILL -- "-$(cat "$0")" && sleep 0.2"#;

/// How long a server may take to stop in good order.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// How a broker is started, and how one sees that it works.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Variables that it needs.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// What tells that it serves.
    pub(crate) ready: Ready,
    /// How long that may take.
    pub(crate) limit: Duration,
    /// What it writes to its log on and on when it came up sick after a crash, if this is known to happen. Stopped in
    /// good order and started once more, it is well.
    pub(crate) sick: Option<&'static str>,
}

/// The sign that a server serves.
#[derive(Debug)]
pub(crate) enum Ready {
    /// This path answers with 200, asked with these header lines.
    Http(SocketAddr, &'static str, String),
    /// The first is said to the server, the second is in its answer.
    Says(SocketAddr, Vec<u8>, &'static [u8]),
    /// A line of its log has this.
    Logs(&'static str),
}

/// A server's processes and folder. Both are gone when this is, or when this process is.
#[derive(Debug)]
pub(crate) struct Instance {
    launch: Launch,
    dir: PathBuf,
    /// None while it is stopped.
    child: Mutex<Option<Child>>,
    watchdog: Watchdog,
}

impl Instance {
    /// Starts what `plan` wants, which may write into the folder in `root` that it is given.
    pub(crate) fn start(
        root: &Path,
        plan: impl FnOnce(&Path) -> Result<Launch, String>,
    ) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("postbox-broker-")
            .tempdir_in(root)
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?
            .keep();
        let mut kill = Command::new("sh");
        kill.args(["-c", KILL]).arg(pid_file(&dir));
        let mut watchdog = Watchdog::spawn(&dir, &kill).inspect_err(|_| {
            fs::remove_dir_all(&dir).ok();
        })?;
        let launch = match plan(&dir) {
            Ok(launch) => launch,
            Err(error) => {
                watchdog.dismiss();
                return Err(error);
            }
        };
        let instance = Self { launch, dir, child: Mutex::new(None), watchdog };
        instance.start_again()?;
        Ok(instance)
    }

    /// Starts it, the first time or after a stop, and waits until it serves.
    pub(crate) fn start_again(&self) -> Result<(), String> {
        self.start_once()?;
        if self.is_sick() {
            self.end(Signal::TERM);
            self.start_once()?;
        }
        Ok(())
    }

    fn is_sick(&self) -> bool {
        // Once or twice is no sickness.
        self.launch.sick.is_some_and(|sign| self.log().matches(sign).count() > 9)
    }

    fn start_once(&self) -> Result<(), String> {
        let mut slot = self.child();
        if slot.is_some() {
            return Err("the server runs already".to_owned());
        }
        let [program, args @ ..] = self.launch.command.as_slice() else {
            return Err("nothing to start".to_owned());
        };
        let log = File::create(self.log_file()).map_err(|error| format!("cannot write a log: {error}"))?;
        let also = log.try_clone().map_err(|error| format!("cannot write a log: {error}"))?;
        let child = Command::new("sh")
            .args(["-c", LAUNCH])
            .arg(pid_file(&self.dir))
            .arg(program)
            .args(args)
            .envs(self.launch.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            // Its own group: Ctrl-C is for us, and all of the server's processes are killed by one signal.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let child = slot.insert(child);
        let ended = self.wait_until_ready(child);
        drop(slot);
        ended.map_err(|error| {
            self.end(Signal::KILL);
            format!("{}: {error}; its log ends:\n{}", program.display(), self.log_tail())
        })
    }

    fn wait_until_ready(&self, child: &mut Child) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let ready = self.launch.ready.seen(&self.log_file());
            // Asked after the look: another's server on our port would have answered while ours gave up.
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("ended with {status}"));
            }
            if ready {
                return Ok(());
            }
            if began.elapsed() > self.launch.limit {
                return Err(format!("not ready after {:?}", self.launch.limit));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the server, waits for its end, and kills what of its group is left.
    pub(crate) fn end(&self, signal: Signal) {
        let Some(mut child) = self.child().take() else { return };
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
        kill_process(pid, signal).ok();
        let began = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && began.elapsed() < STOP_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process_group(pid, Signal::KILL).ok();
        child.wait().ok();
        // The number may soon be another's.
        fs::remove_file(pid_file(&self.dir)).ok();
    }

    /// Where its files are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process id, none while it is stopped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// What it has written since its last start.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_file()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let ended = self.child().as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let (Some(status), Some(program)) = (ended, self.launch.command.first()) {
            // Whoever used it has failed and cannot tell why.
            eprintln!(
                "{} ended by itself with {status}; its log ends:\n{}",
                program.display(),
                self.log_tail()
            );
        }
        // Nobody reads its data again: no need for good order.
        self.end(Signal::KILL);
        self.watchdog.dismiss();
    }
}

fn pid_file(dir: &Path) -> PathBuf {
    dir.join("pid")
}

impl Ready {
    fn seen(&self, log: &Path) -> bool {
        match self {
            Self::Http(addr, path, headers) => {
                let question = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n{headers}\r\n");
                answers(*addr, question.as_bytes(), b" 200 ")
            }
            Self::Says(addr, question, answer) => answers(*addr, question, answer),
            Self::Logs(line) => {
                fs::read(log).is_ok_and(|log| String::from_utf8_lossy(&log).lines().any(|l| l.contains(line)))
            }
        }
    }
}

/// Whether the server's answer has these bytes. It may take a moment: a broker that starts is slow.
fn answers(addr: SocketAddr, question: &[u8], wanted: &[u8]) -> bool {
    let limit = Duration::from_secs(5);
    let Ok(mut stream) = TcpStream::connect_timeout(&addr, limit) else { return false };
    if stream.set_read_timeout(Some(limit)).is_err() || stream.write_all(question).is_err() {
        return false;
    }
    let (mut answer, mut buffer) = (Vec::<u8>::new(), [0; 1024]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend(&buffer[..count]);
        if answer.windows(wanted.len()).any(|part| part == wanted) {
            return true;
        }
    }
    false
}
