//! The admin API of the built program, by its own protocol, on PostgreSQL and on a file.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod change;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod guard;
mod look;
mod site;
mod start;
