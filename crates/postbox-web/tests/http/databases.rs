//! The shop on each of the databases.

use postbox_core::TableName;
use postbox_stores::mysql::{self, MySqlIdempotency, SqlxMySql};
use postbox_stores::postgres::{self, PgIdempotency, SqlxPostgres};
use postbox_stores::sqlite::{self, SqliteIdempotency, SqlxSqlite};
use postbox_testkit::{MariaDb, MariaDbServer, PgServer, TestDb};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{MySqlPool, PgPool, SqlitePool};

use crate::shop::{Door, Shop, Till, open};

impl Till for SqlxPostgres {
    async fn order(tx: &mut Self::Transaction, item: &str) -> Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(item).execute(&mut **tx).await.map(drop)
    }

    async fn fail(tx: &mut Self::Transaction) {
        sqlx::query("SELECT * FROM nowhere").execute(&mut **tx).await.unwrap_err();
    }
}

impl Till for SqlxSqlite {
    async fn order(tx: &mut Self::Transaction, item: &str) -> Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO orders (item) VALUES (?1)").bind(item).execute(&mut **tx).await.map(drop)
    }

    async fn fail(tx: &mut Self::Transaction) {
        sqlx::query("SELECT * FROM nowhere").execute(&mut **tx).await.unwrap_err();
    }
}

impl Till for SqlxMySql {
    async fn order(tx: &mut Self::Transaction, item: &str) -> Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO orders (item) VALUES (?)").bind(item).execute(&mut **tx).await.map(drop)
    }

    async fn fail(tx: &mut Self::Transaction) {
        sqlx::query("SELECT * FROM nowhere").execute(&mut **tx).await.unwrap_err();
    }
}

/// A shop on PostgreSQL.
pub(crate) struct OnPostgres {
    door: Door,
    pool: PgPool,
    _db: TestDb,
}

impl OnPostgres {
    pub(crate) async fn open() -> Self {
        let db = PgServer::shared().database();
        let pool = PgPoolOptions::new().max_connections(16).connect(&db.url).await.unwrap();
        let table: TableName = "shop_outbox".parse().unwrap();
        let extras = postgres::migrate::Extras { idempotency: true, ..Default::default() };
        postgres::migrate::up_with(&mut pool.acquire().await.unwrap(), &table, extras, |_| {}).await.unwrap();
        sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await.unwrap();
        let door = open(PgIdempotency::new(pool.clone(), table)).await;
        Self { door, pool, _db: db }
    }
}

impl Shop for OnPostgres {
    fn door(&self) -> &Door {
        &self.door
    }

    fn writers_overlap(&self) -> bool {
        true
    }

    fn errors_abort(&self) -> bool {
        true
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM shop_outbox)";
        sqlx::query_as(books).fetch_one(&self.pool).await.unwrap()
    }

    async fn expire(&self, key: &str) {
        let sql = "UPDATE shop_idempotency SET lease_until = now() - make_interval(hours => 1) WHERE idempotency_key = $1";
        assert_eq!(sqlx::query(sql).bind(key).execute(&self.pool).await.unwrap().rows_affected(), 1);
    }

    async fn lease_until(&self, key: &str) -> i64 {
        let sql = "SELECT (extract(epoch FROM lease_until) * 1000000)::bigint FROM shop_idempotency WHERE idempotency_key = $1";
        sqlx::query_scalar(sql).bind(key).fetch_one(&self.pool).await.unwrap()
    }

    async fn drop_table(&self) {
        sqlx::query("DROP TABLE shop_idempotency").execute(&self.pool).await.unwrap();
    }
}

/// A shop on SQLite.
pub(crate) struct OnSqlite {
    door: Door,
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl OnSqlite {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
        let options = sqlite::connect_options(&url).unwrap();
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
        let table: TableName = "shop_outbox".parse().unwrap();
        let extras = sqlite::migrate::Extras { idempotency: true, ..Default::default() };
        sqlite::migrate::up_with(&mut pool.acquire().await.unwrap(), &table, extras, |_| {}).await.unwrap();
        sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await.unwrap();
        let door = open(SqliteIdempotency::new(pool.clone(), table)).await;
        Self { door, pool, _folder: folder }
    }
}

impl Shop for OnSqlite {
    fn door(&self) -> &Door {
        &self.door
    }

    fn writers_overlap(&self) -> bool {
        false
    }

    fn errors_abort(&self) -> bool {
        false
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM shop_outbox)";
        sqlx::query_as(books).fetch_one(&self.pool).await.unwrap()
    }

    async fn expire(&self, key: &str) {
        let sql = "UPDATE shop_idempotency SET lease_until = 0 WHERE idempotency_key = ?1";
        assert_eq!(sqlx::query(sql).bind(key).execute(&self.pool).await.unwrap().rows_affected(), 1);
    }

    async fn lease_until(&self, key: &str) -> i64 {
        let sql = "SELECT lease_until FROM shop_idempotency WHERE idempotency_key = ?1";
        sqlx::query_scalar(sql).bind(key).fetch_one(&self.pool).await.unwrap()
    }

    async fn drop_table(&self) {
        sqlx::query("DROP TABLE shop_idempotency").execute(&self.pool).await.unwrap();
    }
}

/// A shop on MariaDB.
pub(crate) struct OnMariaDb {
    door: Door,
    pool: MySqlPool,
    _db: MariaDb,
}

impl OnMariaDb {
    pub(crate) async fn open() -> Self {
        let db = MariaDbServer::shared().database();
        let options = mysql::connect_options(&db.url).unwrap();
        let pool = MySqlPoolOptions::new().max_connections(16).connect_with(options).await.unwrap();
        let table: TableName = "shop_outbox".parse().unwrap();
        let extras = mysql::migrate::Extras { idempotency: true, ..Default::default() };
        mysql::migrate::up_with(&mut pool.acquire().await.unwrap(), &table, extras, |_| {}).await.unwrap();
        sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await.unwrap();
        let door = open(MySqlIdempotency::new(pool.clone(), table)).await;
        Self { door, pool, _db: db }
    }
}

impl Shop for OnMariaDb {
    fn door(&self) -> &Door {
        &self.door
    }

    fn writers_overlap(&self) -> bool {
        true
    }

    fn errors_abort(&self) -> bool {
        false
    }

    async fn books(&self) -> (i64, i64) {
        let books = "SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM shop_outbox)";
        sqlx::query_as(books).fetch_one(&self.pool).await.unwrap()
    }

    async fn expire(&self, key: &str) {
        let sql = "UPDATE shop_idempotency SET lease_until = '2000-01-01' WHERE idempotency_key = ?";
        assert_eq!(sqlx::query(sql).bind(key).execute(&self.pool).await.unwrap().rows_affected(), 1);
    }

    async fn lease_until(&self, key: &str) -> i64 {
        let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '2000-01-01', lease_until) FROM shop_idempotency WHERE idempotency_key = ?";
        sqlx::query_scalar(sql).bind(key).fetch_one(&self.pool).await.unwrap()
    }

    async fn drop_table(&self) {
        sqlx::query("DROP TABLE shop_idempotency").execute(&self.pool).await.unwrap();
    }
}
