//! Results: round by round in JSON, medians and ratios in a table.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::drain::median;

/// Everything that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) events: usize,
    /// What it was measured on.
    pub(crate) server: String,
    pub(crate) entries: Vec<Entry>,
}

/// One of those that were compared.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) version: String,
    language: String,
    /// What becomes of an event that was handled.
    after: String,
    pub(crate) ours: bool,
    /// Nobody's measure: a log is another thing.
    #[serde(default)]
    log: bool,
    /// Fewer than the others, if it is slow.
    events: usize,
    /// Events per second, a round each.
    enqueue: Vec<f64>,
    drain: Vec<f64>,
    /// Bytes of log per event drained.
    wal: Vec<f64>,
    pub(crate) skipped: Option<String>,
}

impl Results {
    pub(crate) fn new(events: usize, server: String) -> Self {
        Self { events, server, entries: Vec::new() }
    }

    pub(crate) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("the results");
        serde_json::from_str(&text).expect("results")
    }

    pub(crate) fn write(&self, file: &Path) {
        let text = serde_json::to_string_pretty(self).expect("JSON");
        std::fs::write(file, text + "\n").expect("the results");
    }

    /// The one of this name, which may have rounds already.
    pub(crate) fn entry(&mut self, new: Entry) -> &mut Entry {
        let place = self.entries.iter().position(|entry| entry.name == new.name).unwrap_or_else(|| {
            self.entries.push(new);
            self.entries.len() - 1
        });
        &mut self.entries[place]
    }

    /// The fastest of the others that know the state of each event: what is everybody's one.
    fn best(&self, of: fn(&Entry) -> Option<f64>) -> Option<f64> {
        self.entries.iter().filter(|entry| !entry.ours && !entry.log).filter_map(of).max_by(f64::total_cmp)
    }

    /// In Markdown, for people and for the book.
    pub(crate) fn table(&self) -> String {
        let (enqueue, drain) = (self.best(Entry::enqueue), self.best(Entry::drain));
        let ratio =
            |rate: f64, best: Option<f64>| best.map_or(String::new(), |best| format!("{:.2}", rate / best));
        let mut table = format!(
            "{}; {} events, medians\n\n\
             | | version | language | drain, events/s | × best queue | WAL, bytes/event | enqueue, events/s | × best queue | handled events |\n\
             | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n",
            self.server,
            counted(self.events),
        );
        for entry in &self.entries {
            let Entry { name, version, language, after, .. } = entry;
            let note = if entry.events < self.events {
                format!(" ({} events)", counted(entry.events))
            } else {
                String::new()
            };
            let (Some(written), Some(drained)) = (entry.enqueue(), entry.drain()) else {
                let why = entry.skipped.as_deref().unwrap_or("nothing was measured");
                writeln!(table, "| {name} | {version} | {language} | skipped: {why} | | | | | |")
                    .expect("a line");
                continue;
            };
            writeln!(
                table,
                "| {name}{note} | {version} | {language} | {} | {} | {} | {} | {} | {after} |",
                thousands(drained),
                ratio(drained, drain),
                thousands(middle(&entry.wal).unwrap_or_default()),
                thousands(written),
                ratio(written, enqueue),
            )
            .expect("a line");
        }
        table
    }
}

impl Entry {
    pub(crate) fn new(name: &str, version: &str, language: &str, after: &str, events: usize) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            language: language.to_owned(),
            after: after.to_owned(),
            ours: false,
            log: false,
            events,
            enqueue: Vec::new(),
            drain: Vec::new(),
            wal: Vec::new(),
            skipped: None,
        }
    }

    /// Knows nothing of single events.
    pub(crate) fn log(mut self, log: bool) -> Self {
        self.log = log;
        self
    }

    pub(crate) fn ours(mut self) -> Self {
        self.ours = true;
        self
    }

    pub(crate) fn add(&mut self, enqueue: f64, drain: f64, wal: f64) {
        self.enqueue.push(enqueue);
        self.drain.push(drain);
        self.wal.push(wal);
    }

    fn enqueue(&self) -> Option<f64> {
        middle(&self.enqueue)
    }

    /// The median of the rounds.
    pub(crate) fn drain(&self) -> Option<f64> {
        middle(&self.drain)
    }
}

fn middle(rounds: &[f64]) -> Option<f64> {
    (!rounds.is_empty()).then(|| median(&mut rounds.to_vec()))
}

fn counted(events: usize) -> String {
    thousands(f64::from(u32::try_from(events).unwrap_or(u32::MAX)))
}

/// `12345.6` as `12,346`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Entry, Results, thousands};

    pub(crate) fn results() -> Results {
        let mut results = Results::new(200_000, "PostgreSQL 15".to_owned());
        let ours = results.entry(Entry::new("postbox none", "0.1.0", "Rust", "deleted", 200_000).ours());
        for drain in [90_000.0, 150_000.0, 140_000.0] {
            ours.add(50_000.0, drain, 100.0);
        }
        results.entry(Entry::new("quick", "1.0.0", "Go", "kept", 200_000)).add(40_000.0, 70_000.0, 900.0);
        results.entry(Entry::new("slow", "2.0.0", "Rust", "kept", 20_000)).add(80_000.0, 3_500.0, 2_000.0);
        results.entry(Entry::new("absent <&>", "3.0.0", "Node.js", "kept", 200_000)).skipped =
            Some("npm is not installed".to_owned());
        results
    }

    #[test]
    fn medians_are_compared_with_the_best_peer() {
        let mut results = results();
        results.entry(Entry::new("a log", "1.0.0", "Go", "kept", 200_000).log(true)).add(1e6, 1e6, 0.0);
        let table = results.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "PostgreSQL 15; 200,000 events, medians");
        assert_eq!(
            lines[4],
            "| postbox none | 0.1.0 | Rust | 140,000 | 2.00 | 100 | 50,000 | 0.62 | deleted |"
        );
        assert_eq!(lines[5], "| quick | 1.0.0 | Go | 70,000 | 1.00 | 900 | 40,000 | 0.50 | kept |");
        assert_eq!(
            lines[6],
            "| slow (20,000 events) | 2.0.0 | Rust | 3,500 | 0.05 | 2,000 | 80,000 | 1.00 | kept |"
        );
        assert!(lines[8].contains("| 1,000,000 | 14.29 |"), "no measure for others: {}", lines[8]);
        assert_eq!(lines[7], "| absent <&> | 3.0.0 | Node.js | skipped: npm is not installed | | | | | |");
    }

    #[test]
    fn results_are_added_to_those_of_a_file() {
        let text = serde_json::to_string(&results()).unwrap();
        let mut again: Results = serde_json::from_str(&text).unwrap();
        again.entry(Entry::new("quick", "1.0.0", "Go", "kept", 200_000)).add(60_000.0, 90_000.0, 900.0);
        assert_eq!(again.entries.len(), 4);
        assert_eq!(again.entries[1].drain, [70_000.0, 90_000.0]);
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
