//! The terminal: taken over for the live view, and given back whatever happens.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::view::{Line, Size};
use crate::render::paint;

/// How the terminal was before; nothing while it is as it was. For the whole program, as the terminal is: a panic on any
/// thread and a second Ctrl-C give it back too.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Another page, no cursor, nothing wraps.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[0m\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";

/// Whether there is a terminal that can be drawn on, with somebody at its keys.
pub(in crate::cmd) fn can_be_live() -> bool {
    let capable = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    capable && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The terminal while it is ours. Dropping it gives it back.
pub(in crate::cmd) struct Screen(());

impl Screen {
    pub(in crate::cmd) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        let modes = tcgetattr(io::stdin())?;
        let mut raw = modes.clone();
        // Keys one by one and unseen; Ctrl-C is one of them, so that no other program in the foreground ends with it.
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(modes);
        let screen = Self(());
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows now; terminals that do not know have the usual size.
    pub(in crate::cmd) fn size() -> Size {
        let size = tcgetwinsize(io::stdout()).ok();
        let (width, height) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
        let known = |number: u16, usual| if number == 0 { usual } else { usize::from(number) };
        Size { width: known(width, 80), height: known(height, 24) }
    }

    /// Draws over what is there, in one piece, so that nothing flickers.
    pub(in crate::cmd) fn draw(lines: &[Line]) -> io::Result<()> {
        // Held while it is checked whose terminal it is: who gives it back for good keeps this lock.
        let _held = io::stdout().lock();
        if BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(io::Error::other("a part of the program panicked"));
        }
        let painted = lines.iter().map(|line| {
            line.iter()
                .map(|(text, tint)| paint(text, *tint))
                .chain(["\u{1b}[K".to_owned()])
                .collect::<String>()
        });
        let lines: Vec<String> = painted.collect();
        write(&format!("\u{1b}[H{}\u{1b}[J", lines.join("\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Gives the terminal back; once is enough.
pub(in crate::cmd) fn leave() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(modes) = before {
        // First the modes, which cannot block. Nobody is left to tell when either fails.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
        let _ = write(LEAVE);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
