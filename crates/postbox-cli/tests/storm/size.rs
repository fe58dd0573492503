//! What a long run leaves behind: memory that grows, a table that swells.

use std::time::Duration;

use postbox_testkit::{Program, TestDb};

use crate::scene::TABLE;

/// Memory settles in the beginning: buffers, connections, what the allocator keeps.
const SETTLED: Duration = Duration::from_mins(5);
/// How long a look at the peak takes, so that it has seen every role of a relay.
const WINDOW: Duration = Duration::from_mins(3);

/// A process's memory in the course of a run.
pub(crate) struct Memory {
    process: u32,
    /// When, and KiB.
    seen: Vec<(Duration, u64)>,
}

impl Memory {
    pub(crate) fn of(program: &Program) -> Self {
        Self { process: program.id(), seen: Vec::new() }
    }

    pub(crate) fn look(&mut self, at: Duration) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        self.seen.push((at, resident.trim().trim_end_matches(" kB").parse().unwrap()));
    }

    /// At most a tenth more in the end than when it had settled.
    pub(crate) fn judge(&self) {
        let end = self.seen.last().unwrap().0;
        let peak = |from: Duration, to: Duration| {
            let between = self.seen.iter().filter(|(at, _)| (from..=to).contains(at));
            between.map(|(_, kib)| *kib).max().expect("a look each few seconds")
        };
        let (settled, last) =
            (peak(SETTLED.saturating_sub(WINDOW), SETTLED), peak(end.saturating_sub(WINDOW), end));
        println!("memory of the first relay: {settled} KiB by minute 5, {last} KiB in the end");
        assert!(last * 10 <= settled * 11, "it grows");
    }
}

/// The table and its indexes against a fresh copy of what is alive in it: at most twice.
pub(crate) fn judge(db: &TestDb) {
    db.psql(&format!(
        "CREATE TABLE fresh (LIKE {TABLE} INCLUDING ALL); INSERT INTO fresh OVERRIDING SYSTEM VALUE SELECT * FROM {TABLE}"
    ));
    let sizes = db.psql(&format!(
        "SELECT pg_total_relation_size('{TABLE}'), pg_total_relation_size('fresh'), (SELECT count(*) FROM fresh)"
    ));
    let sizes: Vec<u64> = sizes.split('|').map(|size| size.parse().unwrap()).collect();
    println!("table: {} bytes, {} as a fresh copy of its {} rows", sizes[0], sizes[1], sizes[2]);
    assert!(sizes[0] <= 2 * sizes[1], "it swells");
}
