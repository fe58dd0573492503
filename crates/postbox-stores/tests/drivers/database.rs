//! A database of its own for each test, with an outbox and an inbox, made and looked at through sqlx.

use std::time::Duration;

use postbox_core::{History, Order, Outbox, TableName, Tenants};
use postbox_stores::any::{AnyAdmin, AnyDatabase, AnyStore, StoreSettings};
use postbox_stores::postgres::Strategy;
use postbox_stores::postgres::migrate::{Extras, Ordered};
use postbox_testkit::{MariaDb, MariaDbServer, PgServer, TestDb};
use tempfile::TempDir;

pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) table: TableName,
    pub(crate) any: AnyDatabase,
    /// It goes away with this.
    home: Home,
}

enum Home {
    Postgres(TestDb),
    #[expect(dead_code, reason = "dropped with the database")]
    MariaDb(MariaDb),
    #[expect(dead_code, reason = "dropped with the database")]
    Sqlite(TempDir),
}

impl Database {
    pub(crate) async fn postgres() -> Self {
        let db = PgServer::shared().database();
        Self::at(db.url.clone(), Home::Postgres(db)).await
    }

    pub(crate) async fn mariadb() -> Self {
        let db = MariaDbServer::shared().database();
        Self::at(db.url.clone(), Home::MariaDb(db)).await
    }

    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("test.db").display());
        Self::at(url, Home::Sqlite(folder)).await
    }

    async fn at(url: String, home: Home) -> Self {
        let any = AnyDatabase::from_url(&url).unwrap();
        let table: TableName = "org_outbox".parse().unwrap();
        // Where writers of an aggregate wait for each other, if the database can have it: the statement is another then.
        let ordered = match home {
            Home::Postgres(_) => Ordered::Writers,
            Home::MariaDb(_) | Home::Sqlite(_) => Ordered::AsItIs,
        };
        let extras = Extras { inbox: true, ordered, ..Extras::default() };
        Box::pin(async {
            let mut connection = any.connect_or_create().await.unwrap();
            connection.migrate_up(&table, extras, |_| {}).await.unwrap();
        })
        .await;
        Self { url, table, any, home }
    }

    pub(crate) fn outbox(&self) -> Outbox {
        Outbox::new(self.table.clone())
    }

    pub(crate) fn store(&self) -> AnyStore {
        let settings = StoreSettings {
            single_active: true,
            name: "test".to_owned(),
            strategy: Strategy::Auto,
            order: Order::default(),
            history: History::default(),
            tenants: Tenants::default(),
        };
        self.any.store(&self.table, settings)
    }

    pub(crate) fn admin(&self) -> AnyAdmin {
        self.any.admin(&self.table, 25, Duration::from_mins(1))
    }

    /// Whether an error makes the rest of its transaction impossible.
    pub(crate) fn aborts(&self) -> bool {
        matches!(self.home, Home::Postgres(_))
    }

    /// Whether nobody but a writer can end the wait of the relay now. Where a relay looks by itself, at once.
    pub(crate) fn relay_sleeps(&self) -> bool {
        match &self.home {
            Home::Postgres(db) => {
                let sleepers = "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND locktype = 'advisory'
                                AND classid = 1886352244 AND objid = 'org_outbox'::regclass
                                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                db.psql(sleepers) == "1"
            }
            Home::MariaDb(_) | Home::Sqlite(_) => true,
        }
    }
}
