//! The store suite and the hazards of PostgreSQL, against a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::items_after_statements,
    reason = "tests fail by panicking"
)]

mod circuits;
mod commits;
mod common;
mod embed;
mod enqueue_sql;
mod faults;
mod fences;
mod grants;
mod hot;
mod letters;
mod migrations;
mod stuck;
mod subject;
mod watch;

use subject::{Shape, Table};

postbox_testkit::store_suite!(migrated, Table::new(Shape::Migrated));
postbox_testkit::store_suite!(bare, Table::new(Shape::Bare));
postbox_testkit::store_suite!(least_privilege, Table::new(Shape::Grants));
