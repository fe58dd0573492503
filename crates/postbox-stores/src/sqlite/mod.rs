//! SQLite, built in, through sqlx.
//!
//! [`SqliteStore`] is what a relay works with, [`SqliteAdmin`] what operators and cleaners do, [`migrate`] makes the
//! tables; enqueue takes a `&mut sqlx::Transaction<'_, Sqlite>`, or the transaction that
//! [`Outbox::begin`](postbox_core::Outbox::begin) opens on a `&SqlitePool`.
//!
//! # Begin with the lock
//!
//! SQLite lets one connection write at a time. A transaction that begins without saying that it will write
//! (`pool.begin()`), reads, and then enqueues fails *at once* if anybody has written since it read, whatever the
//! `busy_timeout`: what it read is no longer true. So begin with [`begin`], with `outbox.begin(&pool)`, or with
//! `pool.begin_with("BEGIN IMMEDIATE")`:
//!
//! ```
//! use postbox_stores::sqlite::{self, migrate};
//! use postbox_core::{Outbox, Record, Topic};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! # let url = format!("sqlite:{}", path.display());
//! let options = sqlite::connect_options(&url)?.create_if_missing(true);
//! let pool = sqlx::SqlitePool::connect_with(options).await?;
//! let table = "shop_outbox".parse()?;
//! migrate::up(&mut *pool.acquire().await?, &table, |_| {}).await?;
//!
//! let outbox = Outbox::new(table);
//! let mut tx = sqlite::begin(&pool).await?;
//! // … business writes …
//! let event = Record::builder("shop.order.placed.v1".parse::<Topic>()?).json(&7);
//! outbox.enqueue(&mut tx, event).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Any language
//!
//! An `INSERT` of `tenant_id, topic, payload, event_id` is a valid event. The ids are blobs of 16 bytes (`x'0190…'`),
//! the payload is JSON text, times are microseconds since 1970. The tables are STRICT: an id written as text is refused.
//!
//! # What goes with the file
//!
//! All processes must be on one machine: they go by its clock. The database is switched to a write-ahead log, for good.
//! The active relay of a table locks the file `<database>.postbox-<table>.lock`, which stays there. SQLite tells nobody
//! of a commit, so a relay looks for one every 10 ms, which costs next to nothing; commits of its own process by
//! `outbox.begin` it hears of at once. A transaction that only reads, but for
//! long, keeps the log from being emptied: it grows until that transaction ends.

mod admin;
mod browse;
mod builder;
mod claim;
mod clock;
mod dead;
mod diagnose;
mod disk;
mod embed;
mod error;
mod history;
mod idempotency;
pub(crate) mod inbox;
mod leader;
mod lease;
mod letters;
mod link;
mod list;
pub mod migrate;
mod ordered;
#[cfg(test)]
mod plans;
mod schema;
pub(crate) mod session;
mod settling;
mod statements;
mod store;
mod survey;
mod sweep;
mod tenants;
mod transaction;
pub(crate) mod tx;

use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous};
use sqlx::{Connection as _, SqlSafeStr as _, Sqlite, Transaction};

pub use crate::builder::StoreBuilder;
pub use admin::SqliteAdmin;
pub use builder::SqliteStoreBuilder;
pub use error::classify;
pub use idempotency::SqliteIdempotency;
// Only where the program chooses among databases.
#[cfg(all(feature = "postgres", feature = "mysql"))]
pub(crate) use link::open;
pub use store::SqliteStore;
pub use transaction::SqliteOutboxTransaction;
pub use tx::SqlxSqlite;

/// Parses a database URL, `sqlite:path` or `sqlite://path`, and chooses what keeps events safe: a write-ahead log,
/// commits that survive a loss of power, foreign keys. A file that does not exist is not made, unless the URL ends in
/// `?mode=rwc` or the options are told so with `create_if_missing`.
///
/// # Errors
/// When the text is not the URL of a database file; a database in memory is none.
pub fn connect_options(url: &str) -> Result<SqliteConnectOptions, StoreError> {
    use std::str::FromStr as _;

    let refused = |why: String| StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, why);
    let Some(path) = url.strip_prefix("sqlite:") else {
        let scheme = url.split_once(':').map_or("none", |(scheme, _)| scheme);
        let shown: String = scheme.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        return Err(refused(format!("the URL's scheme is {shown:?}, not sqlite:")));
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if path == ":memory:" || query.contains("mode=memory") {
        return Err(in_memory());
    }
    if path.is_empty() {
        return Err(refused("the URL names no file: use sqlite:path/to/file.db".to_owned()));
    }
    let options = SqliteConnectOptions::from_str(url).map_err(|error| refused(error.to_string()))?;
    Ok(options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full).foreign_keys(true))
}

fn in_memory() -> StoreError {
    let message = "a database in memory is seen by nobody else, not even by a relay in the same process: use a file, \
                   such as sqlite:outbox.db?mode=rwc";
    StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, message)
}

/// Begins a transaction that holds the write lock from the start, waiting for it at most 10 seconds in short random
/// pauses, so that everybody gets their turn.
///
/// The pool's own `busy_timeout` comes first. Between processes that write all the time it is unfair: set it to zero
/// there.
///
/// SQLite ends a transaction by itself when it has no room for it. The driver cannot roll it back then, and nothing can be begun on its
/// connection any more: such a connection of the pool is closed, and another is opened.
///
/// # Errors
/// As the driver; error 5 if others did not let go of the lock in time.
///
/// # Cancel safety
/// Dropped, it gives the lock back.
pub async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    let mut patience = link::Patience::new();
    loop {
        match begin_once(pool).await {
            Ok(tx) => return Ok(tx),
            Err(error) => patience.pause(error).await?,
        }
    }
}

async fn begin_once(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    while connection.is_in_transaction() {
        // Whatever it says to that, it is gone.
        let _ = connection.close().await;
        connection = pool.acquire().await?;
    }
    Transaction::begin(connection, Some("BEGIN IMMEDIATE".into_sql_str())).await
}

#[cfg(test)]
mod tests {
    use super::connect_options;

    #[test]
    fn urls_of_files_are_understood_and_others_refused_with_advice() {
        for (url, file) in [
            ("sqlite:a.db", "a.db"),
            ("sqlite://a.db", "a.db"),
            ("sqlite:///var/a.db?mode=rwc", "/var/a.db"),
            ("sqlite:/var/a b.db", "/var/a b.db"),
        ] {
            assert_eq!(connect_options(url).unwrap().get_filename().to_str(), Some(file), "{url}");
        }
        for (url, advice) in [
            ("sqlite::memory:", "use a file"),
            ("sqlite://:memory:", "use a file"),
            ("sqlite:a.db?mode=memory", "use a file"),
            ("sqlite:", "names no file"),
            ("sqlite://?mode=rwc", "names no file"),
            ("mysql://a:secret@b/c", "\"mysql\""),
            ("sqlite:a.db?colour=red", "colour"),
        ] {
            let error = connect_options(url).unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_DB_URL") && error.contains(advice), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
