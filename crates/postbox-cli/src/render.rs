//! How results look to people: aligned columns, numbers and ages that can be read at a glance, colours on a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

/// What a text is coloured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tint {
    #[default]
    Plain,
    Good,
    Doubtful,
    Bad,
    Faint,
}

/// Whether standard output takes colours: a terminal that wants them (<https://no-color.org>).
pub(crate) fn colours() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_none_or(|term| term != "dumb")
}

/// A text in its colour, where there are any.
pub(crate) fn paint(text: &str, tint: Tint) -> String {
    let code = match tint {
        Tint::Plain => return text.to_owned(),
        Tint::Good => "32",
        Tint::Doubtful => "33",
        Tint::Bad => "31",
        Tint::Faint => "2",
    };
    if colours() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tint: Tint,
    right: bool,
}

impl Cell {
    /// Text, on the left.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self { text: printable(text.as_ref()), tint: Tint::Plain, right: false }
    }

    /// A number, on the right.
    pub(crate) fn number(number: u64) -> Self {
        Self { text: thousands(number), tint: Tint::Plain, right: true }
    }

    /// Any text, on the right.
    pub(crate) fn right(text: impl AsRef<str>) -> Self {
        Self { right: true, ..Self::text(text) }
    }

    /// The same in a colour.
    pub(crate) fn tint(mut self, tint: Tint) -> Self {
        self.tint = tint;
        self
    }
}

/// Aligned columns, two spaces between, nothing after the last.
pub(crate) fn table(head: &[&str], rows: &[Vec<Cell>]) -> String {
    let columns = head.len().max(rows.iter().map(Vec::len).max().unwrap_or_default());
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
        cells.chain(head.get(column).map(|title| title.chars().count())).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let right = |column: usize| rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.right);
    let titles = head.iter().enumerate().map(|(column, title)| Cell {
        text: (*title).to_owned(),
        tint: Tint::Faint,
        right: right(column),
    });
    let titles: Vec<Cell> = titles.collect();
    let head = (!head.is_empty()).then_some(&titles);
    let line = |row: &Vec<Cell>| {
        let last = row.len().saturating_sub(1);
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            let padding = " ".repeat(width.saturating_sub(cell.text.chars().count()));
            let painted = paint(&cell.text, cell.tint);
            match (cell.right, column == last) {
                (true, _) => format!("{padding}{painted}"),
                (false, true) => painted,
                (false, false) => format!("{painted}{padding}"),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    head.into_iter().chain(rows).map(line).collect::<Vec<_>>().join("\n")
}

/// What others wrote into the database may not move the cursor, nor hide or turn around what stands beside it.
pub(crate) fn printable(text: &str) -> String {
    let lies = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    text.chars().map(|c| if c.is_control() || lies(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A relay's name, without what makes it unique.
pub(crate) fn relay_name(holder: &str) -> String {
    printable(holder.rsplit_once('/').map_or(holder, |(name, _)| name))
}

/// The longest topic that a column shows: those of Postbox are shorter, but others can write any.
pub(crate) const TOPIC_WIDTH: usize = 128;

/// A text that fits into a column.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, such as `1 event` or `1,204 events`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// An age with as much precision as somebody on call wants.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// How long ago it was.
pub(crate) fn ago(at: OffsetDateTime, now: OffsetDateTime) -> String {
    age(Duration::try_from(now - at).unwrap_or_default())
}

/// A time of day in UTC, with its date where it is not today's.
pub(crate) fn clock(at: OffsetDateTime, now: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let format = if at.date() == now.to_offset(time::UtcOffset::UTC).date() {
        at.format(format_description!("[hour]:[minute]:[second]"))
    } else {
        at.format(format_description!("[year]-[month]-[day] [hour]:[minute]"))
    };
    format.unwrap_or_default()
}

/// A moment in full, in UTC.
pub(crate) fn moment(at: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]Z");
    at.to_offset(time::UtcOffset::UTC).format(format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Cell, Duration, age, clock, counted, relay_name, short, table, thousands};
    use time::macros::datetime;

    #[test]
    fn numbers_and_ages_for_people() {
        for (number, text) in [(0, "0"), (999, "999"), (1204, "1,204"), (1_000_000, "1,000,000")] {
            assert_eq!(thousands(number), text);
        }
        for (seconds, text) in [(0, "0s"), (38, "38s"), (124, "2m04s"), (3720, "1h02m"), (180_000, "2d02h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!((counted(1, "event"), counted(0, "event")), ("1 event".to_owned(), "0 events".to_owned()));
        let now = datetime!(2026-11-15 12:00 UTC);
        assert_eq!(clock(datetime!(2026-11-15 12:01:09 +01:00), now), "11:01:09");
        assert_eq!(clock(datetime!(2026-11-14 12:01:09 UTC), now), "2026-11-14 12:01");
    }

    #[test]
    fn columns_are_aligned_and_hostile_text_is_tamed() {
        let rows = [
            vec![Cell::number(12_000), Cell::text("a"), Cell::text("x\u{1b}[31m")],
            vec![Cell::number(1), Cell::text("überlang"), Cell::text("\u{202e}a")],
        ];
        let lines = "     N  NAME      REST\n12,000  a         x\u{fffd}[31m\n     1  überlang  \u{fffd}a";
        assert_eq!(table(&["N", "NAME", "REST"], &rows), lines);
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(relay_name("pod-7:12/0198aa"), "pod-7:12");
    }
}
