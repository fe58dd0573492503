//! The store suite and the hazards of MySQL and MariaDB, against a real MariaDB server.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod embed;
mod faults;
mod idempotency;
mod migrations;
#[path = "../common/open.rs"]
mod open;
mod order;
mod outsiders;
mod owner;
mod subject;

use subject::{Shape, Table};

postbox_testkit::store_suite!(migrated, Table::new(Shape::Migrated));
postbox_testkit::store_suite!(leasing, Table::new(Shape::Leasing));
postbox_testkit::store_suite!(ordered, Table::new(Shape::Ordered));
postbox_testkit::store_suite!(moving, Table::new(Shape::Moving));
postbox_testkit::tenants_suite!(fair, Table::new(Shape::Fair));
