//! The dashboard as people meet it: the built program, a real database, a real browser.
//!
//! Where there is no Chromium, each test says that it is skipped; `cargo xtask test` installs it. `POSTBOX_PICTURES=1` writes
//! a picture of every page into the book.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod big;
#[path = "../common/mod.rs"]
mod common;
mod demo;
mod desk;
mod hostile;
mod keys;
mod live;
mod login;
mod pages;
mod repair;
