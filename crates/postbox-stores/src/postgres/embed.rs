//! What a [`Postbox`](postbox_core::Postbox) needs of a `PgPool`, looked at before anything is started.

use postbox_core::embed::{Needs, StoreOptions};
use postbox_core::{Code, Layout, PostboxPool, Settings, StoreError, StoreErrorKind, TableName};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row as _};

use super::ask::{self, ask};
use super::error::classify;
use super::schema::TableShape;
use super::{PgAdmin, PgStore, SqlxPostgres};
use crate::table::{Template, with_next_step};

impl PostboxPool<SqlxPostgres> for PgPool {
    type Store = PgStore;
    type Sweep = PgAdmin;

    fn store(&self, table: &TableName, settings: &Settings, options: StoreOptions) -> PgStore {
        let store = PgStore::builder((*self.connect_options()).clone(), table.clone());
        store.embedded(options, &settings.name).build()
    }

    fn sweep(&self, table: &TableName, settings: &Settings) -> PgAdmin {
        let admin = PgAdmin::new(self.clone(), table.clone());
        admin.max_attempts(settings.max_attempts).lock_ttl(settings.lock_ttl)
    }

    async fn examine(&self, table: &TableName, needs: Needs) -> Result<Layout, StoreError> {
        // One of the pool's own connections: its user, and whatever else the application sets on it.
        let mut connection = ask::begin(self).await?;
        let shape = TableShape::expect(&mut connection, table).await;
        let shape = shape.map_err(|error| with_next_step(error, table))?;
        let layout = shape.layout();
        // On a bare table there is no hot path, whatever the grants.
        let hot = needs.hot && layout == Layout::Full;
        expect_grants(&mut connection, &shape, needs.clean, hot).await?;
        if hot && needs.durable {
            expect_durable(&mut connection, table).await?;
        }
        ask::commit(connection).await?;
        Ok(layout)
    }
}

/// Whether the user may do all that is needed; what is missing is named, and how to grant it.
async fn expect_grants(
    connection: &mut PgConnection,
    shape: &TableShape,
    clean: bool,
    hot: bool,
) -> Result<(), StoreError> {
    let full = match shape.layout() {
        Layout::Full => {
            ", (12, 'relay', 'UPDATE', 'locked_by', $1, true), (13, 'relay', 'UPDATE', 'dead_at', $1, true),
               (14, 'relay', 'UPDATE', 'attempts_log', $1, true), (15, 'relay', 'SELECT', NULL, '{{relay}}', true),
               (16, 'relay', 'UPDATE', NULL, '{{relay}}', true)"
        }
        Layout::Bare => "",
    };
    let template = Template::of(&shape.name, '"');
    let sql = include_str!("sql/grants_missing.sql").replace("{{full}}", full);
    let missing = ask(template.fill(&sql)).bind(shape.name.quoted('"')).bind(clean).bind(hot);
    let missing = missing.fetch_all(&mut *connection).await.map_err(classify)?;
    let read = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    let missing: Vec<(String, String)> =
        missing.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(classify)?;
    if missing.is_empty() {
        return Ok(());
    }
    let user = ask("SELECT current_user::text").fetch_one(connection).await.map_err(classify)?;
    let user: String = user.try_get(0).map_err(classify)?;
    let mut roles: Vec<String> = missing.iter().map(|(role, _)| format!("{role}={user}")).collect();
    roles.dedup();
    let what: Vec<&str> = missing.iter().map(|(_, privilege)| privilege.as_str()).collect();
    let why =
        if missing.iter().any(|(role, _)| role == "relay") { "a relay needs" } else { "the hot path needs" };
    let message = format!(
        "the database user {user} lacks what {why}: {}; grant it with what `postbox migrate print --table {} --grants {}` prints",
        what.join(", "),
        shape.name,
        roles.join(",")
    );
    Err(StoreError::new(Code::DatabasePermission, StoreErrorKind::Refused, message))
}

/// Events that are handled right after their commit must not be taken back by a crash of the server (hazard 33).
async fn expect_durable(connection: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let commits = ask("SHOW synchronous_commit").fetch_one(connection).await.map_err(classify)?;
    let commits: String = commits.try_get(0).map_err(classify)?;
    if commits != "off" {
        return Ok(());
    }
    let message = format!(
        "synchronous_commit is off for the sessions that write {table}, so a crash of the server may take back what was \
         handled already: switch it on for them (ALTER ROLE … SET synchronous_commit = on), leave the hot path out, or accept \
         the risk with HotPath::allow_asynchronous_commit"
    );
    Err(StoreError::new(Code::ConfigInvalid, StoreErrorKind::Refused, message))
}
