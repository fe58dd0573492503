//! Makes the parts out of the configuration. The only place that knows all crates.

use postbox_core::cleaner::SweepRequest;
use postbox_core::telemetry::Telemetry;
use postbox_core::{Cleaner, Code, OnDead, Order, Pattern, Relay, RelayHealth, Settings, TableName, Tenants};
use postbox_sinks::AnySink;
use postbox_stores::any::{AnyAdmin, AnyIdempotency, AnyStore, Dialect, StoreSettings, Strategy};

use crate::config::{Config, Ordering, mask};
use crate::database::Database;
use crate::report::{Failure, Problem};

/// Parses table names; all that are wrong are reported.
pub(crate) fn tables(names: &[String]) -> Result<Vec<TableName>, Failure> {
    let mut problems = Vec::new();
    let mut tables = Vec::new();
    for name in names {
        match name.parse::<TableName>() {
            Ok(table) => tables.push(table),
            // What stands in the wrong place may be a URL with its password.
            Err(error) => {
                let message = error.to_string().replace(name.as_str(), &mask(name));
                problems.push(Problem::new(error.code(), message));
            }
        }
    }
    if problems.is_empty() { Ok(tables) } else { Err(Failure::Problems(problems)) }
}

/// What a sweep of the configuration deletes.
pub(crate) fn sweep(config: &Config) -> SweepRequest {
    SweepRequest {
        retention: config.cleaner.retention,
        dead_retention: config.cleaner.dead_retention,
        batch: 500,
        max_attempts: max_attempts(config),
        dead_letters: config.dead_letter.is_some(),
    }
}

/// A relay that is ready to run.
#[derive(Debug)]
pub(crate) struct TableRelay {
    pub(crate) table: TableName,
    pub(crate) relay: Relay<AnyStore>,
    pub(crate) health: RelayHealth,
    /// The line for the log when it is up.
    pub(crate) announcement: String,
}

/// A cleaner that is ready to run.
#[derive(Debug)]
pub(crate) struct TableCleaner {
    pub(crate) table: TableName,
    pub(crate) admin: AnyAdmin,
    pub(crate) cleaner: Cleaner<AnyAdmin>,
}

/// What counts a table for the gauges.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    pub(crate) table: TableName,
    pub(crate) admin: AnyAdmin,
    pub(crate) telemetry: Telemetry,
}

/// What a relay of the configuration works with.
pub(crate) fn store(
    config: &Config,
    database: &Database,
    table: &TableName,
    name: &str,
) -> Result<AnyStore, Failure> {
    claimed(config, database)?;
    let settings = StoreSettings {
        single_active: config.relay.single_active,
        name: name.to_owned(),
        strategy: config.relay.claim,
        order: order(config),
        history: config.relay.history,
        tenants: Tenants { only: config.relay.tenants.clone(), fair: config.relay.fair_tenants },
    };
    Ok(database.store(table, settings))
}

/// Refuses to own what only can be leased. What does not depend on the database was refused with the settings.
fn claimed(config: &Config, database: &Database) -> Result<(), Failure> {
    if config.relay.claim != Strategy::Owner {
        return Ok(());
    }
    let why = match (database.dialect(), config.relay.ordering) {
        (Dialect::Sqlite, Ordering::None | Ordering::Aggregate) => "rows of a SQLite file are leased",
        (Dialect::MySql, Ordering::Aggregate) => {
            "relay.ordering = \"aggregate\" leases rows on MySQL and MariaDB"
        }
        (Dialect::MySql, Ordering::None) | (Dialect::Postgres, Ordering::None | Ordering::Aggregate) => {
            return Ok(());
        }
    };
    let message = format!("relay.claim = \"owner\": {why}");
    Err(Problem::new(Code::ConfigUnsupported, message).next("leave relay.claim at auto").into())
}

/// The relay of a table, with a store of its own; sinks are shared between tables, so that a file is open once.
///
/// Gauges are made here: the recorder must be installed before.
pub(crate) fn relay(
    config: &Config,
    database: &Database,
    table: &TableName,
    name: &str,
    sinks: &[(String, AnySink)],
) -> Result<TableRelay, Failure> {
    let store = store(config, database, table, name)?;
    let announcement = announcement(config, database, table);
    let mut relay = Relay::builder(store)
        .settings(settings(config, name))
        .metrics_prefix(&config.metrics.prefix)
        .topic_labels(config.metrics.max_topic_labels);
    if let Some(label) = database.label() {
        // The others do not end because this one has no table yet.
        relay = relay.database(label).patient();
    }
    for (name, sink) in sinks {
        // One for dead events alone takes no share of what is in flight.
        if config.dead_letter.as_ref() != Some(name) || config.routes.iter().any(|r| r.sinks.contains(name)) {
            relay = relay.sink(name, sink.clone());
        }
    }
    for route in &config.routes {
        relay = relay.route_to_all(&route.topic, &route.sinks);
        if let Some(template) = &route.destination {
            relay = relay.destination(template.as_str());
        }
    }
    if let Some((name, sink)) = sinks.iter().find(|(name, _)| Some(name) == config.dead_letter.as_ref()) {
        relay = relay.dead_letters(name, sink.clone());
    }
    let relay = relay.build().map_err(|error| Problem::of_relay(table, &error))?;
    let health = relay.health();
    Ok(TableRelay { table: table.clone(), relay, health, announcement })
}

/// What a relay does, in a line.
fn announcement(config: &Config, database: &Database, table: &TableName) -> String {
    let how = if config.relay.single_active { "single active" } else { "shared" };
    let how = match order(config) {
        Order::None => how.to_owned(),
        Order::Aggregate(OnDead::Block) => format!("{how}, in order by aggregate"),
        Order::Aggregate(OnDead::Skip) => format!("{how}, in order by aggregate, dead events skipped"),
    };
    let how = match (config.relay.tenants.len(), config.relay.fair_tenants) {
        (0, false) => how,
        (0, true) => format!("{how}, tenants in turn"),
        (1, _) => format!("{how}, one tenant only"),
        (some, _) => format!("{how}, {some} tenants only"),
    };
    let place = match database.label() {
        Some(label) => format!(" in {label}"),
        None if database.is_default() => format!(" in {} (no database is named)", database.place()),
        None => String::new(),
    };
    format!("relaying {table}{place} → {} ({how})", describe_routes(config))
}

/// The cleaner of a table, with an admin of its own: a slow table holds up no other.
pub(crate) fn cleaner(config: &Config, database: &Database, table: &TableName) -> TableCleaner {
    let admin = database.admin(table, config);
    let mut cleaner = Cleaner::new(admin.clone())
        .retention(config.cleaner.retention)
        .dead_retention(config.cleaner.dead_retention.unwrap_or_default())
        .interval(config.cleaner.interval)
        .max_attempts(max_attempts(config))
        .dead_letters(config.dead_letter.is_some())
        .vacuum(config.cleaner.vacuum)
        .metrics_prefix(&config.metrics.prefix);
    if let Some(retention) = config.inbox_retention() {
        cleaner = cleaner.inbox(retention);
    }
    if let Some(label) = database.label() {
        cleaner = cleaner.database(label);
    }
    TableCleaner { table: table.clone(), admin, cleaner }
}

/// The cleaner of calls by idempotency key of a table's module, whether it has some yet or not.
pub(crate) fn call_cleaner(
    config: &Config,
    database: &Database,
    table: &TableName,
) -> Cleaner<AnyIdempotency> {
    let cleaner = Cleaner::new(database.calls(table))
        .retention(config.cleaner.idempotency_retention)
        .interval(config.cleaner.interval)
        .vacuum(false)
        .metrics_prefix(&config.metrics.prefix);
    match database.label() {
        Some(label) => cleaner.database(label),
        None => cleaner,
    }
}

/// The monitor of a table.
pub(crate) fn monitor(config: &Config, database: &Database, table: &TableName) -> TableMonitor {
    let (prefix, labels) = (&config.metrics.prefix, config.metrics.max_topic_labels);
    let telemetry = Telemetry::in_database(prefix, database.label(), &table.to_string(), labels);
    TableMonitor { table: table.clone(), admin: database.admin(table, config), telemetry }
}

/// Everything of a configuration that can be wrong without a database; all of it is reported.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    let relays = config.relay.enabled;
    let mut problems = Vec::new();
    if relays {
        problems.extend(config.check_relay().into_iter().map(Problem::from));
    }
    let mut note = |result: Result<(), Failure>| {
        if let Err(Failure::Problems(found)) = result {
            problems.extend(found);
        }
    };
    for config in config.each() {
        note(tables(&config.relay.tables).map(drop));
        note(tables(&config.cleaner.tables).map(drop));
        let database = Database::of(&config);
        note(database.and_then(|database| if relays { claimed(&config, &database) } else { Ok(()) }));
    }
    note(sinks(config).map(drop));
    note(crate::admin::check(config));
    for route in &config.routes {
        let pattern = route.topic.parse::<Pattern>();
        note(pattern.map(drop).map_err(|error| Problem::new(Code::RouteInvalid, error).into()));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
}

/// The sinks of the configuration, each once.
pub(crate) fn sinks(config: &Config) -> Result<Vec<(String, AnySink)>, Failure> {
    let mut problems = Vec::new();
    let mut sinks = Vec::new();
    for sink in &config.sinks {
        match AnySink::new(sink.url.reveal(), sink.options.clone()) {
            Ok(built) => sinks.push((sink.name.clone(), built)),
            Err(error) => {
                let message = error.to_string().replace(sink.url.reveal(), &sink.url.to_string());
                let message = format!("{message} (from {})", sink.origin);
                problems.push(Problem::new(error.code(), message));
            }
        }
    }
    if problems.is_empty() { Ok(sinks) } else { Err(Failure::Problems(problems)) }
}

/// Where events go, in a few words without secrets.
fn describe_routes(config: &Config) -> String {
    let url = |name: &String| config.sink(name).map_or_else(|| name.clone(), |sink| sink.url.to_string());
    let dead = config.dead_letter.as_ref().map(|name| format!(", dead events to {}", url(name)));
    let dead = dead.unwrap_or_default();
    if let [route] = config.routes.as_slice()
        && route.topic == "**"
    {
        return route.sinks.iter().map(url).collect::<Vec<_>>().join(" and ") + &dead;
    }
    let describe = |route: &crate::config::Route| {
        let sinks: Vec<String> = route.sinks.iter().map(url).collect();
        format!("{} to {}", route.topic, sinks.join(" and "))
    };
    config.routes.iter().map(describe).collect::<Vec<_>>().join(", ") + &dead
}

/// In what order events are delivered.
fn order(config: &Config) -> Order {
    match config.relay.ordering {
        Ordering::None => Order::None,
        Ordering::Aggregate => Order::Aggregate(config.relay.on_dead),
    }
}

/// How a relay of the configuration works.
pub(crate) fn settings(config: &Config, name: &str) -> Settings {
    Settings {
        poll_interval: config.relay.poll_interval,
        batch_size: config.relay.batch_size,
        lock_ttl: config.relay.lock_ttl,
        max_attempts: max_attempts(config),
        dispatch_timeout: config.relay.dispatch_timeout,
        concurrency: config.relay.concurrency,
        drain_timeout: config.relay.drain_timeout,
        max_in_flight_bytes: config.relay.max_in_flight_bytes,
        last_error_max_bytes: config.general.last_error_max_bytes,
        redrive_after: config.relay.redrive_after,
        redrive_max: i32::try_from(config.relay.redrive_max).unwrap_or(i32::MAX),
        mask_tenants: config.general.mask_tenants,
        name: name.into(),
        ..Settings::default()
    }
}

pub(crate) fn max_attempts(config: &Config) -> i32 {
    i32::try_from(config.relay.max_attempts).unwrap_or(i32::MAX)
}

/// The name of this machine: what Kubernetes calls the pod, else what the kernel does.
pub(crate) fn host() -> String {
    let variable = std::env::var("HOSTNAME").ok();
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"].into_iter();
    let read = files.filter_map(|path| std::fs::read_to_string(path).ok());
    let mut names = variable.into_iter().chain(read).map(|name| name.trim().to_owned());
    names.find(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

/// Who this is, for the audit log.
pub(crate) fn operator() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    // A container has a number for its user, and often no name.
    let number = || format!("uid {}", rustix::process::getuid().as_raw());
    let user = user.filter(|user| !user.trim().is_empty()).unwrap_or_else(number);
    let name = format!("{user}@{}", host());
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}
