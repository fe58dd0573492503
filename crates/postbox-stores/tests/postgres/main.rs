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

/// What is promised of order, where a relay that is alone leases its rows.
mod ordered_lease {
    use super::{Shape, Table};

    postbox_testkit::store_suite! { @each Table::new(Shape::OrderedLease) =>
        order: the_events_of_an_aggregate_arrive_in_order,
        order: a_retry_holds_back_the_rest_of_its_aggregate,
        order: a_scheduled_event_holds_back_what_is_behind_it,
        order_dead: a_dead_event_blocks_its_aggregate_until_it_is_replayed,
        order_dead: a_dead_event_is_skipped_where_that_is_asked_for,
        order_dead: what_dies_without_a_dispatch_blocks_too,
        order: only_the_first_of_an_aggregate_can_be_claimed,
        order: expired_leases_of_an_aggregate_come_back_one_by_one,
        order: a_lost_lease_lets_nobody_overtake,
        order: a_long_and_slow_aggregate_holds_up_nobody,
        order: a_pause_and_a_stop_give_back_what_waits_behind_others,
        order: an_outage_holds_back_the_aggregate_everywhere,
        order_chaos: aggregates_keep_their_order_whatever_happens,
        order_fan_out: in_order_a_sink_that_fails_holds_the_aggregate_everywhere,
        order_fan_out: in_order_an_outage_of_one_sink_holds_up_no_other,
        order_fan_out: in_order_a_slow_sink_does_not_slow_the_other,
    }
}
