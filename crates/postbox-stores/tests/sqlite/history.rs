//! What only SQLite can show of histories: migrations of a file, and columns of somebody's own.

use postbox_core::{Browse as _, Code, History, Published, Relay, Store as _};
use postbox_stores::sqlite::migrate::{self, Extras, Format};
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{Subject as _, enqueue, events, quick};

use crate::subject::Table;

fn with_history() -> Extras {
    Extras { history: true, ..Extras::default() }
}

async fn up(table: &Table, extras: Extras) -> Vec<String> {
    let mut connection = table.pool.acquire().await.unwrap();
    let plan = migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
    plan.steps.into_iter().map(|step| step.what).collect()
}

async fn shape(table: &Table) -> String {
    let shape = "SELECT group_concat(name || ' ' || type, ',') FROM (SELECT * FROM pragma_table_info('org_outbox_history') ORDER BY name)";
    sqlx::query_scalar(shape).fetch_one(&table.pool).await.unwrap()
}

#[tokio::test]
async fn a_history_is_made_kept_up_printed_and_removed() {
    let (applied, printed) = (Table::new().await, Table::new().await);
    let planned = {
        let mut connection = applied.pool.acquire().await.unwrap();
        migrate::plan_with(&mut connection, &applied.name, with_history()).await.unwrap()
    };
    let steps = up(&applied, with_history()).await;
    let wanted = ["+ table org_outbox_history", "+ index org_outbox_history_by_time"];
    assert_eq!(steps[..2], wanted);
    assert_eq!(planned.steps.into_iter().map(|step| step.what).collect::<Vec<_>>(), steps);
    for extras in [with_history(), Extras::default()] {
        assert_eq!(up(&applied, extras).await, [""; 0]);
    }
    // What an earlier version made is brought up, asked for or not.
    applied
        .sql(
            "DROP VIEW org_outbox_status; ALTER TABLE org_outbox_history DROP COLUMN sinks_done;
        ALTER TABLE org_outbox_history DROP COLUMN metadata; ALTER TABLE org_outbox DROP COLUMN metadata;
        DROP INDEX org_outbox_history_by_time",
        )
        .await
        .unwrap();
    assert!(!up(&applied, Extras::default()).await.is_empty());
    assert_eq!(up(&applied, with_history()).await, [""; 0]);
    assert_eq!(applied.number("SELECT count(*) FROM org_outbox_status").await, 0);
    // Also where the table lacks what the history has.
    applied.sql("DROP VIEW org_outbox_status; ALTER TABLE org_outbox DROP COLUMN metadata").await.unwrap();
    assert!(up(&applied, Extras::default()).await.contains(&"+ column metadata".to_owned()));
    assert_eq!(up(&applied, with_history()).await, [""; 0]);
    let sql = migrate::print_up_with(&printed.name, Format::Sql, with_history()).unwrap();
    for _ in 0..2 {
        printed.sql(&sql).await.unwrap();
    }
    assert_eq!(up(&printed, with_history()).await, [""; 0], "nothing is left to do after the printed SQL");
    assert_eq!(shape(&applied).await, shape(&printed).await);
    let goose = migrate::print_up_with(&printed.name, Format::Goose, with_history()).unwrap();
    assert!(
        goose.split_once("-- +goose Down").unwrap().1.contains("DROP TABLE IF EXISTS \"org_outbox_history\"")
    );
    assert!(!migrate::print_down(&printed.name).unwrap().contains("history"), "only where it is asked for");
    printed.sql(&migrate::print_down_with(&printed.name, with_history()).unwrap()).await.unwrap();
    migrate::down(&mut applied.pool.acquire().await.unwrap(), &applied.name, false).await.unwrap();
    for table in [&applied, &printed] {
        let left = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'org_outbox%'";
        assert_eq!(table.number(left).await, 0);
    }
}

#[tokio::test]
async fn the_status_view_follows_the_history() {
    let table = Table::new().await;
    assert!(up(&table, with_history()).await.contains(&"- status view (another one)".to_owned()));
    table.sql("DROP TABLE org_outbox_history").await.unwrap();
    assert_eq!(up(&table, Extras::default()).await, ["- status view (another one)", "+ status view"]);
    assert_eq!(table.number("SELECT count(*) FROM org_outbox_status").await, 0);
}

#[tokio::test]
async fn a_table_of_the_historys_name_that_is_none_is_left_alone() {
    let table = Table::new().await;
    table.sql("CREATE TABLE org_outbox_history (note TEXT)").await.unwrap();
    let mut connection = table.pool.acquire().await.unwrap();
    let error = migrate::up_with(&mut connection, &table.name, with_history(), |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert_eq!(migrate::up(&mut connection, &table.name, |_| {}).await.unwrap().steps, []);
    assert_eq!(table.store_with(false, History::Move).open().await.unwrap_err().code(), Code::TableMismatch);
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    drop(connection);
    assert_eq!(table.number("SELECT count(*) FROM sqlite_schema WHERE name = 'org_outbox_history'").await, 1);
}

/// Also ones that the database works out.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_columns_of_its_own_is_moved_and_comes_back_whole() {
    let table = Table::new().await;
    table
        .sql(
            "ALTER TABLE org_outbox ADD COLUMN \"Shop \"\"7\"\"\" TEXT DEFAULT 'mine';
        ALTER TABLE org_outbox ADD COLUMN size INTEGER GENERATED ALWAYS AS (length(topic)) VIRTUAL",
        )
        .await
        .unwrap();
    table.make_history().await;
    let ids = enqueue(&table, events(3)).await;
    let rows = async |name: &str| -> String {
        let rows = format!(
            "SELECT group_concat(json_array(sequence, hex(id), hex(event_id), topic, payload, created_at, \"Shop \"\"7\"\"\", size))
             FROM (SELECT * FROM {name} ORDER BY sequence)"
        );
        sqlx::query_scalar(sqlx::AssertSqlSafe(rows)).fetch_one(&table.pool).await.unwrap()
    };
    let before = rows("org_outbox").await;
    assert!(before.contains("mine"), "{before}");
    let relay =
        Relay::builder(table.store_with(true, History::Move)).dispatcher(Scripted::ok()).settings(quick());
    relay.build().unwrap().run_once().await.unwrap();
    assert_eq!(rows("org_outbox_history").await, before);
    let which = Published::Events { event_ids: ids };
    assert_eq!(table.admin().replay_published(&which, 10, "tester").await.unwrap().len(), 3);
    assert_eq!(rows("org_outbox").await, before);
    table.sql("ALTER TABLE org_outbox ADD COLUMN late INTEGER").await.unwrap();
    let error = table.store_with(true, History::Move).open().await.unwrap_err();
    assert!(error.code() == Code::HistoryMissing && error.message().contains("lacks \"late\""), "{error}");
    assert_eq!(table.make_history().await, ["+ column \"late\" of org_outbox_history"]);
    table.store_with(true, History::Move).open().await.unwrap();
}
