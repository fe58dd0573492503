//! A handle on a table in a SQLite file: what it refuses to start with, and that all of it runs.

use postbox_core::{Code, HotPath, OnDead, Order, Postbox, PostboxBuilder};
use postbox_stores::sqlite::SqlxSqlite;
use postbox_testkit::suite::embed::EmbedSubject;
use postbox_testkit::suite::script::Scripted;
use sqlx::sqlite::{SqlitePool, SqliteSynchronous};

use crate::subject::{Table, options};

impl EmbedSubject for Table {
    type Pool = SqlitePool;

    fn postbox(&self, sink: &Scripted) -> PostboxBuilder<SqlxSqlite, SqlitePool> {
        Postbox::builder(&self.pool, self.name.clone()).dispatcher(sink.clone())
    }
}

mod handle {
    use super::Table;

    postbox_testkit::store_suite! { @each Table::new() =>
        embed: everything_runs_until_the_shutdown,
        embed: order_is_kept_where_it_is_asked_for,
        embed: an_application_chooses_its_history,
    }
}

#[tokio::test]
async fn order_without_its_index_is_refused_with_the_next_step() {
    let table = Table::new().await;
    table.sql("DROP INDEX org_outbox_dead_by_aggregate").await.unwrap();
    let ordered = table.postbox(&Scripted::ok()).order(Order::Aggregate(OnDead::Block));
    let error = ordered.start().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.to_string().contains("postbox migrate up --table org_outbox"), "{error}");
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
    let postbox = || Postbox::builder(&careless, table.name.clone()).dispatcher(sink.clone());
    let error = postbox().hot(HotPath::new()).start().await.unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.to_string().contains("PRAGMA synchronous below FULL"), "{error}");
    for postbox in [postbox(), postbox().hot(HotPath::new().allow_asynchronous_commit())] {
        postbox.start().await.unwrap().shutdown().await.unwrap();
    }
}
