//! A handle on a table in MariaDB: what it refuses to start with, and that all of it runs.

use postbox_core::{Code, HotPath, Postbox, PostboxBuilder};
use postbox_stores::mysql::SqlxMySql;
use postbox_testkit::suite::embed::EmbedSubject;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::{MariaDbServer, ServerOptions};
use sqlx::mysql::MySqlPool;

use crate::subject::{Shape, Table};

impl EmbedSubject for Table {
    type Pool = MySqlPool;

    fn postbox(&self, sink: &Scripted) -> PostboxBuilder<SqlxMySql, MySqlPool> {
        Postbox::builder(&self.pool, self.name.clone()).dispatcher(sink.clone())
    }
}

mod handle {
    use super::{Shape, Table};

    postbox_testkit::store_suite! { @each Table::new(Shape::Migrated) =>
        embed: everything_runs_until_the_shutdown,
        embed: an_application_chooses_its_history,
    }
    postbox_testkit::store_suite! { @each Table::new(Shape::Ordered) =>
        embed: order_is_kept_where_it_is_asked_for,
    }
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
    let error = table.postbox(&sink).hot(HotPath::new()).start().await.unwrap_err();
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
    let risky = HotPath::new().allow_asynchronous_commit();
    for postbox in [table.postbox(&sink), table.postbox(&sink).hot(risky)] {
        postbox.start().await.unwrap().shutdown().await.unwrap();
    }
}
