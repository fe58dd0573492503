//! Makes the parts out of the configuration. The only place that knows all crates.

use std::time::Duration;

use postbox_core::cleaner::SweepRequest;
use postbox_core::telemetry::Telemetry;
use postbox_core::{
    Cleaner, Code, Pattern, Relay, RelayHealth, Settings, StoreError, StoreErrorKind, TableName,
};
use postbox_sinks::AnySink;
use postbox_stores::postgres::{PgAdmin, PgStore, classify, connect_options};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

use crate::config::{Config, Secret};
use crate::report::{Failure, Problem};

/// How long a command waits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The active relay must have missed several ticks before it loses its place, and never be judged by seconds.
const LEADER_TICKS: u32 = 5;
const LEADER_LEAST: Duration = Duration::from_secs(15);

/// Parses table names; all that are wrong are reported.
pub(crate) fn tables(names: &[String]) -> Result<Vec<TableName>, Failure> {
    let mut problems = Vec::new();
    let mut tables = Vec::new();
    for name in names {
        match name.parse::<TableName>() {
            Ok(table) => tables.push(table),
            Err(error) => problems.push(Problem::new(error.code(), error)),
        }
    }
    if problems.is_empty() { Ok(tables) } else { Err(Failure::Problems(problems)) }
}

/// The database that the configuration names.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    options: PgConnectOptions,
    direct: Option<PgConnectOptions>,
}

impl Database {
    /// Reads the URLs; nothing is connected yet.
    pub(crate) fn of(config: &Config) -> Result<Self, Failure> {
        config.require(&["database_url"])?;
        let parse = |url: &Secret| {
            connect_options(url.reveal())
                .map_err(|error| Failure::from(Problem::new(error.code(), error.message())))
        };
        let url = config.general.database_url.as_ref();
        let options =
            url.map(parse).transpose()?.ok_or_else(|| Problem::new(Code::DatabaseUrl, "none is given"))?;
        let direct = config.general.direct_url.as_ref().map(parse).transpose()?;
        Ok(Self { options, direct })
    }

    /// Host and name, for questions to people.
    pub(crate) fn place(&self) -> String {
        let options = &self.options;
        format!("{}/{}", options.get_host(), options.get_database().unwrap_or(options.get_username()))
    }

    /// The database's name, and whether it is on this machine: by a socket, or the loopback.
    pub(crate) fn name(&self) -> (&str, bool) {
        let options = &self.options;
        (options.get_database().unwrap_or(options.get_username()), is_local(options))
    }

    /// One connection, past a pooler where there is a way. A command that cannot get one says so at once; a pool
    /// would try in silence until its limit and then blame itself.
    pub(crate) async fn connect(&self) -> Result<PgConnection, Failure> {
        let options = self.direct.as_ref().unwrap_or(&self.options).clone().disable_statement_logging();
        let place = format!("{}:{}", options.get_host(), options.get_port());
        let error = match tokio::time::timeout(CONNECT_LIMIT, options.connect()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => classify(error),
            Err(_) => StoreError::new(
                Code::DatabaseUnreachable,
                StoreErrorKind::Connection,
                format!("no answer within {CONNECT_LIMIT:?}"),
            ),
        };
        let message = match error.code() {
            Code::DatabaseUnreachable => format!("{place}: {}", error.message()),
            _ => error.message().to_owned(),
        };
        Err(Problem::new(error.code(), message).into())
    }

    /// What operators do with a table; connects when it is first used.
    pub(crate) fn admin(&self, table: &TableName, config: &Config) -> PgAdmin {
        let options = self.options.clone().disable_statement_logging();
        PgAdmin::connect(options, table.clone())
            .max_attempts(max_attempts(config))
            .lock_ttl(config.relay.lock_ttl)
    }
}

fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host().trim_matches(['[', ']']);
    let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    options.get_socket().is_some() || host.starts_with('/') || host == "localhost" || loopback
}

/// Past a pooler, where there is a way: for whoever looks at the way itself.
pub(crate) fn direct_admin(database: &Database, table: &TableName, config: &Config) -> PgAdmin {
    let options = database.direct.as_ref().unwrap_or(&database.options).clone().disable_statement_logging();
    PgAdmin::connect(options, table.clone())
        .max_attempts(max_attempts(config))
        .lock_ttl(config.relay.lock_ttl)
}

/// What a sweep of the configuration deletes.
pub(crate) fn sweep(config: &Config) -> SweepRequest {
    SweepRequest {
        retention: config.cleaner.retention,
        dead_retention: config.cleaner.dead_retention,
        batch: 500,
        max_attempts: max_attempts(config),
    }
}

/// A relay that is ready to run.
#[derive(Debug)]
pub(crate) struct TableRelay {
    pub(crate) table: TableName,
    pub(crate) relay: Relay<PgStore>,
    pub(crate) health: RelayHealth,
    /// The line for the log when it is up.
    pub(crate) announcement: String,
}

/// A cleaner that is ready to run.
#[derive(Debug)]
pub(crate) struct TableCleaner {
    pub(crate) table: TableName,
    pub(crate) admin: PgAdmin,
    pub(crate) cleaner: Cleaner<PgAdmin>,
}

/// What counts a table for the gauges.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    pub(crate) table: TableName,
    pub(crate) admin: PgAdmin,
    pub(crate) telemetry: Telemetry,
}

/// One relay per table, each with a store of its own; sinks are shared between tables, so that a file is open once.
///
/// Gauges are made here: the recorder must be installed before.
pub(crate) fn relays(config: &Config, database: &Database, name: &str) -> Result<Vec<TableRelay>, Failure> {
    let tables = tables(&config.relay.tables)?;
    let sinks = sinks(config)?;
    let routes = describe_routes(config);
    let mut relays = Vec::new();
    for table in tables {
        let options = database.options.clone();
        let mut store = PgStore::builder(options, table.clone())
            .single_active(config.relay.single_active)
            .name(name)
            .leader_ttl(LEADER_LEAST.max(config.relay.poll_interval * LEADER_TICKS));
        if let Some(direct) = &database.direct {
            store = store.direct(direct.clone());
        }
        let how = if config.relay.single_active { "single active" } else { "shared" };
        let announcement = format!("relaying {table} → {routes} ({how})");
        let mut relay = Relay::builder(store.build())
            .settings(settings(config, name))
            .metrics_prefix(&config.metrics.prefix)
            .topic_labels(config.metrics.max_topic_labels);
        for (name, sink) in &sinks {
            relay = relay.sink(name, sink.clone());
        }
        for route in &config.routes {
            for sink in &route.sinks {
                relay = relay.route_to(&route.topic, sink);
            }
        }
        let relay = relay.build().map_err(|error| Problem::of_relay(&table, &error))?;
        let health = relay.health();
        relays.push(TableRelay { table, relay, health, announcement });
    }
    Ok(relays)
}

/// One cleaner per table, each with an admin of its own: a slow table holds up no other.
pub(crate) fn cleaners(config: &Config, database: &Database) -> Result<Vec<TableCleaner>, Failure> {
    let cleaner = |table: TableName| {
        let admin = database.admin(&table, config);
        let cleaner = Cleaner::new(admin.clone())
            .retention(config.cleaner.retention)
            .dead_retention(config.cleaner.dead_retention.unwrap_or_default())
            .interval(config.cleaner.interval)
            .max_attempts(max_attempts(config))
            .metrics_prefix(&config.metrics.prefix);
        TableCleaner { table, admin, cleaner }
    };
    Ok(tables(config.cleaner_tables())?.into_iter().map(cleaner).collect())
}

/// One monitor per relayed table.
pub(crate) fn monitors(config: &Config, database: &Database) -> Result<Vec<TableMonitor>, Failure> {
    let monitor = |table: TableName| TableMonitor {
        admin: database.admin(&table, config),
        telemetry: Telemetry::new(
            &config.metrics.prefix,
            &table.to_string(),
            config.metrics.max_topic_labels,
        ),
        table,
    };
    Ok(tables(&config.relay.tables)?.into_iter().map(monitor).collect())
}

/// Everything of a configuration that can be wrong without a database; all of it is reported.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    let mut problems = Vec::new();
    let mut note = |result: Result<(), Failure>| {
        if let Err(Failure::Problems(found)) = result {
            problems.extend(found);
        }
    };
    note(tables(&config.relay.tables).map(drop));
    note(tables(&config.cleaner.tables).map(drop));
    if config.general.database_url.is_some() {
        note(Database::of(config).map(drop));
    }
    note(sinks(config).map(drop));
    for route in &config.routes {
        let pattern = route.topic.parse::<Pattern>();
        note(pattern.map(drop).map_err(|error| Problem::new(Code::RouteInvalid, error).into()));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
}

fn sinks(config: &Config) -> Result<Vec<(String, AnySink)>, Failure> {
    let mut problems = Vec::new();
    let mut sinks = Vec::new();
    for sink in &config.sinks {
        match AnySink::from_url(sink.url.reveal()) {
            Ok(built) => sinks.push((sink.name.clone(), built)),
            Err(error) => {
                let message = format!("{error} (from {})", sink.origin);
                problems.push(Problem::new(error.code(), message));
            }
        }
    }
    if problems.is_empty() { Ok(sinks) } else { Err(Failure::Problems(problems)) }
}

/// Where events go, in a few words without secrets.
fn describe_routes(config: &Config) -> String {
    let url = |name: &String| config.sink(name).map_or_else(|| name.clone(), |sink| sink.url.to_string());
    if let [route] = config.routes.as_slice()
        && route.topic == "**"
    {
        return route.sinks.iter().map(url).collect::<Vec<_>>().join(", ");
    }
    let describe = |route: &crate::config::Route| {
        let sinks: Vec<String> = route.sinks.iter().map(url).collect();
        format!("{} to {}", route.topic, sinks.join(" and "))
    };
    config.routes.iter().map(describe).collect::<Vec<_>>().join(", ")
}

fn settings(config: &Config, name: &str) -> Settings {
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
        mask_tenants: config.general.mask_tenants,
        name: name.into(),
        ..Settings::default()
    }
}

fn max_attempts(config: &Config) -> i32 {
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
    let user = user.filter(|user| !user.trim().is_empty()).unwrap_or_else(|| "unknown".to_owned());
    let name = format!("{user}@{}", host());
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::{connect_options, is_local};

    #[test]
    fn only_this_machine_is_local() {
        let local = |url: &str| is_local(&connect_options(url).unwrap());
        for url in [
            "postgres://127.0.0.1/a",
            "postgres://localhost/a",
            "postgres://[::1]/a",
            "postgres:///a?host=/run/pg",
        ] {
            assert!(local(url), "{url}");
        }
        for url in [
            "postgres://db-1/a",
            "postgres://10.0.0.1/a",
            "postgres://localhost.example.org/a",
            "postgres://a@[fe80::1]/a",
        ] {
            assert!(!local(url), "{url}");
        }
    }
}
