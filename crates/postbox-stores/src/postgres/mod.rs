//! PostgreSQL 14 and later, through sqlx.
//!
//! [`PgStore`] is what a relay works with, [`PgAdmin`] what operators and cleaners do, [`migrate`] makes the tables;
//! enqueue takes a `&mut sqlx::Transaction<'_, Postgres>`, or the transaction that
//! [`Outbox::begin`](postbox_core::Outbox::begin) opens on a `&PgPool`.

mod admin;
mod ask;
mod beside;
mod browse;
mod builder;
mod busy;
mod by_time;
mod claim;
mod dead;
mod diagnose;
mod durable;
mod embed;
mod error;
mod facts;
mod history;
mod idempotency;
pub(crate) mod inbox;
mod leader;
mod letters;
mod link;
mod list;
pub mod migrate;
mod moment;
mod order;
mod ordered;
mod owner;
mod place;
mod reading;
mod row;
mod schema;
pub(crate) mod session;
mod settling;
mod signal;
mod statements;
mod store;
mod strands;
mod strategy;
mod survey;
mod sweep;
mod tenants;
mod topics;
mod transaction;
mod turns;
pub(crate) mod tx;
mod unreadable;
mod wake;
mod walk;
mod window;
mod writing;

pub use crate::builder::StoreBuilder;
pub use crate::strategy::Strategy;
pub use admin::PgAdmin;
pub use builder::PgStoreBuilder;
pub use error::classify;
pub use idempotency::PgIdempotency;
pub use store::PgStore;
pub use transaction::PgOutboxTransaction;
pub use tx::SqlxPostgres;

/// Parses a database URL; the error shows no password.
///
/// # Errors
/// When the text is not a PostgreSQL URL.
pub fn connect_options(url: &str) -> Result<sqlx::postgres::PgConnectOptions, postbox_core::StoreError> {
    use postbox_core::{Code, StoreError, StoreErrorKind};
    use std::str::FromStr as _;

    let refused = |why: String| StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, why);
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        let scheme = url.split_once(':').map_or("none", |(scheme, _)| scheme);
        let shown: String = scheme.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        return Err(refused(format!(
            "the URL's scheme is {shown:?}, this build knows postgres:// and postgresql://"
        )));
    }
    sqlx::postgres::PgConnectOptions::from_str(url)
        .map(|options| options.application_name("postbox"))
        .map_err(|e| {
            // The driver says it once for each of its layers.
            let text = e.to_string();
            refused(postbox_core::redact::mask_credentials(
                text.trim_start_matches("error with configuration: "),
            ))
        })
}
