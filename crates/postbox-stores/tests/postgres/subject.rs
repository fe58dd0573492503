//! A table in PostgreSQL as the subject of the store suite: migrated, bare, or used by roles with least privilege.

use std::time::Duration;

use postbox_core::store::{Order, Tenants};
use postbox_core::{EventId, History, Outbox, Receipt, Record, StoreError, TableName, UnitOfWork};
use postbox_stores::postgres::migrate::{self, Extras, Grants, Ordered};
use postbox_stores::postgres::{
    PgAdmin, PgOutboxTransaction, PgStore, PgStoreBuilder, SqlxPostgres, Strategy, connect_options,
};
use postbox_testkit::suite::{Features, Place, RowColumns, RowState, Subject};
use postbox_testkit::{PgBouncer, PgServer, Proxy, TestDb};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Postgres};

use crate::open::Open;

/// The seed's own migration, to the letter: what a bare table looks like.
pub(crate) const SEED_DDL: &str = r"
CREATE TABLE org_outbox (
  id           UUID        NOT NULL DEFAULT gen_random_uuid(),
  tenant_id    UUID        NOT NULL,
  topic        TEXT        NOT NULL,
  payload      JSONB       NOT NULL,
  event_id     UUID        NOT NULL,
  sequence     BIGSERIAL   NOT NULL,
  created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
  published_at TIMESTAMPTZ NULL,
  attempts     INT         NOT NULL DEFAULT 0,
  available_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  locked_at    TIMESTAMPTZ NULL,
  last_error   TEXT        NULL,
  CONSTRAINT org_outbox_pkey PRIMARY KEY (id),
  CONSTRAINT org_outbox_event_id_key UNIQUE (event_id),
  CONSTRAINT org_outbox_attempts_nonnegative CHECK (attempts >= 0)
);
CREATE INDEX org_outbox_pending_by_available ON org_outbox (available_at, sequence) WHERE published_at IS NULL;
CREATE INDEX org_outbox_published_by_time ON org_outbox (published_at, sequence) WHERE published_at IS NOT NULL;
CREATE INDEX org_outbox_tenant_published ON org_outbox (tenant_id, published_at, sequence);
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Migrated,
    /// Migrated `--ordered`; a relay that is alone owns its rows.
    Ordered,
    /// The same, but rows are always leased.
    OrderedLease,
    Bare,
    Grants,
    /// Relays, writers and operators reach it through PgBouncer in transaction mode.
    Pooled,
    /// The same, migrated `--ordered`.
    PooledOrdered,
    /// Its relays move what was published.
    Moving,
    /// With the index by tenant; tenants share its relays.
    Fair,
}

/// A database of its own with one outbox table.
pub(crate) struct Table {
    pub(crate) db: TestDb,
    pub(crate) name: TableName,
    pub(crate) owner: PgPool,
    writer: PgPool,
    pub(crate) relay: PgConnectOptions,
    pub(crate) shape: Shape,
}

impl Table {
    /// A relay that leases rows though it is alone.
    pub(crate) fn leasing(&self) -> PgStore {
        PgStore::builder(self.relay.clone(), self.name.clone()).strategy(Strategy::Lease).build()
    }

    /// A relay whose connections go through a proxy, to be told more.
    pub(crate) fn behind_proxy(&self) -> (Proxy, PgStoreBuilder) {
        let proxy = Proxy::start(self.db.addr());
        let options = connect_options(&self.db.url_through(proxy.addr())).unwrap();
        (proxy, PgStore::builder(options, self.name.clone()))
    }

    fn is_ordered(&self) -> bool {
        matches!(self.shape, Shape::Ordered | Shape::OrderedLease | Shape::PooledOrdered)
    }

    /// A relay that keeps order, and leases rows or owns them.
    pub(crate) fn in_order(&self, order: Order, strategy: Strategy, single_active: bool) -> PgStore {
        let store = PgStore::builder(self.relay.clone(), self.name.clone());
        store.order(order).strategy(strategy).single_active(single_active).build()
    }

    pub(crate) async fn new(shape: Shape) -> Self {
        let db = PgServer::shared().database();
        let options = connect_options(&db.url).unwrap();
        let name: TableName = "public.org_outbox".parse().unwrap();
        let (mut writer, mut relay) = (options.clone(), options.clone());
        if shape == Shape::Bare {
            db.psql(SEED_DDL);
        } else {
            let mut connection = options.connect().await.unwrap();
            let ordered = matches!(shape, Shape::Ordered | Shape::OrderedLease | Shape::PooledOrdered);
            let wanted = if ordered { Ordered::Writers } else { Ordered::AsItIs };
            let options = Extras { ordered: wanted, tenants: shape == Shape::Fair, ..Extras::default() };
            migrate::up_with(&mut connection, &name, options, |_| {}).await.unwrap();
        }
        if shape == Shape::Grants {
            // Roles belong to the whole server: tests that run at the same time need roles of their own.
            let [w, r, v] = ["writer", "relay", "viewer"].map(|kind| role(&db, kind));
            let grants: Grants = format!("writer={w},relay={r},viewer={v}").parse().unwrap();
            for role in [&w, &r, &v] {
                db.psql(&format!("CREATE ROLE \"{role}\" LOGIN"));
            }
            db.psql("REVOKE ALL ON SCHEMA public FROM PUBLIC");
            db.psql(&migrate::print_grants(&name, &grants));
            writer = writer.username(&w);
            relay = relay.username(&r);
        }
        if matches!(shape, Shape::Pooled | Shape::PooledOrdered) {
            relay = connect_options(&db.url_through(PgBouncer::shared().addr())).unwrap();
            writer = relay.clone();
        }
        if shape == Shape::Moving {
            let mut connection = options.connect().await.unwrap();
            migrate::up_with(&mut connection, &name, Extras { history: true, ..Extras::default() }, |_| {})
                .await
                .unwrap();
        }
        let pool = |options| PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
        // Sixteen race for a message.
        let writer = PgPoolOptions::new().max_connections(16).connect_lazy_with(writer);
        Self { owner: pool(options), writer, relay, name, shape, db }
    }

    pub(crate) fn outbox(&self) -> Outbox {
        match self.shape {
            Shape::Bare => Outbox::bare(self.name.clone()),
            Shape::Pooled | Shape::PooledOrdered => Outbox::new(self.name.clone()).unprepared(),
            _ => Outbox::new(self.name.clone()),
        }
    }

    async fn change(&self, sql: &str, event: EventId, by: f64) {
        assert_eq!(self.changed(sql, event, by).await, 1);
    }

    async fn changed(&self, sql: &str, event: EventId, by: f64) -> u64 {
        let sql = sql.to_owned();
        let change = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(event.0).bind(by).execute(&self.owner);
        change.await.unwrap().rows_affected()
    }

    fn owns(&self, single_active: bool) -> bool {
        // Where rows can be owned, the suite sees that; rows are leased under least privilege.
        matches!(self.shape, Shape::Migrated | Shape::Moving) && single_active
    }
}

/// The name of a role for one test.
pub(crate) fn role(db: &TestDb, kind: &str) -> String {
    let end = db.name.rsplit('_').take(3).collect::<Vec<_>>().join("_");
    format!("{kind}_{end}")
}

impl Subject for Table {
    type Store = PgStore;
    type Admin = PgAdmin;
    type Open = Open<Postgres>;
    type Driver = SqlxPostgres;

    fn features(&self) -> Features {
        let full = self.shape != Shape::Bare;
        Features { full, order: self.is_ordered(), history: full, tenants: self.shape == Shape::Fair }
    }

    fn has_hot_path(&self) -> bool {
        matches!(self.shape, Shape::Migrated | Shape::Moving | Shape::Fair)
    }

    fn outbox(&self) -> Outbox {
        Table::outbox(self)
    }

    async fn open(&self, outbox: &Outbox) -> PgOutboxTransaction {
        outbox.begin(&self.writer).await.unwrap()
    }

    async fn unit_of_work<'a>(&self, outbox: &Outbox) -> UnitOfWork<'a, SqlxPostgres> {
        outbox.unit_of_work(&self.writer).await.unwrap()
    }

    async fn run_in(&self, tx: &mut PgOutboxTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).persistent(false).execute(&mut ***tx).await.map(|_| ())
    }

    async fn enqueue_in_driver_transaction(
        &self,
        outbox: &Outbox,
        tx: &mut PgOutboxTransaction,
        records: Vec<Record>,
    ) -> Vec<Receipt> {
        outbox.enqueue_all(&mut **tx, records).await.unwrap()
    }

    fn history(&self) -> History {
        if self.shape == Shape::Moving { History::Move } else { History::Keep }
    }

    fn store_with(&self, single_active: bool, history: History) -> PgStore {
        let strategy = if self.owns(single_active) { Strategy::Owner } else { Strategy::Auto };
        let store = PgStore::builder(self.relay.clone(), self.name.clone());
        // Tests share a table by hand, then have it owned: nobody waits for the time of those that share to be over.
        let store = if single_active { store } else { store.leader_ttl(Duration::from_millis(1)) };
        let tenants = Tenants { fair: self.shape == Shape::Fair, ..Tenants::default() };
        store.single_active(single_active).strategy(strategy).history(history).tenants(tenants).build()
    }

    fn tenants_store(&self, tenants: &Tenants, single_active: bool) -> PgStore {
        let store = PgStore::builder(self.relay.clone(), self.name.clone()).tenants(tenants.clone());
        store.single_active(single_active).build()
    }

    async fn make_history(&self) -> Vec<String> {
        let mut connection = connect_options(&self.db.url).unwrap().connect().await.unwrap();
        let extras = Extras { history: true, ..Extras::default() };
        let plan = migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
        if self.shape == Shape::Grants {
            let relay = format!("relay={}", role(&self.db, "relay")).parse().unwrap();
            self.db.psql(&migrate::print_grants_with(&self.name, &relay, extras));
        }
        plan.steps.into_iter().map(|step| step.what).collect()
    }

    async fn make_inbox(&self) {
        let mut connection = connect_options(&self.db.url).unwrap().connect().await.unwrap();
        let extras = Extras { inbox: true, ..Extras::default() };
        migrate::up_with(&mut connection, &self.name, extras, |_| {}).await.unwrap();
        if self.shape == Shape::Grants {
            let [w, r] = ["writer", "relay"].map(|kind| role(&self.db, kind));
            let grants = format!("writer={w},relay={r}").parse().unwrap();
            self.db.psql(&migrate::print_grants_with(&self.name, &grants, extras));
        }
    }

    async fn age_inbox(&self, by: Duration) {
        let age = sqlx::query("UPDATE org_inbox SET processed_at = processed_at - make_interval(secs => $1)");
        age.bind(by.as_secs_f64()).execute(&self.owner).await.unwrap();
    }

    async fn has_history(&self) -> bool {
        let there = sqlx::query_scalar("SELECT to_regclass('org_outbox_history') IS NOT NULL");
        there.fetch_one(&self.owner).await.unwrap()
    }

    async fn row_in(&self, place: Place, event: EventId) -> Option<RowState> {
        let (dead, log) = if self.features().full {
            ("dead_at IS NOT NULL", "coalesce(jsonb_array_length(attempts_log), 0)")
        } else {
            ("published_at IS NULL AND attempts >= 25 AND locked_at IS NULL", "0")
        };
        let sql = format!(
            "SELECT published_at IS NOT NULL, {dead}, locked_at IS NOT NULL, attempts, available_at <= now(), last_error,
                    {log}::bigint, ctid::text || '/' || xmin::text
             FROM {} WHERE event_id = $1 ORDER BY published_at DESC LIMIT 1",
            place.name()
        );
        let row = sqlx::query_as::<_, RowColumns>(sqlx::AssertSqlSafe(sql)).bind(event.0);
        row.fetch_optional(&self.owner).await.unwrap().map(RowState::from)
    }

    async fn view(&self, event: EventId) -> Vec<String> {
        let view =
            sqlx::query_scalar("SELECT status FROM org_outbox_status WHERE event_id = $1").bind(event.0);
        view.fetch_all(&self.owner).await.unwrap()
    }

    fn ordered_store(&self, order: Order, single_active: bool) -> PgStore {
        let owns = self.shape == Shape::Ordered && single_active;
        self.in_order(order, if owns { Strategy::Owner } else { Strategy::Lease }, single_active)
    }

    fn table(&self) -> TableName {
        self.name.clone()
    }

    fn admin_of(&self, table: TableName) -> PgAdmin {
        PgAdmin::connect(self.relay.clone(), table)
    }

    async fn begin(&self, records: Vec<Record>) -> Open<Postgres> {
        let mut tx = self.writer.begin().await.unwrap();
        let receipts = self.outbox().enqueue_all(&mut tx, records).await.unwrap();
        Open { tx, receipts }
    }

    async fn somebody_waits(&self) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while self.db.psql(waits) == "0" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn rows(&self) -> usize {
        // With what was moved, where something was.
        let place = if self.features().full { "org_outbox_status" } else { "org_outbox" };
        let count = format!("SELECT count(*) FROM {place}");
        let count = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(count)).fetch_one(&self.owner);
        usize::try_from(count.await.unwrap()).unwrap()
    }

    async fn expire_lease(&self, event: EventId) {
        let sql = "UPDATE org_outbox SET locked_at = now() - make_interval(hours => 1) WHERE event_id = $1 AND $2 = 0";
        self.change(sql, event, 0.0).await;
    }

    async fn age_in(&self, place: Place, event: EventId, by: Duration) -> u64 {
        let dead = if self.features().full { ", dead_at = dead_at - make_interval(secs => $2)" } else { "" };
        let sql = format!(
            "UPDATE {} SET created_at = created_at - make_interval(secs => $2),
             available_at = available_at - make_interval(secs => $2),
             published_at = published_at - make_interval(secs => $2){dead} WHERE event_id = $1",
            place.name()
        );
        self.changed(&sql, event, by.as_secs_f64()).await
    }

    async fn spoil(&self, event: EventId) {
        self.change("UPDATE org_outbox SET headers = '[1, 2]' WHERE event_id = $1 AND $2 = 0", event, 0.0)
            .await;
    }

    async fn set_attempts(&self, event: EventId, attempts: i32) {
        self.change("UPDATE org_outbox SET attempts = $2 WHERE event_id = $1", event, f64::from(attempts))
            .await;
    }

    async fn pause(&self, paused: bool) {
        let admin = self.admin();
        let changed: Result<bool, StoreError> =
            if paused { admin.pause("tester", "test").await } else { admin.resume("tester").await };
        assert!(changed.unwrap());
    }

    async fn audit_lines(&self) -> usize {
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM postbox_audit").fetch_one(&self.owner);
        usize::try_from(count.await.unwrap()).unwrap()
    }
}
