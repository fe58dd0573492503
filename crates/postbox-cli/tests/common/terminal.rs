//! A real terminal, with somebody at its keys.

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

use super::LONG;

/// A terminal with the program on it.
pub(crate) struct Terminal {
    pub(crate) keyboard: File,
    /// The terminal as the program has it: its modes outlive the program.
    line: Option<File>,
    before: Termios,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// How much was written when a key was last pressed.
    pressed: usize,
    child: Child,
}

impl Terminal {
    pub(crate) fn start(mut command: Command, (width, height): (u16, u16)) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let line = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let before = tcgetattr(&line).unwrap();
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
        Self { keyboard, line, before, written, reader, pressed: 0, child }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.pressed = self.written.lock().unwrap().len();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn written(&self, from: usize) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()[from..]).into_owned()
    }

    /// The last frame that is complete.
    pub(crate) fn screen(&self) -> String {
        let written = self.written(0);
        let Some(end) = written.rfind("\u{1b}[J") else { return String::new() };
        let start = written[..end].rfind("\u{1b}[H").unwrap();
        without_escapes(&written[start..end])
    }

    /// Waits until a text has been on the screen since a key was pressed.
    #[track_caller]
    pub(crate) fn sees(&self, text: &str) {
        let deadline = Instant::now() + LONG;
        while !without_escapes(&self.written(self.pressed)).contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} on the screen:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end; gives all that it wrote. It must leave the terminal in the modes that it found.
    #[track_caller]
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let modes = tcgetattr(self.line.as_ref().unwrap()).unwrap();
        assert_eq!(format!("{modes:?}"), format!("{:?}", self.before));
        // Nobody has the terminal any more: its reader comes to an end.
        self.line = None;
        self.reader.take().unwrap().join().unwrap();
        let written = self.written(0);
        (status, written)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn resize(terminal: &File, width: u16, height: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[track_caller]
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    eventually_blocking("the end of the program", LONG, || child.try_wait().unwrap())
}

pub(crate) fn without_escapes(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or_default()
    })
}
