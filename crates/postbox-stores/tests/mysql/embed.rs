//! A handle on a table in MariaDB: what it refuses to start with, and that all of it runs.

use std::time::Duration;

use postbox_core::{Code, HotPath, OnDead, Order, Postbox, PostboxBuilder};
use postbox_stores::mysql::SqlxMySql;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{PATIENCE, TOPIC, event, quick};
use postbox_testkit::{MariaDbServer, ServerOptions, eventually};
use sqlx::mysql::MySqlPool;

use crate::subject::{Shape, Table};

fn builder(table: &Table, sink: &Scripted) -> PostboxBuilder<SqlxMySql, MySqlPool> {
    Postbox::builder(&table.pool, table.name.clone()).dispatcher(sink.clone()).settings(quick())
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_runs_until_the_shutdown() {
    let (table, sink) = (Table::new(Shape::Migrated).await, Scripted::ok());
    let postbox = builder(&table, &sink)
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
    let left = async || table.number("SELECT COUNT(*) FROM org_outbox").await == 0;
    eventually("the cleaner", PATIENCE, left).await;
    assert_eq!(postbox.health().problem(), None);
    postbox.shutdown().await.unwrap();
    assert_eq!(table.number("SELECT COUNT(*) FROM postbox_relay WHERE holder IS NOT NULL").await, 0);
}

/// With order, everything goes the way over the table, also where the hot path is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn order_is_kept_where_it_is_asked_for() {
    let (table, sink) = (Table::new(Shape::Ordered).await, Scripted::ok());
    let order = Order::Aggregate(OnDead::Block);
    let postbox = builder(&table, &sink).order(order).hot(HotPath::new()).start().await.unwrap();
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
    // A server that may lose what it confirmed.
    let careless = MariaDbServer::with(&ServerOptions::new().setting("innodb_flush_log_at_trx_commit=2"));
    let (table, sink) = (Table::on(&careless, Shape::Migrated).await, Scripted::ok());
    let other = Postbox::builder(&table.pool, "shop_outbox".parse().unwrap()).dispatcher(sink.clone());
    assert_eq!(
        other.start().await.unwrap_err().to_string(),
        "OUTBOX_TABLE_MISSING: shop_outbox does not exist: make it with `postbox migrate up --table shop_outbox`, or with \
         `migrate::up` from your own code"
    );
    let error = builder(&table, &sink).hot(HotPath::new()).start().await.unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
    for builder in
        [builder(&table, &sink), builder(&table, &sink).hot(HotPath::new().allow_asynchronous_commit())]
    {
        builder.start().await.unwrap().shutdown().await.unwrap();
    }
}
