//! A table in MariaDB as the subject of the store suite.

use std::time::Duration;

use postbox_core::{EventId, History, Order, Outbox, Receipt, Record, TableName, Tenants, UnitOfWork};
use postbox_stores::mysql::migrate::{Extras, Ordered};
use postbox_stores::mysql::{
    MySqlAdmin, MySqlOutboxTransaction, MySqlStore, SqlxMySql, Strategy, connect_options, migrate,
};
use postbox_testkit::suite::{Features, Place, RowColumns, RowState, Subject};
use postbox_testkit::{MariaDb, MariaDbServer};
use sqlx::MySql;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};

use crate::open::Open;

/// What a table has beyond the usual, and what its relays do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A relay that is alone owns its rows.
    Migrated,
    /// Rows are always leased.
    Leasing,
    /// With the indexes for order.
    Ordered,
    /// Its relays move what was published.
    Moving,
    /// Tenants share its relays.
    Fair,
}

/// A database of its own with one outbox table.
pub(crate) struct Table {
    pub(crate) db: MariaDb,
    pub(crate) name: TableName,
    pub(crate) options: MySqlConnectOptions,
    pub(crate) pool: MySqlPool,
    shape: Shape,
}

impl Table {
    pub(crate) async fn new(shape: Shape) -> Self {
        Self::on(MariaDbServer::shared(), shape).await
    }

    pub(crate) async fn on(server: &MariaDbServer, shape: Shape) -> Self {
        let db = server.database();
        let options = connect_options(&db.url).unwrap();
        let pool = MySqlPoolOptions::new().max_connections(4).connect_lazy_with(options.clone());
        let name: TableName = "org_outbox".parse().unwrap();
        let extras = Extras {
            history: shape == Shape::Moving,
            tenants: shape == Shape::Fair,
            ordered: if shape == Shape::Ordered { Ordered::Index } else { Ordered::AsItIs },
            ..Extras::default()
        };
        migrate::up_with(&mut pool.acquire().await.unwrap(), &name, extras, |_| {}).await.unwrap();
        Self { db, name, options, pool, shape }
    }

    /// Where rows can be owned, the suite sees that.
    fn strategy(&self, single_active: bool) -> Strategy {
        match self.shape {
            Shape::Migrated | Shape::Moving if single_active => Strategy::Owner,
            Shape::Leasing => Strategy::Lease,
            _ => Strategy::Auto,
        }
    }

    pub(crate) fn outbox(&self) -> Outbox {
        Outbox::new(self.name.clone())
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    async fn changed(&self, sql: &str, event: EventId) -> u64 {
        let change = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).bind(event.0).execute(&self.pool);
        change.await.unwrap().rows_affected()
    }
}

impl Subject for Table {
    type Store = MySqlStore;
    type Admin = MySqlAdmin;
    type Open = Open<MySql>;
    type Driver = SqlxMySql;

    fn features(&self) -> Features {
        Features {
            full: true,
            order: self.shape == Shape::Ordered,
            history: true,
            tenants: self.shape == Shape::Fair,
        }
    }

    fn errors_abort(&self) -> bool {
        false
    }

    fn waiting_may_conflict(&self) -> bool {
        true
    }

    fn commits_can_be_refused(&self) -> bool {
        false
    }

    fn outbox(&self) -> Outbox {
        Table::outbox(self)
    }

    async fn open(&self, outbox: &Outbox) -> MySqlOutboxTransaction {
        outbox.begin(&self.pool).await.unwrap()
    }

    async fn unit_of_work<'a>(&self, outbox: &Outbox) -> UnitOfWork<'a, SqlxMySql> {
        outbox.unit_of_work(&self.pool).await.unwrap()
    }

    async fn run_in(&self, tx: &mut MySqlOutboxTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut ***tx).await.map(|_| ())
    }

    async fn enqueue_in_driver_transaction(
        &self,
        outbox: &Outbox,
        tx: &mut MySqlOutboxTransaction,
        records: Vec<Record>,
    ) -> Vec<Receipt> {
        outbox.enqueue_all(&mut **tx, records).await.unwrap()
    }

    fn history(&self) -> History {
        if self.shape == Shape::Moving { History::Move } else { History::Keep }
    }

    fn store_with(&self, single_active: bool, history: History) -> MySqlStore {
        let store = MySqlStore::builder(self.options.clone(), self.name.clone());
        // Tests share a table by hand, then have it owned: nobody waits for the time of those that share to be over.
        let store = if single_active { store } else { store.leader_ttl(Duration::from_millis(1)) };
        let tenants = Tenants { fair: self.shape == Shape::Fair, ..Tenants::default() };
        let store = store.single_active(single_active).strategy(self.strategy(single_active));
        store.history(history).tenants(tenants).build()
    }

    fn tenants_store(&self, tenants: &Tenants, single_active: bool) -> MySqlStore {
        let store = MySqlStore::builder(self.options.clone(), self.name.clone()).tenants(tenants.clone());
        store.single_active(single_active).build()
    }

    fn ordered_store(&self, order: Order, single_active: bool) -> MySqlStore {
        let store = MySqlStore::builder(self.options.clone(), self.name.clone());
        store.single_active(single_active).order(order).build()
    }

    async fn make_history(&self) -> Vec<String> {
        let extras = Extras { history: true, ..Extras::default() };
        let mut connection = self.pool.acquire().await.unwrap();
        let plan = migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect()
    }

    async fn make_inbox(&self) {
        let extras = Extras { inbox: true, ..Extras::default() };
        let mut connection = self.pool.acquire().await.unwrap();
        migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
    }

    async fn age_inbox(&self, by: Duration) {
        let age = sqlx::query("UPDATE org_inbox SET processed_at = processed_at - INTERVAL ? MICROSECOND");
        age.bind(i64::try_from(by.as_micros()).unwrap()).execute(&self.pool).await.unwrap();
    }

    async fn has_history(&self) -> bool {
        let sql = "SELECT COUNT(*) FROM information_schema.tables
                   WHERE table_schema = DATABASE() AND table_name = 'org_outbox_history'";
        self.number(sql).await > 0
    }

    async fn row_in(&self, place: Place, event: EventId) -> Option<RowState> {
        // Row versions cannot be seen here: the whole row has to do.
        let sql = format!(
            "SELECT published_at IS NOT NULL, dead_at IS NOT NULL, locked_at IS NOT NULL, attempts,
                    available_at <= UTC_TIMESTAMP(6), last_error, COALESCE(JSON_LENGTH(attempts_log), 0),
                    CONCAT_WS('|', HEX(id), sequence, created_at, published_at, attempts, available_at, locked_at, last_error,
                        locked_by, dead_at, attempts_log, payload)
             FROM {} WHERE event_id = ? ORDER BY published_at DESC LIMIT 1",
            place.name()
        );
        let row = sqlx::query_as::<_, RowColumns>(sqlx::AssertSqlSafe(sql)).bind(event.0);
        row.fetch_optional(&self.pool).await.unwrap().map(RowState::from)
    }

    async fn view(&self, event: EventId) -> Vec<String> {
        let view = sqlx::query_scalar("SELECT status FROM org_outbox_status WHERE event_id = ?");
        view.bind(event.0.to_string()).fetch_all(&self.pool).await.unwrap()
    }

    fn table(&self) -> TableName {
        self.name.clone()
    }

    fn admin_of(&self, table: TableName) -> MySqlAdmin {
        MySqlAdmin::connect(self.options.clone(), table)
    }

    async fn begin(&self, records: Vec<Record>) -> Open<MySql> {
        let mut tx = self.pool.begin().await.unwrap();
        let receipts = self.outbox().enqueue_all(&mut tx, records).await.unwrap();
        Open { tx, receipts }
    }

    async fn somebody_waits(&self) {
        // So long only if it waits. (What the server tells of transactions is older the more often one asks.)
        let waits = "SELECT COUNT(*) FROM information_schema.processlist
                     WHERE db = DATABASE() AND command = 'Execute' AND time_ms > 50 AND id <> CONNECTION_ID()";
        while self.number(waits).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn rows(&self) -> usize {
        usize::try_from(self.number("SELECT COUNT(*) FROM org_outbox_status").await).unwrap()
    }

    async fn expire_lease(&self, event: EventId) {
        let sql = "UPDATE org_outbox SET locked_at = locked_at - INTERVAL 1 HOUR WHERE event_id = ?";
        assert_eq!(self.changed(sql, event).await, 1);
    }

    async fn age_in(&self, place: Place, event: EventId, by: Duration) -> u64 {
        let (place, by) = (place.name(), by.as_micros());
        let sql = format!(
            "UPDATE {place} SET created_at = created_at - INTERVAL {by} MICROSECOND,
                 available_at = available_at - INTERVAL {by} MICROSECOND,
                 published_at = published_at - INTERVAL {by} MICROSECOND,
                 dead_at = dead_at - INTERVAL {by} MICROSECOND WHERE event_id = ?"
        );
        self.changed(&sql, event).await
    }

    async fn spoil(&self, event: EventId) {
        assert_eq!(
            self.changed("UPDATE org_outbox SET headers = '[1, 2]' WHERE event_id = ?", event).await,
            1
        );
    }

    async fn set_attempts(&self, event: EventId, attempts: i32) {
        let sql = format!("UPDATE org_outbox SET attempts = {attempts} WHERE event_id = ?");
        assert_eq!(self.changed(&sql, event).await, 1);
    }

    async fn pause(&self, paused: bool) {
        let admin = self.admin();
        let changed = if paused { admin.pause("tester", "test").await } else { admin.resume("tester").await };
        assert!(changed.unwrap());
    }

    async fn audit_lines(&self) -> usize {
        usize::try_from(self.number("SELECT COUNT(*) FROM postbox_audit").await).unwrap()
    }
}
