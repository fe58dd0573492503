//! What can be broken, how that is done, and what a doctor says of it.

use std::process::Command;

use postbox_testkit::{Program, eventually_blocking};

use crate::common::{LONG, Place, TABLE};

/// What keeps a set-up broken for as long as it is looked at.
type Kept = Vec<Program>;

/// A set-up, and what a doctor must say of it.
pub(crate) struct Broken {
    pub(crate) name: &'static str,
    /// Breaks it.
    pub(crate) how: fn(&Place) -> Kept,
    /// What the doctor is asked with.
    pub(crate) args: &'static [&'static str],
    pub(crate) env: &'static [(&'static str, &'static str)],
    pub(crate) code: &'static str,
    /// In what it found, and in what to do.
    pub(crate) says: &'static str,
}

fn sql(place: &Place, statements: &str) -> Kept {
    place.db.psql(statements);
    Vec::new()
}

/// A session that does this and stays.
fn session(place: &Place, statements: &str, there: &str) -> Kept {
    let mut command = Command::new("psql");
    command.args(["-X", "-d", &place.db.url, "-c", &format!("{statements}; SELECT pg_sleep(300)")]);
    let held = vec![Program::from_command(command)];
    eventually_blocking("the session", LONG, || place.db.psql(there) == "t");
    held
}

/// Writes an event every few milliseconds.
pub(crate) fn writer(place: &Place) -> Program {
    let mut writer = Command::new("psql");
    let insert = format!(
        "DO $$ BEGIN LOOP
             INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             VALUES ('00000000-0000-0000-0000-000000000000', 'a.b.c.v1', '1', gen_random_uuid());
             COMMIT;
             PERFORM pg_sleep(0.01);
         END LOOP; END $$"
    );
    writer.args(["-X", "-q", "-d", &place.db.url, "-c", &insert]);
    Program::from_command(writer)
}

pub(crate) const SETUPS: &[Broken] = &[
    Broken {
        name: "a dropped index",
        how: |place| sql(place, "DROP INDEX org_outbox_pending_by_available"),
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_MISSING",
        says: "+ index org_outbox_pending_by_available",
    },
    Broken {
        name: "an index whose build was interrupted",
        how: |place| {
            sql(
                place,
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'org_outbox_published_by_time'::regclass",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_INVALID",
        says: "invalid index org_outbox_published_by_time",
    },
    Broken {
        name: "an index that nobody uses",
        how: |place| {
            place.insert(20_000);
            // Text that does not get smaller: 20,000 times about 1,300 bytes.
            sql(
                place,
                "CREATE FUNCTION noise(BIGINT) RETURNS TEXT IMMUTABLE LANGUAGE sql AS
                     $$ SELECT string_agg(md5(($1 * 100 + n)::text), '') FROM generate_series(1, 40) n $$;
                 CREATE INDEX org_outbox_of_somebody ON org_outbox (noise(sequence));
                 UPDATE org_outbox SET published_at = now()",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_UNUSED",
        says: "DROP INDEX CONCURRENTLY org_outbox_of_somebody",
    },
    Broken {
        name: "a column that was dropped",
        how: |place| sql(place, "ALTER TABLE org_outbox DROP COLUMN dead_at CASCADE"),
        args: &[],
        env: &[],
        code: "OUTBOX_COLUMN_MISSING",
        says: "lacks dead_at",
    },
    Broken {
        name: "a view that was dropped",
        how: |place| sql(place, "DROP VIEW org_outbox_status"),
        args: &[],
        env: &[],
        code: "OUTBOX_SCHEMA_DRIFT",
        says: "+ status view",
    },
    Broken {
        name: "a table that is gone",
        how: |place| sql(place, "DROP TABLE org_outbox CASCADE"),
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_MISSING",
        says: "postbox migrate up --table public.org_outbox",
    },
    Broken {
        name: "a table that somebody has for himself",
        how: |place| {
            session(
                place,
                "BEGIN; LOCK TABLE org_outbox",
                "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'org_outbox'::regclass)",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_LOCKED",
        says: "pg_terminate_backend",
    },
    Broken {
        name: "an open transaction",
        how: |place| {
            session(
                place,
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM org_outbox",
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()
                     AND backend_xmin IS NOT NULL AND clock_timestamp() - xact_start > interval '200 milliseconds')",
            )
        },
        args: &["--max-transaction", "100ms"],
        env: &[],
        code: "OUTBOX_TX_OPEN",
        says: "has a transaction open for",
    },
    Broken {
        name: "a prepared transaction that nobody ends",
        how: |place| {
            let prepare =
                "BEGIN; INSERT INTO postbox_audit (who, action, tbl, events) VALUES ('a', 'b', 'c', 0);
                           PREPARE TRANSACTION 'forgotten'";
            place.db.psql(prepare);
            eventually_blocking("it is old", LONG, || {
                place.db.psql("SELECT clock_timestamp() - prepared > interval '200 milliseconds' FROM pg_prepared_xacts") == "t"
            });
            Vec::new()
        },
        args: &["--max-transaction", "100ms"],
        env: &[],
        code: "OUTBOX_TX_OPEN",
        says: "ROLLBACK PREPARED 'forgotten'",
    },
    Broken {
        name: "a replication slot that nobody reads",
        how: |place| {
            place.db.psql("SELECT pg_create_physical_replication_slot('of_nobody', true)");
            for _ in 0..5 {
                place.db.psql("SELECT pg_logical_emit_message(false, 'a', 'b'); SELECT pg_switch_wal()");
            }
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_SLOT_IDLE",
        says: "pg_drop_replication_slot('of_nobody')",
    },
    Broken {
        name: "autovacuum that is off",
        how: |place| sql(place, "ALTER TABLE org_outbox SET (autovacuum_enabled = off)"),
        args: &[],
        env: &[],
        code: "OUTBOX_AUTOVACUUM_OFF",
        says: "RESET (autovacuum_enabled)",
    },
    Broken {
        name: "a bloated table",
        how: |place| {
            place.db.psql("ALTER TABLE org_outbox SET (autovacuum_enabled = off)");
            place.insert(30_000);
            place.db.psql("UPDATE org_outbox SET published_at = now()");
            place.db.psql("UPDATE org_outbox SET attempts = 1");
            eventually_blocking("the server has counted", LONG, || {
                place
                    .db
                    .psql("SELECT n_dead_tup > 55000 FROM pg_stat_user_tables WHERE relname = 'org_outbox'")
                    == "t"
            });
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_BLOATED",
        says: "dead row versions beside",
    },
    Broken {
        name: "synchronous_commit that is off",
        how: |place| {
            sql(
                place,
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_COMMIT_ASYNC",
        says: "SET synchronous_commit = on",
    },
    Broken {
        name: "a clock that is ten minutes ahead",
        how: |place| {
            // Found before the server's own, by everybody who does not say which one he means.
            sql(
                place,
                "CREATE SCHEMA fake;
                 CREATE FUNCTION fake.clock_timestamp() RETURNS TIMESTAMPTZ LANGUAGE sql AS
                     $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$;
                 DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = fake, pg_catalog, public', current_database()); END $$",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_CLOCK_DIFFERS",
        says: "s ahead of this machine's",
    },
    Broken {
        name: "an owner that is connected and does nothing",
        how: |place| {
            let mut relay = place.relay(&[]);
            relay.wait_for_line("standing=Active", LONG);
            relay.sigstop();
            place.insert(3);
            place.db.psql("UPDATE org_outbox SET available_at = now() - interval '1 minute', created_at = now() - interval '1 minute'");
            vec![relay]
        },
        args: &["--dispatch-timeout", "1s", "--between", "300ms"],
        env: &[],
        code: "OUTBOX_OWNER_STUCK",
        says: "end that process",
    },
    Broken {
        name: "a stranger with the lock of the active relay",
        how: |place| {
            // As `postbox relay` takes it: the hash of outbox:public.org_outbox.
            let lock = fnv1a(&format!("outbox:{TABLE}"));
            let there = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
            session(place, &format!("SELECT pg_advisory_lock({lock})"), there)
        },
        args: &[],
        env: &[],
        code: "OUTBOX_OWNER_STUCK",
        says: "no other relay can take over",
    },
    Broken {
        name: "nobody who relays",
        how: |place| {
            place.insert(2);
            Vec::new()
        },
        args: &["--between", "10ms"],
        env: &[],
        code: "OUTBOX_NOBODY_RELAYS",
        says: "postbox relay --table public.org_outbox",
    },
    Broken {
        name: "a backlog that grows",
        how: |place| {
            place.insert(1_500);
            let writer = writer(place);
            eventually_blocking("it writes", LONG, || place.count("true") > 1_502);
            vec![writer]
        },
        args: &["--between", "500ms"],
        env: &[],
        code: "OUTBOX_BACKLOG_GROWS",
        says: "events a second come in, 0 go out",
    },
    Broken {
        name: "dead events",
        how: |place| {
            place.insert(1);
            sql(place, "UPDATE org_outbox SET dead_at = now(), last_error = 'OUTBOX_REJECTED: no'")
        },
        args: &[],
        env: &[],
        code: "OUTBOX_DEAD_EVENTS",
        says: "postbox dead list --table public.org_outbox",
    },
    Broken {
        name: "a pause that was forgotten",
        how: |place| {
            place.ok(&["pause", "--table", TABLE, "--reason", "move"]);
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_PAUSED",
        says: "paused by tester@testhost: move",
    },
    Broken {
        name: "a lease shorter than the timeout",
        how: |_| Vec::new(),
        args: &[],
        env: &[("OUTBOX_RELAY_LOCK_TTL", "5s")],
        code: "OUTBOX_CONFIG_INVALID",
        says: "less than 1.5 × relay.dispatch_timeout",
    },
    Broken {
        name: "a sink that cannot be reached",
        how: |_| Vec::new(),
        args: &["--sink", "nats://127.0.0.1:1"],
        env: &[],
        code: "OUTBOX_SINK_UNREACHABLE",
        says: "cannot be reached: 127.0.0.1:1: Connection refused",
    },
    Broken {
        name: "a file in a folder that is not there",
        how: |_| Vec::new(),
        args: &["--sink", "file:nowhere/out.jsonl"],
        env: &[],
        code: "OUTBOX_SINK_UNREACHABLE",
        says: "mkdir -p nowhere",
    },
    Broken {
        name: "a setting that has no effect",
        how: |_| Vec::new(),
        args: &["--on-dead", "skip"],
        env: &[],
        code: "OUTBOX_CONFIG_DOUBTFUL",
        says: "relay.on_dead has no effect",
    },
];

/// The hash by which a relay knows its lock.
fn fnv1a(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.cast_signed()
}
