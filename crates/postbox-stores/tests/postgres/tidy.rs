//! Room that settled rows have left is used again soon, where the cleaner may see to it.

use std::time::Duration;

use postbox_core::Inspect as _;
use postbox_core::cleaner::{Sweep as _, Tidied};
use postbox_stores::postgres::PgAdmin;
use postbox_testkit::eventually;
use postbox_testkit::suite::Subject as _;

use crate::subject::{Shape, Table};

/// The server counts at its leisure.
const COUNTED: Duration = Duration::from_secs(30);

/// Takes a snapshot and keeps it.
const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM org_outbox";

/// Enough that it is worth it, left behind by rows that are gone.
fn leave_rows_behind(table: &Table) {
    table.db.psql(
        "ALTER TABLE org_outbox SET (autovacuum_enabled = off);
         INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT gen_random_uuid(), 'a.b.c.v1', '{}', gen_random_uuid() FROM generate_series(1, 60000);
         DELETE FROM org_outbox;",
    );
}

async fn counted(table: &Table) {
    let counted = "SELECT n_dead_tup > 50000 FROM pg_stat_user_tables WHERE relname = 'org_outbox'";
    eventually("the count", COUNTED, async || table.db.psql(counted) == "t").await;
}

/// Until it ends so: an ANALYZE that the server thought of just now holds the room as any transaction does.
async fn tidied(admin: &PgAdmin, end: Tidied) {
    eventually("a vacuum", COUNTED, async || admin.tidy().await.unwrap() == end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_dead_rows_are_vacuumed() {
    let table = Table::new(Shape::Migrated).await;
    let admin = table.admin();
    assert_eq!(admin.tidy().await.unwrap(), Tidied::Nothing, "nothing to do");
    leave_rows_behind(&table);
    tidied(&admin, Tidied::Done).await;
    let size = || table.db.psql("SELECT pg_table_size('org_outbox')");
    let before = size();
    leave_rows_behind(&table);
    assert_eq!(size(), before, "the room is used again");
}

/// One of its few server processes would be busy with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_not_kept_busy() {
    let table = Table::new(Shape::Pooled).await;
    leave_rows_behind(&table);
    counted(&table).await;
    assert_eq!(table.admin().tidy().await.unwrap(), Tidied::Nothing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_vacuumed_too() {
    let table = Table::new(Shape::Moving).await;
    table.db.psql(
        "ALTER TABLE org_outbox_history SET (autovacuum_enabled = off);
         INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT gen_random_uuid(), 'a.b.c.v1', '{}', gen_random_uuid() FROM generate_series(1, 60000);
         INSERT INTO org_outbox_history SELECT * FROM org_outbox;
         DELETE FROM org_outbox_history;",
    );
    tidied(&table.admin(), Tidied::Done).await;
    let vacuumed = "SELECT vacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 'org_outbox_history'";
    eventually("the count", COUNTED, async || table.db.psql(vacuumed) == "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_older_holds_the_room() {
    let table = Table::new(Shape::Migrated).await;
    let mut open = table.owner.begin().await.unwrap();
    sqlx::raw_sql(SNAPSHOT).execute(&mut *open).await.unwrap();
    leave_rows_behind(&table);
    let admin = table.admin();
    tidied(&admin, Tidied::Held).await;
    open.rollback().await.unwrap();
    tidied(&admin, Tidied::Done).await;
}

/// What a gauge and an alert go by: the age of who holds the room, while he does (hazard 15).
#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_transaction_that_holds_the_room_is_told() {
    let (table, other) = (Table::new(Shape::Migrated).await, Table::new(Shape::Migrated).await);
    let admin = table.admin();
    let age = async || admin.oldest_transaction().await.unwrap().unwrap();
    // Of another database: its snapshot holds nothing here.
    let mut elsewhere = other.owner.begin().await.unwrap();
    sqlx::raw_sql(SNAPSHOT).execute(&mut *elsewhere).await.unwrap();
    let mut open = table.owner.begin().await.unwrap();
    // Nor does one that has looked at nothing yet.
    eventually("nobody who holds it", COUNTED, async || age().await.is_zero()).await;
    sqlx::raw_sql(SNAPSHOT).execute(&mut *open).await.unwrap();
    let while_open = Duration::from_millis(500);
    eventually("its age", COUNTED, async || age().await > while_open).await;
    let mut later = table.owner.begin().await.unwrap();
    sqlx::raw_sql(SNAPSHOT).execute(&mut *later).await.unwrap();
    assert!(age().await > while_open, "the older one of two");
    open.rollback().await.unwrap();
    later.rollback().await.unwrap();
    eventually("nobody again", COUNTED, async || age().await.is_zero()).await;
    elsewhere.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_does_not_own_the_table_leaves_it_alone() {
    let table = Table::new(Shape::Grants).await;
    leave_rows_behind(&table);
    let owner = PgAdmin::new(table.owner.clone(), table.name.clone());
    counted(&table).await;
    assert_eq!(table.admin().tidy().await.unwrap(), Tidied::Nothing);
    tidied(&owner, Tidied::Done).await;
}
