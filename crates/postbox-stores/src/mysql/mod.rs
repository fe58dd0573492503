//! MySQL and MariaDB, through sqlx.
//!
//! [`MySqlStore`] is what a relay works with, [`MySqlAdmin`] what operators and cleaners do, [`migrate`] makes the tables;
//! enqueue takes a `&mut sqlx::Transaction<'_, MySql>`, or the transaction that
//! [`Outbox::begin`](postbox_core::Outbox::begin) opens on a `&MySqlPool`. MariaDB 10.6 or later is what the tests run on;
//! for MySQL 8.0.16 or later the SQL is the same, but it was not tested there.
//!
//! ```no_run
//! use postbox_stores::mysql::{self, migrate};
//! use postbox_core::{Outbox, Record, Topic};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = sqlx::MySqlPool::connect_with(mysql::connect_options("mysql://app:secret@localhost/shop")?).await?;
//! let table = "shop_outbox".parse()?;
//! migrate::up(&mut *pool.acquire().await?, &table, |_| {}).await?;
//!
//! let outbox = Outbox::new(table);
//! let mut tx = pool.begin().await?;
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
//! An `INSERT` of `tenant_id, topic, payload, event_id` is a valid event. The ids are 16 bytes (`x'0190…'`, or
//! `UNHEX(REPLACE(UUID(), '-', ''))`), the payload is JSON text in utf8mb4, times are UTC.
//!
//! # Deadlocks
//!
//! A relay tries again what a deadlock has undone, and nobody hears of it. A deadlock of a transaction of yours is yours:
//! the server has rolled all of it back, its events too.
//!
//! # Waking up
//!
//! The server tells nobody of a commit, so a relay looks for one every 10 to 40 ms; commits of its own process by
//! `outbox.begin` it hears of at once.

mod admin;
mod beside;
mod browse;
mod builder;
mod busy;
mod claim;
mod clause;
mod clock;
mod dead;
mod diagnose;
mod embed;
mod error;
mod gone;
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
mod owner;
mod reading;
mod schema;
pub(crate) mod session;
mod settling;
mod statements;
mod store;
mod strategy;
mod survey;
mod sweep;
mod tenants;
mod topics;
mod transaction;
pub(crate) mod tx;
mod version;
mod wake;
mod window;

use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::mysql::MySqlConnectOptions;

pub use crate::builder::StoreBuilder;
pub use admin::MySqlAdmin;
pub use builder::MySqlStoreBuilder;
pub use error::classify;
pub use idempotency::MySqlIdempotency;
// Only where the program chooses among databases.
#[cfg(all(feature = "postgres", feature = "sqlite"))]
pub(crate) use link::open;
pub use store::MySqlStore;
pub use transaction::MySqlOutboxTransaction;
pub use tx::SqlxMySql;

pub use crate::strategy::Strategy;

/// Parses a database URL, `mysql://…` or `mariadb://…`; the error shows no password. Sessions are in UTC and utf8mb4, whatever
/// the URL or the server says.
///
/// # Errors
/// When the text is not the URL of a MySQL or MariaDB database.
pub fn connect_options(url: &str) -> Result<MySqlConnectOptions, StoreError> {
    use std::str::FromStr as _;

    let refused = |why: String| StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, why);
    let (scheme, rest) = url.split_once(':').unwrap_or(("none", ""));
    if !matches!(scheme, "mysql" | "mariadb") || !rest.starts_with("//") {
        let shown: String = scheme.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        return Err(refused(format!("the URL's scheme is {shown:?}, not mysql:// or mariadb://")));
    }
    let options = MySqlConnectOptions::from_str(&format!("mysql:{rest}"));
    // What a URL parser says may quote parts of it.
    let options = options.map_err(|_| refused("the URL cannot be read".into()))?;
    if options.get_database().is_none_or(str::is_empty) {
        return Err(refused(
            "the URL names no database: it follows the host, as in mysql://host/database".into(),
        ));
    }
    Ok(options.charset("utf8mb4").timezone(Some("+00:00".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::connect_options;

    #[test]
    fn urls_are_understood_and_others_refused_with_advice() {
        for url in ["mysql://me:s%40cret@db-1:3307/shop", "mariadb://db-1/shop?ssl-mode=disabled"] {
            let options = connect_options(url).unwrap();
            assert_eq!((options.get_host(), options.get_database()), ("db-1", Some("shop")), "{url}");
            assert_eq!(options.get_charset(), "utf8mb4");
        }
        for (url, advice) in [
            ("mysql://me:secret@db-1", "names no database"),
            ("mysql://me:secret@db-1:port/shop", "cannot be read"),
            ("mysql:shop", "mysql://"),
            ("postgres://me:secret@db-1/shop", "\"postgres\""),
        ] {
            let error = connect_options(url).unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_DB_URL") && error.contains(advice), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
