//! What a store can be told, whatever the database.

use std::time::Duration;

use postbox_core::embed::StoreOptions;
use postbox_core::store::{Tenants, Token};
use postbox_core::{Code, History, Order, StoreError, StoreErrorKind, TableName};
use uuid::Uuid;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::strategy::Strategy;

/// After how long without a sign of life the active relay loses its place.
const LEADER_TTL: Duration = Duration::from_secs(15);

/// And it must have missed several ticks before that.
const TICKS: u32 = 5;

/// Builds the store of a relay; `O` is how it connects.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct StoreBuilder<O> {
    pub(crate) options: O,
    pub(crate) settings: Settings,
}

/// What all stores hold of it.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) table: TableName,
    pub(crate) single_active: bool,
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) strategy: Strategy,
    pub(crate) history: History,
    pub(crate) order: Order,
    pub(crate) tenants: Tenants,
    pub(crate) leader_ttl: Duration,
    /// The relay's name; once it is built, that of this incarnation, which is never used again.
    pub(crate) holder: String,
}

impl Settings {
    /// How long the place of an active relay lasts that gives a sign of life at each of these intervals.
    pub(crate) fn ttl_for(&self, poll_interval: Duration) -> Duration {
        self.leader_ttl.max(poll_interval.saturating_mul(TICKS))
    }

    /// Refuses what a relay that claims tenants apart cannot do on this table. `indexed` tells whether it has the index by tenant.
    pub(crate) fn check_tenants(&self, table: &TableName, indexed: bool) -> Result<(), StoreError> {
        let Self { tenants, .. } = self;
        let setting = if tenants.fair { "fair_tenants" } else { "tenants" };
        let (code, why) = if self.order != Order::None {
            let why =
                format!("{setting} and ordering = \"aggregate\" do not go together: leave one of them out");
            (Code::ConfigInvalid, why)
        } else if !tenants.only.is_empty() && self.single_active {
            let why =
                "tenants needs single_active = false: the active relay would keep those of other tenants out";
            (Code::ConfigInvalid, why.to_owned())
        } else if !indexed {
            let why = format!(
                "{setting} needs an index by tenant, which {table} does not have: `postbox migrate up --fair-tenants --table {table}` \
                 adds it"
            );
            (Code::TenantsUnsupported, why)
        } else {
            return Ok(());
        };
        Err(StoreError::new(code, StoreErrorKind::Refused, why))
    }

    /// A token for one claim.
    pub(crate) fn token(&self) -> Token {
        format!("{}/{}", self.holder, Uuid::new_v4().simple()).into()
    }

    /// Who must be the active relay for a statement to do anything; none where relays share the table.
    pub(crate) fn sole_holder(&self) -> Option<&String> {
        self.single_active.then_some(&self.holder)
    }
}

impl<O> StoreBuilder<O> {
    pub(crate) fn new(options: O, table: TableName) -> Self {
        let settings = Settings {
            table,
            single_active: true,
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            strategy: Strategy::Auto,
            history: History::Keep,
            order: Order::None,
            tenants: Tenants::default(),
            leader_ttl: LEADER_TTL,
            holder: format!("pid-{}", std::process::id()),
        };
        Self { options, settings }
    }

    /// Whether only one relay works on the table at a time (the default).
    pub fn single_active(mut self, single: bool) -> Self {
        self.settings.single_active = single;
        self
    }

    /// What becomes of the rows of events that were delivered (they are kept). All relays of a table should do the same.
    pub fn history(mut self, history: History) -> Self {
        self.settings.history = history;
        self
    }

    /// The relay's name, for people: a host or pod name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.holder = name.into();
        self
    }

    /// After how long without a sign of life the active relay loses its place (15 s, and at least five times its
    /// `poll_interval`, at which signs of life are given). Where the end of its session or process is seen, it loses it at once.
    pub fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.settings.leader_ttl = ttl;
        self
    }

    /// In what order events are delivered (none, by default). By aggregate, a table in PostgreSQL must have been migrated
    /// `--ordered`, or with `--order-index` where an aggregate's writers wait for each other by themselves; one in MySQL or MariaDB
    /// with `--order-index`.
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// Whose events the relay is for, and whether they share it (everybody's, as they come). Both need the index that `migrate up`
    /// adds with `--fair-tenants` or `--tenants`; only some needs `single_active(false)`.
    pub fn tenants(mut self, mut tenants: Tenants) -> Self {
        tenants.only.sort_unstable();
        tenants.only.dedup();
        self.settings.tenants = tenants;
        self
    }

    /// What a [`Postbox`](postbox_core::Postbox) says of the relay in its own process.
    pub(crate) fn embedded(self, options: StoreOptions, name: &str) -> Self {
        let StoreOptions { single_active, order, history, tenants } = options;
        self.single_active(single_active).order(order).history(history).tenants(tenants).name(name)
    }

    /// How to connect, and the settings of a new incarnation of the relay.
    pub(crate) fn finish(mut self) -> (O, Settings) {
        let name: String = self.settings.holder.chars().filter(|c| !c.is_control()).take(64).collect();
        self.settings.holder = format!("{name}/{}", Uuid::now_v7().simple());
        (self.options, self.settings)
    }
}
