//! The demo as people meet it: on a terminal with somebody at the keys, and in a pipe.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postbox_testkit::eventually_blocking;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_mins(1);

fn demo(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
    command.arg("demo").args(args).env_clear().env("TERM", "xterm").env("TMPDIR", folder);
    command
}

/// A terminal with the demo on it.
struct Terminal {
    keyboard: File,
    /// The terminal as the program has it: its modes outlive the program.
    line: Option<File>,
    before: Termios,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// How much was written when a key was last pressed.
    pressed: usize,
    child: Child,
    folder: TempDir,
}

impl Terminal {
    fn start(args: &[&str], (width, height): (u16, u16)) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let line = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let before = tcgetattr(&line).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut command = demo(folder.path(), args);
        let stream = || Stdio::from(line.try_clone().unwrap());
        let keyboard = File::from(master);
        resize(&keyboard, width, height);
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, kept) = (keyboard.try_clone().unwrap(), Arc::clone(&written));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        let (line, reader) = (Some(line), Some(reader));
        Self { keyboard, line, before, written, reader, pressed: 0, child, folder }
    }

    fn press(&mut self, keys: &str) {
        self.pressed = self.written.lock().unwrap().len();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn written(&self, from: usize) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()[from..]).into_owned()
    }

    /// The last frame that is complete.
    fn screen(&self) -> String {
        let written = self.written(0);
        let Some(end) = written.rfind("\u{1b}[J") else { return String::new() };
        let start = written[..end].rfind("\u{1b}[H").unwrap();
        without_escapes(&written[start..end])
    }

    /// Waits until a text has been on the screen since a key was pressed.
    #[track_caller]
    fn sees(&self, text: &str) {
        let deadline = Instant::now() + LONG;
        while !without_escapes(&self.written(self.pressed)).contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} on the screen:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end; gives what it left on the terminal.
    #[track_caller]
    fn end(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let modes = tcgetattr(self.line.as_ref().unwrap()).unwrap();
        assert_eq!(format!("{modes:?}"), format!("{:?}", self.before));
        // Nobody has the terminal any more: its reader comes to an end.
        self.line = None;
        self.reader.take().unwrap().join().unwrap();
        let written = self.written(0);
        for (on, off) in [("\u{1b}[?25l", "\u{1b}[?25h"), ("\u{1b}[?7l", "\u{1b}[?7h")] {
            assert!(written.rfind(on) < written.rfind(off), "{on:?} is not taken back");
        }
        assert_eq!(self.folder.path().read_dir().unwrap().count(), 0, "it left something in its folder");
        let (_, left) = written.rsplit_once("\u{1b}[?1049l").expect("the screen of before");
        (status, without_escapes(left))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, width: u16, height: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[track_caller]
fn wait(child: &mut Child) -> ExitStatus {
    eventually_blocking("the end of the program", LONG, || child.try_wait().unwrap())
}

fn without_escapes(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or_default()
    })
}

#[test]
fn somebody_at_the_keys_kills_and_fails_and_loses_nothing() {
    let mut terminal = Terminal::start(&["--rate", "100"], (80, 24));
    terminal.sees("k kill the relay · f fail the sink · q end");
    terminal.press("k");
    terminal.sees("relay  ✗ killed; another starts in");
    terminal.sees("from now on trouble comes from you");
    terminal.sees("✓ another relay has taken over: epoch");
    terminal.sees("relay  ● working, epoch");
    terminal.press("f");
    terminal.sees("sink   ✗ the warehouse is closed for");
    terminal.sees("f mend the sink");
    terminal.press("f");
    terminal.sees("sink   ● the warehouse is open");
    terminal.sees("✓ the warehouse is open again");
    // An arrow is no key, and no wish to end.
    terminal.press("\u{1b}[A");
    resize(&terminal.keyboard, 40, 10);
    eventually_blocking("a smaller view", LONG, || {
        let screen = terminal.screen();
        screen.lines().count() <= 10 && screen.lines().all(|line| line.chars().count() <= 40)
    });
    terminal.sees("k kill · f fail · q end");
    terminal.press("q");
    let (status, account) = terminal.end();
    assert_eq!(status.code(), Some(0), "{account}");
    assert!(account.contains("✓ The books balance."), "{account}");
    assert!(!account.contains("0 kills") && !account.contains("0 outages"), "{account}");
    assert!(account.lines().all(|line| line.chars().count() <= 110), "{account}");
}

#[test]
fn it_ends_by_itself_by_a_signal_or_by_escape_and_gives_the_terminal_back() {
    let mut endings: Vec<(&str, Terminal)> = ["by itself", "SIGTERM", "SIGINT", "escape", "Ctrl-C"]
        .map(|name| {
            let args: &[&str] = if name == "by itself" { &["--for", "2s"] } else { &[] };
            (name, Terminal::start(args, (80, 24)))
        })
        .into();
    for (name, terminal) in &mut endings {
        terminal.sees("written");
        match *name {
            "SIGTERM" => terminal.signal(Signal::TERM),
            "SIGINT" => terminal.signal(Signal::INT),
            "escape" => terminal.press("\u{1b}"),
            "Ctrl-C" => terminal.press("\u{3}"),
            _ => {}
        }
    }
    for (name, mut terminal) in endings {
        let (status, account) = terminal.end();
        assert_eq!(status.code(), Some(0), "{name}: {account}");
        assert!(account.contains("✓ The books balance."), "{name}: {account}");
    }
}

#[test]
fn twice_ends_it_at_once_and_gives_the_terminal_back() {
    let mut terminal = Terminal::start(&[], (80, 24));
    terminal.sees("written");
    // So that there is something to wait for.
    terminal.press("f");
    terminal.sees("sink   ✗");
    terminal.press("\u{3}\u{3}");
    let (status, words) = terminal.end();
    assert_eq!((status.code(), words.trim()), (Some(130), "stopped at once: no account"));
}

#[test]
fn in_a_pipe_it_is_plain_lines_and_trouble_comes_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--for", "9s", "--rate", "100"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(output.stderr.is_empty() && !text.contains('\u{1b}'), "{text}");
    for wanted in [
        "  written ",
        "  waiting ",
        "  dead ",
        "✗ the relay was killed",
        "✓ another relay has taken over: epoch 2",
        "✗ the warehouse is closed",
        "The account, after 1 kill of the relay and 1 outage of the sink",
        "✓ The books balance.",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn the_account_is_all_that_json_shows() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--for", "4s", "--rate", "100", "--json"]).output().unwrap();
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &account["balances"]), (Some(0), &true.into()), "{account}");
    for fault in ["missing", "invented", "orders_without_one_event", "events_without_order", "unsettled"] {
        assert_eq!(account[fault], 0, "{account}");
    }
    assert!(account["written"].as_u64().unwrap() > 50, "{account}");
    assert!(account["rolled_back"].as_u64().unwrap() > 5, "{account}");
}

#[test]
fn a_reader_who_has_had_enough_ends_it_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = demo(folder.path(), &[]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
    let mut words = String::new();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!(words, "");
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    for (place, args, exit, advice) in [
        (folder.path(), &["--rate", "0"][..], 2, "--rate must be a number from 1 to 1000"),
        (folder.path(), &["--rate", "1000000"], 2, "--rate must be a number from 1 to 1000"),
        (folder.path(), &["--for", "ten"], 2, "--for is not a duration"),
        (&nowhere, &["--for", "1s"], 1, "TMPDIR"),
    ] {
        let output = demo(place, args).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{args:?}: {words}");
        assert!(words.contains(advice), "{args:?}: {words}");
    }
    let output = demo(folder.path(), &["--for", "0s", "--json"]).output().unwrap();
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &account["balances"]), (Some(0), &true.into()), "{account}");
}
