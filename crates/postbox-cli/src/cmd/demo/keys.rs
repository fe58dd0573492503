//! The keys of the live view, and the ways to end it: once in good order, twice at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::screen;

/// What a shell shows for a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// What somebody wants by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Kill,
    Fail,
    End,
    Interrupt,
}

/// What the bytes from a terminal mean. An escape that something follows is no key of ours, such as an arrow.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&byte, rest)) = bytes.split_first() {
        bytes = rest;
        match byte {
            b'k' | b'K' => keys.push(Key::Kill),
            b'f' | b'F' => keys.push(Key::Fail),
            b'q' | b'Q' => keys.push(Key::End),
            0x03 => keys.push(Key::Interrupt),
            0x1b if rest.is_empty() => keys.push(Key::End),
            0x1b => bytes = after_escape(rest),
            _ => {}
        }
    }
    keys
}

/// What follows an escape sequence, without its escape.
pub(in crate::cmd) fn after_escape(bytes: &[u8]) -> &[u8] {
    match bytes {
        [b'[' | b'O', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or(&[], |end| &rest[end + 1..])
        }
        [_, rest @ ..] => rest,
        [] => &[],
    }
}

/// The wish to end. Cheap to clone.
#[derive(Clone)]
pub(super) struct Ending {
    asked: watch::Sender<bool>,
    /// Goes even if the program ends at once.
    folder: Arc<Path>,
}

impl Ending {
    pub(super) fn new(folder: &Path) -> Self {
        Self { asked: watch::Sender::new(false), folder: PathBuf::from(folder).into() }
    }

    /// In good order.
    pub(super) fn ask(&self) {
        self.asked.send_replace(true);
    }

    /// In good order, or at once if that was asked for before.
    fn insist(&self) {
        if self.asked.send_replace(true) {
            self.end_at_once();
        }
    }

    fn end_at_once(&self) -> ! {
        // A terminal that takes no more letters shall not keep the program.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(INTERRUPTED);
        });
        // Nobody draws on the terminal once it is given back.
        let _held = io::stdout().lock();
        screen::leave();
        // Somebody may be writing in it still: then it stays where temporary things are.
        let _ = std::fs::remove_dir_all(&self.folder);
        crate::ask::tell("stopped at once: no account\n");
        std::process::exit(INTERRUPTED);
    }

    /// Waits until it is asked for.
    pub(super) async fn asked(&self) {
        // The sender is in our own hands, so this cannot fail.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Takes signals as wishes to end; in a live view also the loss of its terminal.
    pub(super) fn heed_signals(&self, live: bool) -> io::Result<()> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        for kind in kinds.into_iter().take(if live { 3 } else { 2 }) {
            let (mut signals, ending) = (signal(kind)?, self.clone());
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    ending.insist();
                }
            });
        }
        Ok(())
    }

    /// Reads keys on a thread of their own: whatever the rest of the program does, Ctrl-C is heard. Gives those that
    /// are no wish to end.
    pub(super) fn heed_keys(&self) -> io::Result<mpsc::UnboundedReceiver<Key>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let ending = self.clone();
        let thread = std::thread::Builder::new().name("postbox-keys".to_owned());
        thread.spawn(move || {
            while let Ok(bytes) = read() {
                for key in keys(&bytes) {
                    match key {
                        Key::Interrupt => ending.insist(),
                        // A key held down comes many times.
                        Key::End => ending.ask(),
                        Key::Kill | Key::Fail if sender.send(key).is_err() => return,
                        Key::Kill | Key::Fail => {}
                    }
                }
            }
            // The terminal is gone, and with it whoever looked at it.
            ending.ask();
        })?;
        Ok(receiver)
    }
}

/// The next bytes from the terminal. Waits a moment after an escape: a sequence may come in pieces.
pub(in crate::cmd) fn read() -> io::Result<Vec<u8>> {
    let mut bytes = read_some()?;
    while bytes.last() == Some(&0x1b) {
        let stdin = io::stdin();
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&moment))? == 0 {
            break;
        }
        bytes.extend(read_some()?);
    }
    Ok(bytes)
}

fn read_some() -> io::Result<Vec<u8>> {
    let mut buffer = [0; 64];
    // Not through the library's buffer, which the poll above would not see.
    match rustix::io::retry_on_intr(|| rustix::io::read(io::stdin(), &mut buffer))? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(buffer[..count].to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::Key::{End, Fail, Interrupt, Kill};
    use super::keys;

    #[test]
    fn keys_are_told_from_what_terminals_send_besides() {
        for (bytes, wanted) in [
            (&b"k"[..], &[Kill][..]),
            (b"fFq", &[Fail, Fail, End]),
            (b"\x1b", &[End]),
            (b"\x03k", &[Interrupt, Kill]),
            // Arrows, F1, a click, Alt-k, what the terminal is.
            (b"\x1b[A\x1b[1;5D\x1bOPk", &[Kill]),
            (b"\x1b[<0;10;20M\x1bk\x1b[?62;4cf", &[Fail]),
            (b"\x1b[", &[]),
            (b"xyz \r\n", &[]),
        ] {
            assert_eq!(keys(bytes), wanted, "{bytes:?}");
        }
    }
}
