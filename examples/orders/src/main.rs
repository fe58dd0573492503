//! A small shop: orders come in over REST, each is written with its event in one transaction, and a handler confirms it.
//!
//! `cargo run -p orders` needs nothing but a folder to write to; `DATABASE_URL=postgres://… cargo run -p orders` uses a
//! PostgreSQL database. What is worth reading is in `app/shop.rs`.

/// The application on SQLite. Your service has one database, and says `mod app;`; this one is compiled for two, whose
/// pools have different types.
#[path = "."]
mod on_sqlite {
    pub(crate) use postbox::sqlite::migrate;
    pub(crate) use sqlx::SqlitePool as Pool;
    #[path = "app/mod.rs"]
    pub(crate) mod app;
}

/// The same application on PostgreSQL.
#[path = "."]
mod on_postgres {
    pub(crate) use postbox::postgres::migrate;
    pub(crate) use sqlx::PgPool as Pool;
    #[allow(clippy::duplicate_mod, reason = "one application, two databases")]
    #[path = "app/mod.rs"]
    pub(crate) mod app;
}

use std::env;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use tokio::net::TcpListener;

/// Anything that can go wrong, in its own words.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let url = env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:orders.db".to_owned());
    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    if url.starts_with("sqlite:") {
        let options = postbox::sqlite::connect_options(&url)?.create_if_missing(true);
        on_sqlite::app::run(sqlx::SqlitePool::connect_with(options).await?, listener).await
    } else {
        let options = postbox::postgres::connect_options(&url)?;
        on_postgres::app::run(sqlx::PgPool::connect_with(options).await?, listener).await
    }
}
