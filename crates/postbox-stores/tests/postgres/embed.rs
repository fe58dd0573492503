//! A handle on a PostgreSQL table: what it refuses to start with, and that all of it runs.

use std::time::Duration;

use postbox_core::{Code, HotPath, Outbox, Postbox, PostboxBuilder, RelayError};
use postbox_stores::postgres::migrate::{Grants, print_grants};
use postbox_stores::postgres::{PgAdmin, SqlxPostgres, connect_options};
use postbox_testkit::eventually;
use postbox_testkit::suite::embed::EmbedSubject;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{PATIENCE, TOPIC, event, published, quick, state};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::subject::{Shape, Table, role};

fn builder(pool: &PgPool, table: &Table, sink: &Scripted) -> PostboxBuilder<SqlxPostgres, PgPool> {
    Postbox::builder(pool, table.name.clone()).dispatcher(sink.clone()).settings(quick())
}

impl EmbedSubject for Table {
    type Pool = PgPool;

    fn postbox(&self, sink: &Scripted) -> PostboxBuilder<SqlxPostgres, PgPool> {
        Postbox::builder(&self.owner, self.name.clone()).dispatcher(sink.clone())
    }
}

mod handle {
    use super::{Shape, Table};

    postbox_testkit::store_suite! { @each Table::new(Shape::Migrated) =>
        embed: an_application_chooses_its_history,
    }
    postbox_testkit::store_suite! { @each Table::new(Shape::Ordered) =>
        embed: order_is_kept_where_it_is_asked_for,
    }
}

/// A role that may do what these words say.
async fn user(table: &Table, kind: &str, grants: &[&str]) -> PgPool {
    let name = role(&table.db, kind);
    table.db.psql(&format!("CREATE ROLE \"{name}\" LOGIN"));
    let grants: Vec<String> = grants.iter().map(|grant| format!("{grant}={name}")).collect();
    let grants: Grants = grants.join(",").parse().unwrap();
    table.db.psql(&print_grants(&table.name, &grants));
    let options = connect_options(&table.db.url).unwrap().username(&name);
    PgPoolOptions::new().connect_with(options).await.unwrap()
}

async fn write(outbox: &Outbox, pool: &PgPool) -> postbox_core::EventId {
    let mut tx = outbox.begin(pool).await.unwrap();
    let receipt = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap();
    tx.commit().await.unwrap();
    receipt.event_id
}

async fn room(postbox: &Postbox) {
    let look = async || postbox.hot().is_some_and(|path| path.remaining() > 0);
    eventually("the hot path to be open", PATIENCE, look).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_runs_with_the_grants_that_are_printed() {
    let table = Table::new(Shape::Grants).await;
    let (pool, sink) = (user(&table, "app", &["writer", "relay", "handler"]).await, Scripted::ok());
    let postbox = builder(&pool, &table, &sink)
        .hot(HotPath::new())
        // So long that nothing is found by looking.
        .set(|settings| settings.poll_interval = PATIENCE * 2)
        .retention(Duration::ZERO)
        .clean_every(Duration::from_millis(20))
        .start()
        .await
        .unwrap();
    room(&postbox).await;
    write(&postbox.outbox(), &pool).await;
    eventually("the event", PATIENCE, async || sink.arrived().len() == 1).await;
    let left = "SELECT count(*) FROM org_outbox";
    eventually("the cleaner", PATIENCE, async || table.db.psql(left) == "0").await;
    assert_eq!(postbox.health().problem(), None);
    postbox.shutdown().await.unwrap();
    let led = "SELECT count(*) FROM postbox_relay WHERE holder IS NOT NULL";
    assert_eq!(table.db.psql(led), "0", "the table is left to the next");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_table_is_relayed_without_a_hot_path() {
    let (table, sink) = (Table::new(Shape::Bare).await, Scripted::ok());
    let error = builder(&table.owner, &table, &sink).hot(HotPath::new()).start().await.unwrap_err();
    assert!(error.to_string().contains("run `postbox migrate up --table public.org_outbox`"), "{error}");
    let postbox = builder(&table.owner, &table, &sink).start().await.unwrap();
    let id = write(&postbox.outbox(), &table.owner).await;
    published(&table, id).await;
    // It knows which columns there are.
    let outbox = postbox.outbox();
    let mut tx = outbox.begin(&table.owner).await.unwrap();
    outbox.enqueue(&mut tx, event(TOPIC, 1).header("a", "b")).await.unwrap_err();
    drop(tx);
    postbox.shutdown().await.unwrap();
}

/// Starts in vain; answers with the error.
async fn refused(builder: PostboxBuilder<SqlxPostgres, PgPool>) -> RelayError {
    builder.start().await.expect_err("a refusal")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_is_said_with_the_next_step() {
    let (table, sink) = (Table::new(Shape::Grants).await, Scripted::ok());
    let wrong = "public.ogr_outbox".parse().unwrap();
    let error = refused(Postbox::builder(&table.owner, wrong).dispatcher(sink.clone())).await;
    assert_eq!(
        error.to_string(),
        "OUTBOX_TABLE_MISSING: public.ogr_outbox does not exist. Did you mean public.org_outbox? Else make it with \
         `postbox migrate up --table public.ogr_outbox`, or with `migrate::up` from your own code"
    );
    // A relay's user may not write rows that are born leased.
    let app = user(&table, "app", &["writer", "relay"]).await;
    let error = refused(builder(&app, &table, &sink).hot(HotPath::new())).await;
    assert_eq!(error.code(), Code::DatabasePermission);
    let (text, name) = (error.to_string(), role(&table.db, "app"));
    for words in [
        "lacks what the hot path needs: INSERT (locked_by) ON \"public\".\"org_outbox\", INSERT (locked_at)",
        "INSERT (attempts)",
        &format!("`postbox migrate print --table public.org_outbox --grants handler={name}`"),
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    builder(&app, &table, &sink).start().await.unwrap().shutdown().await.unwrap();
    // A writer's user may do nothing of what a relay does.
    let writer = user(&table, "only", &["writer"]).await;
    let error = refused(builder(&writer, &table, &sink)).await.to_string();
    assert!(
        error.contains("lacks what a relay needs: SELECT ON") && error.contains("relay=only_"),
        "{error}"
    );
    // A database that is away is not waited for at the start.
    let away = PgPoolOptions::new().acquire_timeout(Duration::from_millis(500));
    let away = away.connect_lazy("postgres://postgres@127.0.0.1:9/postgres").unwrap();
    let error = refused(builder(&away, &table, &sink)).await;
    assert_eq!(error.code(), Code::DatabaseUnreachable);
}

/// Hazard 33.
#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_commits_and_the_hot_path_do_not_go_together() {
    let (table, sink) = (Table::new(Shape::Migrated).await, Scripted::ok());
    let name = &table.db.name;
    table.db.psql(&format!("ALTER DATABASE \"{name}\" SET synchronous_commit = off"));
    let pool = PgPool::connect(&table.db.url).await.unwrap();
    let error = refused(builder(&pool, &table, &sink).hot(HotPath::new())).await;
    assert_eq!(error.code(), Code::ConfigInvalid);
    assert!(error.to_string().contains("synchronous_commit is off for the sessions that write"), "{error}");
    builder(&pool, &table, &sink).start().await.unwrap().shutdown().await.unwrap();
    let risky = HotPath::new().allow_asynchronous_commit();
    let postbox = builder(&pool, &table, &sink).hot(risky).start().await.unwrap();
    room(&postbox).await;
    let id = write(&postbox.outbox(), &pool).await;
    published(&table, id).await;
    assert_eq!(state(&table, id).await.attempts, 1);
    postbox.shutdown().await.unwrap();
}

/// Two processes, as it were: each handles what it wrote, one relays, and a pause holds for both.
#[tokio::test(flavor = "multi_thread")]
async fn handles_of_several_processes_get_along() {
    let table = Table::new(Shape::Migrated).await;
    let sinks = [Scripted::ok(), Scripted::ok()];
    let mut postboxes = Vec::new();
    for sink in &sinks {
        let postbox = builder(&table.owner, &table, sink).hot(HotPath::new()).start().await.unwrap();
        room(&postbox).await;
        postboxes.push(postbox);
    }
    for (postbox, sink) in postboxes.iter().zip(&sinks) {
        let id = write(&postbox.outbox(), &table.owner).await;
        published(&table, id).await;
        assert_eq!(sink.arrived(), [id]);
    }
    let admin = PgAdmin::new(table.owner.clone(), table.name.clone());
    admin.pause("test", "to see").await.unwrap();
    for postbox in &postboxes {
        let closed = async || postbox.hot().is_some_and(|path| path.remaining() == 0);
        eventually("the path to be closed", PATIENCE, closed).await;
    }
    for postbox in postboxes {
        postbox.shutdown().await.unwrap();
    }
}
