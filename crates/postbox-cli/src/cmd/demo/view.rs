//! What the live view looks like: lines that fit, from how things stand. No terminal here.

use std::time::Duration;

use super::account::short;
use super::books::Figures;
use super::trouble::{News, RelayState};
use crate::render::{Tint, age, printable, thousands};

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cmd) struct Size {
    pub(in crate::cmd) width: usize,
    pub(in crate::cmd) height: usize,
}

/// A line in pieces of one colour each.
pub(in crate::cmd) type Line = Vec<(String, Tint)>;

/// All that is shown.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) rate: u32,
    pub(super) elapsed: Duration,
    /// When it ends by itself.
    pub(super) left: Option<Duration>,
    pub(super) figures: Figures,
    pub(super) relay: RelayState,
    /// Since when the warehouse is closed.
    pub(super) closed: Option<Duration>,
    /// The newest last.
    pub(super) news: Vec<News>,
    /// Whether orders are over.
    pub(super) ending: bool,
}

/// What is left out first where there is little room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Keys,
    Figures,
    State,
    Head,
    Bars,
    News,
    Space,
}

const MARGIN: &str = "  ";
/// A figure with its name, and the space in front of it.
const CELL: usize = 24;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The lines of the view: never more, and never longer, than there is room for.
pub(super) fn frame(scene: &Scene, size: Size) -> Vec<Line> {
    let mut lines = vec![(Weight::Head, head(scene, size.width)), blank()];
    lines.extend(figures(&scene.figures, size.width).into_iter().map(|line| (Weight::Figures, line)));
    lines.push(blank());
    lines.extend(bars(&scene.figures, size.width).into_iter().map(|line| (Weight::Bars, line)));
    lines.push(blank());
    lines.extend([(Weight::State, relay(&scene.relay)), (Weight::State, sink(scene.closed)), blank()]);
    // What must stay, with the two blank lines around the keys.
    let room = size.height.saturating_sub(lines.len() + 2);
    let unseen = scene.news.len().saturating_sub(room);
    lines.extend(scene.news.iter().skip(unseen).map(|news| (Weight::News, told(news))));
    lines.extend([blank(), (Weight::Keys, keys(scene, size.width))]);
    while lines.len() > size.height {
        let least = lines.iter().map(|(weight, _)| *weight).max();
        let Some(at) = lines.iter().rposition(|(weight, _)| Some(*weight) == least) else { break };
        lines.remove(at);
    }
    lines.into_iter().map(|(_, line)| fit(line, size.width)).collect()
}

fn blank() -> (Weight, Line) {
    (Weight::Space, Line::new())
}

fn plain(text: impl Into<String>) -> (String, Tint) {
    (text.into(), Tint::Plain)
}

fn faint(text: impl Into<String>) -> (String, Tint) {
    (text.into(), Tint::Faint)
}

/// Minutes and seconds, as on a watch.
pub(super) fn watch(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

fn head(scene: &Scene, width: usize) -> Line {
    let title = format!("{MARGIN}postbox demo");
    let about = format!("   a shop on SQLite, {} orders a second", scene.rate);
    let left = scene.left.map_or_else(String::new, |left| format!(", {} left", age(left)));
    let clock = format!("{}{left}", watch(scene.elapsed));
    let used = [&title, &about, &clock].iter().map(|text| text.chars().count()).sum::<usize>();
    let gap = " ".repeat(width.saturating_sub(used + MARGIN.len()).max(3));
    vec![(title, Tint::Good), faint(about), plain(gap), plain(clock)]
}

fn figures(figures: &Figures, width: usize) -> Vec<Line> {
    let lag = |lag: Option<Duration>| lag.map_or_else(|| "-".to_owned(), short);
    let alarm = |number: u64| if number > 0 { Tint::Doubtful } else { Tint::Plain };
    let cells = [
        ("written", thousands(figures.written), Tint::Plain),
        ("delivered", thousands(figures.delivered), Tint::Good),
        ("waiting", thousands(figures.waiting), alarm(figures.waiting)),
        ("rolled back", thousands(figures.rolled_back), Tint::Plain),
        ("retried", thousands(figures.retried), Tint::Plain),
        ("dead", thousands(figures.dead), alarm(figures.dead)),
        ("lag p50", lag(figures.lag.map(|(p50, _)| p50)), Tint::Plain),
        ("lag p99", lag(figures.lag.map(|(_, p99)| p99)), Tint::Plain),
        ("delivered again", thousands(figures.again), Tint::Plain),
    ];
    let (cell, columns) = (CELL.min(width), (width / CELL).clamp(1, 3));
    let line = |row: &[(&str, String, Tint)]| {
        let pairs = row.iter().flat_map(|(name, value, tint)| {
            let room = cell.saturating_sub(MARGIN.len() + name.chars().count());
            [faint(format!("{MARGIN}{name}")), (format!("{value:>room$}"), *tint)]
        });
        pairs.collect()
    };
    cells.chunks(columns).map(line).collect()
}

fn bars(figures: &Figures, width: usize) -> Vec<Line> {
    let column = |at: usize| figures.minute.iter().map(move |second| second[at]);
    let last = |at: usize| column(at).next_back().unwrap_or(0);
    // In and out are to be compared, so they have one scale.
    let flow = column(0).chain(column(1)).max().unwrap_or(0);
    let backlog = column(2).max().unwrap_or(0);
    [
        (format!("in {:>7}/s", thousands(last(0))), 0, flow, Tint::Plain),
        (format!("out {:>6}/s", thousands(last(1))), 1, flow, Tint::Good),
        (format!("waiting {:>4}", thousands(figures.waiting)), 2, backlog, Tint::Doubtful),
    ]
    .map(|(name, at, most, tint)| {
        let room = width.saturating_sub(name.chars().count() + 3 * MARGIN.len());
        let skip = figures.minute.len().saturating_sub(room);
        let drawn: String = column(at).skip(skip).map(|value| bar(value, most)).collect();
        vec![faint(format!("{MARGIN}{name}{MARGIN}")), (drawn, tint)]
    })
    .into()
}

fn bar(value: u64, most: u64) -> char {
    if value == 0 {
        return ' ';
    }
    let steps = BARS.len() as u64;
    let step = (value * steps).div_ceil(most.max(1)).clamp(1, steps) - 1;
    usize::try_from(step).ok().and_then(|step| BARS.get(step)).copied().unwrap_or(' ')
}

fn relay(state: &RelayState) -> Line {
    let (text, tint) = match state {
        RelayState::Starting => ("… starting".to_owned(), Tint::Doubtful),
        RelayState::Working { epoch } => (format!("● working, epoch {epoch}"), Tint::Good),
        RelayState::Killed { back_in } => {
            (format!("✗ killed; another starts in {:.1} s", back_in.as_secs_f64()), Tint::Bad)
        }
        RelayState::Failing { error } => (format!("✗ cannot work: {}", printable(error)), Tint::Bad),
    };
    vec![faint(format!("{MARGIN}relay  ")), (text, tint)]
}

fn sink(closed: Option<Duration>) -> Line {
    let (text, tint) = match closed {
        None => ("● the warehouse is open".to_owned(), Tint::Good),
        Some(since) => (format!("✗ the warehouse is closed for {}", age(since)), Tint::Bad),
    };
    vec![faint(format!("{MARGIN}sink   ")), (text, tint)]
}

fn told(news: &News) -> Line {
    let mark = match news.tint {
        Tint::Good => "✓",
        Tint::Bad => "✗",
        Tint::Plain | Tint::Doubtful | Tint::Faint => "·",
    };
    vec![
        faint(format!("{MARGIN}{}  ", watch(news.at))),
        (format!("{mark} "), news.tint),
        plain(printable(&news.text)),
    ]
}

fn keys(scene: &Scene, width: usize) -> Line {
    if scene.ending {
        let text = format!("{MARGIN}No more orders: delivering the rest, checking the books.");
        return vec![plain(text), faint("   Ctrl-C ends at once")];
    }
    let wide = width >= 46;
    let fail = if scene.closed.is_some() { " mend" } else { " fail" };
    let mut line = vec![plain(MARGIN)];
    for (key, what, whom) in [("k", " kill", " the relay"), ("f", fail, " the sink"), ("q", " end", "")] {
        let gap = if line.len() > 1 { " · " } else { "" };
        line.extend([faint(gap), (key.to_owned(), Tint::Good), plain(what)]);
        line.extend(wide.then(|| plain(whom)));
    }
    line
}

/// Cuts a line where the terminal ends.
fn fit(line: Line, width: usize) -> Line {
    let mut room = width;
    let mut fitting = Line::new();
    for (text, tint) in line {
        let length = text.chars().count();
        if length <= room {
            room -= length;
            fitting.push((text, tint));
        } else {
            if room > 0 {
                fitting.push((crate::render::short(&text, room), tint));
            }
            break;
        }
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::{Duration, Figures, News, RelayState, Scene, Size, Tint, bar, frame};

    fn scene() -> Scene {
        let minute =
            (0..60).map(|at| [45, if at < 50 { 45 } else { 0 }, if at < 50 { 0 } else { (at - 50) * 45 }]);
        let news = |at, tint, text: &str| News { at: Duration::from_secs(at), tint, text: text.to_owned() };
        Scene {
            rate: 50,
            elapsed: Duration::from_secs(75),
            left: Some(Duration::from_secs(25)),
            figures: Figures {
                written: 3_375,
                rolled_back: 375,
                delivered: 2_901,
                again: 2,
                retried: 160,
                dead: 14,
                waiting: 460,
                lag: Some((Duration::from_millis(17), Duration::from_millis(2_410))),
                minute: minute.collect(),
            },
            relay: RelayState::Working { epoch: 3 },
            closed: Some(Duration::from_secs(10)),
            news: vec![
                news(3, Tint::Bad, "the relay was killed"),
                news(5, Tint::Good, "another relay has taken over: epoch 2"),
                news(65, Tint::Bad, "the warehouse is closed"),
            ],
            ending: false,
        }
    }

    fn lines(scene: &Scene, width: usize, height: usize) -> Vec<String> {
        let text = |line: Vec<(String, Tint)>| line.into_iter().map(|(text, _)| text).collect::<String>();
        frame(scene, Size { width, height }).into_iter().map(text).collect()
    }

    #[test]
    fn the_usual_terminal_shows_everything() {
        let wanted = "  postbox demo   a shop on SQLite, 50 orders a second          01:15, 25s left

  written          3,375  delivered        2,901  waiting            460
  rolled back        375  retried            160  dead                14
  lag p50           17ms  lag p99           2.4s  delivered again      2

  in      45/s  ████████████████████████████████████████████████████████████
  out      0/s  ██████████████████████████████████████████████████
  waiting  460                                                     ▁▂▃▄▅▆▇██

  relay  ● working, epoch 3
  sink   ✗ the warehouse is closed for 10s

  00:03  ✗ the relay was killed
  00:05  ✓ another relay has taken over: epoch 2
  01:05  ✗ the warehouse is closed

  k kill the relay · f mend the sink · q end";
        let shown: Vec<String> =
            lines(&scene(), 80, 24).iter().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(shown.join("\n"), wanted, "\n{}", shown.join("\n"));
    }

    #[test]
    fn no_terminal_is_too_small_and_no_line_breaks() {
        let mut scene = scene();
        scene.news.push(News { at: Duration::MAX, tint: Tint::Plain, text: "long ".repeat(50) });
        scene.figures.written = u64::MAX;
        let error = "no\u{1b}[2J\nway".to_owned();
        for (relay, ending) in [(RelayState::Failing { error }, true), (RelayState::Starting, false)] {
            (scene.relay, scene.ending) = (relay, ending);
            for (width, height) in (0..100).flat_map(|width| (0..40).map(move |height| (width, height))) {
                let shown = lines(&scene, width, height);
                assert!(shown.len() <= height, "{width}x{height}");
                for line in shown {
                    assert!(
                        line.chars().count() <= width && !line.contains(char::is_control),
                        "{width}: {line:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_matters_most_stays_longest() {
        let scene = scene();
        assert_eq!(lines(&scene, 80, 1), ["  k kill the relay · f mend the sink · q end"]);
        let few = lines(&scene, 80, 6).join("\n");
        assert!(few.contains("written") && few.contains("dead") && few.contains("lag p99"), "{few}");
        assert!(few.contains("relay  ●") && few.contains("sink   ✗") && !few.contains('█'), "{few}");
        // The newest news, if not all.
        let some = lines(&scene, 80, 17).join("\n");
        assert!(some.contains("01:05") && some.contains("00:05") && !some.contains("00:03"), "{some}");
        // One column of figures where it is narrow, and the newest seconds.
        let narrow = lines(&scene, 30, 40);
        assert!(narrow.iter().any(|line| line == "  dead                14"), "{narrow:#?}");
        assert_eq!(narrow.last().map(String::as_str), Some("  k kill · f mend · q end"));
        assert!(narrow.iter().any(|line| line.ends_with("▄▅▆▇██")), "{narrow:#?}");
    }

    #[test]
    fn bars_show_the_least_there_is() {
        assert_eq!((bar(0, 100), bar(1, 1_000_000), bar(100, 100), bar(0, 0)), (' ', '▁', '█', ' '));
    }
}
