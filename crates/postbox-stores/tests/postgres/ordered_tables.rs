//! Tables that order the writers of an aggregate: their migration, their trigger, and who waits for whom.

use std::time::Duration;

use postbox_core::cleaner::{Sweep as _, SweepCount as _, SweepRequest};
use postbox_core::{Enqueued, Inspect as _, Record};
use postbox_stores::postgres::connect_options;
use postbox_stores::postgres::migrate::{self, Extras, Format, Ordered};
use postbox_testkit::suite::{OpenTransaction as _, Subject as _, TOPIC, enqueue, event};
use postbox_testkit::{PgServer, TestDb, eventually};
use sqlx::{ConnectOptions as _, PgConnection};

use crate::common::SOON;
use crate::subject::{SEED_DDL, Shape, Table, role};

const WRITERS: Ordered = Ordered::Writers;

fn of(aggregate: &str, n: usize) -> Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().unwrap()
}

async fn connect(db: &TestDb) -> PgConnection {
    connect_options(&db.url).unwrap().connect().await.unwrap()
}

async fn up(db: &TestDb, ordered: Ordered) -> Vec<String> {
    let (table, options) = ("public.org_outbox".parse().unwrap(), Extras { ordered, ..Extras::default() });
    let plan = migrate::plan_with(&mut connect(db).await, &table, options).await.unwrap();
    let done = migrate::up_with(&mut connect(db).await, &table, options, |_| {}).await.unwrap();
    assert_eq!(plan, done, "what is shown is what is done");
    done.steps.into_iter().map(|step| step.what).collect()
}

const ORDER_INDEXES: &str = "SELECT count(*) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
    WHERE x.indisvalid AND i.relname IN ('org_outbox_pending_by_aggregate', 'org_outbox_dead_by_aggregate')";
const TRIGGERS: &str = "SELECT count(*) FROM pg_trigger WHERE tgname = 'postbox_ordered' AND tgenabled = 'O'";

#[tokio::test]
async fn a_table_becomes_ordered_and_stays_so() {
    let db = PgServer::shared().database();
    up(&db, Ordered::AsItIs).await;
    assert_eq!((db.psql(ORDER_INDEXES).as_str(), db.psql(TRIGGERS).as_str()), ("0", "0"));
    let steps = up(&db, Ordered::Index).await;
    assert!(steps.len() == 2 && steps.iter().all(|step| step.contains("CONCURRENTLY")), "{steps:?}");
    assert_eq!((db.psql(ORDER_INDEXES).as_str(), db.psql(TRIGGERS).as_str()), ("2", "0"));
    assert!(up(&db, Ordered::AsItIs).await.is_empty(), "it keeps its indexes");
    assert_eq!(up(&db, WRITERS).await, ["+ function postbox_ordered", "+ trigger postbox_ordered"]);
    for again in [WRITERS, Ordered::Index, Ordered::AsItIs] {
        assert!(up(&db, again).await.is_empty(), "{again:?}");
    }
    // What is missing or broken comes back without being asked for again.
    db.psql(
        "DROP INDEX org_outbox_pending_by_aggregate; ALTER TABLE org_outbox DISABLE TRIGGER postbox_ordered;
        UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'org_outbox_dead_by_aggregate'::regclass",
    );
    assert_eq!(up(&db, Ordered::AsItIs).await.len(), 4);
    assert_eq!((db.psql(ORDER_INDEXES).as_str(), db.psql(TRIGGERS).as_str()), ("2", "1"));
    // An index of the same name over something else is replaced.
    db.psql("DROP INDEX org_outbox_pending_by_aggregate; CREATE INDEX org_outbox_pending_by_aggregate ON org_outbox (aggregate_id)");
    assert_eq!(up(&db, Ordered::AsItIs).await.len(), 3);
    assert!(up(&db, Ordered::AsItIs).await.is_empty());
    let name = "public.org_outbox".parse().unwrap();
    migrate::down(&mut connect(&db).await, &name, false).await.unwrap();
    assert_eq!((db.psql(ORDER_INDEXES).as_str(), db.psql(TRIGGERS).as_str()), ("0", "0"));
}

#[tokio::test]
async fn printed_sql_makes_an_ordered_table_and_a_bare_one_can_become_one() {
    let server = PgServer::shared();
    let (printed, bare, indexed) = (server.database(), server.database(), server.database());
    let name = "public.org_outbox".parse().unwrap();
    let sql = migrate::print_up_with(&name, Format::Sql, Extras { ordered: WRITERS, ..Extras::default() });
    assert!(!sql.contains("CONCURRENTLY"));
    printed.psql(&format!("BEGIN; {sql} COMMIT"));
    assert!(up(&printed, WRITERS).await.is_empty(), "nothing is left to do");
    printed.psql(&sql);
    let goose =
        migrate::print_up_with(&name, Format::Goose, Extras { ordered: WRITERS, ..Extras::default() });
    let begins = goose.matches("-- +goose StatementBegin").count();
    assert_eq!(begins, goose.matches("-- +goose StatementEnd").count());
    assert!(goose.contains("CREATE OR REPLACE TRIGGER postbox_ordered") && begins >= 3);
    let only =
        migrate::print_up_with(&name, Format::Sql, Extras { ordered: Ordered::Index, ..Extras::default() });
    assert!(only.contains("pending_by_aggregate") && !only.contains("postbox_ordered"));
    indexed.psql(&only);
    assert!(up(&indexed, Ordered::Index).await.is_empty());
    bare.psql(SEED_DDL);
    up(&bare, WRITERS).await;
    assert_eq!((bare.psql(ORDER_INDEXES).as_str(), bare.psql(TRIGGERS).as_str()), ("2", "1"));
    printed.psql(&migrate::print_down(&name));
    assert_eq!(printed.psql("SELECT to_regclass('org_outbox') IS NULL"), "t");
}

/// The default is drawn before any trigger, and before any wait: without the trigger an aggregate's numbers do not follow its
/// commits; with it they do, and the second writer waits for the first.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_follow_commits_with_the_trigger_and_not_without() {
    for (shape, ordered) in [(Shape::Migrated, false), (Shape::Ordered, true)] {
        let table = Table::new(shape).await;
        let first = table.begin(vec![of("a", 1)]).await;
        let (name, owner) = (table.name.clone(), table.owner.clone());
        let second = tokio::spawn(async move {
            let mut tx = owner.begin().await.unwrap();
            let outbox = postbox_core::Outbox::new(name);
            let receipts = outbox.enqueue_all(&mut tx, vec![of("a", 2)]).await.unwrap();
            tx.commit().await.unwrap();
            receipts[0].enqueued
        });
        if ordered {
            eventually("the second writer to wait", SOON, async || {
                table.db.psql(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                ) == "1"
            })
            .await;
        } else {
            eventually("the second writer to be done", SOON, async || second.is_finished()).await;
        }
        // Others do not wait.
        enqueue(&table, vec![of("b", 3)]).await;
        let Enqueued::Written(early) = first.receipts()[0].enqueued else { panic!("not written") };
        first.commit().await;
        let Enqueued::Written(late) = second.await.unwrap() else { panic!("not written") };
        let order = table.db.psql("SELECT string_agg(payload->>'n', ' ' ORDER BY sequence) FROM org_outbox WHERE aggregate_id = 'a'");
        assert_eq!(order, "1 2");
        assert!(early < late);
        let third =
            table.db.psql("SELECT sequence FROM org_outbox WHERE aggregate_id = 'b'").parse::<i64>().unwrap();
        // Drawn after the wait, so after what came in between; without the trigger, before the commit of the first.
        assert_eq!(late > third, ordered);
    }
}

/// Without the trigger, a transaction that drew its number first and commits last is behind one that was delivered: the inversion
/// that the trigger is for.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_trigger_a_later_number_can_be_seen_first() {
    let table = Table::new(Shape::Migrated).await;
    let first = table.begin(vec![of("a", 1)]).await;
    enqueue(&table, vec![of("a", 2)]).await;
    assert_eq!(table.db.psql("SELECT payload->>'n' FROM org_outbox"), "2", "seen without the one before it");
    first.commit().await;
    assert_eq!(
        table.db.psql("SELECT string_agg(payload->>'n', ' ' ORDER BY sequence) FROM org_outbox"),
        "1 2"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_and_duplicates_tell_the_number_that_was_drawn_last() {
    let table = Table::new(Shape::Ordered).await;
    let records = vec![of("a", 1), of("b", 2), event(TOPIC, 3).build().unwrap(), of("a", 4)];
    let open = table.begin(records.clone()).await;
    let numbers: Vec<i64> = open
        .receipts()
        .iter()
        .map(|receipt| match receipt.enqueued {
            Enqueued::Written(sequence) => sequence,
            other => panic!("{other:?}"),
        })
        .collect();
    open.commit().await;
    assert!(numbers.is_sorted(), "the order of the caller: {numbers:?}");
    let rows =
        table.db.psql("SELECT string_agg(sequence::text, ' ' ORDER BY (payload->>'n')::int) FROM org_outbox");
    assert_eq!(rows, numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    let again = table.begin(records).await;
    for (receipt, number) in again.receipts().iter().zip(&numbers) {
        assert_eq!(receipt.enqueued, Enqueued::Duplicate(*number));
    }
    again.commit().await;
    let call =
        "SELECT enqueued_sequence || ' ' || duplicate FROM postbox_enqueue('org_outbox', 'org.a.b.v1', '{}',
        event_id => '00000000-0000-0000-0000-000000000001', aggregate_type => 'thing', aggregate_id => 'a')";
    let (first, second) = (table.db.psql(call), table.db.psql(call));
    let stored = table
        .db
        .psql("SELECT sequence FROM org_outbox WHERE event_id = '00000000-0000-0000-0000-000000000001'");
    assert_eq!((first, second), (format!("{stored} false"), format!("{stored} true")));
}

/// Two writers of the same aggregates in opposite orders, with enough events for several statements each.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_the_same_aggregates_do_not_deadlock() {
    let table = Table::new(Shape::Ordered).await;
    let records = |backwards: bool| {
        let name = |n: usize| format!("a{}", if backwards { 2500 - n } else { n });
        (0..2500).map(|n| of(&name(n), n)).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        let writers = [false, true, false, true].map(|backwards| {
            let (name, owner, records) = (table.name.clone(), table.owner.clone(), records(backwards));
            tokio::spawn(async move {
                let mut tx = owner.begin().await.unwrap();
                postbox_core::Outbox::new(name).enqueue_all(&mut tx, records).await.unwrap();
                tx.commit().await.unwrap();
            })
        });
        for writer in writers {
            writer.await.unwrap();
        }
    }
    assert_eq!(table.rows().await, 30_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_can_keep_its_number_and_a_renamed_table_its_trigger() {
    let table = Table::new(Shape::Ordered).await;
    let insert = "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, aggregate_id, sequence)
        VALUES (gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), 'a', 7000) RETURNING sequence";
    let kept = table.db.psql(&format!("BEGIN; SET LOCAL postbox.keep_sequence = 'on'; {insert}; COMMIT"));
    assert!(kept.contains("7000"), "{kept}");
    assert!(!table.db.psql(insert).contains("7000"), "nobody else chooses his number");
    table.db.psql("ALTER SEQUENCE org_outbox_sequence_seq RENAME TO other_seq");
    enqueue(&table, vec![of("a", 1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_with_least_privilege_can_write_in_order() {
    let table = Table::new(Shape::Ordered).await;
    let writer = role(&table.db, "writer");
    table.db.psql(&format!("CREATE ROLE \"{writer}\" LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC"));
    let grants = format!("writer={writer}").parse().unwrap();
    table.db.psql(&migrate::print_grants(&table.name, &grants));
    let options = connect_options(&table.db.url).unwrap().username(&writer);
    let mut connection = options.connect().await.unwrap();
    use sqlx::Connection as _;
    let mut tx = connection.begin().await.unwrap();
    table.outbox().enqueue_all(&mut tx, vec![of("a", 1), of("b", 2), of("a", 3)]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(table.rows().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_aggregates_are_counted_and_what_holds_them_is_kept() {
    let table = Table::new(Shape::Ordered).await;
    let ids = enqueue(
        &table,
        ["a", "a", "a", "b", "c", "c"].into_iter().enumerate().map(|(n, name)| of(name, n)).collect(),
    )
    .await;
    let kill = |place: usize| {
        format!(
            "UPDATE org_outbox SET dead_at = now() - interval '2 days' WHERE event_id = '{}'",
            ids[place].0
        )
    };
    // The first of a, the only one of b, the last of c, and one without an aggregate.
    for place in [0, 3, 5] {
        table.db.psql(&kill(place));
    }
    table.db.psql("INSERT INTO org_outbox (tenant_id, topic, payload, event_id, dead_at) VALUES (gen_random_uuid(), 'org.a.b.v1', '{}', gen_random_uuid(), now() - interval '2 days')");
    let counts = table.admin().counts().await.unwrap();
    assert_eq!((counts.dead, counts.blocked), (4, 1));
    let request = SweepRequest {
        retention: Duration::from_hours(1),
        dead_retention: Some(Duration::from_hours(1)),
        batch: 100,
        max_attempts: 25,
        dead_letters: false,
    };
    assert_eq!(table.admin().due(&request).await.unwrap().dead, 3);
    table.admin().sweep(&request).await.unwrap();
    let left = table.db.psql("SELECT string_agg(payload->>'n', ' ' ORDER BY sequence) FROM org_outbox");
    assert_eq!(left, "0 1 2 4", "the dead one that others wait for is still there");
    table.db.psql("UPDATE org_outbox SET published_at = now() WHERE dead_at IS NULL");
    assert_eq!(table.admin().counts().await.unwrap().blocked, 0);
    table.admin().sweep(&request).await.unwrap();
    assert_eq!(table.rows().await, 3);
}
