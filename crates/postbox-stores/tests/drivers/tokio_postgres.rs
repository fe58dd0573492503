//! tokio-postgres.

use postbox_core::Outbox;
use tokio_postgres::{Client, NoTls};

use crate::database::Database;
use crate::suite::{Done, Driver, End, Step, driver_suite, steps};

struct TokioPostgres(Client);

impl Driver for TokioPostgres {
    async fn connect(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn transaction(&mut self, outbox: &Outbox, steps: Vec<Step>, end: End) -> Vec<Done> {
        let mut tx = self.0.transaction().await.unwrap();
        let done = steps!(outbox, steps, &mut tx, sql => tx.batch_execute(sql));
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::RollBack => tx.rollback().await.unwrap(),
        }
        done
    }
}

driver_suite!(TokioPostgres, Database::postgres());

/// As its own functions take it; and a savepoint is a transaction too.
#[tokio::test]
async fn a_shared_reference_will_do() {
    let database = Database::postgres().await;
    let mut client = TokioPostgres::connect(&database.url).await.0;
    let outbox = database.outbox();
    let event = || postbox_core::Record::builder(crate::suite::TOPIC).json(&1);
    let mut tx = client.transaction().await.unwrap();
    outbox.enqueue(&tx, event()).await.unwrap();
    let mut inner = tx.transaction().await.unwrap();
    outbox.enqueue(&mut inner, event()).await.unwrap();
    inner.rollback().await.unwrap();
    tx.commit().await.unwrap();
    let count = client.query_one("SELECT count(*) FROM org_outbox", &[]).await.unwrap();
    assert_eq!(count.get::<_, i64>(0), 1);
}
