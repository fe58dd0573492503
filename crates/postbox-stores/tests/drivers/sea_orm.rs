//! SeaORM, on three databases.

use postbox_core::Outbox;
use sea_orm::{ConnectionTrait as _, Database as SeaOrm, DatabaseConnection, TransactionTrait as _};

use crate::database::Database;
use crate::suite::{Done, Driver, End, Step, driver_suite, steps};

struct Sea(DatabaseConnection);

impl Driver for Sea {
    async fn connect(url: &str) -> Self {
        Self(SeaOrm::connect(url).await.unwrap())
    }

    async fn transaction(&mut self, outbox: &Outbox, steps: Vec<Step>, end: End) -> Vec<Done> {
        let mut tx = self.0.begin().await.unwrap();
        let done = steps!(outbox, steps, &mut tx, sql => tx.execute_unprepared(sql));
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::RollBack => tx.rollback().await.unwrap(),
        }
        done
    }
}

mod postgres {
    use super::*;
    driver_suite!(Sea, Database::postgres());
}

mod mysql {
    use super::*;
    driver_suite!(Sea, Database::mariadb());
}

mod sqlite {
    use super::*;
    driver_suite!(Sea, Database::sqlite());
}

/// As SeaORM's own closures hand it out.
#[tokio::test]
async fn a_shared_reference_will_do() {
    let database = Database::sqlite().await;
    let sea = Sea::connect(&database.url).await.0;
    let outbox = database.outbox();
    let receipt =
        sea.transaction_async(async |tx| outbox.enqueue(tx, crate::suite::event(1)).await).await.unwrap();
    assert!(receipt.sequence().is_some());
    assert_eq!(crate::suite::rows(&database).await, 1);
}
