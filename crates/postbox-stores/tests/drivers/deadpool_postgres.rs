//! deadpool-postgres.

use deadpool_postgres::{Manager, Pool};
use postbox_core::Outbox;
use tokio_postgres::NoTls;

use crate::database::Database;
use crate::suite::{Done, Driver, End, Step, driver_suite, steps};

struct Deadpool(Pool);

impl Driver for Deadpool {
    async fn connect(url: &str) -> Self {
        let manager = Manager::new(url.parse().unwrap(), NoTls);
        Self(Pool::builder(manager).max_size(1).build().unwrap())
    }

    async fn transaction(&mut self, outbox: &Outbox, steps: Vec<Step>, end: End) -> Vec<Done> {
        let mut client = self.0.get().await.unwrap();
        let mut tx = client.transaction().await.unwrap();
        let done = steps!(outbox, steps, &mut tx, sql => tx.batch_execute(sql));
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::RollBack => tx.rollback().await.unwrap(),
        }
        done
    }
}

driver_suite!(Deadpool, Database::postgres());

/// Who is not behind a pooler does not pay for it, and the other way round.
#[tokio::test]
async fn statements_are_kept_prepared_unless_they_must_not() {
    let database = Database::postgres().await;
    let pool = Deadpool::connect(&database.url).await.0;
    let event = || postbox_core::Record::builder(crate::suite::TOPIC).json(&1);
    for (outbox, kept) in
        [(database.outbox().unprepared(), 0), (database.outbox(), 1), (database.outbox(), 1)]
    {
        let mut client = pool.get().await.unwrap();
        let tx = client.transaction().await.unwrap();
        outbox.enqueue(&tx, event()).await.unwrap();
        tx.commit().await.unwrap();
        let sql = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%INSERT%'";
        assert_eq!(client.query_typed(sql, &[]).await.unwrap().len(), kept);
    }
}
