//! What only PostgreSQL can show of histories: lost replies, migrations, grants, triggers and columns of somebody's own.

use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{Claim, Settlement, Verdict};
use postbox_core::{
    Browse as _, Cleaner, Code, Diagnose as _, Examination, History, Level, Published, Relay, Store as _,
    StoreErrorKind,
};
use postbox_stores::postgres::migrate::{self, Extras, Format};
use postbox_stores::postgres::{PgStore, Strategy, connect_options};
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{PATIENCE, Subject as _, claim_in_turn, enqueue, events, quick, settle_all};
use postbox_testkit::{PgServer, Proxy, TestDb, eventually};
use sqlx::{ConnectOptions as _, Executor as _};

use crate::subject::{Shape, Table, role};

fn with_history() -> Extras {
    Extras { history: true, ..Extras::default() }
}

const GONE: [History; 2] = [History::Move, History::None];

/// A store whose connections go through a proxy.
fn behind(table: &Table, strategy: Strategy, history: History) -> (Proxy, PgStore) {
    let (proxy, store) = table.behind_proxy();
    let store = store.name("settler").strategy(strategy).history(history);
    (proxy, store.single_active(strategy == Strategy::Owner).build())
}

fn count(db: &TestDb, what: &str) -> String {
    db.psql(&format!("SELECT count(*) FROM {what}"))
}

/// All delivered but the last, which failed.
fn mixed(claim: &Claim) -> Vec<Settlement> {
    let mut settlements = settle_all(claim, &Verdict::Delivered);
    let last = settlements.last_mut().unwrap();
    last.verdict = Verdict::Retry { after: Duration::from_hours(1), reason: Summary::new("again", 100) };
    settlements
}

/// The settle happened, its answer was lost, and it is sent again: rows that are gone are settled, not lost (hazard 25).
#[tokio::test(flavor = "multi_thread")]
async fn a_settle_whose_reply_was_lost_counts_what_is_gone_as_settled() {
    for (strategy, history) in [Strategy::Lease, Strategy::Owner]
        .into_iter()
        .flat_map(|strategy| GONE.map(|history| (strategy, history)))
    {
        let table = Table::new(Shape::Moving).await;
        let settles: [fn(&Claim) -> Vec<Settlement>; 2] =
            [|claim| settle_all(claim, &Verdict::Delivered), mixed];
        for settle in settles {
            table.db.psql("DELETE FROM org_outbox; DELETE FROM org_outbox_history");
            enqueue(&table, events(5)).await;
            let (proxy, store) = behind(&table, strategy, history);
            let claim = claim_in_turn(&store, 10).await;
            assert_eq!(claim.rows.len(), 5);
            let left =
                settle(&claim).iter().filter(|settlement| settlement.verdict != Verdict::Delivered).count();
            let mut cut = proxy.cut_replies_after_requests_containing(b"settler/");
            let error = store.settle(&settle(&claim)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Connection);
            cut.fired().await;
            eventually("the settle to have happened", PATIENCE, async || {
                count(&table.db, "org_outbox") == left.to_string()
            })
            .await;
            let settled = store.settle(&settle(&claim)).await.unwrap();
            assert!(settled.lost.is_empty(), "{strategy:?} {history}: its own work is not a lost lease");
            let moved = if history == History::Move { 5 - left } else { 0 };
            assert_eq!(count(&table.db, "org_outbox_history"), moved.to_string(), "once");
            if strategy == Strategy::Lease {
                let lost = store.settle(&settle(&claim)).await.unwrap().lost;
                assert_eq!(lost.len(), 5, "but later there is no such doubt");
            }
            store.close().await;
        }
    }
}

/// A relay that lost its table settles nothing: neither by what it owned nor by deleting it.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_neither_moves_nor_deletes() {
    for history in GONE {
        let table = Table::new(Shape::Moving).await;
        enqueue(&table, events(4)).await;
        let former = table.store_with(true, history);
        let claim = claim_in_turn(&former, 10).await;
        assert_eq!(claim.rows.len(), 4);
        // Somebody else has taken over.
        table.db.psql("UPDATE postbox_relay SET holder = 'another', epoch = epoch + 1");
        for settle in [settle_all(&claim, &Verdict::Delivered), mixed(&claim)] {
            assert_eq!(former.settle(&settle).await.unwrap().lost.len(), 4, "{history}");
        }
        assert_eq!(count(&table.db, "org_outbox WHERE published_at IS NULL AND attempts = 0"), "4");
        assert_eq!(count(&table.db, "org_outbox_history"), "0");
    }
}

/// Columns that somebody added, also ones that the database works out, an identity and a trigger that draws sequences.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_columns_of_its_own_is_moved_and_comes_back_whole() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "ALTER TABLE org_outbox ADD COLUMN \"Shop \"\"7\"\"\" TEXT DEFAULT 'mine',
             ADD COLUMN size INT GENERATED ALWAYS AS (octet_length(topic)) STORED;
         ALTER TABLE org_outbox ALTER COLUMN sequence DROP DEFAULT;
         ALTER TABLE org_outbox ALTER COLUMN sequence ADD GENERATED ALWAYS AS IDENTITY;
         CREATE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF coalesce(current_setting('postbox.keep_sequence', true), '') <> 'on' THEN
                 NEW.sequence := NEW.sequence + 1000; END IF; RETURN NEW; END $$;
         CREATE TRIGGER draw BEFORE INSERT ON org_outbox FOR EACH ROW EXECUTE FUNCTION draw()",
    );
    table.make_history().await;
    let ids = enqueue(&table, events(3)).await;
    let row = "SELECT to_jsonb(t) - '{published_at,available_at,attempts,locked_at,locked_by}'::text[] FROM";
    let before = table.db.psql(&format!("{row} org_outbox t ORDER BY sequence"));
    assert!(before.contains("mine") && before.contains("1001"), "{before}");
    let relay =
        Relay::builder(table.store_with(true, History::Move)).dispatcher(Scripted::ok()).settings(quick());
    relay.build().unwrap().run_once().await.unwrap();
    assert_eq!(table.db.psql(&format!("{row} org_outbox_history t ORDER BY sequence")), before);
    let which = Published::Events { event_ids: ids };
    assert_eq!(table.admin().replay_published(&which, 10, "tester").await.unwrap().len(), 3);
    assert_eq!(table.db.psql(&format!("{row} org_outbox t ORDER BY sequence")), before);
    // A column that the history does not have would be lost: the relay says so and does not start.
    table.db.psql("ALTER TABLE org_outbox ADD COLUMN late INT");
    let error = table.store_with(true, History::Move).open().await.unwrap_err();
    assert_eq!(error.code(), Code::HistoryMissing);
    assert!(error.message().contains("lacks late"), "{error}");
    assert_eq!(table.make_history().await, ["+ columns late of org_outbox_history"]);
    table.store_with(true, History::Move).open().await.unwrap();
}

/// A history may be partitioned. It has no key, and a place is one in a partition: what lies in the same place of another stays.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_partitioned_history_nothing_else_is_removed() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "CREATE TABLE org_outbox_history (LIKE org_outbox) PARTITION BY RANGE (published_at);
         CREATE TABLE history_old PARTITION OF org_outbox_history FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
         CREATE TABLE history_young PARTITION OF org_outbox_history DEFAULT;
         CREATE INDEX org_outbox_history_by_time ON org_outbox_history (published_at, sequence)",
    );
    assert_eq!(table.make_history().await, ["+ status view"]);
    let ids = enqueue(&table, events(3)).await;
    let relay =
        Relay::builder(table.store_with(true, History::Move)).dispatcher(Scripted::ok()).settings(quick());
    relay.build().unwrap().run_once().await.unwrap();
    table.db.psql(
        "INSERT INTO org_outbox_history (id, tenant_id, topic, payload, event_id, sequence, created_at, published_at, attempts, available_at)
         SELECT gen_random_uuid(), tenant_id, topic, payload, gen_random_uuid(), sequence, created_at, '2019-01-01', attempts, available_at
         FROM org_outbox_history",
    );
    let left = || (count(&table.db, "history_old"), count(&table.db, "history_young"));
    assert_eq!(left(), ("3".to_owned(), "3".to_owned()));
    let which = Published::Events { event_ids: ids[..1].to_vec() };
    assert_eq!(table.admin().replay_published(&which, 10, "tester").await.unwrap(), ids[..1]);
    assert_eq!(left(), ("3".to_owned(), "2".to_owned()), "one has come back");
    let cleaner = Cleaner::new(table.admin()).retention(Duration::from_hours(1));
    assert_eq!(cleaner.run_once().await.unwrap(), 3);
    assert_eq!(left(), ("0".to_owned(), "2".to_owned()), "two are not due");
}

const SHAPE: &str =
    "SELECT string_agg(column_name || ' ' || data_type || ' ' || is_nullable, ',' ORDER BY column_name)
    FROM information_schema.columns WHERE table_name = 'org_outbox_history'";

#[tokio::test]
async fn a_history_is_made_kept_up_printed_and_removed() {
    let server = PgServer::shared();
    let (applied, printed) = (server.database(), server.database());
    let name = "public.org_outbox".parse().unwrap();
    let connect = async |db: &TestDb| connect_options(&db.url).unwrap().connect().await.unwrap();
    let up = async |db: &TestDb, extras: Extras| -> Vec<String> {
        let plan = migrate::up_with(&mut connect(db).await, &name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect()
    };
    // In place, on a table that has none; a later run that does not ask for it leaves it.
    up(&applied, Extras::default()).await;
    let planned = migrate::plan_with(&mut connect(&applied).await, &name, with_history()).await.unwrap();
    let steps = up(&applied, with_history()).await;
    assert_eq!(steps, ["+ table org_outbox_history", "+ index org_outbox_history_by_time", "+ status view"]);
    assert_eq!(planned.steps.into_iter().map(|step| step.what).collect::<Vec<_>>(), steps);
    for extras in [with_history(), Extras::default()] {
        assert_eq!(up(&applied, extras).await, [""; 0]);
    }
    let indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'org_outbox_history'";
    assert!(
        applied.psql(indexes).ends_with("USING btree (published_at, sequence)"),
        "{}",
        applied.psql(indexes)
    );
    // What an earlier version made gets its columns, its index and its place in the view, asked for or not.
    applied.psql("DROP VIEW org_outbox_status; ALTER TABLE org_outbox_history DROP COLUMN sinks_done, DROP COLUMN dlq_at;
        DROP INDEX org_outbox_history_by_time");
    assert!(!up(&applied, Extras::default()).await.is_empty());
    assert_eq!(up(&applied, Extras::default()).await, [""; 0]);
    assert_eq!(applied.psql("SELECT count(*) FROM org_outbox_status"), "0");
    // Columns that the table gets, the history gets with it.
    applied.psql(
        "DROP VIEW org_outbox_status; ALTER TABLE org_outbox_history DROP COLUMN metadata;
        ALTER TABLE org_outbox DROP COLUMN metadata",
    );
    up(&applied, Extras::default()).await;
    assert_eq!(up(&applied, with_history()).await, [""; 0]);

    let sql = migrate::print_up_with(&name, Format::Sql, with_history());
    for _ in 0..2 {
        printed.psql(&format!("BEGIN; {sql} COMMIT"));
    }
    assert_eq!(up(&printed, with_history()).await, [""; 0], "nothing is left to do after the printed SQL");
    assert_eq!(applied.psql(SHAPE), printed.psql(SHAPE));
    let goose = migrate::print_up_with(&name, Format::Goose, with_history());
    let (way_up, way_down) = goose.split_once("-- +goose Down").unwrap();
    assert!(
        way_up.contains("_history")
            && way_down.contains("DROP TABLE IF EXISTS \"public\".\"org_outbox_history\"")
    );
    assert!(!migrate::print_down(&name).contains("history"), "only where it is asked for");
    printed.psql(&migrate::print_down_with(&name, with_history()));
    migrate::down(&mut connect(&applied).await, &name, false).await.unwrap();
    for db in [&applied, &printed] {
        assert_eq!(
            db.psql("SELECT to_regclass('org_outbox') IS NULL AND to_regclass('org_outbox_history') IS NULL"),
            "t"
        );
    }
}

/// Another's table of that name: nobody writes into it, and nobody removes it.
#[tokio::test]
async fn a_table_of_the_historys_name_that_is_none_is_left_alone() {
    for other in [
        "CREATE TABLE org_outbox_history (note TEXT)",
        "CREATE TABLE org_outbox_history (LIKE org_outbox, PRIMARY KEY (id))",
    ] {
        let table = Table::new(Shape::Migrated).await;
        table.db.psql(other);
        let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
        let error = migrate::up_with(&mut connection, &table.name, with_history(), |_| {}).await.unwrap_err();
        assert_eq!(error.code(), Code::TableMismatch);
        assert!(error.message().contains("is no history of its table"), "{error}");
        drop(connection);
        let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
        assert_eq!(migrate::up(&mut connection, &table.name, |_| {}).await.unwrap().steps, []);
        assert_eq!(
            table.store_with(false, History::Move).open().await.unwrap_err().code(),
            Code::TableMismatch
        );
        table.store_with(false, History::None).open().await.unwrap();
        let found = table
            .admin()
            .diagnose(Examination { long_transaction: Duration::from_mins(1), connections: 0 })
            .await;
        let found = found.iter().find(|finding| finding.check == "history").expect("a finding");
        assert_eq!(found.level, Level::Doubtful);
        migrate::down(&mut connection, &table.name, false).await.unwrap();
        assert_eq!(table.db.psql("SELECT to_regclass('org_outbox_history') IS NOT NULL"), "t");
    }
}

/// A bare table has no place for tokens: it cannot be told whose row is deleted.
#[tokio::test]
async fn a_bare_table_keeps_what_was_published() {
    let table = Table::new(Shape::Bare).await;
    for history in GONE {
        let error = table.store_with(false, history).open().await.unwrap_err();
        assert_eq!(error.code(), Code::ConfigUnsupported);
        assert!(error.message().contains("postbox migrate up"), "{error}");
    }
}

/// Least privilege (hazard 48), and what is missing is said before anything is delivered.
#[tokio::test(flavor = "multi_thread")]
async fn roles_can_do_with_a_history_what_they_need_and_no_more() {
    let table = Table::new(Shape::Grants).await;
    let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
    migrate::up_with(&mut connection, &table.name, with_history(), |_| {}).await.unwrap();
    let error = table.store_with(false, History::Move).open().await.unwrap_err();
    assert_eq!(error.code(), Code::DatabasePermission);
    assert!(error.message().contains("INSERT ON \"public\".\"org_outbox_history\""), "{error}");
    let grants =
        ["relay", "viewer", "writer"].map(|kind| format!("{kind}={}", role(&table.db, kind))).join(",");
    table.db.psql(&migrate::print_grants_with(&table.name, &grants.parse().unwrap(), with_history()));
    table.store_with(false, History::Move).open().await.unwrap();
    for (kind, sql, allowed) in [
        ("relay", "SELECT payload FROM org_outbox_history", true),
        ("relay", "SELECT 1 FROM org_outbox_history FOR UPDATE SKIP LOCKED", true),
        ("relay", "UPDATE org_outbox_history SET payload = '{}'", false),
        ("relay", "TRUNCATE org_outbox_history", false),
        ("viewer", "SELECT topic FROM org_outbox_history", true),
        ("viewer", "SELECT status FROM org_outbox_status", true),
        ("viewer", "SELECT payload FROM org_outbox_history", false),
        ("viewer", "DELETE FROM org_outbox_history", false),
        ("writer", "SELECT event_id FROM org_outbox_history", false),
    ] {
        let options = connect_options(&table.db.url).unwrap();
        let mut connection = options.username(&role(&table.db, kind)).connect().await.unwrap();
        let result = connection.execute(sql).await;
        assert_eq!(result.is_ok(), allowed, "{kind}: {sql}: {result:?}");
    }
}
