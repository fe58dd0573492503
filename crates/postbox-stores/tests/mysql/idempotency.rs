//! Calls by idempotency key: the suite, also with least privilege and in sessions of other isolation, the table's migration, and what
//! else these servers do to a transaction.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::idempotency::{Begun, Call, Fingerprint, IdempotencyStore as _, StoredResponse, Ticket};
use postbox_core::{Code, Outbox};
use postbox_stores::mysql::migrate::{self, Extras};
use postbox_stores::mysql::{MySqlIdempotency, MySqlOutboxTransaction};
use postbox_testkit::eventually;
use postbox_testkit::suite::PATIENCE;
use postbox_testkit::suite::idempotency::{CallsSubject, call};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::subject::{Shape, Table};

postbox_testkit::idempotency_suite!(migrated, Calls::new(Kind::Plain));
postbox_testkit::idempotency_suite!(least_privilege, Calls::new(Kind::Grants));
postbox_testkit::idempotency_suite!(serializable, Calls::new(Kind::Serializable));
postbox_testkit::idempotency_suite!(snapshot_isolation, Calls::new(Kind::Snapshot));

const LEASE: Duration = Duration::from_mins(1);

fn with_calls() -> Extras {
    Extras { idempotency: true, ..Extras::default() }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// A user who may do what calls need, and no more.
    Grants,
    /// Every transaction is, and the store leaves it at that.
    Serializable,
    /// As MariaDB is by default from 11.6 on: who has read may not change what others have changed since.
    Snapshot,
}

struct Calls {
    table: Table,
    service: MySqlPool,
    kind: Kind,
}

impl Calls {
    async fn new(kind: Kind) -> Self {
        let table = Table::new(Shape::Migrated).await;
        let mut connection = table.pool.acquire().await.unwrap();
        migrate::up_with(&mut connection, &table.name, with_calls(), |_| {}).await.unwrap();
        drop(connection);
        table.db.sql("CREATE TABLE effect (n INT)");
        let service = match kind {
            Kind::Plain => pool(&table, ""),
            Kind::Serializable => pool(&table, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
            Kind::Snapshot if table.db.sql("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").is_empty() => {
                // A server that does not know it cannot be in its way.
                pool(&table, "")
            }
            Kind::Snapshot => pool(&table, "SET SESSION innodb_snapshot_isolation = ON"),
            Kind::Grants => {
                let user = format!("u_{}", table.db.name);
                table.db.sql(&format!(
                    "CREATE OR REPLACE USER {user};
                     GRANT SELECT, INSERT, UPDATE, DELETE ON org_idempotency TO {user};
                     GRANT SELECT, INSERT, UPDATE ON org_outbox TO {user};
                     GRANT INSERT ON effect TO {user}"
                ));
                let options = table.options.clone().username(&user);
                MySqlPoolOptions::new().max_connections(8).connect_lazy_with(options)
            }
        };
        Self { table, service, kind }
    }

    async fn change(&self, sql: &'static str, call: &Call, by: Duration) {
        let change = sqlx::query(sql).bind(i64::try_from(by.as_micros()).unwrap()).bind(call.key());
        assert_eq!(change.execute(&self.table.pool).await.unwrap().rows_affected(), 1);
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if self.kind == Kind::Grants {
            self.table.db.try_sql(&format!("DROP USER IF EXISTS u_{}", self.table.db.name)).ok();
        }
    }
}

/// A service's connections, each told this first.
fn pool(table: &Table, first: &'static str) -> MySqlPool {
    let pool = MySqlPoolOptions::new().max_connections(8).after_connect(move |connection, _| {
        Box::pin(async move {
            if !first.is_empty() {
                connection.execute(first).await?;
            }
            Ok(())
        })
    });
    pool.connect_lazy_with(table.options.clone())
}

impl CallsSubject for Calls {
    type Calls = MySqlIdempotency;

    fn calls(&self) -> MySqlIdempotency {
        let calls = MySqlIdempotency::new(self.service.clone(), self.table.name.clone());
        if self.kind == Kind::Serializable { calls.session_isolation() } else { calls }
    }

    fn outbox(&self) -> Outbox {
        self.table.outbox()
    }

    fn writers_overlap(&self) -> bool {
        true
    }

    async fn expire(&self, call: &Call) {
        let sql = "UPDATE org_idempotency SET lease_until = lease_until - INTERVAL ? MICROSECOND WHERE idempotency_key = ?";
        self.change(sql, call, Duration::from_hours(1)).await;
    }

    async fn make_older(&self, call: &Call, by: Duration) {
        let sql = "UPDATE org_idempotency SET created_at = created_at - INTERVAL ? MICROSECOND WHERE idempotency_key = ?";
        self.change(sql, call, by).await;
    }

    async fn effect(&self, tx: &mut MySqlOutboxTransaction) {
        sqlx::query("INSERT INTO effect VALUES (1)").execute(&mut ***tx).await.unwrap();
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT COUNT(*) FROM effect), (SELECT COUNT(*) FROM org_outbox)";
        sqlx::query_as(books).fetch_one(&self.table.pool).await.unwrap()
    }
}

async fn run(calls: &MySqlIdempotency, call: &Arc<Call>) -> Ticket {
    match calls.begin(call, LEASE).await.unwrap() {
        Begun::Run(ticket) => ticket,
        other => panic!("the call is to run, not {other:?}"),
    }
}

#[tokio::test]
async fn the_table_is_made_kept_and_removed() {
    let table = Table::new(Shape::Migrated).await;
    let mut connection = table.pool.acquire().await.unwrap();
    assert!(!migrate::has_idempotency(&mut connection, &table.name).await.unwrap());
    let calls = MySqlIdempotency::new(table.pool.clone(), table.name.clone());
    let error = calls.begin(&call("k"), LEASE).await.unwrap_err();
    assert_eq!(error.code(), Code::IdempotencyMissing);
    assert!(error.message().contains("migrate up --idempotency --table org_outbox"), "{error}");
    let mut up = async |extras| {
        let plan = migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect::<Vec<_>>()
    };
    assert_eq!(up(with_calls()).await, ["+ table org_idempotency", "+ index org_idempotency_by_time"]);
    assert!(up(with_calls()).await.is_empty(), "a second run has nothing to do");
    table.db.sql("DROP INDEX org_idempotency_by_time ON org_idempotency");
    assert_eq!(up(Extras::default()).await, ["+ index org_idempotency_by_time"]);
    table.db.sql(
        "ALTER TABLE org_idempotency DROP INDEX org_idempotency_by_time, ADD INDEX org_idempotency_by_time (status)",
    );
    let mended = ["- index org_idempotency_by_time (of no use)", "+ index org_idempotency_by_time"];
    assert_eq!(up(Extras::default()).await, mended);
    assert!(up(Extras::default()).await.is_empty(), "what is there is kept without being asked for");
    assert!(migrate::has_idempotency(&mut connection, &table.name).await.unwrap());
    migrate::down(&mut connection, &table.name, false).await.unwrap();
    assert_eq!(table.db.sql("SHOW TABLES"), "postbox_audit\npostbox_relay\npostbox_window");
    // As printed, up and down and up again; and nothing is left to be done to what was printed.
    for format in [migrate::Format::Sql, migrate::Format::Goose] {
        let up = migrate::print_up_with(&table.name, format, with_calls()).unwrap();
        table.db.sql(up.split("-- +goose Down").next().unwrap());
        let plan = migrate::plan_with(&mut connection, &table.name, with_calls()).await.unwrap();
        assert!(plan.steps.is_empty(), "{plan:#?}");
        table.db.sql(&migrate::print_down_with(&table.name, with_calls()).unwrap());
        assert_eq!(table.db.sql("SHOW TABLES"), "postbox_audit\npostbox_relay\npostbox_window");
    }
}

#[tokio::test]
async fn anothers_table_is_left_alone() {
    let table = Table::new(Shape::Migrated).await;
    let mut connection = table.pool.acquire().await.unwrap();
    let made = migrate::print_up_with(&table.name, migrate::Format::Sql, with_calls()).unwrap();
    let made = made.split(';').find(|sql| sql.contains("`org_idempotency` (")).unwrap();
    let keyless = made.replace("PRIMARY KEY (principal, route, idempotency_key),", "");
    for (other, problem) in [
        ("CREATE TABLE org_idempotency (principal INT)", "no principal varbinary(256)"),
        (keyless.as_str(), "no primary key"),
    ] {
        table.db.sql(other);
        let error = migrate::up_with(&mut connection, &table.name, with_calls(), |_| {}).await.unwrap_err();
        assert_eq!(error.code(), Code::TableMismatch);
        assert!(error.message().contains(problem), "{error}");
        assert!(!migrate::has_idempotency(&mut connection, &table.name).await.unwrap());
        migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
        migrate::down(&mut connection, &table.name, false).await.unwrap();
        assert_eq!(table.db.sql("SELECT COUNT(*) FROM org_idempotency"), "0");
        table.db.sql("DROP TABLE org_idempotency");
    }
}

/// Every byte of a key counts: case, spaces at the end, letters that some collations take for one; and the longest fit.
#[tokio::test]
async fn keys_that_look_alike_are_not_the_same() {
    let subject = Calls::new(Kind::Plain).await;
    let calls = subject.calls();
    let long = ("p".repeat(256), "r".repeat(512), "k".repeat(255));
    let names = [
        ("acme", "POST /a", "a"),
        ("acme", "POST /a", "A"),
        ("acme", "POST /a", "a "),
        ("acme", "POST /a", "ä"),
        ("acme", "POST /a", "\u{1f44d}"),
        ("acme", "POST /A", "a"),
        ("acme", "POST /a ", "a"),
        ("acme ", "POST /a", "a"),
        ("Acme", "POST /a", "a"),
        (&long.0, &long.1, &long.2),
    ];
    for (principal, route, key) in names {
        let call = Arc::new(Call::new(principal, route, key, Fingerprint::new([1; 32])).unwrap());
        let ticket = run(&calls, &call).await;
        assert!(calls.finish(&ticket, &StoredResponse::new(200).body(key)).await.unwrap());
    }
    for (principal, route, key) in names {
        let call = Arc::new(Call::new(principal, route, key, Fingerprint::new([1; 32])).unwrap());
        let replay = Begun::Replay(StoredResponse::new(200).body(key));
        assert_eq!(calls.begin(&call, LEASE).await.unwrap(), replay, "{principal:?} {route:?} {key:?}");
    }
}

/// A handler that reads, and takes so long that its lease is renewed meanwhile, can commit all the same.
#[tokio::test]
async fn a_renewed_lease_is_in_no_commits_way() {
    for kind in [Kind::Plain, Kind::Snapshot] {
        let subject = Calls::new(kind).await;
        let (calls, call) = (subject.calls(), call("slow"));
        let ticket = run(&calls, &call).await;
        let mut tx = calls.transaction().await.unwrap();
        sqlx::query("SELECT COUNT(*) FROM org_idempotency").fetch_one(&mut **tx).await.unwrap();
        subject.effect(&mut tx).await;
        assert!(calls.extend(&ticket, LEASE).await.unwrap());
        ticket.finish_in(&mut tx, &StoredResponse::new(201)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(subject.books().await, (1, 0));
    }
}

/// A deadlock rolls back the whole transaction. A handler that goes on as if nothing had happened commits nothing, no answer either.
#[tokio::test]
async fn after_a_deadlock_that_was_ignored_no_answer_is_stored() {
    let subject = Calls::new(Kind::Plain).await;
    subject.table.db.sql(
        "CREATE TABLE account (id INT PRIMARY KEY, n INT) ENGINE = InnoDB; INSERT INTO account SELECT seq, 0 FROM seq_1_to_100",
    );
    let (calls, call) = (subject.calls(), call("deadlock"));
    let ticket = run(&calls, &call).await;
    let mut tx = calls.transaction().await.unwrap();
    subject.effect(&mut tx).await;
    sqlx::query("UPDATE account SET n = 1 WHERE id = 1").execute(&mut **tx).await.unwrap();
    let mut other = subject.table.pool.begin().await.unwrap();
    // The server gives up the one that has changed less.
    sqlx::query("UPDATE account SET n = 2 WHERE id > 1").execute(&mut *other).await.unwrap();
    let (crossing, through) = tokio::join!(
        sqlx::query("UPDATE account SET n = 1 WHERE id = 2").execute(&mut **tx),
        sqlx::query("UPDATE account SET n = 2 WHERE id = 1").execute(&mut *other),
    );
    through.unwrap();
    let number = crossing.unwrap_err().into_database_error().unwrap();
    assert!(number.message().contains("Deadlock"), "{number}");
    other.commit().await.unwrap();
    let error = ticket.finish_in(&mut tx, &StoredResponse::new(201)).await.unwrap_err();
    assert!(!error.is_lost(), "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(subject.books().await, (0, 0));
    assert!(matches!(calls.begin(&call, LEASE).await.unwrap(), Begun::Busy { .. }), "it is not done");
    assert!(calls.abandon(&ticket).await.unwrap());
    run(&calls, &call).await;
}

/// Who would take over a call whose commit is under way waits; also when the server gives up waiting for it (error 1205).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_that_is_kept_for_long_is_asked_for_again() {
    let mut subject = Calls::new(Kind::Plain).await;
    subject.service = pool(&subject.table, "SET SESSION innodb_lock_wait_timeout = 1");
    let (calls, call) = (subject.calls(), call("kept"));
    let ticket = run(&calls, &call).await;
    subject.expire(&call).await;
    let mut tx = calls.transaction().await.unwrap();
    subject.effect(&mut tx).await;
    ticket.finish_in(&mut tx, &StoredResponse::new(201)).await.unwrap();
    let other = tokio::spawn({
        let (calls, call) = (calls.clone(), Arc::clone(&call));
        async move { calls.begin(&call, LEASE).await }
    });
    // A second statement waits only where the first was given up.
    let mut seen = std::collections::HashSet::new();
    let waits = "SELECT query_id FROM information_schema.processlist
                 WHERE db = DATABASE() AND command = 'Execute' AND info LIKE '%UPDATE%org_idempotency%' AND id <> CONNECTION_ID()";
    eventually("a second try", PATIENCE, async || {
        let ids: Vec<i64> =
            sqlx::query_scalar(AssertSqlSafe(waits)).fetch_all(&subject.table.pool).await.unwrap();
        seen.extend(ids);
        seen.len() > 1
    })
    .await;
    tx.commit().await.unwrap();
    assert_eq!(other.await.unwrap().unwrap(), Begun::Replay(StoredResponse::new(201)));
    assert_eq!(subject.books().await, (1, 0));
}
