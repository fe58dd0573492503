//! The built program and real brokers: what becomes of events while brokers are killed, down, or back.
//!
//! What arrived is read by others than the clients that sent it, the same readers that the sinks are tested with.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod configured;
mod dead_letters;
#[path = "../../../postbox-sinks/tests/http/python.rs"]
mod hook;
mod isolated;
mod killed;
mod ordered;
mod site;
