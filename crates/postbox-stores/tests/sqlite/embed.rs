//! A handle on a table in a SQLite file: what it refuses to start with, and that all of it runs.

use std::time::Duration;

use postbox_core::{Code, HotPath, OnDead, Order, Postbox, PostboxBuilder};
use postbox_stores::sqlite::{SqlxSqlite, migrate};
use postbox_testkit::eventually;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{PATIENCE, TOPIC, event, quick};
use sqlx::sqlite::{SqlitePool, SqliteSynchronous};

use crate::subject::{Table, options};

fn builder(pool: &SqlitePool, table: &Table, sink: &Scripted) -> PostboxBuilder<SqlxSqlite, SqlitePool> {
    Postbox::builder(pool, table.name.clone()).dispatcher(sink.clone()).settings(quick())
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_runs_until_the_shutdown() {
    let (table, sink) = (Table::new().await, Scripted::ok());
    let postbox = builder(&table.pool, &table, &sink)
        .hot(HotPath::new())
        .retention(Duration::ZERO)
        .clean_every(Duration::from_millis(20))
        .start()
        .await
        .unwrap();
    let outbox = postbox.outbox();
    let mut tx = outbox.begin(&table.pool).await.unwrap();
    outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap();
    tx.commit().await.unwrap();
    eventually("the event", PATIENCE, async || sink.arrived().len() == 1).await;
    let left = async || table.number("SELECT count(*) FROM org_outbox").await == 0;
    eventually("the cleaner", PATIENCE, left).await;
    assert_eq!(postbox.health().problem(), None);
    postbox.shutdown().await.unwrap();
    assert_eq!(table.number("SELECT count(*) FROM postbox_relay WHERE holder IS NOT NULL").await, 0);
}

/// With order, everything goes the way over the table, also where the hot path is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn order_is_kept_where_it_is_asked_for() {
    let (table, sink) = (Table::new().await, Scripted::ok());
    let ordered = || {
        let order = Order::Aggregate(OnDead::Block);
        builder(&table.pool, &table, &sink).order(order).hot(HotPath::new())
    };
    table.sql("DROP INDEX org_outbox_dead_by_aggregate").await.unwrap();
    let error = ordered().start().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.to_string().contains("postbox migrate up --table org_outbox"), "{error}");
    migrate::up(&mut table.pool.acquire().await.unwrap(), &table.name, |_| {}).await.unwrap();
    let postbox = ordered().start().await.unwrap();
    let (outbox, mut written) = (postbox.outbox(), Vec::new());
    for n in 0..50 {
        let mut tx = outbox.begin(&table.pool).await.unwrap();
        let receipt = outbox.enqueue(&mut tx, event(TOPIC, n).aggregate("thing", 7)).await.unwrap();
        tx.commit().await.unwrap();
        written.push(receipt.event_id);
    }
    eventually("all events", PATIENCE, async || sink.arrived().len() == 50).await;
    assert_eq!(sink.arrived(), written);
    postbox.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_is_said_with_the_next_step() {
    let (table, sink) = (Table::new().await, Scripted::ok());
    let other = Postbox::builder(&table.pool, "shop_outbox".parse().unwrap()).dispatcher(sink.clone());
    assert_eq!(
        other.start().await.unwrap_err().to_string(),
        "OUTBOX_TABLE_MISSING: shop_outbox does not exist: make it with `postbox migrate up --table shop_outbox`, or with \
         `migrate::up` from your own code"
    );
    // A pool that may lose what it confirmed.
    let careless = options(&table.file()).synchronous(SqliteSynchronous::Normal);
    let careless = SqlitePool::connect_with(careless).await.unwrap();
    let error = builder(&careless, &table, &sink).hot(HotPath::new()).start().await.unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.to_string().contains("PRAGMA synchronous below FULL"), "{error}");
    for builder in [
        builder(&careless, &table, &sink),
        builder(&careless, &table, &sink).hot(HotPath::new().allow_asynchronous_commit()),
    ] {
        builder.start().await.unwrap().shutdown().await.unwrap();
    }
}
