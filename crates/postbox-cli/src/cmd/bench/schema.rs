//! A schema of the bench's own in a PostgreSQL database: made at the start, and gone at the end with everything in it.
//!
//! Not a table beside others: that would share `postbox_relay`, `postbox_audit` and `postbox_enqueue` with tables that are in
//! use, or leave them behind where nothing was. `CREATE SCHEMA` refuses what exists, and one statement takes all of it back.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind};
use postbox_stores::postgres::classify;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::report::{Failure, Problem};

const PREFIX: &str = "postbox_bench_";
/// The comment by which a schema is known to be a bench's.
const MARK: &str = "made by postbox bench";
/// Held by a bench while it runs, with the number in its schema's name: what nobody holds is left over.
const LOCK: i32 = 0x7062_6e63;
/// How long the end waits for others to let go.
const PATIENCE: Duration = Duration::from_mins(1);
const TRIES: usize = 5;

pub(super) struct Schema {
    name: String,
    /// Holds the lock.
    keeper: PgConnection,
    options: PgConnectOptions,
}

impl Schema {
    pub(super) async fn make(options: &PgConnectOptions) -> Result<Self, Failure> {
        Self::make_named(options, super::site::number()).await
    }

    async fn make_named(options: &PgConnectOptions, number: u32) -> Result<Self, Failure> {
        let name = format!("{PREFIX}{number:08x}");
        let mut keeper = connect(options).await.map_err(|error| problem(&error))?;
        if !lock(&mut keeper, number).await.map_err(|error| problem(&error))? {
            return Err(taken(&format!("another bench has {name}")));
        }
        // Marked from the first moment: both or none.
        let sql = format!("CREATE SCHEMA \"{name}\"; COMMENT ON SCHEMA \"{name}\" IS '{MARK}'");
        run(&mut keeper, sql).await.map_err(|error| match error.code() {
            Code::DatabasePermission => {
                let (database, role) = (options.get_database().unwrap_or(options.get_username()), options.get_username());
                let next = format!(
                    "GRANT CREATE ON DATABASE \"{database}\" TO \"{role}\", or give a role or a database that may by --database-url"
                );
                problem(&error).after("the bench makes a schema of its own").next(next).into()
            }
            _ if error.message().contains("[42P06]") => taken(error.message()),
            _ => Failure::from(problem(&error)),
        })?;
        Ok(Self { name, keeper, options: options.clone() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn keeper(&mut self) -> &mut PgConnection {
        &mut self.keeper
    }

    /// Drops it with all that is in it.
    pub(super) async fn remove(mut self) -> Result<(), Failure> {
        let next = format!("postbox bench --clean-up, or: DROP SCHEMA {} CASCADE", self.name);
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = drop_schema(&mut self.keeper, &self.name).await;
            match &result {
                Ok(()) => break,
                Err(error) if error.kind() == StoreErrorKind::Refused => break,
                // A deadlock with somebody who was just ending, or the session is gone.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    if let Ok(fresh) = connect(&self.options).await {
                        self.keeper = fresh;
                    }
                }
            }
        }
        let _ = self.keeper.close().await;
        result.map_err(|error| {
            problem(&error).after(&format!("{} is left behind", self.name)).next(next).into()
        })
    }
}

/// The schemas that benches left behind which are no more.
pub(super) async fn leftovers(options: &PgConnectOptions) -> Result<Vec<String>, Failure> {
    let mut connection = connect(options).await.map_err(|error| problem(&error))?;
    let found = unowned(&mut connection).await.map_err(|error| problem(&error))?;
    let _ = connection.close().await;
    Ok(found)
}

/// Drops what benches left behind; answers their names.
pub(super) async fn clean_up(options: &PgConnectOptions) -> Result<Vec<String>, Failure> {
    let mut connection = connect(options).await.map_err(|error| problem(&error))?;
    let found = unowned(&mut connection).await.map_err(|error| problem(&error))?;
    for name in &found {
        let next = format!("as its owner: DROP SCHEMA {name} CASCADE");
        drop_schema(&mut connection, name).await.map_err(|error| problem(&error).after(name).next(next))?;
    }
    let _ = connection.close().await;
    Ok(found)
}

/// Marked schemas whose lock was free; this session has it from then on.
async fn unowned(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    let marked = sqlx::query_scalar::<_, String>(
        "SELECT nspname::text FROM pg_namespace WHERE nspname ~ ('^' || $1 || '[0-9a-f]{8}$')
         AND obj_description(oid, 'pg_namespace') = $2 ORDER BY nspname",
    );
    let marked = marked.bind(PREFIX).bind(MARK).fetch_all(&mut *connection).await.map_err(classify)?;
    let mut free = Vec::new();
    for name in marked {
        let number = name.strip_prefix(PREFIX).and_then(|number| u32::from_str_radix(number, 16).ok());
        if let Some(number) = number
            && lock(connection, number).await?
        {
            free.push(name);
        }
    }
    Ok(free)
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    options.connect().await.map_err(classify)
}

async fn lock(connection: &mut PgConnection, number: u32) -> Result<bool, StoreError> {
    let lock =
        sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)").bind(LOCK).bind(number.cast_signed());
    lock.fetch_one(connection).await.map_err(classify)
}

async fn drop_schema(connection: &mut PgConnection, name: &str) -> Result<(), StoreError> {
    let sql =
        format!("SET statement_timeout = 0; SET lock_timeout = 0; DROP SCHEMA IF EXISTS \"{name}\" CASCADE");
    let in_time = tokio::time::timeout(PATIENCE, run(connection, sql)).await;
    in_time.unwrap_or_else(|_| {
        let message = format!("no answer within {PATIENCE:?}");
        Err(StoreError::new(Code::DatabaseUnreachable, StoreErrorKind::Refused, message))
    })
}

async fn run(connection: &mut PgConnection, sql: String) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop).map_err(classify)
}

fn problem(error: &StoreError) -> Problem {
    Problem::new(error.code(), error.message())
}

fn taken(what: &str) -> Failure {
    let next = "run it again: it takes another name; nothing was changed";
    Problem::new(Code::TableMismatch, what).next(next).into()
}

#[cfg(test)]
mod tests {
    use super::{Schema, clean_up, leftovers};
    use postbox_stores::postgres::connect_options;
    use postbox_testkit::PgServer;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_schema_that_exists_is_refused_and_what_is_not_a_benchs_is_never_removed() {
        let db = PgServer::shared().database();
        let options = connect_options(&db.url).unwrap();
        db.psql("CREATE SCHEMA postbox_bench_0000abcd; CREATE TABLE postbox_bench_0000abcd.mine (n int)");
        let Err(refused) = Schema::make_named(&options, 0xabcd).await else { panic!("it took what exists") };
        let (cause, next) = refused.first();
        assert!(cause.contains("postbox_bench_0000abcd") && next.contains("another name"), "{cause}: {next}");
        // Neither the name alone nor the mark alone is enough.
        db.psql("CREATE SCHEMA mine; COMMENT ON SCHEMA mine IS 'made by postbox bench'");
        assert_eq!(leftovers(&options).await.unwrap(), Vec::<String>::new());
        assert_eq!(clean_up(&options).await.unwrap(), Vec::<String>::new());
        assert_eq!(db.psql("SELECT count(*) FROM postbox_bench_0000abcd.mine"), "0");

        let schema = Schema::make_named(&options, 1).await.unwrap();
        assert!(Schema::make_named(&options, 1).await.is_err(), "it runs");
        assert_eq!(clean_up(&options).await.unwrap(), Vec::<String>::new(), "it runs");
        schema.remove().await.unwrap();
        assert_eq!(
            db.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'postbox_bench_00000001'"),
            "0"
        );
    }
}
