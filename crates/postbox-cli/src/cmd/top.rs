//! `postbox top`: all tables at a glance, drawn again and again on a terminal.
//!
//! `look` asks the databases, `view` makes a picture of the answers; here is who presses keys, and when to draw.

mod look;
mod view;

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::look::{Seen, Tables};
use self::view::{Picture, frame};
use super::demo::keys::{after_escape, read};
use super::demo::screen::{Screen, can_be_live};
use super::demo::view::{Line, Size};
use super::{block_on, given, tables};
use crate::cli::Call;
use crate::database::Database;
use crate::render::paint;
use crate::report::{Exit, Failure, Problem};
use crate::say::{said, say};

/// The width of a picture that nobody's terminal limits.
const WIDTH: usize = 80;

/// How often, if not said otherwise; and how often at the most: to look costs the database something.
const EVERY: Duration = Duration::from_secs(2);
const SOONEST: Duration = Duration::from_millis(100);

/// Shows the tables.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let every = given::duration(call, "every")?.unwrap_or(EVERY).max(SOONEST);
    for call in call.each() {
        let checked = tables(&call.config).and_then(|_| Database::of(&call.config));
        checked.map_err(|failure| failure.of_database(call.config.database.as_deref()))?;
    }
    block_on(async {
        let looked = Tables::of(call)?;
        if call.json {
            lines(looked, every, call.on("once")).await
        } else if call.on("once") || !can_be_live() {
            once(looked, every).await
        } else {
            live(looked, every).await
        }
    })
}

/// One picture, after two looks: rates need two.
async fn once(mut tables: Tables, every: Duration) -> Result<Exit, Failure> {
    tables.look(false).await;
    tokio::time::sleep(every.min(EVERY)).await;
    let seen = tables.look(false).await;
    let size = Size { width: WIDTH, height: usize::MAX };
    let lines = frame(&Picture { seen: &seen, every, live: None, scroll: 0 }, size);
    let painted: Vec<String> = lines.iter().map(text_of).collect();
    say(&painted.join("\n"))?;
    Ok(if seen.all_failed() { Exit::Failed } else { Exit::Done })
}

fn text_of(line: &Line) -> String {
    let text: String = line.iter().map(|(text, tint)| paint(text, *tint)).collect();
    text.trim_end().to_owned()
}

/// A line for each look, for other programs.
async fn lines(mut tables: Tables, every: Duration, once: bool) -> Result<Exit, Failure> {
    if once {
        tables.look(true).await;
        tokio::time::sleep(every).await;
    }
    loop {
        let seen = tables.look(true).await;
        if once {
            say(&seen.to_json().to_string())?;
            return Ok(if seen.all_failed() { Exit::Failed } else { Exit::Done });
        }
        // Who reads has had enough: that is no failure.
        if !said(&seen.to_json().to_string())? {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        }
    }
}

/// What somebody at the keys wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    End,
    Hold,
    Dead,
    Down,
    Up,
}

/// What the bytes from a terminal mean.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&byte, rest)) = bytes.split_first() {
        bytes = rest;
        match byte {
            b'q' | b'Q' | 0x03 => keys.push(Key::End),
            b'p' | b'P' => keys.push(Key::Hold),
            b'd' | b'D' => keys.push(Key::Dead),
            b'j' => keys.push(Key::Down),
            b'k' => keys.push(Key::Up),
            0x1b if rest.is_empty() => keys.push(Key::End),
            0x1b => {
                // Arrows, in both ways that terminals write them.
                match rest {
                    [b'[' | b'O', b'A', ..] => keys.push(Key::Up),
                    [b'[' | b'O', b'B', ..] => keys.push(Key::Down),
                    _ => {}
                }
                bytes = after_escape(rest);
            }
            _ => {}
        }
    }
    keys
}

/// Reads keys on a thread of their own: whatever a database does, they are heard.
fn heed_keys() -> io::Result<mpsc::UnboundedReceiver<Key>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("postbox-keys".to_owned());
    thread.spawn(move || {
        while let Ok(bytes) = read() {
            if keys(&bytes).into_iter().any(|key| sender.send(key).is_err()) {
                return;
            }
        }
        // The terminal is gone, and with it whoever looked at it.
        let _ = sender.send(Key::End);
    })?;
    Ok(receiver)
}

/// Draws until somebody ends it.
async fn live(tables: Tables, every: Duration) -> Result<Exit, Failure> {
    let failed = |error: io::Error| {
        Failure::from(Problem::system(
            "the terminal cannot be used",
            &error,
            "use --once, or another terminal",
        ))
    };
    let mut ends =
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::hangup()).map_err(failed)?);
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let (want_dead, wanted) = watch::channel(false);
    let (sender, mut seen) = watch::channel(Seen::default());
    let looks = tokio::spawn(look_again(tables, every, sender, wanted));
    let screen = Screen::enter().map_err(failed)?;
    let mut pressed = heed_keys().map_err(failed)?;
    let (mut held, mut scroll): (Option<Seen>, usize) = (None, 0);
    loop {
        let latest = seen.borrow_and_update().clone();
        let shown = held.as_ref().unwrap_or(&latest);
        let picture = Picture { seen: shown, every, live: Some(held.is_some()), scroll };
        if let Err(error) = Screen::draw(&frame(&picture, Screen::size())) {
            drop(screen);
            looks.abort();
            return Err(failed(error));
        }
        let key = tokio::select! {
            key = pressed.recv() => key.unwrap_or(Key::End),
            _ = ends.0.recv() => Key::End,
            _ = ends.1.recv() => Key::End,
            _ = resized.recv() => continue,
            changed = seen.changed() => match changed {
                Ok(()) => continue,
                Err(_) => Key::End,
            },
        };
        match key {
            Key::End => break,
            Key::Hold => held = if held.is_some() { None } else { Some(latest) },
            Key::Dead => want_dead.send_modify(|want| *want = !*want),
            Key::Down => scroll = (scroll + 1).min(view::last_line(shown)),
            Key::Up => scroll = scroll.saturating_sub(1),
        }
    }
    looks.abort();
    drop(screen);
    Ok(Exit::Done)
}

/// Looks again and again; sooner when somebody wants to see more.
async fn look_again(
    mut tables: Tables,
    every: Duration,
    sender: watch::Sender<Seen>,
    mut wanted: watch::Receiver<bool>,
) {
    loop {
        let dead = *wanted.borrow_and_update();
        if sender.send(tables.look(dead).await).is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Key::{Dead, Down, End, Hold, Up};
    use super::keys;

    #[test]
    fn keys_and_arrows_are_told_apart() {
        for (bytes, wanted) in [
            (&b"q"[..], &[End][..]),
            (b"\x1b", &[End]),
            (b"\x03", &[End]),
            (b"pdjk", &[Hold, Dead, Down, Up]),
            (b"\x1b[A\x1bOB\x1b[1;5Dj", &[Up, Down, Down]),
            (b"xyz", &[]),
        ] {
            assert_eq!(keys(bytes), wanted, "{bytes:?}");
        }
    }
}
