//! The picture: a sentence on how all is, a line for each table, and what is wrong under it. It fits into 80 columns.

use std::time::Duration;

use time::OffsetDateTime;

use super::look::{Row, Seen, State};
use crate::cmd::demo::view::{Line, Size};
use crate::late::{FAR_TOO_LATE, LATE};
use crate::render::{Tint, age, clock, counted, printable, relay_name, short, thousands};

/// From here on there is room for more columns.
const WIDE: usize = 110;

/// How many causes of death are shown for one table.
const CAUSES: usize = 5;

/// What is to be shown.
pub(super) struct Picture<'a> {
    pub(super) seen: &'a Seen,
    pub(super) every: Duration,
    /// On a terminal: whether the picture is held.
    pub(super) live: Option<bool>,
    /// How many lines of the tables are above the picture.
    pub(super) scroll: usize,
}

/// How a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Well,
    Doubtful,
    Ill,
}

impl Health {
    fn tint(self) -> Tint {
        match self {
            Self::Well => Tint::Good,
            Self::Doubtful => Tint::Doubtful,
            Self::Ill => Tint::Bad,
        }
    }
}

/// The lines of a picture.
pub(super) fn frame(picture: &Picture<'_>, size: Size) -> Vec<Line> {
    let mut lines = vec![title(picture, size.width)];
    let Some(_) = picture.seen.at else {
        lines.push(vec![("looking …".to_owned(), Tint::Faint)]);
        return lines;
    };
    lines.push(sentence(picture.seen, size.width));
    lines.push(Vec::new());
    let (head, body) = tables(picture.seen, size.width);
    lines.push(head);
    let keys =
        picture.live.map(|_| vec![(cut("q quit  p hold  d dead  j/k scroll", size.width), Tint::Faint)]);
    let room = size.height.saturating_sub(lines.len() + 2 * usize::from(keys.is_some()));
    lines.extend(body.into_iter().skip(picture.scroll).take(room.max(1)));
    if let Some(keys) = keys {
        lines.extend([Vec::new(), keys]);
    }
    lines.truncate(size.height.max(1));
    lines
}

/// The last line that can be the first below the head.
pub(super) fn last_line(seen: &Seen) -> usize {
    tables(seen, WIDE).1.len().saturating_sub(1)
}

fn title(picture: &Picture<'_>, width: usize) -> Line {
    let at = picture.seen.at.map(|at| clock(at, OffsetDateTime::now_utc())).unwrap_or_default();
    let tables = counted(picture.seen.rows.len() as u64, "table");
    let how = match picture.live {
        None => String::new(),
        Some(true) => "  held".to_owned(),
        Some(false) => format!("  every {:?}", picture.every),
    };
    let text = format!("postbox top  {at} UTC  {tables}{how}");
    vec![(cut(&text, width), if picture.live == Some(true) { Tint::Doubtful } else { Tint::Plain })]
}

/// One sentence: the worst first.
fn sentence(seen: &Seen, width: usize) -> Line {
    let mut worst = (Health::Well, String::new());
    for row in &seen.rows {
        for (health, what) in troubles(row) {
            if health > worst.0 {
                worst = (health, format!("{}: {what}", row.name));
            }
        }
    }
    let (health, what) = worst;
    let text = match health {
        Health::Well => format!("✓ events flow{}", totals(seen)),
        Health::Doubtful => format!("! {what}"),
        Health::Ill => format!("✗ {what}"),
    };
    vec![(cut(&printable(&text), width), health.tint())]
}

fn totals(seen: &Seen) -> String {
    let states = || seen.rows.iter().filter_map(|row| row.state.as_ref().ok());
    let waiting: u64 = states().map(|state| state.counts.pending).sum();
    let out: f64 = states().filter_map(|state| state.counts.published_per_second).sum();
    format!("  waiting {}  out {}/s", thousands(waiting), rate(Some(out)))
}

/// What is wrong with a table.
fn troubles(row: &Row) -> Vec<(Health, String)> {
    let state = match &row.state {
        Ok(state) => state,
        Err(error) => return vec![(Health::Ill, error.clone())],
    };
    let State { counts, relay, unled, .. } = state;
    let mut troubles = Vec::new();
    let oldest = counts.oldest_pending_age;
    if relay.paused_at.is_some() {
        let who = relay.paused_by.as_deref().unwrap_or("someone");
        let reason = relay.paused_reason.as_deref().filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        troubles.push((Health::Doubtful, format!("paused by {who}{reason}")));
    } else if relay.leader.is_none() && !unled && counts.pending > 0 && oldest > LATE {
        troubles.push((Health::Ill, format!("nobody relays, {} wait", counted(counts.pending, "event"))));
    } else if oldest > FAR_TOO_LATE {
        troubles.push((Health::Ill, format!("the oldest event has waited for {}", age(oldest))));
    } else if oldest > LATE {
        troubles.push((Health::Doubtful, format!("the oldest event has waited for {}", age(oldest))));
    }
    if counts.blocked > 0 {
        let aggregates = counted(counts.blocked, "aggregate");
        troubles.push((Health::Ill, format!("{aggregates} blocked behind dead events")));
    }
    if counts.dead > 0 {
        let what = format!("{} dead: postbox dead list", counted(counts.dead, "event"));
        troubles.push((Health::Ill, what));
    }
    troubles
}

/// The head of the columns, and all that is under it.
fn tables(seen: &Seen, width: usize) -> (Line, Vec<Line>) {
    let wide = width >= WIDE;
    let numbers: &[(&str, usize)] = if wide {
        &[("WAITING", 10), ("OLDEST", 7), ("IN/s", 7), ("OUT/s", 7), ("FLIGHT", 7), ("LATER", 7), ("DEAD", 7)]
    } else {
        &[("WAITING", 9), ("OLDEST", 7), ("IN/s", 6), ("OUT/s", 6), ("DEAD", 6)]
    };
    let taken: usize = numbers.iter().map(|(_, width)| width + 1).sum();
    let names = width.saturating_sub(taken + 1);
    let longest = seen.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or_default();
    // The table is worth more than who relays it.
    let name = longest.clamp(5, names.saturating_sub(11).max(5));
    let relay = names.saturating_sub(name + 1).min(24);
    let columns = |first: String, second: String, cells: Vec<String>| {
        let mut text = format!("{first:<name$} {second:<relay$}");
        for (cell, (_, width)) in cells.iter().zip(numbers) {
            text = format!("{text} {cell:>width$}");
        }
        cut(&text, width)
    };
    let titles = numbers.iter().map(|(title, _)| (*title).to_owned()).collect();
    let head = vec![(columns("TABLE".to_owned(), "RELAY".to_owned(), titles), Tint::Faint)];
    let mut body = Vec::new();
    for row in &seen.rows {
        let troubles = troubles(row);
        let health = troubles.iter().map(|(health, _)| *health).max().unwrap_or(Health::Well);
        let tint = if health == Health::Well { Tint::Plain } else { health.tint() };
        let first = short(&printable(&row.name), name);
        match &row.state {
            Ok(state) => {
                let cells = cells(state, wide);
                body.push(vec![(columns(first, short(&leader(state), relay), cells), tint)]);
            }
            Err(_) => body.push(vec![(columns(first, "?".to_owned(), Vec::new()), tint)]),
        }
        for (health, what) in troubles {
            let mark = if health == Health::Ill { "✗" } else { "!" };
            body.push(vec![(cut(&printable(&format!("  {mark} {what}")), width), health.tint())]);
        }
        for cause in row.state.iter().flat_map(|state| state.causes.iter().take(CAUSES)) {
            let text = format!("    {:>6}  {}  {}", thousands(cause.events), cause.cause, cause.topic);
            body.push(vec![(cut(&printable(&text), width), Tint::Faint)]);
        }
    }
    (head, body)
}

fn cells(state: &State, wide: bool) -> Vec<String> {
    let counts = &state.counts;
    let about = if counts.estimated { "~" } else { "" };
    let oldest = if counts.pending == 0 { "-".to_owned() } else { age(counts.oldest_pending_age) };
    let mut cells = vec![
        format!("{about}{}", thousands(counts.pending)),
        oldest,
        rate(state.written_per_second),
        rate(counts.published_per_second),
    ];
    if wide {
        cells.extend([thousands(counts.locked), thousands(counts.scheduled)]);
    }
    cells.push(thousands(counts.dead));
    cells
}

/// Who relays.
fn leader(state: &State) -> String {
    let nobody = if state.unled { "-" } else { "nobody" };
    state.relay.leader.as_deref().map_or_else(|| nobody.to_owned(), relay_name)
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "?".to_owned(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
        Some(rate) => thousands(rate.round() as u64),
    }
}

fn cut(text: &str, width: usize) -> String {
    short(text, width.max(1))
}

#[cfg(test)]
mod tests {
    use postbox_core::{TableCounts, TableRelay};
    use time::macros::datetime;

    use super::*;

    fn row(name: &str, pending: u64, oldest: u64, dead: u64, leader: Option<&str>) -> Row {
        let counts = TableCounts {
            pending,
            dead,
            oldest_pending_age: Duration::from_secs(oldest),
            published_per_second: Some(910.4),
            ..TableCounts::default()
        };
        let relay = TableRelay { leader: leader.map(str::to_owned), ..TableRelay::default() };
        let written_per_second = Some(3.25);
        Row {
            name: name.to_owned(),
            state: Ok(State { counts, relay, written_per_second, ..State::default() }),
        }
    }

    fn drawn(rows: Vec<Row>, width: usize, height: usize, scroll: usize, live: Option<bool>) -> Vec<String> {
        let seen = Seen { at: Some(datetime!(2020-01-01 12:00 UTC)), rows };
        let picture = Picture { seen: &seen, every: Duration::from_secs(2), live, scroll };
        let lines = frame(&picture, Size { width, height });
        lines.iter().map(|line| line.iter().map(|(text, _)| text.as_str()).collect()).collect()
    }

    #[test]
    fn a_table_is_a_line_of_80_columns() {
        let rows = vec![row("public.shop_outbox", 1_204, 3, 0, Some("shop-1:4711/0198aa"))];
        let lines = drawn(rows, 80, 24, 0, None);
        assert_eq!(lines[1], "✓ events flow  waiting 1,204  out 910/s");
        assert_eq!(
            lines[3..],
            [
                "TABLE              RELAY                   WAITING  OLDEST   IN/s  OUT/s   DEAD",
                "public.shop_outbox shop-1:4711               1,204      3s    3.2    910      0",
            ]
        );
    }

    #[test]
    fn the_worst_comes_first_and_everything_is_said_under_its_table() {
        let rows = vec![
            row("public.a_outbox", 5, 30, 0, Some("x/1")),
            row("public.b_outbox", 0, 0, 3, Some("x/1")),
            Row { name: "public.c_outbox".to_owned(), state: Err("no answer".to_owned()) },
        ];
        let lines = drawn(rows, 80, 24, 0, None);
        assert_eq!(lines[1], "✗ public.b_outbox: 3 events dead: postbox dead list");
        let said = |text: &str| lines.iter().any(|line| line == text);
        assert!(said("  ! the oldest event has waited for 30s"), "{lines:#?}");
        assert!(said("  ✗ 3 events dead: postbox dead list") && said("  ✗ no answer"), "{lines:#?}");
    }

    #[test]
    fn a_table_is_as_late_as_a_doctor_finds_it() {
        for (oldest, said) in [
            (299, "  ! the oldest event has waited for 4m59s"),
            (301, "  ✗ the oldest event has waited for 5m01s"),
        ] {
            let lines = drawn(vec![row("public.a_outbox", 5, oldest, 0, Some("x/1"))], 80, 24, 0, None);
            assert!(lines.iter().any(|line| line == said), "{lines:#?}");
        }
    }

    #[test]
    fn where_nobody_leads_nobody_is_missed() {
        for (unled, said) in [(false, true), (true, false)] {
            let mut row = row("public.a_outbox", 5, 30, 0, None);
            row.state.as_mut().unwrap().unled = unled;
            let lines = drawn(vec![row], 80, 24, 0, None);
            assert_eq!(lines.iter().any(|line| line.contains("nobody")), said, "{lines:#?}");
        }
    }

    #[test]
    fn it_fits_into_any_terminal() {
        for width in [1, 20, 40, 80, 109, 110, 200] {
            for height in [1, 3, 5, 10, 50] {
                let rows =
                    (0..20).map(|n| row(&format!("public.a_rather_long_name_{n}_outbox"), n, 99, n, None));
                for live in [None, Some(false), Some(true)] {
                    let lines = drawn(rows.clone().collect(), width, height, 3, live);
                    assert!(lines.len() <= height, "{} lines of {height}", lines.len());
                    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
                    assert!(longest <= width, "{longest} of {width}: {lines:#?}");
                }
            }
        }
    }

    #[test]
    fn what_others_wrote_moves_no_cursor() {
        let rows = vec![Row { name: "a".to_owned(), state: Err("\u{1b}[2J gone".to_owned()) }];
        assert!(drawn(rows, 80, 24, 0, None).iter().all(|line| !line.contains('\u{1b}')));
    }
}
