//! Other drivers' transactions, on real databases: what is promised of enqueue and of an inbox, whatever the driver.
//!
//! `suite` has the promises, `database` the databases; each driver has a file that says how it runs a transaction.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod database;
mod deadpool_postgres;
mod diesel_async;
mod sea_orm;
mod suite;
mod tokio_postgres;
