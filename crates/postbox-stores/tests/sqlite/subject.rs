//! A table in a SQLite file as the subject of the store suite.

use std::path::{Path, PathBuf};
use std::time::Duration;

use postbox_core::{EventId, History, Order, Outbox, Receipt, Record, TableName, Tenants, UnitOfWork};
use postbox_stores::sqlite::migrate::Extras;
use postbox_stores::sqlite::{
    SqliteAdmin, SqliteOutboxTransaction, SqliteStore, SqlxSqlite, begin, connect_options, migrate,
};
use postbox_testkit::suite::{Features, Place, RowColumns, RowState, Subject};
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

use crate::open::Open;

/// A file of its own with one outbox table.
pub(crate) struct Table {
    pub(crate) folder: TempDir,
    pub(crate) name: TableName,
    pub(crate) options: SqliteConnectOptions,
    pub(crate) pool: SqlitePool,
    /// Its relays move what was published.
    moving: bool,
    /// Tenants share its relays.
    fair: bool,
}

/// How everybody opens the file of a test.
pub(crate) fn options(file: &Path) -> SqliteConnectOptions {
    connect_options(&format!("sqlite:{}?mode=rwc", file.display())).unwrap()
}

impl Table {
    pub(crate) async fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn at(folder: TempDir) -> Self {
        let options = options(&folder.path().join("test.db"));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_lazy_with(options.clone());
        let name: TableName = "org_outbox".parse().unwrap();
        migrate::up(&mut pool.acquire().await.unwrap(), &name, |_| {}).await.unwrap();
        Self { folder, name, options, pool, moving: false, fair: false }
    }

    /// A table whose relays move what was published.
    pub(crate) async fn moving() -> Self {
        let table = Self { moving: true, ..Self::new().await };
        table.make_history().await;
        table
    }

    /// A table with the index by tenant, whose relays are shared.
    pub(crate) async fn fair() -> Self {
        let table = Self { fair: true, ..Self::new().await };
        let extras = Extras { tenants: true, ..Extras::default() };
        let mut connection = table.pool.acquire().await.unwrap();
        migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
        drop(connection);
        table
    }

    async fn changed(&self, sql: &str, event: EventId, by: i64) -> u64 {
        let change = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).bind(event.0).bind(by);
        change.execute(&self.pool).await.unwrap().rows_affected()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    pub(crate) fn outbox(&self) -> Outbox {
        Outbox::new(self.name.clone())
    }

    /// Runs statements as anybody could.
    pub(crate) async fn sql(&self, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.map(|_| ())
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    async fn change(&self, sql: &str, event: EventId, by: i64) {
        assert_eq!(self.changed(sql, event, by).await, 1);
    }
}

impl Subject for Table {
    type Store = SqliteStore;
    type Admin = SqliteAdmin;
    type Open = Open<Sqlite>;
    type Driver = SqlxSqlite;

    fn features(&self) -> Features {
        Features { full: true, order: !self.fair, history: true, tenants: self.fair }
    }

    fn writers_overlap(&self) -> bool {
        false
    }

    fn errors_abort(&self) -> bool {
        false
    }

    fn outbox(&self) -> Outbox {
        Table::outbox(self)
    }

    async fn open(&self, outbox: &Outbox) -> SqliteOutboxTransaction {
        outbox.begin(&self.pool).await.unwrap()
    }

    async fn unit_of_work<'a>(&self, outbox: &Outbox) -> UnitOfWork<'a, SqlxSqlite> {
        outbox.unit_of_work(&self.pool).await.unwrap()
    }

    async fn run_in(&self, tx: &mut SqliteOutboxTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut ***tx).await.map(|_| ())
    }

    async fn enqueue_in_driver_transaction(
        &self,
        outbox: &Outbox,
        tx: &mut SqliteOutboxTransaction,
        records: Vec<Record>,
    ) -> Vec<Receipt> {
        outbox.enqueue_all(&mut **tx, records).await.unwrap()
    }

    fn history(&self) -> History {
        if self.moving { History::Move } else { History::Keep }
    }

    fn store_with(&self, single_active: bool, history: History) -> SqliteStore {
        let store = SqliteStore::builder(self.options.clone(), self.name.clone());
        let tenants = Tenants { fair: self.fair, ..Tenants::default() };
        store.single_active(single_active).history(history).tenants(tenants).build()
    }

    fn tenants_store(&self, tenants: &Tenants, single_active: bool) -> SqliteStore {
        let store = SqliteStore::builder(self.options.clone(), self.name.clone()).tenants(tenants.clone());
        store.single_active(single_active).build()
    }

    async fn make_history(&self) -> Vec<String> {
        let (mut connection, extras) =
            (self.pool.acquire().await.unwrap(), Extras { history: true, ..Extras::default() });
        let plan = migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
        plan.steps.into_iter().map(|step| step.what).collect()
    }

    async fn make_inbox(&self) {
        let (mut connection, extras) =
            (self.pool.acquire().await.unwrap(), Extras { inbox: true, ..Extras::default() });
        migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
    }

    async fn age_inbox(&self, by: Duration) {
        let age = sqlx::query("UPDATE org_inbox SET processed_at = processed_at - ?1");
        age.bind(i64::try_from(by.as_micros()).unwrap()).execute(&self.pool).await.unwrap();
    }

    async fn has_history(&self) -> bool {
        self.number("SELECT count(*) FROM sqlite_schema WHERE name = 'org_outbox_history'").await > 0
    }

    async fn row_in(&self, place: Place, event: EventId) -> Option<RowState> {
        // There are no row versions here: the whole row has to do.
        let sql = format!(
            "SELECT published_at IS NOT NULL, dead_at IS NOT NULL, locked_at IS NOT NULL, attempts, available_at <= ?2,
                    last_error, coalesce(json_array_length(attempts_log), 0),
                    json_array(hex(id), sequence, created_at, published_at, attempts, available_at, locked_at, last_error,
                        locked_by, dead_at, attempts_log, payload)
             FROM {} WHERE event_id = ?1 ORDER BY published_at DESC LIMIT 1",
            place.name()
        );
        let now = i64::try_from(time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000).unwrap();
        let row = sqlx::query_as::<_, RowColumns>(sqlx::AssertSqlSafe(sql)).bind(event.0).bind(now);
        row.fetch_optional(&self.pool).await.unwrap().map(RowState::from)
    }

    async fn view(&self, event: EventId) -> Vec<String> {
        let view = sqlx::query_scalar("SELECT status FROM org_outbox_status WHERE event_id = ?1");
        view.bind(event.0.to_string()).fetch_all(&self.pool).await.unwrap()
    }

    fn ordered_store(&self, order: Order, single_active: bool) -> SqliteStore {
        let store = SqliteStore::builder(self.options.clone(), self.name.clone());
        store.single_active(single_active).order(order).build()
    }

    fn table(&self) -> TableName {
        self.name.clone()
    }

    fn admin_of(&self, table: TableName) -> SqliteAdmin {
        SqliteAdmin::connect(self.options.clone(), table)
    }

    async fn begin(&self, records: Vec<Record>) -> Open<Sqlite> {
        let mut tx = begin(&self.pool).await.unwrap();
        let receipts = self.outbox().enqueue_all(&mut tx, records).await.unwrap();
        Open { tx, receipts }
    }

    async fn rows(&self) -> usize {
        usize::try_from(self.number("SELECT count(*) FROM org_outbox_status").await).unwrap()
    }

    async fn expire_lease(&self, event: EventId) {
        let sql = "UPDATE org_outbox SET locked_at = locked_at - ?2 WHERE event_id = ?1";
        self.change(sql, event, 3_600_000_000).await;
    }

    async fn age_in(&self, place: Place, event: EventId, by: Duration) -> u64 {
        let sql = format!(
            "UPDATE {} SET created_at = created_at - ?2, available_at = available_at - ?2,
                 published_at = published_at - ?2, dead_at = dead_at - ?2 WHERE event_id = ?1",
            place.name()
        );
        self.changed(&sql, event, i64::try_from(by.as_micros()).unwrap()).await
    }

    async fn spoil(&self, event: EventId) {
        self.change("UPDATE org_outbox SET headers = '[1, 2]' WHERE event_id = ?1 AND ?2 = 0", event, 0)
            .await;
    }

    async fn set_attempts(&self, event: EventId, attempts: i32) {
        let sql = "UPDATE org_outbox SET attempts = ?2 WHERE event_id = ?1";
        self.change(sql, event, i64::from(attempts)).await;
    }

    async fn pause(&self, paused: bool) {
        let admin = self.admin();
        let changed = if paused { admin.pause("tester", "test").await } else { admin.resume("tester").await };
        assert!(changed.unwrap());
    }

    async fn audit_lines(&self) -> usize {
        usize::try_from(self.number("SELECT count(*) FROM postbox_audit").await).unwrap()
    }
}
