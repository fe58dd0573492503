//! Every setting, once: its name, type, default, environment variable, flag, one line of documentation and its check.
//!
//! The file format, the command line, `config show` and the reference page are made from this table.

use std::net::SocketAddr;
use std::time::Duration;

use postbox_core::{History, OnDead, TenantId};
use postbox_sinks::mask_sink;
use postbox_stores::any::Strategy;
use uuid::Uuid;

use super::kind::{self, Choice, DAY_MS, GIB, HOUR_MS, KIB, Kind, LONGEST_MS, Shape};
use super::text::{GivenSink, Hidden, Secret, mask};

/// What is known about one setting, whatever its type.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its path in `postbox.toml`, such as `relay.batch_size`; also its name everywhere.
    pub(crate) path: &'static str,
    /// Its environment variable.
    pub(crate) env: &'static str,
    /// Its flag, without the dashes.
    pub(crate) flag: &'static str,
    /// Its default as it would be written; empty for unset.
    pub(crate) default: &'static str,
    /// What it does, in one line of Markdown.
    pub(crate) doc: &'static str,
    /// How it is written.
    pub(crate) shape: Shape,
    /// Whether it is a secret as a whole.
    pub(crate) secret: bool,
    /// What is accepted, to follow "set … to".
    pub(crate) accepts: fn() -> String,
    /// Checks a value and gives it as `config show` writes it, or says what is wrong with it.
    pub(crate) canonical: fn(&[String]) -> Result<Vec<String>, String>,
}

impl Setting {
    /// The setting with this path.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.path == path)
    }

    /// An item as people may see it.
    pub(crate) fn shown(&self, item: &str) -> String {
        // Not even a part of a token is anybody's business.
        match self.path {
            path if path.ends_with("_tokens") => "***".to_owned(),
            "sink" | "dead_letter" => mask_sink(item),
            _ => mask(item),
        }
    }

    /// The section of `postbox.toml` that it is in, empty at the top.
    pub(crate) fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }
}

/// A default as items: none when it is unset.
pub(super) fn default_items(default: &str) -> Vec<String> {
    if default.is_empty() { Vec::new() } else { vec![default.to_owned()] }
}

/// Makes the typed structs, the table and the reading of one from the other out of one list.
macro_rules! settings {
    ($(
        #[doc = $section_doc:literal]
        $section:ident: $Section:ident ($prefix:literal) {$(
            #[doc = $doc:literal]
            $field:ident: $Type:ty = $kind:expr, default $default:literal, env $env:literal, flag $flag:literal;
        )*}
    )*) => {
        $(
            #[doc = $section_doc]
            #[derive(Debug, Clone)]
            pub(crate) struct $Section {$(
                #[doc = $doc]
                pub(crate) $field: $Type,
            )*}
        )*

        /// All settings, typed.
        #[derive(Debug, Clone)]
        pub(crate) struct Settings {$(
            #[doc = $section_doc]
            pub(crate) $section: $Section,
        )*}

        impl Settings {
            /// Reads all settings. `get` gives the items of one; where they are wrong, which the table's own check
            /// reports, the default stands in, so that the other checks can go on.
            pub(super) fn read(get: impl Fn(&str) -> Vec<String>) -> Result<Self, String> {
                Ok(Self {$(
                    $section: $Section {$(
                        $field: {
                            const KIND: Kind<$Type> = $kind;
                            (KIND.parse)(&get(concat!($prefix, stringify!($field))))
                                .or_else(|_| (KIND.parse)(&default_items($default)))?
                        },
                    )*},
                )*})
            }
        }

        /// The table: every setting in the order of the reference page.
        pub(crate) const SETTINGS: &[Setting] = &[$($(
            Setting {
                path: concat!($prefix, stringify!($field)),
                env: $env,
                flag: $flag,
                default: $default,
                doc: $doc.trim_ascii(),
                shape: { const KIND: Kind<$Type> = $kind; KIND.shape },
                secret: { const KIND: Kind<$Type> = $kind; KIND.secret },
                accepts: { const KIND: Kind<$Type> = $kind; KIND.accepts },
                canonical: |items| {
                    const KIND: Kind<$Type> = $kind;
                    (KIND.parse)(items).map(|value| (KIND.canonical)(&value, items))
                },
            },
        )*)*];
    };
}

settings! {
    /// Connections, and what all commands share.
    general: General ("") {
        /// The database that holds the tables; without one, a SQLite file in the working directory. Prefer the variable: a command line is visible to others.
        database_url: Secret = kind::database_url(), default "sqlite:postbox.db", env "DATABASE_URL", flag "database-url";
        /// The URL of the same database past a transaction pooler.
        direct_url: Option<Secret> = kind::direct_url(), default "", env "OUTBOX_DIRECT_URL", flag "direct-url";
        /// Where events go that no `[[route]]` matches: a sink's URL or its name in `[sinks]`.
        sink: Option<GivenSink> = kind::sink(), default "", env "OUTBOX_SINK", flag "sink";
        /// Where dead events go, also those that are dead already; they stay in the table too. A sink's URL or its name in `[sinks]`.
        dead_letter: Option<GivenSink> = kind::sink(), default "", env "OUTBOX_DEAD_LETTER", flag "dead-letter";
        /// The address for health checks and metrics, such as `127.0.0.1:9187`; without it, none are served.
        listen: Option<SocketAddr> = kind::listen(), default "", env "OUTBOX_LISTEN", flag "listen";
        /// The tenant of events that name none.
        default_tenant_id: Uuid = kind::uuid(), default "00000000-0000-0000-0000-000000000000", env "OUTBOX_DEFAULT_TENANT_ID", flag "default-tenant-id";
        /// The longest `last_error`; the rest is cut off.
        last_error_max_bytes: usize = kind::size::<64, { 64 * KIB }>(), default "2048", env "OUTBOX_LAST_ERROR_MAX_BYTES", flag "last-error-max-bytes";
        /// Masks tenant ids in logs.
        mask_tenants: bool = kind::switch(), default "false", env "OUTBOX_MASK_TENANTS", flag "mask-tenants";
    }

    /// The relay: claim, dispatch, settle.
    relay: Relay ("relay.") {
        /// Whether `postbox relay` delivers events.
        enabled: bool = kind::switch(), default "true", env "OUTBOX_RELAY_ENABLED", flag "relay-enabled";
        /// The outbox tables, such as `public.org_outbox`.
        tables: Vec<String> = kind::names(), default "", env "OUTBOX_RELAY_TABLES", flag "table";
        /// One relay works per table, the others stand by.
        single_active: bool = kind::switch(), default "true", env "OUTBOX_RELAY_SINGLE_ACTIVE", flag "single-active";
        /// The longest wait between two looks at an idle table.
        poll_interval: Duration = kind::duration::<10, HOUR_MS>(), default "1s", env "OUTBOX_RELAY_POLL_INTERVAL", flag "poll-interval";
        /// How many events one claim takes at most.
        batch_size: usize = kind::count::<usize, 1, 10_000>(), default "100", env "OUTBOX_RELAY_BATCH_SIZE", flag "batch-size";
        /// How long a lease lasts; it is renewed after a third of that. At least 1.5 × `dispatch_timeout`.
        lock_ttl: Duration = kind::duration::<100, DAY_MS>(), default "60s", env "OUTBOX_RELAY_LOCK_TTL", flag "lock-ttl";
        /// An event is dead after this many attempts.
        max_attempts: u32 = kind::count::<u32, 1, 2_147_483_647>(), default "25", env "OUTBOX_RELAY_MAX_ATTEMPTS", flag "max-attempts";
        /// How long one dispatch may take.
        dispatch_timeout: Duration = kind::duration::<10, HOUR_MS>(), default "30s", env "OUTBOX_RELAY_DISPATCH_TIMEOUT", flag "dispatch-timeout";
        /// How many dispatches run at a time, per sink.
        concurrency: usize = kind::count::<usize, 1, 10_000>(), default "16", env "OUTBOX_RELAY_CONCURRENCY", flag "concurrency";
        /// How long a stopping relay waits for what is in flight; `0` releases it at once.
        drain_timeout: Duration = kind::duration::<0, HOUR_MS>(), default "5s", env "OUTBOX_RELAY_DRAIN_TIMEOUT", flag "drain-timeout";
        /// The most bytes of payload in flight at a time, per table.
        max_in_flight_bytes: usize = kind::size::<{ 64 * KIB }, { 1_024 * GIB }>(), default "16MiB", env "OUTBOX_RELAY_MAX_IN_FLIGHT_BYTES", flag "max-in-flight-bytes";
        /// How events are claimed: `owner`, `lease`, or `auto`, which owns the table where it can and leases rows elsewhere.
        claim: Strategy = kind::choice::<Strategy>(), default "auto", env "OUTBOX_RELAY_CLAIM", flag "claim";
        /// Delivers the events of these tenants only; needs `single_active = false`, and the index that `migrate up --tenants` adds.
        tenants: Vec<TenantId> = kind::tenants(), default "", env "OUTBOX_RELAY_TENANTS", flag "tenants";
        /// Shares claims and slots between tenants; needs the index that `migrate up --fair-tenants` adds.
        fair_tenants: bool = kind::switch(), default "false", env "OUTBOX_RELAY_FAIR_TENANTS", flag "fair-tenants";
        /// What becomes of a published event: `keep` leaves it in the table until its retention ends, `move` moves it to `<table>_history` (which `migrate up --history move` makes), `none` deletes it.
        history: History = kind::choice::<History>(), default "keep", env "OUTBOX_RELAY_HISTORY", flag "history";
        /// `aggregate` delivers the events of one aggregate in order; `none` promises no order.
        ordering: Ordering = kind::choice::<Ordering>(), default "none", env "OUTBOX_RELAY_ORDERING", flag "ordering";
        /// After how long the relay replays dead events by itself; `0` never does.
        redrive_after: Option<Duration> = kind::duration_or_never::<1_000, LONGEST_MS>(), default "0", env "OUTBOX_RELAY_REDRIVE_AFTER", flag "redrive-after";
        /// How often the relay replays one event by itself, at most.
        redrive_max: u32 = kind::count::<u32, 1, 1_000>(), default "3", env "OUTBOX_RELAY_REDRIVE_MAX", flag "redrive-max";
        /// With `ordering = "aggregate"`: a dead event blocks its aggregate (`block`) or is skipped (`skip`).
        on_dead: OnDead = kind::choice::<OnDead>(), default "block", env "OUTBOX_RELAY_ON_DEAD", flag "on-dead";
    }

    /// The cleaner: deletes what was published long ago.
    cleaner: Cleaner ("cleaner.") {
        /// Whether `postbox relay` also cleans.
        enabled: bool = kind::switch(), default "true", env "OUTBOX_CLEANER_ENABLED", flag "cleaner-enabled";
        /// The tables to clean; unset follows `relay.tables`.
        tables: Vec<String> = kind::names(), default "", env "OUTBOX_CLEANER_TABLES", flag "cleaner-tables";
        /// The time from one run to the next.
        interval: Duration = kind::duration::<100, LONGEST_MS>(), default "1m", env "OUTBOX_CLEANER_INTERVAL", flag "cleaner-interval";
        /// How long published events are kept.
        retention: Duration = kind::duration::<1, LONGEST_MS>(), default "168h", env "OUTBOX_CLEANER_RETENTION", flag "cleaner-retention";
        /// How long dead events are kept; `0` keeps them for ever.
        dead_retention: Option<Duration> = kind::duration_or_never::<1, LONGEST_MS>(), default "0", env "OUTBOX_CLEANER_DEAD_RETENTION", flag "cleaner-dead-retention";
        /// How long calls by idempotency key are remembered, where a table has them.
        idempotency_retention: Duration = kind::duration::<1, LONGEST_MS>(), default "24h", env "OUTBOX_CLEANER_IDEMPOTENCY_RETENTION", flag "cleaner-idempotency-retention";
        /// Whether it also vacuums tables from which many rows were deleted (PostgreSQL, tables that the relay's role owns).
        vacuum: bool = kind::switch(), default "true", env "OUTBOX_CLEANER_VACUUM", flag "cleaner-vacuum";
    }

    /// The inbox: remembers what was received.
    inbox: Inbox ("inbox.") {
        /// How long the inboxes beside `cleaner.tables` remember messages; `0` remembers for ever. At least as long as their source may repeat them.
        retention: Option<Duration> = kind::duration_or_never::<1, LONGEST_MS>(), default "0", env "OUTBOX_INBOX_RETENTION", flag "inbox-retention";
        /// For how long the source of the messages may repeat them: the retention of its published events, of its dead ones and of the broker, together; `0` takes `cleaner.retention` and `cleaner.dead_retention`.
        source_retention: Option<Duration> = kind::duration_or_never::<1, LONGEST_MS>(), default "0", env "OUTBOX_INBOX_SOURCE_RETENTION", flag "inbox-source-retention";
    }

    /// The admin API and the dashboard.
    admin: Admin ("admin.") {
        /// Whether `postbox relay` serves the admin API and the dashboard.
        enabled: bool = kind::switch(), default "false", env "OUTBOX_DASHBOARD", flag "dashboard";
        /// Their address. One that others can reach needs tokens.
        listen: Option<SocketAddr> = kind::listen(), default "127.0.0.1:8080", env "OUTBOX_ADMIN_LISTEN", flag "admin-listen";
        /// The path below which they are served, for a proxy that forwards only this path.
        base_path: String = kind::base_path(), default "/", env "OUTBOX_ADMIN_BASE_PATH", flag "base-path";
        /// Refuses every change, whoever asks.
        read_only: bool = kind::switch(), default "false", env "OUTBOX_ADMIN_READ_ONLY", flag "read-only";
        /// The names by which browsers may call them, besides `localhost` and the address itself. One that is not this machine's own needs tokens.
        hosts: Vec<String> = kind::hosts(), default "", env "OUTBOX_ADMIN_HOSTS", flag "admin-hosts";
        /// Tokens of those who may look. Prefer the variable or the file: a command line is visible to others.
        viewer_tokens: Vec<Hidden> = kind::tokens(), default "", env "OUTBOX_ADMIN_VIEWER_TOKENS", flag "viewer-tokens";
        /// Tokens of those who may also replay, discard and pause.
        operator_tokens: Vec<Hidden> = kind::tokens(), default "", env "OUTBOX_ADMIN_OPERATOR_TOKENS", flag "operator-tokens";
        /// A file with more `viewer_tokens`, one on each line.
        viewer_tokens_file: Option<Secret> = kind::file(), default "", env "OUTBOX_ADMIN_VIEWER_TOKENS_FILE", flag "viewer-tokens-file";
        /// A file with more `operator_tokens`, one on each line.
        operator_tokens_file: Option<Secret> = kind::file(), default "", env "OUTBOX_ADMIN_OPERATOR_TOKENS_FILE", flag "operator-tokens-file";
        /// The address of a trace, with `{trace_id}` in place of its id; event pages link to it.
        trace_url: Option<String> = kind::trace_url(), default "", env "OUTBOX_ADMIN_TRACE_URL", flag "trace-url";
    }

    /// Prometheus metrics.
    metrics: Metrics ("metrics.") {
        /// Whether metrics are served on `listen`.
        enabled: bool = kind::switch(), default "true", env "PROMETHEUS_METRICS_ENABLED", flag "metrics-enabled";
        /// The path of the metrics; they are also at `/metrics`.
        path: String = kind::http_path(), default "/debug/prometheus", env "PROMETHEUS_METRICS_PATH", flag "metrics-path";
        /// What the names of all metrics start with.
        prefix: String = kind::metric_prefix(), default "outbox", env "OUTBOX_METRICS_PREFIX", flag "metrics-prefix";
        /// How many topics have a label of their own; the rest share `other`.
        max_topic_labels: usize = kind::count::<usize, 0, 100_000>(), default "200", env "OUTBOX_MAX_TOPIC_LABELS", flag "max-topic-labels";
    }
}

impl Choice for Strategy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("lease", Self::Lease), ("owner", Self::Owner)];
}

impl Choice for History {
    const WORDS: &'static [(&'static str, Self)] =
        &[("keep", Self::Keep), ("move", Self::Move), ("none", Self::None)];
}

/// What order deliveries have. What a dead event does to it is a setting of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// None is promised.
    None,
    /// The events of an aggregate are in order.
    Aggregate,
}

impl Choice for Ordering {
    const WORDS: &'static [(&'static str, Self)] = &[("none", Self::None), ("aggregate", Self::Aggregate)];
}

impl Choice for OnDead {
    const WORDS: &'static [(&'static str, Self)] = &[("block", Self::Block), ("skip", Self::Skip)];
}
