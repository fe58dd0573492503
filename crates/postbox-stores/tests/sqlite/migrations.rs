//! Tables are made, upgraded and removed, and what is printed does the same.

use std::time::Duration;

use postbox_core::{
    Browse as _, Cleaner, Code, DeadFilter, DeadLetters as _, EventFilter, EventStatus, Inspect as _,
    ListRequest, Relay, Store as _, TableName,
};
use postbox_stores::sqlite::migrate::{self, Format};
use postbox_stores::sqlite::{SqliteAdmin, SqliteStore};
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, claim, enqueue, events, quick};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::subject::{Table, options};

/// Everything that the catalogue knows, by name.
async fn catalogue(connection: &mut SqliteConnection) -> Vec<(String, String)> {
    let rows = sqlx::query("SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name");
    let rows = rows.fetch_all(connection).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn a_second_run_has_nothing_to_do() {
    let table = Table::new().await;
    let mut connection = table.pool.acquire().await.unwrap();
    assert_eq!(migrate::plan(&mut connection, &table.name).await.unwrap().steps, []);
    assert_eq!(migrate::up(&mut connection, &table.name, |_| {}).await.unwrap().steps, []);
    let other: TableName = "main.crm_outbox".parse().unwrap();
    let planned = migrate::plan(&mut connection, &other).await.unwrap();
    let mut shown = Vec::new();
    let done = migrate::up(&mut connection, &other, |step| shown.push(step.clone())).await.unwrap();
    assert_eq!(planned, done);
    assert_eq!(done.steps, shown);
    assert_eq!(done.table.to_string(), "crm_outbox");
}

#[tokio::test]
async fn what_is_printed_makes_the_same_table_and_removes_it() {
    let table = Table::new().await;
    let by_up = catalogue(&mut table.pool.acquire().await.unwrap()).await;
    let folder = tempfile::tempdir().unwrap();
    let pool = sqlx::SqlitePool::connect_with(options(&folder.path().join("printed.db"))).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let run = async |connection: &mut SqliteConnection, sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await
    };
    let up = migrate::print_up(&table.name, Format::Sql).unwrap();
    for _ in 0..2 {
        run(&mut connection, format!("BEGIN; {up} COMMIT;")).await.unwrap();
    }
    assert_eq!(catalogue(&mut connection).await, by_up);
    assert_eq!(migrate::plan(&mut connection, &table.name).await.unwrap().steps, []);

    let down = migrate::print_down(&table.name).unwrap();
    let insert = "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
                  VALUES (zeroblob(16), 'a', '1', zeroblob(16))";
    run(&mut connection, insert.to_owned()).await.unwrap();
    let error = run(&mut connection, format!("BEGIN; {down} COMMIT;")).await.unwrap_err().to_string();
    assert!(error.contains("OUTBOX_NOT_EMPTY"), "{error}");
    run(&mut connection, "ROLLBACK; DELETE FROM org_outbox".to_owned()).await.unwrap();
    run(&mut connection, format!("BEGIN; {down} COMMIT;")).await.unwrap();
    assert!(!catalogue(&mut connection).await.iter().any(|(name, _)| name.contains("org_outbox")));
    let goose = migrate::print_up(&table.name, Format::Goose).unwrap();
    assert!(goose.starts_with("-- +goose Up") && goose.contains("-- +goose Down"));
}

#[tokio::test]
async fn an_older_table_is_upgraded_in_place_and_refused_until_then() {
    let table = Table::new().await;
    enqueue(&table, events(3)).await;
    table
        .sql(
            "DROP VIEW org_outbox_status; DROP INDEX org_outbox_dead_by_time; DROP INDEX org_outbox_pending_by_available;
             DROP INDEX org_outbox_dead_by_aggregate; DROP INDEX org_outbox_unpublished_by_sequence;
             ALTER TABLE org_outbox DROP COLUMN dead_at; ALTER TABLE org_outbox DROP COLUMN sinks_done;
             CREATE INDEX org_outbox_pending_by_available ON org_outbox (available_at) WHERE published_at IS NULL",
        )
        .await
        .unwrap();
    let error = table.store(true).open().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.message().contains("dead_at") && error.message().contains("migrate up"), "{error}");
    assert_eq!(table.admin().counts().await.unwrap_err().code(), Code::TableMismatch);
    let mut connection = table.pool.acquire().await.unwrap();
    let plan = migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.what.as_str()).collect();
    assert!(steps.contains(&"+ column dead_at") && steps.contains(&"+ status view"), "{steps:?}");
    assert_eq!(migrate::plan(&mut connection, &table.name).await.unwrap().steps, []);
    assert_eq!(claim(&table.store(false), 10).await.rows.len(), 3);
}

#[tokio::test]
async fn other_tables_are_refused_with_their_faults() {
    let table = Table::new().await;
    table.sql("CREATE TABLE wrong (sequence INTEGER PRIMARY KEY, id TEXT, published_at TEXT)").await.unwrap();
    let mut connection = table.pool.acquire().await.unwrap();
    let error = migrate::up(&mut connection, &"wrong".parse().unwrap(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    for part in ["id is TEXT, not BLOB", "topic is missing", "not STRICT", "AUTOINCREMENT"] {
        assert!(error.message().contains(part), "{error}");
    }
    for discard in [false, true] {
        let error = migrate::down(&mut connection, &"wrong".parse().unwrap(), discard).await.unwrap_err();
        assert_eq!(error.code(), Code::TableMismatch, "not ours to remove");
    }
    let open = async |name: &str| {
        let store = SqliteStore::builder(table.options.clone(), name.parse().unwrap()).build();
        store.open().await.unwrap_err().to_string()
    };
    assert!(open("wrong").await.starts_with("OUTBOX_TABLE_MISMATCH"));
    assert_eq!(
        open("org_outbux").await,
        "OUTBOX_TABLE_MISSING: org_outbux does not exist. Did you mean org_outbox?"
    );
    assert!(open("public.org_outbox").await.contains("name the table org_outbox"));
    let store = SqliteStore::builder(table.options.clone(), "main.org_outbox".parse().unwrap()).build();
    store.open().await.unwrap();
}

#[tokio::test]
async fn down_refuses_to_lose_events_unless_asked_to() {
    let table = Table::new().await;
    enqueue(&table, events(1)).await;
    let mut connection = table.pool.acquire().await.unwrap();
    let error = migrate::down(&mut connection, &table.name, false).await.unwrap_err();
    assert_eq!(error.code(), Code::NotEmpty);
    migrate::down(&mut connection, &table.name, true).await.unwrap();
    assert_eq!(
        migrate::down(&mut connection, &table.name, true).await.unwrap_err().code(),
        Code::TableMissing
    );
    let admin = SqliteAdmin::connect(table.options.clone(), table.name.clone());
    assert_eq!(admin.counts().await.unwrap_err().code(), Code::TableMissing);
}

#[tokio::test]
async fn the_status_view_is_for_people() {
    let table = Table::new().await;
    let id = enqueue(&table, events(1)).await[0];
    let sql = "SELECT event_id, status, created_at FROM org_outbox_status";
    let row = sqlx::query(sql).fetch_one(&table.pool).await.unwrap();
    assert_eq!((row.get::<String, _>(0), row.get::<String, _>(1)), (id.to_string(), "NEW".to_owned()));
    let created_at: String = row.get(2);
    assert!(created_at.ends_with('Z') && created_at.len() == 24, "{created_at}");
}

/// Statements name the indexes that they are made for, but only those that are there.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_indexes_a_table_is_slow_but_works() {
    let table = Table::new().await;
    for end in ["pending_by_available", "published_by_time", "tenant_published", "dead_by_time"] {
        table.sql(&format!("DROP INDEX org_outbox_{end}")).await.unwrap();
    }
    // As good as none: it is of another kind.
    table.sql("CREATE INDEX org_outbox_pending_by_available ON org_outbox (available_at)").await.unwrap();
    let ids = enqueue(&table, events(30)).await;
    let dying = ids[0];
    let sink = Scripted::new(move |d| if d.meta.event_id == dying { Act::Reject } else { Act::Ok });
    let relay = Relay::builder(table.store(true)).dispatcher(sink).settings(quick());
    assert_eq!(relay.build().unwrap().run_once().await.unwrap().delivered, 29);
    let admin = table.admin();
    assert_eq!(admin.counts().await.unwrap().dead, 1);
    assert_eq!(admin.count(&DeadFilter::default()).await.unwrap(), 1);
    for status in EventStatus::ALL {
        let filter = EventFilter { status: Some(status), ..EventFilter::default() };
        let page = admin.list(&ListRequest { filter, ..ListRequest::default() }).await.unwrap();
        let wanted = match status {
            EventStatus::Sent => 29,
            EventStatus::Dead => 1,
            EventStatus::New | EventStatus::Publishing | EventStatus::Failed => 0,
        };
        assert_eq!(page.events.len(), wanted, "{status}");
    }
    assert_eq!(Cleaner::new(admin).retention(Duration::ZERO).run_once().await.unwrap(), 29);
}
