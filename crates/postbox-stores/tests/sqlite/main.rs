//! The store suite and the hazards of SQLite, against real files.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod browse;
mod diagnose;
mod embed;
mod enqueue_sql;
mod faults;
mod history;
mod idempotency;
mod inbox;
mod migrations;
#[path = "../common/open.rs"]
mod open;
mod order;
mod processes;
mod refusals;
mod subject;

use subject::Table;

postbox_testkit::store_suite!(sqlite, Table::new());
postbox_testkit::store_suite!(moving, Table::moving());
postbox_testkit::tenants_suite!(fair, Table::fair());
