//! Tables are made, upgraded and removed.

use postbox_core::{Code, Inspect as _};
use postbox_stores::mysql::migrate::{
    Extras, Format, Ordered, down, plan_with, print_down_with, print_up_with, up, up_with,
};
use postbox_stores::mysql::{MySqlAdmin, connect_options};
use postbox_testkit::suite::PATIENCE;
use postbox_testkit::{MariaDbServer, eventually};
use sqlx::{ConnectOptions as _, MySqlConnection};

const ALL: Extras = Extras {
    history: true,
    ordered: Ordered::Index,
    wake_trigger: false,
    tenants: true,
    inbox: false,
    idempotency: false,
};

async fn connect(url: &str) -> MySqlConnection {
    connect_options(url).unwrap().connect().await.unwrap()
}

/// A second run has nothing to do; what was taken away comes back; a dry run changes nothing.
#[tokio::test]
async fn up_is_idempotent_and_repairs() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    let plan = plan_with(&mut connection, &table, ALL).await.unwrap();
    assert!(plan.steps.len() > 5, "{plan:#?}");
    assert_eq!(db.sql("show tables"), "", "a plan is only a plan");
    sqlx::raw_sql("SET SESSION lock_wait_timeout = 7").execute(&mut connection).await.unwrap();
    let mut seen = 0;
    let done = up_with(&mut connection, &table, ALL, |_| seen += 1).await.unwrap();
    assert_eq!((done.steps.len(), seen), (plan.steps.len(), plan.steps.len()));
    let limit = sqlx::query_scalar::<_, u64>("SELECT @@SESSION.lock_wait_timeout").fetch_one(&mut connection);
    assert_eq!(limit.await.unwrap(), 7, "the limits of the session are as they were");
    // What is there stays, also where it is not asked for again.
    for extras in [ALL, Extras::default()] {
        let again = plan_with(&mut connection, &table, extras).await.unwrap();
        assert!(again.steps.is_empty(), "{again:#?}");
    }
    for (spoil, repaired) in [
        ("alter table org_outbox drop column dead_at", "+ column dead_at"),
        ("drop index org_outbox_tenants_waiting on org_outbox", ""),
        ("drop index org_outbox_history_by_time on org_outbox_history", "+ index org_outbox_history_by_time"),
        ("alter table org_outbox_history drop column redrives", "+ column `redrives` of org_outbox_history"),
        ("drop view org_outbox_status", "+ status view"),
        ("drop table postbox_audit", "+ table postbox_audit"),
        ("drop table postbox_window", "+ table postbox_window"),
        ("delete from postbox_relay", "+ row in postbox_relay"),
        (
            "alter table org_outbox drop index org_outbox_pending_by_available, add index org_outbox_pending_by_available (topic)",
            "- index org_outbox_pending_by_available (another one)",
        ),
    ] {
        db.sql(spoil);
        let steps = up(&mut connection, &table, |_| {}).await.unwrap().steps;
        assert!(repaired.is_empty() || steps.iter().any(|step| step.what == repaired), "{spoil}: {steps:#?}");
        let again = plan_with(&mut connection, &table, Extras::default()).await.unwrap();
        assert!(again.steps.is_empty(), "{spoil}: {again:#?}");
    }
}

/// What a tool applies is what `up` makes; and back again, unless something waits.
#[tokio::test]
async fn printed_migrations_are_the_same() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    for extras in [Extras::default(), ALL] {
        for format in [Format::Sql, Format::Goose] {
            let printed = print_up_with(&table, format, extras).unwrap();
            let (up, _) = printed.split_once("-- +goose Down").unwrap_or((&printed, ""));
            db.sql(up);
            let plan = plan_with(&mut connection, &table, extras).await.unwrap();
            assert!(plan.steps.is_empty(), "{plan:#?}");
            let back = print_down_with(&table, extras).unwrap();
            db.sql("insert into org_outbox (tenant_id, topic, payload, event_id) values (x'00', 'a', '{}', x'01')");
            let refused = db.try_sql(&back).unwrap_err();
            assert!(refused.contains("OUTBOX_NOT_EMPTY"), "{refused}");
            db.sql("update org_outbox set published_at = utc_timestamp(6)");
            db.sql(&back);
            assert_eq!(db.sql("show tables"), "postbox_audit\npostbox_relay\npostbox_window");
            assert_eq!(db.sql("select count(*) from postbox_relay"), "0");
            db.sql("drop table postbox_audit, postbox_relay, postbox_window");
        }
    }
}

/// Nothing that waits is removed by accident, and nothing that is not ours at all.
#[tokio::test]
async fn down_refuses_what_waits_and_what_is_not_ours() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    let code = |result: Result<(), postbox_core::StoreError>| result.unwrap_err().code();
    assert_eq!(code(down(&mut connection, &table, true).await), Code::TableMissing);
    db.sql("create table org_outbox (id int, published_at datetime)");
    assert_eq!(code(down(&mut connection, &table, true).await), Code::TableMismatch);
    assert_eq!(up(&mut connection, &table, |_| {}).await.unwrap_err().code(), Code::TableMismatch);
    db.sql("drop table org_outbox; create table org_outbox_history (id int)");
    assert_eq!(up_with(&mut connection, &table, ALL, |_| {}).await.unwrap_err().code(), Code::TableMismatch);
    up(&mut connection, &table, |_| {}).await.unwrap();
    db.sql("insert into org_outbox (tenant_id, topic, payload, event_id) values (x'00', 'a', '{}', x'01')");
    assert_eq!(code(down(&mut connection, &table, false).await), Code::NotEmpty);
    down(&mut connection, &table, true).await.unwrap();
    assert_eq!(
        db.sql("show tables"),
        "org_outbox_history\npostbox_audit\npostbox_relay\npostbox_window",
        "another's table stays"
    );
}

/// A writer has an event under way when the table is to go: it is waited for.
#[tokio::test]
async fn down_loses_nothing_of_what_is_being_written() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    up(&mut connection, &table, |_| {}).await.unwrap();
    let mut writer = connect(&db.url).await;
    let insert =
        "insert into org_outbox (tenant_id, topic, payload, event_id) values (x'00', 'a', '{}', x'01')";
    sqlx::raw_sql("start transaction").execute(&mut writer).await.unwrap();
    sqlx::raw_sql(insert).execute(&mut writer).await.unwrap();
    let waits = "select count(*) from information_schema.processlist
                 where db = database() and state like '%metadata lock%' and id <> connection_id()";
    let (removed, ()) = tokio::join!(down(&mut connection, &table, false), async {
        eventually("the writer to be waited for", PATIENCE, async || db.sql(waits) == "1").await;
        sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    });
    assert_eq!(removed.unwrap_err().code(), Code::NotEmpty);
    assert_eq!(db.sql("select count(*) from org_outbox_status"), "1");
    db.sql("update org_outbox set published_at = utc_timestamp(6)");
    down(&mut connection, &table, false).await.unwrap();
    assert_eq!(db.sql("show tables"), "postbox_audit\npostbox_relay\npostbox_window");
}

/// Times are UTC, whatever the session of a writer says; ids are drawn; JSON may be as deep as it likes.
#[tokio::test]
async fn a_plain_insert_is_a_valid_event() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    up(&mut connection, &table, |_| {}).await.unwrap();
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    db.sql(&format!(
        "set time_zone = '+09:00'; insert into org_outbox (tenant_id, topic, payload, event_id)
         values (x'00000000000000000000000000000000', 'shop.order.placed.v1', '{deep}', unhex(replace(uuid(), '-', '')))"
    ));
    let sql = "select abs(timestampdiff(second, created_at, utc_timestamp(6))) < 60,
               abs(timestampdiff(second, available_at, utc_timestamp(6))) < 60, length(id), payload from org_outbox";
    assert_eq!(db.sql(sql), format!("1\t1\t16\t{deep}"));
    let admin = MySqlAdmin::connect(connect_options(&db.url).unwrap(), table);
    assert_eq!(admin.counts().await.unwrap().pending, 1);
}

/// What these databases cannot have is said, and nothing is done.
#[tokio::test]
async fn what_cannot_be_had_is_refused() {
    let db = MariaDbServer::shared().database();
    let (mut connection, table) = (connect(&db.url).await, "org_outbox".parse().unwrap());
    for extras in [
        Extras { ordered: Ordered::Writers, ..Extras::default() },
        Extras { wake_trigger: true, ..Extras::default() },
    ] {
        let error = up_with(&mut connection, &table, extras, |_| {}).await.unwrap_err();
        assert_eq!(error.code(), Code::ConfigUnsupported, "{error}");
        print_up_with(&table, Format::Sql, extras).unwrap_err();
    }
    assert_eq!(db.sql("show tables"), "");
}
