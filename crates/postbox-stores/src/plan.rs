//! A migration before it happens: what has to be done, what that asks of others, and what it would remove.

use postbox_core::TableName;

/// One step of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it does, in a few words, such as `+ column dead_at`.
    pub what: String,
    /// The statement.
    pub sql: String,
    /// What it asks of others.
    pub lock: StepLock,
}

/// How a step gets along with others who use the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepLock {
    /// Nobody notices.
    None,
    /// A lock for a moment: asked for with a time limit, tried again.
    Short,
    /// Takes long but lets everybody work; must not run in a transaction.
    Concurrent,
    /// Who wants to write waits until it is done.
    Writers,
}

/// Everything that has to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The table, with its schema where the database has schemas.
    pub table: TableName,
    /// The steps; none if the table is as it should be.
    pub steps: Vec<Step>,
}

/// What a table is to have beyond what all have. What is there already stays, and is kept up, also where it is not asked for
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is something of its own that a table can have")]
pub struct Extras {
    /// `<table>_history`, for relays that move what was published.
    pub history: bool,
    /// What delivery in order needs.
    pub ordered: Ordered,
    /// A trigger by which also a plain INSERT wakes a relay that sleeps. SQLite needs none.
    pub wake_trigger: bool,
    /// The index by tenant, for relays that claim them apart (`fair_tenants`, `tenants`).
    pub tenants: bool,
    /// `<module>_inbox`, for messages that the module receives.
    pub inbox: bool,
    /// `<module>_idempotency`, for calls by their idempotency keys.
    pub idempotency: bool,
}

/// What a table has for delivery in order; each has what the one before it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ordered {
    /// Nothing, or what it has already.
    #[default]
    AsItIs,
    /// The indexes by aggregate. Writers must see to it that one aggregate's transactions commit in the order in which they
    /// drew their numbers, by a lock of their own.
    Index,
    /// Also the trigger that does this for them: one aggregate's writers wait for each other.
    Writers,
}

/// What a table and its history hold: what goes with them when they are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Events that wait for their delivery. In a table of the standard columns, which do not tell, dead ones count as such.
    pub waiting: u64,
    /// Dead events.
    pub dead: u64,
    /// Published events, also those that were moved to the history.
    pub published: u64,
}

impl Held {
    /// How a removal is called in the audit log.
    pub(crate) const ACTION: &'static str = "migrate_down";

    /// Counts them, in this order, in one pass.
    pub(crate) fn sql(tells_dead: bool, has_history: bool) -> String {
        let dead = if tells_dead { "dead_at IS NOT NULL" } else { "1 = 0" };
        let moved = if has_history { " + (SELECT count(*) FROM {{history}})" } else { "" };
        format!(
            "SELECT count(CASE WHEN published_at IS NULL AND NOT ({dead}) THEN 1 END),
                    count(CASE WHEN published_at IS NULL AND {dead} THEN 1 END), count(published_at){moved}
             FROM {{{{table}}}}"
        )
    }

    /// What the statement answered.
    pub(crate) fn of((waiting, dead, published): (i64, i64, i64)) -> Self {
        let [waiting, dead, published] =
            [waiting, dead, published].map(|count| u64::try_from(count).unwrap_or_default());
        Self { waiting, dead, published }
    }

    /// All of them, as the audit log counts events.
    pub(crate) fn all(self) -> i64 {
        i64::try_from(self.waiting + self.dead + self.published).unwrap_or(i64::MAX)
    }

    /// What the audit log says of them.
    pub(crate) fn described(self) -> serde_json::Value {
        let Self { waiting, dead, published } = self;
        serde_json::json!({ "waiting": waiting, "dead": dead, "published": published })
    }
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, sql: impl Into<String>, lock: StepLock) -> Self {
        Self { what: what.into(), sql: sql.into(), lock }
    }
}
