//! The built program with nothing but a file: no database is named, and none is installed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod day;
mod folder;
mod kills;
mod refusals;
