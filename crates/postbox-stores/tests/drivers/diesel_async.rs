//! diesel-async, on three databases.

use diesel::SqliteConnection;
use diesel::result::Error;
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_async::{
    AsyncConnection, AsyncMysqlConnection, AsyncPgConnection, SimpleAsyncConnection as _,
    TransactionManager as _,
};
use postbox_core::Outbox;

use crate::suite::{Done, Driver, End, Step, steps};

type AsyncSqliteConnection = SyncConnectionWrapper<SqliteConnection>;

/// The connection, whatever the database: one file can be a driver for all of them, since only the types differ.
struct Diesel<C>(C);

macro_rules! driver {
    ($connection:ty, $url:ident => $place:expr, $setup:literal) => {
        impl Driver for Diesel<$connection> {
            async fn connect($url: &str) -> Self {
                let mut connection = <$connection>::establish($place).await.unwrap();
                connection.batch_execute($setup).await.unwrap();
                Self(connection)
            }

            async fn transaction(&mut self, outbox: &Outbox, steps: Vec<Step>, end: End) -> Vec<Done> {
                let mut all = Vec::new();
                let done = &mut all;
                let result = self
                    .0
                    .transaction(async move |conn| {
                        *done = steps!(outbox, steps, &mut *conn, sql => conn.batch_execute(sql));
                        match end {
                            End::Commit => Ok(()),
                            End::RollBack => Err(Error::RollbackTransaction),
                        }
                    })
                    .await;
                assert_eq!(result.is_ok(), end == End::Commit, "{result:?}");
                all
            }
        }

        type Manager = <$connection as AsyncConnection>::TransactionManager;

        #[tokio::test]
        async fn without_a_transaction_nothing_is_written() {
            let database = database().await;
            let mut connection = Diesel::<$connection>::connect(&database.url).await.0;
            $crate::suite::without_a_transaction(&database, |outbox, steps| {
                let connection = &mut connection;
                async move { steps!(outbox, steps, &mut *connection, sql => connection.batch_execute(sql)) }
            })
            .await;
            // And it is as good as before.
            Manager::begin_transaction(&mut connection).await.unwrap();
            database.outbox().enqueue(&mut connection, crate::suite::event(1)).await.unwrap();
            Manager::commit_transaction(&mut connection).await.unwrap();
            assert_eq!(crate::suite::rows(&database).await, 1);
        }
    };
}

mod postgres {
    use super::*;
    use crate::database::Database;
    use crate::suite::driver_suite;

    fn database() -> impl Future<Output = Database> {
        Database::postgres()
    }

    driver!(AsyncPgConnection, url => url, "SELECT 1");
    driver_suite!(Diesel<AsyncPgConnection>, database());
}

mod mysql {
    use super::*;
    use crate::database::Database;
    use crate::suite::driver_suite;

    fn database() -> impl Future<Output = Database> {
        Database::mariadb()
    }

    driver!(AsyncMysqlConnection, url => url, "SELECT 1");
    driver_suite!(Diesel<AsyncMysqlConnection>, database());
}

mod sqlite {
    use super::*;
    use crate::database::Database;
    use crate::suite::driver_suite;

    fn database() -> impl Future<Output = Database> {
        Database::sqlite()
    }

    driver!(AsyncSqliteConnection, url => path(url), "PRAGMA busy_timeout = 5000");
    driver_suite!(Diesel<AsyncSqliteConnection>, database());

    /// This driver takes the file's name, where sqlx takes a URL.
    fn path(url: &str) -> &str {
        url.trim_start_matches("sqlite:").trim_end_matches("?mode=rwc")
    }
}
