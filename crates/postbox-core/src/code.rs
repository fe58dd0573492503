//! The stable codes of everything that can go wrong, one place for all crates.
//!
//! A code is part of the public contract: scripts and alerts match on it. Each comes with one sentence that says
//! what it means and one that says what to do next, so that errors and `postbox explain` never drift apart.

use std::fmt;

macro_rules! codes {
    ($($variant:ident = $text:literal, $means:literal, $next:literal;)*) => {
        /// A stable error code such as `OUTBOX_TABLE_MISSING`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $means] $variant,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The code as users see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }

            /// What it means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $means,)* }
            }

            /// What to do next, in one sentence.
            pub const fn next_step(self) -> &'static str {
                match self { $(Code::$variant => $next,)* }
            }
        }
    };
}

codes! {
    TopicInvalid = "OUTBOX_TOPIC_INVALID",
        "The topic does not have the form `<module>.<aggregate>.<event>.vN`.",
        "Use lower case letters, digits, dots and hyphens, or Topic::lenient for names of another system.";
    PayloadTooLarge = "OUTBOX_PAYLOAD_TOO_LARGE",
        "The payload is larger than the limit.",
        "Store the data elsewhere and send a reference, or raise the limit of the outbox.";
    PayloadInvalid = "OUTBOX_PAYLOAD_INVALID",
        "The payload is not JSON that every supported database can store.",
        "Correct the payload; bytes that are not JSON can be sent with a content type.";
    HeadersInvalid = "OUTBOX_HEADERS_INVALID",
        "The headers break a limit, or a name or value holds a control character.",
        "Correct the name or value that the message is about; send fewer or shorter headers, or put the data into the payload.";
    FieldInvalid = "OUTBOX_FIELD_INVALID",
        "A field of the event holds a value that cannot be stored.",
        "Correct the field that the message names.";
    TableNameInvalid = "OUTBOX_TABLE_NAME_INVALID",
        "The table name does not have the form `[schema.]table`, of lower case letters, digits and underscores, each part at most 42 long.",
        "Choose a lower case name, such as public.org_outbox.";
    TableMissing = "OUTBOX_TABLE_MISSING",
        "The table does not exist in this database.",
        "Create it with `postbox migrate up --table <name>`, or correct the name.";
    TableMismatch = "OUTBOX_TABLE_MISMATCH",
        "The table exists but its columns are not those of an outbox table.",
        "Correct the columns that the message names, or use another table name; `postbox migrate up --table <name>` adds those that an earlier version had not.";
    HistoryMissing = "OUTBOX_HISTORY_MISSING",
        "Published events are to be moved to a history that the table does not have, or that lacks columns of the table.",
        "Make it with `postbox migrate up --history move --table <name>`, or set history to keep or none.";
    IdempotencyMissing = "OUTBOX_IDEMPOTENCY_MISSING",
        "The table of calls by idempotency key does not exist, or has other columns than it needs.",
        "Make it with `postbox migrate up --idempotency --table <name>`, where the name is that of the outbox.";
    IdempotencyLost = "OUTBOX_IDEMPOTENCY_LOST",
        "A call by an idempotency key took longer than its lease, and another one took it over.",
        "Nothing of the slow call was stored; its caller asks again and gets the answer of the other.";
    ColumnMissing = "OUTBOX_COLUMN_MISSING",
        "The event, or a setting, needs a column that this table does not have.",
        "Run `postbox migrate up` on the table, or leave the field or the setting out.";
    EventMissing = "OUTBOX_EVENT_MISSING",
        "The table has no such event, or not in the state that this needs.",
        "Look for it with `postbox events list`; what was published long ago is cleaned away.";
    NotEmpty = "OUTBOX_NOT_EMPTY",
        "The table still holds events that were not published.",
        "Let the relay deliver them first, or pass --discard-unpublished to lose them on purpose.";
    DatabaseUnreachable = "OUTBOX_DB_UNREACHABLE",
        "The database does not answer.",
        "Check that it runs and that host, port and network in DATABASE_URL are right.";
    DatabaseAuth = "OUTBOX_DB_AUTH",
        "The database refused the user or the password, or does not have the database.",
        "Check user, password and database name in DATABASE_URL.";
    DatabasePermission = "OUTBOX_DB_PERMISSION",
        "The database user may not do this.",
        "Grant what is missing; on PostgreSQL `postbox migrate print --table <name> --grants relay=<role>` shows what a relay needs.";
    DatabaseUrl = "OUTBOX_DB_URL",
        "The database URL cannot be understood.",
        "Use postgres://user:password@host:port/database, mysql://user:password@host:port/database, or sqlite:path/to/file.db.";
    DatabaseVersion = "OUTBOX_DB_VERSION",
        "The database server is too old.",
        "Use PostgreSQL 14, MariaDB 10.6 or MySQL 8.0.16, or later.";
    DatabaseFile = "OUTBOX_DB_FILE",
        "The database file cannot be opened, or is not a database.",
        "Check the path in DATABASE_URL; add ?mode=rwc to make a file that does not exist yet.";
    DatabaseReadOnly = "OUTBOX_DB_READ_ONLY",
        "The database can be read but not written.",
        "PostgreSQL, MySQL: the address leads to a standby; let DATABASE_URL and OUTBOX_DIRECT_URL name the primary. SQLite: allow the user to write the file and its directory, or open it without mode=ro.";
    DatabaseLocked = "OUTBOX_DB_LOCKED",
        "Another connection held the database's write lock for too long.",
        "Find the transaction that does not end; the operation is tried again.";
    DiskFull = "OUTBOX_DISK_FULL",
        "The disk is full, or the database has reached its largest size.",
        "Make room; delivery goes on by itself.";
    DatabaseError = "OUTBOX_DB_ERROR",
        "The database answered with an error.",
        "The message has the database's own words; the operation is tried again where that can help.";
    StrategyMismatch = "OUTBOX_STRATEGY_MISMATCH",
        "Another relay works on this table with a different claim strategy.",
        "Give all relays of a table the same `claim`, `single_active`, `fair_tenants` and, on MySQL, `ordering`; to change one of them, stop all relays first.";
    OrderUnsupported = "OUTBOX_ORDER_UNSUPPORTED",
        "The table lacks what delivery in order needs.",
        "Run `postbox migrate up --ordered --table <name>` (MySQL, MariaDB: `--order-index`), or leave `ordering` at none.";
    TenantsUnsupported = "OUTBOX_TENANTS_UNSUPPORTED",
        "The table lacks the index by which a relay goes from tenant to tenant.",
        "Run `postbox migrate up --fair-tenants --table <name>`, or leave `tenants` and `fair_tenants` out.";
    PoolerUnsupported = "OUTBOX_POOLER_UNSUPPORTED",
        "The connection goes through a transaction pooler, and this needs a session of its own: a relay that is alone on a bare table (its only lock is the session's), a migration, or a statement that a writer keeps prepared.",
        "Set OUTBOX_DIRECT_URL to the address of the database itself; a bare table can also be migrated, or shared with `single_active = false`, and a writer can use `Outbox::unprepared`.";
    Exhausted = "OUTBOX_EXHAUSTED",
        "The event used up its attempts without an answer: its process died each time, or the limit was lowered.",
        "Find out why its handler ends the process, then replay the event.";
    Undecodable = "OUTBOX_UNDECODABLE",
        "The row cannot be read as an event.",
        "Correct the row's headers or topic with SQL, then replay the event.";
    Unroutable = "OUTBOX_UNROUTABLE",
        "No route matches the event's topic, or none of the exclusive handlers takes it.",
        "Add a route or a handler for the topic, then replay the event.";
    Timeout = "OUTBOX_TIMEOUT",
        "The dispatch did not end within its timeout.",
        "Make the handler or sink answer sooner, or raise dispatch_timeout and lock_ttl together.";
    Panicked = "OUTBOX_PANIC",
        "The dispatcher panicked.",
        "Mend the panic; the event is tried again, as after any other error.";
    DispatchFailed = "OUTBOX_DISPATCH_FAILED",
        "The dispatcher answered with an error.",
        "The message has the error; the event is tried again.";
    Rejected = "OUTBOX_REJECTED",
        "The dispatcher said that this event can never be delivered.",
        "Correct the cause that the message names, then replay the event.";
    Unavailable = "OUTBOX_UNAVAILABLE",
        "The destination is down; its events wait and spend no attempt.",
        "Bring the destination back; delivery goes on by itself.";
    PayloadUndecodable = "OUTBOX_PAYLOAD_UNDECODABLE",
        "The payload does not fit the type that the handler asks for.",
        "Correct the type or give the new shape a new topic version, then replay the event.";
    NoSubscribers = "EVENTBUS_NO_SUBSCRIBERS",
        "No handler is registered for the event's topic.",
        "Register a handler, or route the topic to another destination; the event is tried again.";
    HandlerFailed = "EVENTBUS_HANDLER_FAILED",
        "One or more handlers of the event failed.",
        "The message has the errors of all of them; the event is tried again.";
    DuplicateHandler = "EVENTBUS_DUPLICATE_HANDLER",
        "A handler was registered as the only one for its events, and it is not.",
        "Remove one of the handlers, or register all of them with `on`.";
    HookFailed = "OUTBOX_HOOK_FAILED",
        "A hook that runs before events are written failed, and nothing was written.",
        "Correct the cause that the message names.";
    RolledBack = "OUTBOX_TX_ROLLED_BACK",
        "The transaction was rolled back, and none of its events exist.",
        "Find the statement that failed before the commit, or whose error was ignored; the message has the database's own words.";
    CommitUnknown = "OUTBOX_COMMIT_UNKNOWN",
        "The answer to a commit was lost, so the transaction may have been committed or not.",
        "Look for its data before you repeat it; events with the same event_id are not doubled.";
    NoTransaction = "OUTBOX_NO_TX",
        "The connection has no open transaction: an event would exist without the data, or the data without it.",
        "Enqueue and record within the driver's own transaction; with diesel-async, in the closure of `conn.transaction`.";
    TransactionAborted = "OUTBOX_TX_ABORTED",
        "An earlier statement of the transaction failed and its error was ignored, so nothing more can be done in it.",
        "Roll the transaction back, and find the statement that failed first.";
    TransactionConflict = "OUTBOX_TX_CONFLICT",
        "Another transaction got in the way: under REPEATABLE READ one that recorded the same message, or one that holds a lock.",
        "Roll back and repeat the whole transaction; under READ COMMITTED it would have waited instead.";
    InboxMissing = "OUTBOX_INBOX_MISSING",
        "The module has no inbox, or a table of that name is not an inbox.",
        "Make it with `postbox migrate up --inbox --table <name>`, where the name is that of the module's outbox.";
    MessageMissing = "OUTBOX_MESSAGE_MISSING",
        "The inbox does not remember such a message.",
        "Look for it with `postbox inbox list`; what was recorded long ago is cleaned away.";
    MessageIdInvalid = "OUTBOX_MESSAGE_ID_INVALID",
        "The id of a message is empty, too long, or holds a control character.",
        "Use the id that its producer gives it: the header event_id, source and id of CloudEvents, or another id of at most 1024 bytes.";
    ConsumerInvalid = "OUTBOX_CONSUMER_INVALID",
        "The name of a consumer is empty, too long, or holds a character that it may not.",
        "Use at most 127 lower case letters, digits, dots, hyphens and underscores, with a letter or digit in front.";
    RouteInvalid = "OUTBOX_ROUTE_INVALID",
        "A route's pattern, sink or destination cannot be understood.",
        "Use patterns like org.*.created.* or **, a sink that is configured, and destinations like events.{topic}.";
    SinkInvalid = "OUTBOX_SINK_INVALID",
        "The sink's URL or options cannot be used.",
        "Correct the URL or the options as the message says; the book has a page for each sink with all its options.";
    Closed = "OUTBOX_CLOSED",
        "The relay or cleaner was closed.",
        "Build a new one; what was closed is not started again.";
    ConfigInvalid = "OUTBOX_CONFIG_INVALID",
        "A setting has a value that cannot work.",
        "Correct the setting that the message names; `postbox config show` lists all of them.";
    ConfigUnknownKey = "OUTBOX_CONFIG_UNKNOWN_KEY",
        "A setting's name is not known.",
        "Correct the name; `postbox config show` lists all of them.";
    ConfigUnsupported = "OUTBOX_CONFIG_UNSUPPORTED",
        "The setting is known but this version cannot do it.",
        "Leave the setting at its default.";
    ConfigFile = "OUTBOX_CONFIG_FILE",
        "The configuration file cannot be read or is not TOML.",
        "Correct the file at the place that the message names.";
    ConfigMissing = "OUTBOX_CONFIG_MISSING",
        "A setting that this command needs is not given.",
        "Give it as a flag, a variable or in postbox.toml, as the message says.";
    NoTables = "OUTBOX_NO_TABLES",
        "No outbox table is named.",
        "Pass --table with its name (on PostgreSQL such as public.org_outbox), or set OUTBOX_RELAY_TABLES.";
    AdminUnauthorized = "OUTBOX_ADMIN_UNAUTHORIZED",
        "The admin API was called without a token, or with an unknown one.",
        "Log in, or send a token of the configuration: Authorization: Bearer <token>.";
    AdminForbidden = "OUTBOX_ADMIN_FORBIDDEN",
        "The token may look but not change.",
        "Use a token of admin.operator_tokens, or the command that the dashboard shows.";
    AdminReadOnly = "OUTBOX_ADMIN_READ_ONLY",
        "The admin API runs in read-only mode and refuses every change.",
        "Use the command that the dashboard shows, or start the relay without admin.read_only.";
    AdminCsrf = "OUTBOX_ADMIN_CSRF",
        "A change came from another site, or without the header that proves that it did not.",
        "Send the header x-postbox-csrf with the value that /api/v1/session answers, or a bearer token.";
    AdminHost = "OUTBOX_ADMIN_HOST",
        "The admin API was called by a host name that is not in admin.hosts.",
        "Call it by its address or as localhost, or add the name to admin.hosts.";
    AdminRequest = "OUTBOX_ADMIN_REQUEST",
        "The admin API cannot understand the request.",
        "Correct what the message names; /api/v1/openapi.json describes every request.";
    AdminNotFound = "OUTBOX_ADMIN_NOT_FOUND",
        "The admin API has no such page, table, sink or job.",
        "Look at /api/v1/tables, /api/v1/sinks and /api/v1/jobs, or at /api/v1/openapi.json.";
    AdminConflict = "OUTBOX_ADMIN_CONFLICT",
        "What is to be changed is not (or no longer) as the request says.",
        "Look at the preview again, and repeat the change with what it says.";
    AdminBusy = "OUTBOX_ADMIN_BUSY",
        "The admin API has as many requests or jobs in hand as it may.",
        "Try again in a moment, close dashboards that nobody looks at, or wait for the jobs that run.";
    MigrationInterrupted = "OUTBOX_MIGRATION_BUSY",
        "The migration could not get a short lock on the table in time.",
        "Run it again: it goes on where it stopped. A long transaction on the table holds it up.";
    // What `postbox doctor` finds. A finding is no error: something works worse than it could, or will not work for long.
    TableBare = "OUTBOX_TABLE_BARE",
        "The table has only the standard columns, so much of what a relay and an operator can do is off.",
        "Run `postbox migrate up --table <name>`; it adds columns and indexes without a rewrite or a long lock.";
    SchemaDrift = "OUTBOX_SCHEMA_DRIFT",
        "The table, or what belongs to it, differs from what this version makes.",
        "Look at the difference with `postbox migrate up --dry-run --table <name>`, then run it without --dry-run.";
    IndexMissing = "OUTBOX_INDEX_MISSING",
        "An index of the table is not there: claims, counts or the cleaner read the whole table instead.",
        "Run `postbox migrate up --table <name>`; it builds the index without blocking writers.";
    IndexInvalid = "OUTBOX_INDEX_INVALID",
        "An index is left over from a build that was interrupted: it costs every write and serves no read.",
        "Run `postbox migrate up --table <name>`; it drops the index and builds it again.";
    IndexUnused = "OUTBOX_INDEX_UNUSED",
        "A large index has not been used since the server's statistics began, and every write pays for it.",
        "Find out whether something needs it now and then, on a standby too; if not, DROP INDEX CONCURRENTLY.";
    TableBloated = "OUTBOX_TABLE_BLOATED",
        "The table holds many dead row versions: reads pass over them, and the file grows.",
        "Find out what keeps vacuum from removing them (OUTBOX_TX_OPEN, OUTBOX_SNAPSHOT_HELD), then VACUUM the table; the book has a runbook, Table too big.";
    AutovacuumOff = "OUTBOX_AUTOVACUUM_OFF",
        "Autovacuum is off for the table or the server, and an outbox makes a dead row version of every event.",
        "Switch it on: ALTER TABLE … RESET (autovacuum_enabled), or autovacuum = on for the server.";
    TransactionOpen = "OUTBOX_TX_OPEN",
        "A transaction has been open for long: vacuum cannot remove row versions that died since, and claims get slow.",
        "End it, and find out which program leaves transactions open; idle_in_transaction_session_timeout ends those that only wait.";
    SnapshotHeld = "OUTBOX_SNAPSHOT_HELD",
        "A replication slot or a standby holds an old snapshot: vacuum cannot remove row versions that died since.",
        "Bring the consumer of the slot or the standby up to date, or drop the slot; see hot_standby_feedback.";
    SlotIdle = "OUTBOX_SLOT_IDLE",
        "A replication slot that nobody reads makes the server keep its log, until the disk is full.",
        "Start its consumer, or SELECT pg_drop_replication_slot; max_slot_wal_keep_size sets a bound.";
    CommitAsync = "OUTBOX_COMMIT_ASYNC",
        "The server answers commits before they are on disk: a crash may take back events that were delivered already.",
        "Set synchronous_commit = on (MySQL: innodb_flush_log_at_trx_commit = 1) at least for what writes events.";
    ClockDiffers = "OUTBOX_CLOCK_DIFFERS",
        "The clocks of this machine and the database differ. Delivery goes by the database's clock alone; times in logs and schedules made here are off.",
        "Let both machines take their time from the same source (NTP).";
    OwnerStuck = "OUTBOX_OWNER_STUCK",
        "A relay holds the table and delivers nothing, though events are due that it could deliver.",
        "Look at its log and its process; end it, and another relay takes over. The book has a runbook, Stuck owner.";
    NobodyRelays = "OUTBOX_NOBODY_RELAYS",
        "Events wait, and no relay works on the table.",
        "Start one: `postbox relay --table <name>`.";
    BacklogLate = "OUTBOX_BACKLOG_LATE",
        "Events wait for longer than they should.",
        "See what they wait for with `postbox events list --oldest`; the book has a runbook, Backlog grows.";
    BacklogGrows = "OUTBOX_BACKLOG_GROWS",
        "More events are written than delivered.",
        "Find what is slow: the sink (its latency, a webhook's own concurrency), the relay (its concurrency and batch size) or the database; the book has a runbook, Backlog grows.";
    DeadEvents = "OUTBOX_DEAD_EVENTS",
        "Events are dead: nothing more happens to them until somebody replays or discards them.",
        "Look at their causes with `postbox dead list`, remove the cause, then `postbox dead replay` or `postbox dead discard`.";
    Paused = "OUTBOX_PAUSED",
        "Somebody paused delivery of the table, and nothing is delivered until it is resumed.",
        "Ask who did it, then `postbox resume --table <name>`.";
    TableLocked = "OUTBOX_TABLE_LOCKED",
        "A session holds a lock on the whole table, and everybody waits: writers and relays.",
        "End the session that the finding names, and run DDL with a lock_timeout.";
    ConnectionsShort = "OUTBOX_CONNECTIONS_SHORT",
        "The database has too few connections left for a relay of this configuration.",
        "Raise max_connections or the limit of the role, close what is not needed, or name fewer tables in one relay.";
    SinkUnreachable = "OUTBOX_SINK_UNREACHABLE",
        "A sink cannot be reached from here.",
        "Check that it runs, its address in the sink's URL, and the network between; events wait and spend no attempt.";
    Pooled = "OUTBOX_POOLED",
        "A transaction pooler is in between: there is no session lock and no LISTEN, so a dead relay is replaced only when its time limit is over, and events are found by polling.",
        "Set OUTBOX_DIRECT_URL to the address of the database itself.";
    NotifyQueue = "OUTBOX_NOTIFY_QUEUE",
        "The server's queue of notifications fills up: when it is full, commits that notify fail.",
        "Find the session that listens and stays in a transaction, and end it.";
    StatsHidden = "OUTBOX_STATS_HIDDEN",
        "This database user cannot see what others do, so long transactions and their owners stay hidden.",
        "GRANT pg_read_all_stats to the user (MySQL: the privilege PROCESS), or run it as another user.";
    PacketSmall = "OUTBOX_PACKET_SMALL",
        "The server accepts only small statements: many or large events at once do not fit.",
        "Raise max_allowed_packet.";
    WalLarge = "OUTBOX_WAL_LARGE",
        "The write-ahead log of the SQLite file has grown, because a reader has kept its transaction open for long.",
        "End the reader; the next commits empty the log.";
    JournalMode = "OUTBOX_JOURNAL_MODE",
        "The SQLite file has no write-ahead log, so readers and writers block each other.",
        "Run PRAGMA journal_mode = WAL; the file must be on a local disk.";
    ConfigDoubtful = "OUTBOX_CONFIG_DOUBTFUL",
        "A setting can be used, but probably does not do what was intended.",
        "Look at it with `postbox config show`.";
    CheckFailed = "OUTBOX_CHECK_FAILED",
        "A check could not be made.",
        "The message has the reason; mend it and run the doctor again.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;
    use std::collections::HashSet;

    #[test]
    fn every_code_is_stable_text_with_a_meaning_and_a_next_step() {
        let mut seen = HashSet::new();
        for code in Code::ALL {
            let text = code.as_str();
            assert!(seen.insert(text), "{text} twice");
            assert!(text.starts_with("OUTBOX_") || text.starts_with("EVENTBUS_"), "{text}");
            assert!(text.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{text}");
            assert!(code.meaning().ends_with('.') && code.next_step().ends_with('.'), "{text}");
        }
    }
}
