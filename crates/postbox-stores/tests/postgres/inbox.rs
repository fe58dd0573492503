//! What is particular to an inbox in PostgreSQL: isolation levels, locks, and how it is made and removed.

use postbox_core::{Code, ConsumerName, Inbox, InboxAdmin as _, MessageId, RecordError, Seen, TableName};
use postbox_stores::postgres::migrate::{self, Extras, Format};
use postbox_stores::postgres::{PgAdmin, connect_options};
use postbox_testkit::suite::Subject as _;
use postbox_testkit::{PgServer, TestDb};
use sqlx::postgres::PgPool;
use sqlx::{ConnectOptions as _, PgConnection};

use super::{Shape, Table};

static STOCK: ConsumerName = ConsumerName::from_static("stock");

fn with() -> Extras {
    Extras { inbox: true, ..Extras::default() }
}

fn nothing() -> Extras {
    Extras::default()
}

async fn table() -> (Table, Inbox, PgPool) {
    let table = Table::new(Shape::Migrated).await;
    table.make_inbox().await;
    let (inbox, pool) = (table.outbox().inbox(), table.owner.clone());
    (table, inbox, pool)
}

fn message(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

/// Under REPEATABLE READ the second one cannot see what the first has committed meanwhile: it is told to begin again.
#[tokio::test]
async fn under_repeatable_read_a_race_is_a_conflict_and_the_next_try_knows() {
    let (_table, inbox, pool) = table().await;
    for level in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        let message = message(level);
        let begin = || pool.begin_with(level);
        let mut first = begin().await.unwrap();
        let mut second = begin().await.unwrap();
        sqlx::query("SELECT count(*) FROM org_inbox").execute(&mut *second).await.unwrap();
        assert_eq!(inbox.record(&mut first, &STOCK, &message).await.unwrap(), Seen::First);
        let (raced, committed) = tokio::join!(inbox.record(&mut second, &STOCK, &message), async {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            first.commit().await
        });
        committed.unwrap();
        let error = raced.unwrap_err();
        assert!(matches!(error, RecordError::Conflict(_)) && error.is_conflict(), "{level}: {error:?}");
        assert!(error.to_string().starts_with("OUTBOX_TX_CONFLICT: "), "{error}");
        let ignored = inbox.record(&mut second, &STOCK, &message).await.unwrap_err();
        assert!(matches!(ignored, RecordError::Aborted(_)), "who ignores it hears of it: {ignored:?}");
        second.rollback().await.unwrap();
        let mut again = begin().await.unwrap();
        assert_eq!(inbox.record(&mut again, &STOCK, &message).await.unwrap(), Seen::Before);
    }
}

#[tokio::test]
async fn nothing_is_recorded_in_a_transaction_that_has_failed() {
    let (table, inbox, pool) = table().await;
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    let error = inbox.record(&mut tx, &STOCK, message("m")).await.unwrap_err();
    assert_eq!((error.code(), error.is_conflict()), (Code::TransactionAborted, false));
    // PostgreSQL answers this with a ROLLBACK, which the driver takes for a success.
    tx.commit().await.unwrap();
    assert_eq!(table.admin().inbox_count(&postbox_core::InboxFilter::default()).await.unwrap(), 0);
}

#[tokio::test]
async fn who_waits_too_long_for_another_is_told_to_begin_again() {
    let (_table, inbox, pool) = table().await;
    let mut hangs = pool.begin().await.unwrap();
    assert_eq!(inbox.record(&mut hangs, &STOCK, message("m")).await.unwrap(), Seen::First);
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("SET LOCAL lock_timeout = '100ms'").execute(&mut *tx).await.unwrap();
    assert!(inbox.record(&mut tx, &STOCK, message("m")).await.unwrap_err().is_conflict());
}

struct Place {
    db: TestDb,
    name: TableName,
    connection: PgConnection,
}

impl Place {
    async fn new() -> Self {
        let db = PgServer::shared().database();
        let connection = connect_options(&db.url).unwrap().connect().await.unwrap();
        Self { db, name: "public.org_outbox".parse().unwrap(), connection }
    }

    async fn up(&mut self, extras: Extras) -> Vec<String> {
        let plan = migrate::up_with(&mut self.connection, &self.name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect()
    }

    fn has(&self, relation: &str) -> bool {
        self.db.psql(&format!("SELECT to_regclass('{relation}') IS NOT NULL")) == "t"
    }
}

#[tokio::test]
async fn it_is_made_once_kept_up_and_removed_with_its_table() {
    let mut place = Place::new().await;
    let steps = place.up(with()).await;
    assert!(
        steps.ends_with(&["+ table org_inbox".to_owned(), "+ index org_inbox_by_time".to_owned()]),
        "{steps:?}"
    );
    assert_eq!(place.up(with()).await, Vec::<String>::new());
    // An existing table gets it in place, and whoever does not ask for it again keeps it.
    place.db.psql("DROP INDEX org_inbox_by_time");
    let steps = place.up(nothing()).await;
    assert_eq!(steps, ["- index org_inbox_by_time (of no use)", "+ index org_inbox_by_time CONCURRENTLY"]);
    assert_eq!(place.up(nothing()).await, Vec::<String>::new());
    assert!(migrate::has_inbox(&mut place.connection, &place.name).await.unwrap());
    migrate::down(&mut place.connection, &place.name, false).await.unwrap();
    assert!(!place.has("org_outbox") && !place.has("org_inbox"));
}

#[tokio::test]
async fn anothers_table_of_its_name_is_left_alone() {
    let mut place = Place::new().await;
    place.db.psql("CREATE TABLE org_inbox (consumer text, message_id text, processed_at timestamptz)");
    let plan = migrate::plan_with(&mut place.connection, &place.name, with()).await;
    let error = plan.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.message().contains("public.org_inbox is no inbox: its key is not"), "{error}");
    assert!(!place.up(nothing()).await.iter().any(|step| step.contains("inbox")));
    let admin = PgAdmin::connect(connect_options(&place.db.url).unwrap(), place.name.clone());
    assert!(!admin.has_inbox().await.unwrap());
    migrate::down(&mut place.connection, &place.name, false).await.unwrap();
    assert!(place.has("org_inbox"));
}

#[tokio::test]
async fn printed_sql_makes_and_removes_the_same() {
    let mut place = Place::new().await;
    for _ in 0..2 {
        place.db.psql(&migrate::print_up_with(&place.name, Format::Sql, with()));
    }
    assert_eq!(place.up(with()).await, Vec::<String>::new());
    place.db.psql(&migrate::print_down_with(&place.name, with()));
    assert!(!place.has("org_outbox") && !place.has("org_inbox"));
}

/// However long the names are.
#[tokio::test]
async fn a_table_with_the_longest_name_has_an_inbox() {
    let mut place = Place::new().await;
    place.name = format!("public.{}", "a".repeat(42)).parse().unwrap();
    place.up(with()).await;
    assert_eq!(place.up(with()).await, Vec::<String>::new());
    let pool = PgPool::connect(&place.db.url).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let inbox = Inbox::new(place.name.clone());
    assert_eq!(inbox.record(&mut tx, &STOCK, message("m")).await.unwrap(), Seen::First);
}
