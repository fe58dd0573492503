//! What is particular to an inbox in SQLite: one writer, and how it is made and removed.

use postbox_core::{Code, ConsumerName, InboxAdmin as _, MessageId, Seen};
use postbox_stores::sqlite::migrate::{self, Extras, Format};
use postbox_testkit::suite::Subject as _;

use super::Table;

static STOCK: ConsumerName = ConsumerName::from_static("stock");

fn with() -> Extras {
    Extras { inbox: true, ..Extras::default() }
}

fn nothing() -> Extras {
    Extras::default()
}

fn message(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

async fn up(table: &Table, extras: Extras) -> Vec<String> {
    let mut connection = table.pool.acquire().await.unwrap();
    let plan = migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
    plan.steps.into_iter().map(|step| step.what).collect()
}

/// Hazard 42: a transaction that has read before somebody else wrote cannot write any more.
#[tokio::test]
async fn a_transaction_without_the_lock_is_told_to_begin_again() {
    let table = Table::new().await;
    table.make_inbox().await;
    let inbox = table.outbox().inbox();
    let mut reads = table.pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM org_inbox").execute(&mut *reads).await.unwrap();
    let mut first = table.open(&table.outbox()).await;
    assert_eq!(inbox.record(&mut first, &STOCK, message("m")).await.unwrap(), Seen::First);
    first.commit().await.unwrap();
    let error = inbox.record(&mut reads, &STOCK, message("m")).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    reads.rollback().await.unwrap();
    let mut again = table.open(&table.outbox()).await;
    assert_eq!(inbox.record(&mut again, &STOCK, message("m")).await.unwrap(), Seen::Before);
}

#[tokio::test]
async fn it_is_made_once_kept_up_and_removed_with_its_table() {
    let table = Table::new().await;
    let dry =
        migrate::plan_with(&mut table.pool.acquire().await.unwrap(), &table.name, with()).await.unwrap();
    let dry: Vec<String> = dry.steps.into_iter().map(|step| step.what).collect();
    assert_eq!(dry, ["+ table org_inbox", "+ index org_inbox_by_time"]);
    assert_eq!(up(&table, with()).await, dry);
    assert_eq!(up(&table, with()).await, Vec::<String>::new());
    table.sql("DROP INDEX org_inbox_by_time").await.unwrap();
    assert_eq!(up(&table, nothing()).await.last().unwrap(), "+ index org_inbox_by_time");
    assert_eq!(up(&table, nothing()).await, Vec::<String>::new());
    let mut connection = table.pool.acquire().await.unwrap();
    assert!(migrate::has_inbox(&mut connection, &table.name).await.unwrap());
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    assert_eq!(table.number("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'org_%'").await, 0);
}

#[tokio::test]
async fn anothers_table_of_its_name_is_left_alone() {
    let table = Table::new().await;
    table.sql("CREATE TABLE org_inbox (consumer TEXT, message_id TEXT, processed_at INTEGER)").await.unwrap();
    let mut connection = table.pool.acquire().await.unwrap();
    let error = migrate::plan_with(&mut connection, &table.name, with()).await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert_eq!(error.message(), "org_inbox is no inbox: its key is not (consumer, message_id)");
    assert_eq!(up(&table, nothing()).await, Vec::<String>::new());
    assert!(!table.admin().has_inbox().await.unwrap());
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    assert_eq!(table.number("SELECT count(*) FROM sqlite_schema WHERE name = 'org_inbox'").await, 1);
}

#[tokio::test]
async fn printed_sql_makes_and_removes_the_same() {
    let table = Table::new().await;
    for _ in 0..2 {
        table.sql(&migrate::print_up_with(&table.name, Format::Sql, with()).unwrap()).await.unwrap();
    }
    assert_eq!(up(&table, with()).await, Vec::<String>::new());
    table.sql(&migrate::print_down_with(&table.name, with()).unwrap()).await.unwrap();
    assert_eq!(table.number("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'org_%'").await, 0);
}
