//! How the demo is shown: a live view, plain lines where there is no terminal, or nothing but the account.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Wanted;
use super::account::{Account, short};
use super::books::{Books, Figures};
use super::keys::{Ending, Key};
use super::screen::{self, Screen};
use super::trouble::{News, RelayState, Stage};
use super::view::{Scene, frame, watch};
use crate::render::{Tint, thousands};
use crate::report::{Failure, Problem};
use crate::say::{say, say_json};

/// Who watches, and how.
pub(super) enum Show {
    /// Redrawn in place.
    Live(Screen),
    /// A line a second; the second of the last one.
    Lines(u64),
    /// Nothing before the account.
    Quiet,
}

impl Show {
    /// Chooses how to show it; the keys come from the live view alone.
    pub(super) fn open(
        wanted: Wanted,
        ending: &Ending,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Key>), Failure> {
        let live = !wanted.json && screen::can_be_live();
        let failed = |error: io::Error| {
            Failure::from(Problem::system("the terminal cannot be used", &error, "try `postbox demo | cat`"))
        };
        ending.heed_signals(live).map_err(failed)?;
        if live {
            let screen = Screen::enter().map_err(failed)?;
            return Ok((Self::Live(screen), ending.heed_keys().map_err(failed)?));
        }
        let (_, nobody) = mpsc::unbounded_channel();
        if wanted.json {
            return Ok((Self::Quiet, nobody));
        }
        let until = wanted.time.map_or_else(|| "until Ctrl-C".to_owned(), |time| format!("for {time:?}"));
        write(&format!(
            "A shop takes {} orders a second {until}, in a SQLite file. One in ten is rolled back, one delivery in twenty\n\
             fails and is tried again, one in two hundred is refused for good. The relay will be killed, the warehouse closed.\n\n",
            wanted.rate
        ))?;
        Ok((Self::Lines(0), nobody))
    }

    /// Shows how things stand; answers whether anybody still reads it.
    pub(super) fn update(
        &mut self,
        wanted: Wanted,
        books: &Books,
        stage: &mut Stage,
        ending: bool,
    ) -> Result<bool, Failure> {
        let elapsed = books.elapsed();
        match self {
            Self::Quiet => Ok(true),
            Self::Live(_) => {
                let scene = Scene {
                    rate: wanted.rate,
                    elapsed,
                    left: wanted.time.filter(|_| !ending).map(|time| time.saturating_sub(elapsed)),
                    figures: books.figures(),
                    relay: stage.relay(),
                    closed: stage.closed(),
                    news: stage.news(),
                    ending,
                };
                let drawn = Screen::draw(&frame(&scene, Screen::size()));
                drawn.map(|()| true).map_err(|error| {
                    let next = "try `postbox demo | cat`";
                    Problem::system("the terminal cannot be drawn on", &error, next).into()
                })
            }
            Self::Lines(last) => {
                let mut text: String = stage.unread().iter().map(told).collect();
                if elapsed.as_secs() != *last && !ending {
                    *last = elapsed.as_secs();
                    text = format!("{}\n{text}", line(elapsed, &books.figures(), &stage.relay()));
                }
                write(&text)
            }
        }
    }

    /// Says that no more orders come.
    pub(super) fn last_orders(&mut self) -> Result<(), Failure> {
        if let Self::Lines(_) = self {
            write("\nNo more orders. Waiting until everything that was ordered has been delivered …\n")?;
        }
        Ok(())
    }

    /// Gives the terminal back and shows the account.
    pub(super) fn close(self, wanted: Wanted, account: &Account) -> Result<(), Failure> {
        let live = matches!(self, Self::Live(_));
        drop(self);
        if wanted.json {
            return say_json(&account.to_json());
        }
        say(&format!("{}{account}", if live { "" } else { "\n" }))
    }
}

/// How things stand, in one line.
fn line(elapsed: Duration, figures: &Figures, relay: &RelayState) -> String {
    let lag = figures.lag.map_or_else(
        || "no lag: nothing delivered lately".to_owned(),
        |(p50, p99)| format!("lag p50 {:>5} p99 {:>5}", short(p50), short(p99)),
    );
    let relay = match relay {
        RelayState::Failing { error } => format!("  the relay cannot work: {error}"),
        RelayState::Starting | RelayState::Working { .. } | RelayState::Killed { .. } => String::new(),
    };
    format!(
        "{}  written {:>6}  rolled back {:>5}  delivered {:>6}  waiting {:>5}  retried {:>4}  dead {:>3}  {lag}{relay}",
        watch(elapsed),
        thousands(figures.written),
        thousands(figures.rolled_back),
        thousands(figures.delivered),
        thousands(figures.waiting),
        thousands(figures.retried),
        thousands(figures.dead),
    )
}

fn told(news: &News) -> String {
    let mark = match news.tint {
        Tint::Good => "✓",
        Tint::Bad => "✗",
        Tint::Plain | Tint::Doubtful | Tint::Faint => "·",
    };
    format!("       {mark} {}\n", news.text)
}

/// Writes to standard output; answers whether anybody still reads it (`postbox demo | head -3`).
fn write(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let next = "give it an output that can be written to";
            Err(Problem::system("cannot write to standard output", &error, next).into())
        }
    }
}
