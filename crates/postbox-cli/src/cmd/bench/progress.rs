//! How far a step is: a bar on a terminal, a line now and then elsewhere, nothing beside JSON.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::ask::tell;
use crate::render::{counted, thousands};

/// How often a line is written where there is no bar.
const EVERY: Duration = Duration::from_secs(2);

/// What a step goes up to.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Events(u64),
    Time(Duration),
}

/// One step's progress.
pub(super) struct Progress {
    name: String,
    end: End,
    started: Instant,
    way: Way,
}

enum Way {
    Bar(ProgressBar),
    Lines { next: Instant },
    Silent,
}

impl Progress {
    pub(super) fn new(json: bool, name: String, end: End) -> Self {
        let way = match (json, std::io::stderr().is_terminal()) {
            (true, _) => Way::Silent,
            (false, true) => Way::Bar(bar(end)),
            (false, false) => Way::Lines { next: Instant::now() },
        };
        Self { name, end, started: Instant::now(), way }
    }

    /// From now on it counts.
    pub(super) fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// So many events are done.
    pub(super) fn at(&mut self, events: u64) {
        match &mut self.way {
            Way::Bar(bar) => {
                let position = match self.end {
                    End::Events(_) => events,
                    End::Time(_) => millis(self.started.elapsed()),
                };
                // First what a change of position draws.
                bar.set_message(format!("{}: {}", self.name, counted(events, "event")));
                bar.set_position(position);
            }
            Way::Lines { next } if *next <= Instant::now() => {
                *next = Instant::now() + EVERY;
                let far = match self.end {
                    End::Events(all) => format!("{} of {}", thousands(events), counted(all, "event")),
                    End::Time(_) => counted(events, "event"),
                };
                tell(&format!("{}: {far}\n", self.name));
            }
            Way::Lines { .. } | Way::Silent => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Way::Bar(bar) = &self.way {
            bar.finish_and_clear();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn bar(end: End) -> ProgressBar {
    let length = match end {
        End::Events(events) => events,
        End::Time(time) => millis(time),
    };
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {wide_msg}") {
        bar.set_style(style.progress_chars("█▌░"));
    }
    bar
}
