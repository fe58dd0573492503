//! The account at the end: what the shop and the warehouse remember against what the database says.

use std::fmt;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use serde_json::{Value, json};
use sqlx::{Row as _, SqlitePool};
use uuid::Uuid;

use super::ledger::Ledger;
use super::pulse::Histogram;
use super::trouble::Past;
use crate::render::{Tint, counted, paint, thousands};

/// What came of it all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    past: Past,
    written: u64,
    rolled_back: u64,
    delivered: u64,
    dead: u64,
    again: u64,
    retried: u64,
    not_placed: u64,
    lag: Option<(Duration, Duration)>,
    faults: Faults,
}

/// What must not be: each of them is zero, or the books do not balance.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    /// Written, and neither delivered nor dead.
    lost: u64,
    /// Delivered, and not written.
    invented: u64,
    /// Rows of orders that the shop did not commit, or commits that left no row.
    rows: u64,
    /// Orders that do not have exactly one event.
    eventless: u64,
    /// Events that have no order.
    orderless: u64,
    /// Events that are neither published nor dead.
    unsettled: u64,
    /// Published, says the table, but they never arrived.
    unproven: u64,
}

/// What the database says of one number.
#[derive(Debug, Clone, Default)]
struct Line {
    number: i64,
    orders: i64,
    events: i64,
    /// Of one of its events.
    event_id: Option<Uuid>,
    published: i64,
    dead: i64,
}

impl Account {
    /// Reads the tables from one end to the other and compares them with the books.
    pub(super) async fn make(
        pool: &SqlitePool,
        ledger: Ledger,
        lags: &Histogram,
        past: Past,
    ) -> Result<Self, sqlx::Error> {
        let mut audit = Audit::new(ledger);
        let mut lines = sqlx::query(include_str!("audit.sql")).fetch(pool);
        while let Some(row) = lines.try_next().await? {
            audit.compare(&Line {
                number: row.try_get(0)?,
                orders: row.try_get(1)?,
                events: row.try_get(2)?,
                event_id: row.try_get(3)?,
                published: row.try_get(4)?,
                dead: row.try_get(5)?,
            });
        }
        let lag = lags.percentile(50).zip(lags.percentile(99));
        Ok(Self { past, lag, ..audit.close() })
    }

    /// Nothing is lost and nothing was made up, and the database says the same.
    pub(super) fn balances(&self) -> bool {
        self.faults == Faults::default()
    }

    pub(super) fn to_json(&self) -> Value {
        let Faults { lost, invented, rows, eventless, orderless, unsettled, unproven } = self.faults;
        let ms = |lag: Duration| lag.as_secs_f64() * 1e3;
        json!({
            "balances": self.balances(), "written": self.written, "rolled_back": self.rolled_back,
            "delivered": self.delivered, "dead": self.dead, "missing": lost, "invented": invented, "repeated": self.again,
            "retried": self.retried, "orders_not_placed": self.not_placed, "orders_not_as_committed": rows,
            "orders_without_one_event": eventless, "events_without_order": orderless, "unsettled": unsettled,
            "published_but_not_arrived": unproven, "relay_kills": self.past.kills, "sink_outages": self.past.outages,
            "lag_p50_ms": self.lag.map(|(p50, _)| ms(p50)), "lag_p99_ms": self.lag.map(|(_, p99)| ms(p99)),
        })
    }
}

/// The comparison, line by line.
struct Audit {
    ledger: Ledger,
    account: Account,
    /// Committed orders whose row was seen.
    found: u64,
    /// Committed orders that are dead and never arrived.
    buried: u64,
}

impl Audit {
    fn new(ledger: Ledger) -> Self {
        Self { ledger, account: Account::default(), found: 0, buried: 0 }
    }

    fn compare(&mut self, line: &Line) {
        let Self { ledger, account, .. } = self;
        let faults = &mut account.faults;
        let order = u64::try_from(line.number).unwrap_or(u64::MAX);
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        // The answer to its commit got lost; here it is.
        if line.orders > 0 && ledger.unknown.has(order) {
            ledger.committed.add(order);
        }
        let committed = ledger.committed.has(order);
        match (line.orders, committed) {
            (1, true) => self.found += 1,
            (0, _) => {}
            _ => faults.rows += 1,
        }
        let named = line.event_id.is_none_or(|id| id == ledger.event_id(order));
        match line.orders {
            0 => faults.orderless += count(line.events),
            _ => faults.eventless += u64::from(line.events != 1 || !named),
        }
        faults.unsettled += count(line.events - line.published - line.dead);
        let arrived = ledger.arrived.has(order);
        faults.unproven += u64::from(line.published > 0 && !arrived);
        account.dead += count(line.dead);
        self.buried += u64::from(line.dead > 0 && committed && !arrived);
    }

    fn close(self) -> Account {
        let Self { ledger, mut account, found, buried } = self;
        let (committed, arrived) = (&ledger.committed, &ledger.arrived);
        let missed = committed.without(arrived);
        account.written = committed.count();
        account.rolled_back = ledger.rolled_back + ledger.unknown.without(committed);
        account.delivered = committed.count() - missed;
        account.again = ledger.again();
        account.retried = ledger.retried;
        account.not_placed = ledger.not_placed;
        account.faults.lost = missed - buried;
        account.faults.invented = arrived.without(committed) + ledger.strangers;
        account.faults.rows += committed.count() - found;
        account
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults { lost, invented, rows, eventless, orderless, unsettled, unproven } = self.faults;
        let fault = |number: u64| if number == 0 { Tint::Plain } else { Tint::Bad };
        let again =
            if self.again == 0 { "" } else { "   under the same event_id, by which consumers know them" };
        let (kills, outages) = (counted(self.past.kills, "kill"), counted(self.past.outages, "outage"));
        writeln!(f, "The account, after {kills} of the relay and {outages} of the sink")?;
        for (what, number, tint, note) in [
            ("orders written, each with its event", self.written, Tint::Plain, ""),
            ("delivered to the warehouse", self.delivered, Tint::Plain, ""),
            ("refused for good: dead, and kept", self.dead, Tint::Plain, ""),
            ("lost", lost, fault(lost), ""),
            ("rolled back, and never heard of", self.rolled_back, Tint::Plain, ""),
            ("delivered though not written", invented, fault(invented), ""),
            ("delivered again after a kill", self.again, Tint::Plain, again),
            ("in the database: orders not as committed", rows, fault(rows), ""),
            ("                 orders without one event", eventless, fault(eventless), ""),
            ("                 events without an order", orderless, fault(orderless), ""),
            ("                 events not settled", unsettled, fault(unsettled), ""),
            ("                 settled, not arrived", unproven, fault(unproven), ""),
        ] {
            writeln!(f, "  {what:<41} {}{note}", paint(&format!("{:>9}", thousands(number)), tint))?;
        }
        if self.not_placed > 0 {
            writeln!(f, "  {:<41} {:>9}", "orders that the database refused", thousands(self.not_placed))?;
        }
        if let Some((p50, p99)) = self.lag {
            writeln!(f, "  lag from written to delivered: p50 {}, p99 {}", short(p50), short(p99))?;
        }
        let (verdict, tint) = if self.balances() {
            ("✓ The books balance.", Tint::Good)
        } else {
            ("✗ The books do not balance.", Tint::Bad)
        };
        f.write_str(&paint(verdict, tint))
    }
}

/// A time in four letters or a few more.
pub(super) fn short(time: Duration) -> String {
    match time.as_millis() {
        0..1_000 => format!("{}ms", time.as_millis()),
        1_000..10_000 => format!("{:.1}s", time.as_secs_f64()),
        _ => crate::render::age(time),
    }
}

#[cfg(test)]
mod tests {
    use postbox_core::{Outbox, TableName};

    use super::super::books::Books;
    use super::super::database;
    use super::super::ledger::Orders;
    use super::super::shop::place;
    use super::{Account, Audit, Duration, Faults, Ledger, Line, Past, Uuid, short};

    /// Four orders: delivered, dead, delivered twice, rolled back; and what the database then says.
    fn well() -> (Ledger, Vec<Line>) {
        let mut ledger = Ledger::new();
        for order in [1, 2, 3] {
            ledger.committed.add(order);
        }
        ledger.rolled_back = 1;
        for order in [1, 3, 3] {
            ledger.arrive(ledger.event_id(order), order);
        }
        let line = |number: u64, published| Line {
            number: i64::try_from(number).unwrap(),
            orders: 1,
            events: 1,
            event_id: Some(ledger.event_id(number)),
            published,
            dead: 1 - published,
        };
        let lines = vec![line(1, 1), line(2, 0), line(3, 1)];
        (ledger, lines)
    }

    fn account(change: impl FnOnce(&mut Ledger, &mut Vec<Line>)) -> Account {
        let (mut ledger, mut lines) = well();
        change(&mut ledger, &mut lines);
        let mut audit = Audit::new(ledger);
        for line in &lines {
            audit.compare(line);
        }
        audit.close()
    }

    #[test]
    fn what_is_well_balances() {
        let account = account(|_, _| {});
        assert!(account.balances(), "{account}");
        assert_eq!((account.written, account.delivered, account.dead, account.again), (3, 2, 1, 1));
        assert_eq!((account.rolled_back, account.to_json()["balances"].as_bool()), (1, Some(true)));
        assert!(account.to_string().contains("✓ The books balance."), "{account}");
        assert!(account.to_string().lines().all(|line| line.chars().count() < 120), "{account}");
    }

    type Wrong = (&'static str, fn(&mut Ledger, &mut Vec<Line>), Faults);

    #[test]
    fn every_kind_of_fault_is_found() {
        let none = Faults::default;
        let cases: [Wrong; 9] = [
            (
                "an event that vanished from the table",
                |ledger, lines| {
                    ledger.arrived = Orders::default();
                    (lines[0].events, lines[0].published, lines[0].event_id) = (0, 0, None);
                    ledger.arrive(ledger.event_id(3), 3);
                },
                Faults { lost: 1, eventless: 1, ..none() },
            ),
            (
                "an order that vanished with its event, dead as it was",
                |_, lines| {
                    lines.remove(1);
                },
                Faults { lost: 1, rows: 1, ..none() },
            ),
            (
                "a rolled back order that arrived",
                |ledger, _| ledger.arrive(ledger.event_id(4), 4),
                Faults { invented: 1, ..none() },
            ),
            (
                "an arrival under a strange id",
                |ledger, _| ledger.arrive(Uuid::nil(), 1),
                Faults { invented: 1, ..none() },
            ),
            (
                "a rolled back order that left its event",
                |_, lines| lines.push(Line { number: 4, events: 1, dead: 1, ..Line::default() }),
                Faults { orderless: 1, ..none() },
            ),
            (
                "a rolled back order that left its row",
                |_, lines| lines.push(Line { number: 4, orders: 1, ..Line::default() }),
                Faults { rows: 1, eventless: 1, ..none() },
            ),
            (
                "an order with two events",
                |_, lines| (lines[0].events, lines[0].published) = (2, 2),
                Faults { eventless: 1, ..none() },
            ),
            ("an event not settled", |_, lines| lines[0].published = 0, Faults { unsettled: 1, ..none() }),
            (
                "a delivery that never was",
                |_, lines| (lines[1].published, lines[1].dead) = (1, 0),
                Faults { lost: 1, unproven: 1, ..none() },
            ),
        ];
        for (name, wrong, faults) in cases {
            let account = account(wrong);
            assert_eq!(account.faults, faults, "{name}");
            assert!(!account.balances(), "{name}");
        }
    }

    #[test]
    fn a_commit_without_an_answer_is_looked_up() {
        let made = account(|ledger, lines| {
            for order in [4, 5] {
                ledger.unknown.add(order);
            }
            ledger.arrive(ledger.event_id(4), 4);
            let event_id = Some(ledger.event_id(4));
            lines.push(Line { number: 4, orders: 1, events: 1, event_id, published: 1, dead: 0 });
        });
        assert!(made.balances(), "{made}");
        assert_eq!((made.written, made.rolled_back), (4, 2));
    }

    /// Not what the program believes of the database, but what stands in it.
    #[tokio::test]
    async fn whoever_meddles_with_the_database_is_found_out() {
        let meddled = |sql: &'static str| async move {
            let folder = tempfile::tempdir().unwrap();
            let table: TableName = "shop_outbox".parse().unwrap();
            let (_, pool) = database(folder.path(), &table).await.unwrap();
            let (books, outbox) = (Books::new(), Outbox::new(table));
            for order in 1..=11 {
                place(&pool, &outbox, &books, order).await.unwrap();
                if order % 10 != 0 {
                    books.arrived(books.event_id(order), order, Duration::from_millis(1));
                }
            }
            sqlx::query("UPDATE shop_outbox SET published_at = 1").execute(&pool).await.unwrap();
            sqlx::raw_sql(sql).execute(&pool).await.unwrap();
            let (ledger, lags) = books.close();
            Account::make(&pool, ledger, &lags, Past::default()).await.unwrap()
        };
        let honest = meddled("").await;
        assert!(honest.balances(), "{honest}");
        assert_eq!((honest.written, honest.delivered, honest.rolled_back), (10, 10, 1));
        let none = Faults::default;
        for (sql, faults) in [
            ("DELETE FROM shop_outbox WHERE sequence = 3", Faults { eventless: 1, ..none() }),
            ("DELETE FROM orders WHERE id = 3", Faults { rows: 1, orderless: 1, ..none() }),
            ("INSERT INTO orders VALUES (10, 'tea', 1)", Faults { rows: 1, eventless: 1, ..none() }),
            (
                "UPDATE shop_outbox SET published_at = NULL WHERE sequence = 3",
                Faults { unsettled: 1, ..none() },
            ),
            (
                "UPDATE shop_outbox SET event_id = randomblob(16) WHERE sequence = 3",
                Faults { eventless: 1, ..none() },
            ),
            (
                "UPDATE shop_outbox SET aggregate_id = '4' WHERE sequence = 3",
                Faults { eventless: 2, ..none() },
            ),
        ] {
            assert_eq!(meddled(sql).await.faults, faults, "{sql}");
        }
    }

    #[test]
    fn times_are_short() {
        for (ms, text) in [(7, "7ms"), (999, "999ms"), (2076, "2.1s"), (12_000, "12s"), (70_000, "1m10s")] {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
    }
}
