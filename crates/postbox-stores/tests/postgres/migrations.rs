//! Migrations: exact, repeatable, repairable, and in nobody's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use postbox_core::{Code, Layout, TableName};
use postbox_stores::postgres::migrate::{self, Format};
use postbox_stores::postgres::{PgStore, connect_options};
use postbox_testkit::suite::{PATIENCE, Subject as _, claim, enqueue, events};
use postbox_testkit::{PgServer, TestDb, eventually};
use sqlx::{ConnectOptions as _, PgConnection};

use crate::subject::{SEED_DDL, Shape, Table};

fn name() -> TableName {
    "public.org_outbox".parse().unwrap()
}

async fn connect(db: &TestDb) -> PgConnection {
    connect_options(&db.url).unwrap().connect().await.unwrap()
}

async fn up(db: &TestDb) -> Vec<String> {
    let plan = migrate::up(&mut connect(db).await, &name(), |_| {}).await.unwrap();
    plan.steps.into_iter().map(|step| step.what).collect()
}

const COLUMNS: &str = "SELECT string_agg(column_name || ' ' || data_type || CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END
    || coalesce(' ' || column_default, ''), E'\\n' ORDER BY ordinal_position) FROM information_schema.columns WHERE table_name = 'org_outbox'";

#[tokio::test]
async fn the_twelve_columns_are_exactly_those_of_the_contract() {
    let table = Table::new(Shape::Migrated).await;
    let columns = table.db.psql(COLUMNS);
    let first: Vec<&str> = columns.lines().take(12).collect();
    assert_eq!(
        first,
        [
            "id uuid NOT NULL gen_random_uuid()",
            "tenant_id uuid NOT NULL",
            "topic text NOT NULL",
            "payload jsonb NOT NULL",
            "event_id uuid NOT NULL",
            "sequence bigint NOT NULL nextval('org_outbox_sequence_seq'::regclass)",
            "created_at timestamp with time zone NOT NULL now()",
            "published_at timestamp with time zone",
            "attempts integer NOT NULL 0",
            "available_at timestamp with time zone NOT NULL now()",
            "locked_at timestamp with time zone",
            "last_error text",
        ]
    );
    assert_eq!(columns.lines().count(), 30);
    assert!(
        columns.lines().skip(12).all(|line| !line.contains("NOT NULL")),
        "extension columns are optional"
    );
    let indexes = table.db.psql("SELECT indexdef FROM pg_indexes WHERE tablename = 'org_outbox' ORDER BY 1");
    for wanted in [
        "org_outbox_pending_by_available ON public.org_outbox USING btree (available_at, sequence) WHERE ((published_at IS NULL) AND (dead_at IS NULL))",
        "org_outbox_published_by_time ON public.org_outbox USING btree (published_at, sequence) WHERE (published_at IS NOT NULL)",
        "org_outbox_tenant_published ON public.org_outbox USING btree (tenant_id, published_at, sequence)",
        "org_outbox_pkey",
        "org_outbox_event_id_key",
    ] {
        assert!(indexes.contains(wanted), "{wanted} in {indexes}");
    }
    assert_eq!(
        table.db.psql(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = 'org_outbox'::regclass"
        ),
        "org_outbox_attempts_nonnegative"
    );
    let options = table.db.psql("SELECT reloptions FROM pg_class WHERE relname = 'org_outbox'");
    assert!(
        options.contains("fillfactor=85") && options.contains("autovacuum_vacuum_scale_factor"),
        "{options}"
    );
}

#[tokio::test]
async fn a_second_run_changes_nothing_and_printed_sql_makes_the_same() {
    let server = PgServer::shared();
    let (applied, printed) = (server.database(), server.database());
    assert!(!up(&applied).await.is_empty());
    assert!(up(&applied).await.is_empty());
    applied.psql("ALTER TABLE org_outbox SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1)");
    assert!(up(&applied).await.is_empty(), "what an operator has set stays");
    printed.psql(&migrate::print_up(&name(), Format::Sql));
    assert!(up(&printed).await.is_empty(), "nothing is left to do after the printed SQL");
    printed.psql(&migrate::print_up(&name(), Format::Sql));
    assert_eq!(applied.psql(COLUMNS), printed.psql(COLUMNS));
    printed.psql(&migrate::print_down(&name()));
    assert_eq!(printed.psql("SELECT to_regclass('org_outbox') IS NULL"), "t");
    let bare_name: TableName = "hrm_outbox".parse().unwrap();
    printed.psql(&format!(
        "CREATE SCHEMA s; SET search_path = s; {}",
        migrate::print_up(&bare_name, Format::Sql)
    ));
    assert_eq!(
        printed.psql("SELECT tbl FROM s.postbox_relay"),
        "s.hrm_outbox",
        "a name without schema goes where the session looks"
    );
}

#[tokio::test]
async fn statuses_are_derived() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(5)).await;
    table.db.psql("UPDATE org_outbox SET published_at = now() WHERE sequence = 1; UPDATE org_outbox SET dead_at = now() WHERE sequence = 2;
        UPDATE org_outbox SET locked_at = now(), attempts = 1 WHERE sequence = 3; UPDATE org_outbox SET attempts = 1 WHERE sequence = 4");
    let statuses = table.db.psql("SELECT string_agg(status, ' ' ORDER BY sequence) FROM org_outbox_status");
    assert_eq!(statuses, "SENT DEAD PUBLISHING FAILED NEW");
}

#[tokio::test]
async fn a_bare_table_is_upgraded_in_place_under_load() {
    let db = PgServer::shared().database();
    db.psql(SEED_DDL);
    db.psql("INSERT INTO org_outbox (tenant_id, topic, payload, event_id, published_at)
        SELECT gen_random_uuid(), 'org.a.b.v1', jsonb_build_object('n', n), gen_random_uuid(), CASE WHEN n % 2 = 0 THEN now() END
        FROM generate_series(1, 100000) n");
    let fingerprint = "SELECT md5(string_agg(md5(row(id, tenant_id, topic, payload, event_id, sequence, created_at, published_at)::text), '' ORDER BY sequence))
        FROM org_outbox WHERE sequence <= 100000";
    let before = db.psql(fingerprint);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = Vec::new();
    for _ in 0..4 {
        let (options, stop, written) =
            (connect_options(&db.url).unwrap(), Arc::clone(&stop), Arc::clone(&written));
        writers.push(tokio::spawn(async move {
            // Whoever waits for a lock longer than a second fails, and with it the test.
            let mut connection = options.options([("lock_timeout", "1s")]).connect().await.unwrap();
            while !stop.load(Ordering::SeqCst) {
                sqlx::query("INSERT INTO org_outbox (tenant_id, topic, payload, event_id) VALUES (gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid())")
                    .execute(&mut connection).await.expect("no statement waits a second");
                sqlx::query("UPDATE org_outbox SET last_error = NULL WHERE sequence = 1 + (random() * 99999)::bigint")
                    .execute(&mut connection).await.expect("no statement waits a second");
                written.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    eventually("the load", PATIENCE, async || written.load(Ordering::SeqCst) > 8).await;
    // A transaction that holds its lock for a while: short locks have to be asked for again.
    let mut slow = connect(&db).await;
    sqlx::raw_sql("BEGIN; UPDATE org_outbox SET last_error = NULL WHERE sequence = 1")
        .execute(&mut slow)
        .await
        .unwrap();
    let release = tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        sqlx::raw_sql("COMMIT").execute(&mut slow).await.unwrap();
    });
    let steps = up(&db).await;
    release.await.unwrap();
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(steps.iter().any(|step| step.contains("pending_new")), "{steps:?}");
    assert!(up(&db).await.is_empty());
    assert_eq!(db.psql(fingerprint), before, "no data was touched");
    let index =
        db.psql("SELECT indexdef FROM pg_indexes WHERE indexname = 'org_outbox_pending_by_available'");
    assert!(index.contains("dead_at IS NULL"), "{index}");
    assert_eq!(db.psql("SELECT count(*) FROM pg_indexes WHERE indexname LIKE '%_new'"), "0");
    let store = PgStore::builder(connect_options(&db.url).unwrap(), name()).build();
    assert_eq!(store.layout().await.unwrap(), Layout::Full);
    assert_eq!(claim(&store, 10).await.rows.len(), 10);
}

/// A concurrent build waits for this transaction.
async fn hold_up_builds(db: &TestDb) -> PgConnection {
    db.psql("CREATE TABLE other (a int)");
    let mut slow = connect(db).await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO other VALUES (1)";
    sqlx::raw_sql(begin).execute(&mut slow).await.unwrap();
    slow
}

#[tokio::test]
async fn an_interrupted_run_is_repaired() {
    let db = PgServer::shared().database();
    db.psql(SEED_DDL);
    // Time to kill a build half-way.
    let mut slow = hold_up_builds(&db).await;
    let options = connect_options(&db.url).unwrap().application_name("interrupted");
    let run = tokio::spawn(async move {
        migrate::up(&mut options.connect().await.unwrap(), &name(), |_| {}).await.is_err()
    });
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'interrupted' AND query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock'";
    eventually("the build to be killed", PATIENCE, async || db.psql(kill) == "1").await;
    assert!(run.await.unwrap(), "the run failed");
    assert_ne!(
        db.psql("SELECT count(*) FROM pg_index WHERE NOT indisvalid"),
        "0",
        "it left an invalid index"
    );
    sqlx::raw_sql("COMMIT").execute(&mut slow).await.unwrap();
    let steps = up(&db).await;
    assert!(steps.iter().any(|step| step.starts_with("- invalid index")), "{steps:?}");
    assert_eq!(db.psql("SELECT count(*) FROM pg_index WHERE NOT indisvalid"), "0");
    assert!(up(&db).await.is_empty());
}

/// Many a role or session has limits for what serves requests. They end no build, and are there again when the migration is done.
#[tokio::test]
async fn a_build_takes_longer_than_the_role_may() {
    let db = PgServer::shared().database();
    db.psql(SEED_DDL);
    let mut slow = hold_up_builds(&db).await;
    let options = connect_options(&db.url).unwrap().application_name("limited");
    let options = options.options([("statement_timeout", "2s")]);
    let run = tokio::spawn(async move {
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql("SET lock_timeout = '2s'").execute(&mut connection).await.unwrap();
        migrate::up(&mut connection, &name(), |_| {}).await.unwrap();
        let limits = "SELECT current_setting('statement_timeout') || ' ' || current_setting('lock_timeout')";
        sqlx::query_scalar::<_, String>(limits).fetch_one(&mut connection).await.unwrap()
    });
    let late = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limited' AND query LIKE 'CREATE INDEX%'
        AND query_start < clock_timestamp() - interval '3 seconds'";
    eventually("a build that takes long", PATIENCE, async || db.psql(late) == "1").await;
    sqlx::raw_sql("COMMIT").execute(&mut slow).await.unwrap();
    assert_eq!(run.await.unwrap(), "2s 2s");
    assert!(up(&db).await.is_empty());
}

/// What has failed leaves no lock behind that would keep others from migrating, as long as its connection lives.
#[tokio::test]
async fn a_migration_that_fails_is_in_nobodys_way() {
    let db = PgServer::shared().database();
    let mut connection = connect(&db).await;
    db.psql("CREATE TABLE org_outbox (id bigint primary key)");
    let error = migrate::up(&mut connection, &name(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert_eq!(
        db.psql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ),
        "0"
    );
    db.psql("DROP TABLE org_outbox");
    assert!(!up(&db).await.is_empty());
}

#[tokio::test]
async fn down_refuses_while_events_wait() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(1)).await;
    let mut connection = connect(&table.db).await;
    for change in ["SELECT 1", "UPDATE org_outbox SET dead_at = now()"] {
        table.db.psql(change);
        let error = migrate::down(&mut connection, &name(), false).await.unwrap_err();
        assert_eq!(error.code(), Code::NotEmpty, "{error}");
        assert!(table.db.try_psql(&migrate::print_down(&name())).unwrap_err().contains("OUTBOX_NOT_EMPTY"));
        assert_eq!(table.rows().await, 1);
    }
    migrate::down(&mut connection, &name(), true).await.unwrap();
    assert_eq!(table.db.psql("SELECT to_regclass('org_outbox') IS NULL, count(*) FROM postbox_relay"), "t|0");
    assert_eq!(migrate::down(&mut connection, &name(), true).await.unwrap_err().code(), Code::TableMissing);
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused_with_its_columns_named() {
    let db = PgServer::shared().database();
    db.psql("CREATE TABLE org_outbox (id bigint primary key, payload text, published_at timestamp)");
    let error = migrate::up(&mut connect(&db).await, &name(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    let text = error.to_string();
    assert!(text.contains("id is bigint, not uuid") && text.contains("event_id is missing"), "{text}");
    let store = PgStore::builder(connect_options(&db.url).unwrap(), name()).build();
    assert_eq!(store.layout().await.unwrap_err().code(), Code::TableMismatch);
    let typo =
        PgStore::builder(connect_options(&db.url).unwrap(), "public.ogr_outbox".parse().unwrap()).build();
    let error = typo.layout().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMissing);
    assert!(error.to_string().ends_with("Did you mean public.org_outbox?"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_knows_no_owners_is_replaced() {
    for history in [false, true] {
        let table = Table::new(if history { Shape::Moving } else { Shape::Migrated }).await;
        let columns = "event_id, sequence, tenant_id, topic, aggregate_type, aggregate_id, 'NEW'::text AS status, attempts, created_at,
            available_at, published_at, dead_at, dlq_at, locked_at, locked_by, last_error";
        table.db.psql(&format!(
            "CREATE OR REPLACE VIEW org_outbox_status AS SELECT {columns} FROM org_outbox{moved}",
            moved = if history {
                format!(" UNION ALL SELECT {columns} FROM org_outbox_history")
            } else {
                String::new()
            }
        ));
        let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
        let plan = migrate::plan(&mut connection, &table.name).await.unwrap();
        assert_eq!(plan.steps.iter().map(|step| &*step.what).collect::<Vec<_>>(), ["+ status view"]);
        migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
        let left = migrate::plan(&mut connection, &table.name).await.unwrap().steps;
        assert!(left.is_empty(), "{left:?}");
    }
}
