//! Dead letters where PostgreSQL has its own ways: plans, values that cannot be shown, columns of earlier versions.

use std::time::Duration;

use postbox_core::letter::{LetterRequest, LetterVerdict, Requirements};
use postbox_core::store::Settled;
use postbox_core::{Code, Relay, Settings, Store as _};
use postbox_stores::postgres::migrate;
use postbox_testkit::eventually;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{Subject as _, enqueue, events, quick};
use sqlx::ConnectOptions as _;

use crate::common::SOON;
use crate::subject::{Shape, Table};

fn ask() -> LetterRequest {
    LetterRequest { limit: 100, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) }
}

/// A row of the statistics of an index.
fn reads(table: &Table, index: &str) -> (i64, i64) {
    let sql = format!(
        "SELECT coalesce(idx_scan, 0) || ' ' || coalesce(idx_tup_read, 0) FROM pg_stat_user_indexes
         WHERE indexrelname = 'org_outbox_{index}'"
    );
    let text = table.db.psql(&sql);
    let (scans, rows) = text.split_once(' ').unwrap();
    (scans.parse().unwrap(), rows.parse().unwrap())
}

/// Ten thousand that have gone are not looked at by whoever looks for those that have not.
#[tokio::test(flavor = "multi_thread")]
async fn looking_for_letters_is_cheap_however_many_have_gone() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at, dlq_at, last_error)
         SELECT gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now(), now(), 'x' FROM generate_series(1, 10000);
         INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at, last_error)
         SELECT gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now(), 'x' FROM generate_series(1, 3);
         ANALYZE org_outbox",
    );
    let before = reads(&table, "dead_by_time");
    let store = table.store(false);
    let letters = store.letters(ask()).await.unwrap();
    assert_eq!(letters.len(), 3);
    let sent = letters.into_iter().map(|letter| (letter.lease, LetterVerdict::Sent)).collect();
    assert_eq!(store.settle_letters(sent).await.unwrap(), Settled::default());
    assert!(store.letters(ask()).await.unwrap().is_empty());
    // Sessions tell of what they have read when they end.
    store.close().await;
    eventually("statistics", SOON, async || reads(&table, "letters_waiting").0 >= 2).await;
    let (_, rows) = reads(&table, "letters_waiting");
    assert!(rows <= 20, "{rows} entries were read");
    assert_eq!(reads(&table, "dead_by_time"), before);
}

/// One that the database itself cannot show keeps nobody else from the route, and is left alone for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_row_that_cannot_be_shown_holds_up_no_letter() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at, last_error)
         SELECT gen_random_uuid(), 'org.a.b.v1', to_jsonb(array_fill('1e131071'::numeric, ARRAY[10000])), gen_random_uuid(), now(), 'x';
         INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at, last_error, headers)
         VALUES (gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now(), 'x', '[1]'),
                (gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now(), 'x', NULL)",
    );
    let letters = Scripted::ok();
    let relay =
        Relay::builder(table.store(true)).dispatcher(Scripted::ok()).dead_letters("dlq", letters.clone());
    let relay = relay.settings(quick()).build().unwrap().spawn();
    // The server itself needs seconds to find out that it cannot.
    eventually("the others to be done", Duration::from_mins(2), async || {
        let (sent, waits) =
            ("dlq_at IS NOT NULL", "available_at > now() + interval '1 hour' AND locked_at IS NULL");
        let count = |what: &str| table.db.psql(&format!("SELECT count(*) FROM org_outbox WHERE {what}"));
        count(sent) == "1" && count(waits) == "2"
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!(letters.arrived().len(), 1);
}

/// What somebody has locked is settled when it is free, and the others at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_row_that_somebody_has_locked_holds_up_no_letter() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at, last_error)
         SELECT gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now(), 'x' FROM generate_series(1, 3)",
    );
    let store = table.store(false);
    let letters = store.letters(ask()).await.unwrap();
    assert_eq!(letters.len(), 3);
    let kept = letters[1].lease.clone();
    let mut outsider = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE id = $1 FOR UPDATE").bind(kept.row);
    lock.execute(&mut *outsider).await.unwrap();
    let sent = letters.into_iter().map(|letter| (letter.lease, LetterVerdict::Sent)).collect();
    let count = || table.db.psql("SELECT count(*) FROM org_outbox WHERE dlq_at IS NOT NULL");
    assert_eq!(
        store.settle_letters(sent).await.unwrap(),
        Settled { busy: vec![kept.row], ..Settled::default() }
    );
    assert_eq!(count(), "2");
    outsider.rollback().await.unwrap();
    let sent = vec![(kept, LetterVerdict::Sent)];
    assert_eq!(store.settle_letters(sent).await.unwrap(), Settled::default());
    assert_eq!(count(), "3");
    store.close().await;
}

/// A table of an earlier version goes on as it was; what needs the new column is refused until it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_the_newest_column_is_whole() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql("ALTER TABLE org_outbox DROP COLUMN redrives; DROP INDEX org_outbox_letters_waiting");
    assert_eq!(table.store(true).layout().await.unwrap(), postbox_core::Layout::Full);
    let mut wanted = Requirements::default();
    (wanted.fan_out, wanted.dead_letters) = (true, true);
    table.store(true).require(wanted).await.unwrap();
    wanted.redrive = true;
    let error = table.store(true).require(wanted).await.unwrap_err();
    assert!(error.code() == Code::ColumnMissing && error.message().contains("redrives"), "{error}");
    // A reject is still dead by dead_at, not by its attempts.
    let id = enqueue(&table, events(1)).await[0];
    let sink = Scripted::new(|_| postbox_testkit::suite::script::Act::Reject);
    let settings = Settings { max_attempts: 5, ..quick() };
    let mut relay =
        Relay::builder(table.store(true)).dispatcher(sink.clone()).settings(settings).build().unwrap();
    relay.run_once().await.unwrap();
    relay.run_once().await.unwrap();
    relay.close().await;
    assert_eq!(sink.tries(id), 1);
    let options = postbox_stores::postgres::connect_options(&table.db.url).unwrap();
    let mut connection = options.connect().await.unwrap();
    let plan = migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(steps, ["+ columns redrives", "+ index org_outbox_letters_waiting CONCURRENTLY"]);
    table.store(true).require(wanted).await.unwrap();
}
