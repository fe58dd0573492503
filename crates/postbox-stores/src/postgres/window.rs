//! What an owner has in flight: as it remembers it, and as others see it. Its rows are not locked: they stand in its row of
//! `postbox_relay`.

use std::collections::hash_map::Entry;

use postbox_core::TableName;
use postbox_core::hash::RowMap;
use uuid::Uuid;

use super::place::Place;
use crate::cursor::Key;
use crate::keys::Keys;
use crate::table::Template;

/// The rows that are in flight.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By id, with the epoch that they were read in.
    pub(super) rows: RowMap<Uuid, (i64, Spot)>,
    /// Those of all of them.
    pub(super) keys: Keys,
    pub(super) strands: InFlight,
}

/// How many rows of a strand are in flight, where order is kept.
pub(super) type InFlight = RowMap<i64, usize>;

/// Where a row that is in flight stands in the order of reading, in its table, and in the order of delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) key: Key,
    pub(super) place: Place,
    /// Where order is kept. Nothing more is read of a strand that has something in flight: the relay may be about to give that back,
    /// and then it must get the first one again, and not what follows it.
    pub(super) strand: Option<i64>,
}

impl Window {
    /// Whether a row is in flight.
    pub(super) fn has(&self, row: &Uuid) -> bool {
        self.rows.contains_key(row)
    }

    pub(super) fn put(&mut self, epoch: i64, row: Uuid, spot: Spot) {
        self.keys.add(spot.key);
        if let Some(strand) = spot.strand {
            *self.strands.entry(strand).or_default() += 1;
        }
        if let Some((_, before)) = self.rows.insert(row, (epoch, spot)) {
            self.forget(before);
        }
    }

    /// A row that was read in this epoch has left it; one that was read again since then has not.
    pub(super) fn remove(&mut self, epoch: i64, row: Uuid) {
        if let Entry::Occupied(entry) = self.rows.entry(row)
            && entry.get().0 == epoch
        {
            let (_, spot) = entry.remove();
            self.forget(spot);
        }
    }

    /// What was read in another epoch is not here any more.
    pub(super) fn keep(&mut self, epoch: i64) {
        let others: Vec<(i64, Uuid)> = self
            .rows
            .iter()
            .filter(|(_, (read, _))| *read != epoch)
            .map(|(id, (read, _))| (*read, *id))
            .collect();
        for (read, id) in others {
            self.remove(read, id);
        }
    }

    fn forget(&mut self, Spot { key, strand, .. }: Spot) {
        self.keys.remove(key);
        if let Some(Entry::Occupied(mut rows)) = strand.map(|strand| self.strands.entry(strand)) {
            *rows.get_mut() -= 1;
            if *rows.get() == 0 {
                rows.remove();
            }
        }
    }
}

/// Whether a row is in the window of the active relay: the condition in SQL, true or false and never null. `row` is what stands
/// before its columns, such as `m.`.
///
/// A window is written when rows come into it, so that it may still name some that have left. What was put off lies behind
/// its end; what was delivered or died is told by its own columns.
pub(super) fn in_flight(table: &TableName, row: &str) -> String {
    condition(table, row, " AND w.expires_at > clock_timestamp()")
}

/// The same, also after the owner's time is over: until another has taken its place, what it settles still counts.
pub(super) fn may_be_settled(table: &TableName, row: &str) -> String {
    condition(table, row, "")
}

/// The owner's row is read once for a whole statement, whatever the number of rows.
fn condition(table: &TableName, row: &str, and: &str) -> String {
    let key = table.to_string().replace('\'', "''");
    let of = |column: &str| format!("(SELECT {column} FROM {{{{relay}}}} w WHERE w.tbl = '{key}'{and})");
    let (win, to) = (of("w.win || '{}'"), of("w.win_to"));
    let sql =
        format!("coalesce(width_bucket({row}sequence, {win}) % 2 = 1 AND {row}available_at <= {to}, false)");
    Template::of(table, '"').fill(&sql)
}
