//! The store suite and the hazards of PostgreSQL, against a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::items_after_statements,
    reason = "tests fail by panicking"
)]

mod ahead;
mod circuits;
mod commits;
mod common;
mod durable;
mod embed;
mod enqueue_sql;
mod faults;
mod fences;
mod grants;
mod history;
mod hot;
mod idempotency;
mod inbox;
mod letters;
mod migrations;
#[path = "../common/open.rs"]
mod open;
mod order;
mod order_dead;
mod order_faults;
mod order_turns;
mod ordered_tables;
mod outsiders;
mod owner;
mod places;
mod plans;
mod servers;
mod stuck;
mod subject;
mod tidy;
mod wake;
mod watch;

use subject::{Shape, Table};

postbox_testkit::store_suite!(migrated, Table::new(Shape::Migrated));
postbox_testkit::store_suite!(ordered, Table::new(Shape::Ordered));
postbox_testkit::store_suite!(moving, Table::new(Shape::Moving));
postbox_testkit::store_suite!(bare, Table::new(Shape::Bare));
postbox_testkit::store_suite!(least_privilege, Table::new(Shape::Grants));
postbox_testkit::store_suite!(pooled, Table::new(Shape::Pooled));
postbox_testkit::tenants_suite!(fair, Table::new(Shape::Fair));
// Where a relay that is alone leases its rows.
postbox_testkit::order_suite!(ordered_lease, Table::new(Shape::OrderedLease));
