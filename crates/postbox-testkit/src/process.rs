//! A built program under test: started, watched by its lines, signalled, and never left behind.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running program. Dropping it kills it.
///
/// Its output is read all the time, so it never blocks on a full pipe; what it wrote is shown when a wait fails.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    output: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
}

/// Which of the two a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    read: Vec<(Stream, String)>,
    /// Streams that have ended; at two, no further line can come.
    ended: usize,
}

impl Program {
    /// Starts `binary`, such as `env!("CARGO_BIN_EXE_postbox")`, with arguments and additions to the environment.
    pub fn spawn(binary: impl AsRef<OsStr>, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary);
        command.args(args).envs(env.iter().copied());
        Self::from_command(command)
    }

    /// Starts a command that the caller has put together; its standard streams are set here.
    pub fn from_command(mut command: Command) -> Self {
        let name = command.get_program().display().to_string();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let output = Arc::new(Output::default());
        let readers = vec![
            collect(Stream::Out, child.stdout.take().expect("piped above"), &output),
            collect(Stream::Err, child.stderr.take().expect("piped above"), &output),
        ];
        Self { name, child, output, readers }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a line of either stream contains `pattern`, also one that was written before the call.
    ///
    /// Panics with all output when the limit passes or the program ends without such a line.
    #[track_caller]
    pub fn wait_for_line(&self, pattern: &str, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        let mut lines = self.output.lines();
        let mut looked = 0;
        loop {
            if let Some((_, line)) = lines.read[looked..].iter().find(|(_, line)| line.contains(pattern)) {
                return line.clone();
            }
            looked = lines.read.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.ended == 2 || left.is_zero() {
                let why = if lines.ended == 2 { "ended" } else { "ran out of time" };
                let written = show(&lines);
                drop(lines);
                panic!("{} {why} without a line containing {pattern:?}; it wrote:\n{written}", self.name);
            }
            lines = self.output.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        self.output.lines().of(Stream::Out)
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.output.lines().of(Stream::Err)
    }

    /// Asks it to end in good order.
    pub fn sigterm(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Interrupts it, as Ctrl-C does.
    pub fn sigint(&mut self) {
        self.signal(Signal::INT);
    }

    /// Freezes it where it stands, its connections open: a long pause, as seen by everybody else.
    pub fn sigstop(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on after [`Program::sigstop`].
    pub fn sigcont(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Kills it without a last word, and waits until it is gone.
    pub fn kill9(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(30))
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    /// Waits until it has ended and all its output is read; panics with the output when the limit passes.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.exit_status() {
                break status;
            }
            if Instant::now() >= deadline {
                let written = show(&self.output.lines());
                panic!("{} still runs after {limit:?}; it wrote:\n{written}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.drain(deadline);
        status
    }

    /// Asks it to end in good order and waits until it has; panics with its output unless it ended well.
    ///
    /// A program can only be asked once it listens for signals: wait for a line that it writes after that.
    #[track_caller]
    pub fn stop(&mut self, limit: Duration) {
        self.sigterm();
        let status = self.wait(limit);
        assert!(
            status.success(),
            "{} ended with {status}; it wrote:\n{}",
            self.name,
            show(&self.output.lines())
        );
    }

    /// Waits for the end of the streams; a child of the program's may hold them open, hence the deadline.
    fn drain(&mut self, deadline: Instant) {
        let mut lines = self.output.lines();
        while lines.ended < 2 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            lines = self.output.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(lines);
        for reader in self.readers.drain(..) {
            reader.join().ok();
        }
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|error| panic!("cannot ask for the state of {}: {error}", self.name))
    }

    fn signal(&mut self, signal: Signal) {
        // Once it is reaped, its id may belong to somebody else.
        if self.exit_status().is_some() {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Output {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn of(&self, stream: Stream) -> String {
        let lines = self.read.iter().filter(|(from, _)| *from == stream);
        lines.flat_map(|(_, line)| [line.as_str(), "\n"]).collect()
    }
}

/// Reads a stream to its end on a thread of its own.
fn collect(stream: Stream, from: impl Read + Send + 'static, output: &Arc<Output>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            output.lines().read.push((stream, String::from_utf8_lossy(&line).into_owned()));
            output.changed.notify_all();
        }
        output.lines().ended += 1;
        output.changed.notify_all();
    })
}

fn show(lines: &Lines) -> String {
    lines.read.iter().fold(String::new(), |mut shown, (stream, line)| {
        shown.push_str(if *stream == Stream::Out { "  out: " } else { "  err: " });
        shown.push_str(line);
        shown.push('\n');
        shown
    })
}
