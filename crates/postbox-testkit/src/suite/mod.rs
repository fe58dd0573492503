//! The store suite: what every store must keep, written once.
//!
//! A store brings a [`Subject`]; [`store_suite!`](crate::store_suite) makes one test of each promise from it. Whatever
//! a store cannot do it declares in its [`Features`], and the tests that need it say `skipped`.

pub mod admin;
pub mod browse;
pub mod claim;
pub mod dead_letter;
pub mod diagnose;
pub mod enqueue;
pub mod fan_out;
pub mod handlers;
pub mod history;
pub mod hooks;
pub mod hot;
pub mod moved;
pub mod order;
pub mod order_chaos;
pub mod relay;
pub mod script;
pub mod settle;
pub mod tenants;
pub mod trouble;
pub mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::SweepCount;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Standing, Tenants};
use postbox_core::{
    Backoff, Browse, DeadLetters, Diagnose, Driver, EventId, History, Inspect, Order, Outbox,
    OutboxTransaction, Receipt, Record, RecordBuilder, Settings, Store, TableName, Topic, UnitOfWork,
};

/// A store under test: a table of its own, empty at the start.
pub trait Subject: Sync {
    /// The store.
    type Store: Store;
    /// Its operators' side.
    type Admin: Inspect + DeadLetters + SweepCount + Browse + Diagnose + Clone;
    /// A transaction that is open.
    type Open: OpenTransaction;
    /// The driver of its writers.
    type Driver: Driver;

    /// What it can do.
    fn features(&self) -> Features;
    /// Whether two transactions can have written at the same time; else nothing commits out of order.
    fn writers_overlap(&self) -> bool {
        true
    }
    /// Whether its writers may write rows that are born leased.
    fn has_hot_path(&self) -> bool {
        self.features().full
    }
    /// Whether an error of one statement fails the whole transaction.
    fn errors_abort(&self) -> bool {
        true
    }
    /// The writers' view of the table.
    fn outbox(&self) -> Outbox;
    /// Opens a transaction on the writers' pool, by the outbox.
    fn open(&self, outbox: &Outbox) -> impl Future<Output = OutboxTransaction<Self::Driver>> + Send;
    /// Begins a unit of work on the writers' pool.
    fn unit_of_work<'a>(&self, outbox: &Outbox) -> impl Future<Output = UnitOfWork<'a, Self::Driver>> + Send;
    /// Runs a statement in such a transaction, as its user would.
    fn run_in(
        &self,
        tx: &mut OutboxTransaction<Self::Driver>,
        sql: &'static str,
    ) -> impl Future<Output = Result<(), <Self::Driver as Driver>::Error>> + Send;
    /// Enqueues in the driver's own transaction inside of it.
    fn enqueue_in_driver_transaction(
        &self,
        outbox: &Outbox,
        tx: &mut OutboxTransaction<Self::Driver>,
        records: Vec<Record>,
    ) -> impl Future<Output = Vec<Receipt>> + Send;
    /// What its relays do with the rows of delivered events.
    fn history(&self) -> History {
        History::Keep
    }
    /// A new relay's view of the table.
    fn store(&self, single_active: bool) -> Self::Store;
    /// A new relay's view of the table, where the events of an aggregate go in order. Asked for only of those that declare it.
    fn ordered_store(&self, order: Order, single_active: bool) -> Self::Store {
        assert!(!self.features().order, "a store that declares it gives one, {order:?}");
        self.store(single_active)
    }
    /// A new relay's view of the table, for some tenants or shared by them. One that does not declare it gives one that refuses.
    fn tenants_store(&self, tenants: &Tenants, single_active: bool) -> Self::Store;
    /// The same as [`store`](Self::store), for a relay that does this with the rows of delivered events.
    fn store_with(&self, single_active: bool, history: History) -> Self::Store;
    /// Gives the table a history; answers the steps that it took.
    fn make_history(&self) -> impl Future<Output = Vec<String>> + Send;
    /// The row of an event in the history, the latest if there are several.
    fn moved(&self, event: EventId) -> impl Future<Output = Option<RowState>> + Send;
    /// What the status view says of an event, each time that it has it.
    fn view(&self, event: EventId) -> impl Future<Output = Vec<String>> + Send;
    /// The operators' view.
    fn admin(&self) -> Self::Admin {
        self.admin_of(self.table())
    }
    /// The table's name.
    fn table(&self) -> TableName;
    /// The operators' view of a table of this name, whether there is one or not.
    fn admin_of(&self, table: TableName) -> Self::Admin;
    /// Enqueues in a transaction that stays open.
    fn begin(&self, records: Vec<Record>) -> impl Future<Output = Self::Open> + Send;
    /// The row of an event: in the table, or, for a subject whose relays move them, in its history.
    fn row(&self, event: EventId) -> impl Future<Output = Option<RowState>> + Send;
    /// How many rows there are.
    fn rows(&self) -> impl Future<Output = usize> + Send;
    /// Makes the lease of an event run out, as if its relay had died long ago.
    fn expire_lease(&self, event: EventId) -> impl Future<Output = ()> + Send;
    /// Makes an event older by so much: written, published and dead earlier.
    fn make_older(&self, event: EventId, by: Duration) -> impl Future<Output = ()> + Send;
    /// Writes something into the row that cannot be decoded.
    fn spoil(&self, event: EventId) -> impl Future<Output = ()> + Send;
    /// Sets the attempts of a waiting row.
    fn set_attempts(&self, event: EventId, attempts: i32) -> impl Future<Output = ()> + Send;
    /// Pauses or resumes the table.
    fn pause(&self, paused: bool) -> impl Future<Output = ()> + Send;
    /// How many lines the audit log has.
    fn audit_lines(&self) -> impl Future<Output = usize> + Send;
}

/// A transaction with enqueued events.
pub trait OpenTransaction: Send {
    /// What the enqueue answered.
    fn receipts(&self) -> &[Receipt];
    /// Commits it.
    fn commit(self) -> impl Future<Output = ()> + Send;
    /// Rolls it back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

/// What a store can do beyond the standard columns.
#[allow(clippy::struct_excessive_bools, reason = "each is something of its own that a store can do or not")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// All columns: headers, aggregates, tokens, `dead_at`, pause, audit.
    pub full: bool,
    /// The events of an aggregate in order.
    pub order: bool,
    /// A history that published rows can be moved to.
    pub history: bool,
    /// Tenants claimed apart.
    pub tenants: bool,
}

/// What matters of a row.
#[allow(clippy::struct_excessive_bools, reason = "each is one column of the row")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowState {
    /// Published.
    pub published: bool,
    /// Dead, as this table knows it.
    pub dead: bool,
    /// Locked.
    pub locked: bool,
    /// Attempts.
    pub attempts: i32,
    /// Available now.
    pub due: bool,
    /// The last error.
    pub last_error: Option<String>,
    /// Lines of the log of attempts.
    pub log_lines: usize,
    /// Changes with every version of the row.
    pub version: String,
}

/// The topic of most test events.
pub const TOPIC: Topic = Topic::from_static("org.thing.happened.v1");

/// Events with numbers in their payloads.
pub fn events(number: usize) -> Vec<Record> {
    (0..number).map(|n| event(TOPIC, n).build().expect("an event")).collect()
}

/// One event of a topic.
pub fn event(topic: Topic, n: usize) -> RecordBuilder {
    Record::builder(topic).json(&serde_json::json!({ "n": n }))
}

/// Enqueues and commits.
pub async fn enqueue<S: Subject>(subject: &S, records: Vec<Record>) -> Vec<EventId> {
    let open = subject.begin(records).await;
    let ids = open.receipts().iter().map(|receipt| receipt.event_id).collect();
    open.commit().await;
    ids
}

/// A claim with the usual settings.
pub fn request(mode: ClaimMode, limit: usize) -> ClaimRequest {
    ClaimRequest {
        mode,
        limit,
        max_bytes: 16 << 20,
        lock_ttl: Duration::from_mins(1),
        poll_interval: Duration::from_millis(100),
        max_attempts: 25,
        exclude: Arc::from([]),
        spent: Arc::from([]),
        crowding: Arc::from([]),
    }
}

/// Claims waiting rows.
pub async fn claim<S: Store>(store: &S, limit: usize) -> Claim {
    store.claim(request(ClaimMode::Waiting, limit)).await.expect("a claim")
}

/// Claims waiting rows as soon as the relay may work: the one before it may still be on its way out.
pub async fn claim_in_turn<S: Store>(store: &S, limit: usize) -> Claim {
    crate::eventually("a turn", PATIENCE, async || {
        let claim = claim(store, limit).await;
        (claim.standing == Standing::Active).then_some(claim)
    })
    .await
}

/// Settings under which tests are quick and nothing else changes.
pub fn quick() -> Settings {
    Settings {
        poll_interval: Duration::from_millis(20),
        lock_ttl: Duration::from_secs(3),
        dispatch_timeout: Duration::from_secs(1),
        backoff: Backoff::fixed(Duration::from_millis(10)),
        circuit: Backoff::fixed(Duration::from_millis(50)),
        ..Settings::default()
    }
}

/// The state of a row that must be there.
pub async fn state<S: Subject>(subject: &S, event: EventId) -> RowState {
    subject.row(event).await.expect("the event's row")
}

/// Whether an event has used up its attempts: dead, in the words of either table.
pub async fn exhausted<S: Subject>(subject: &S, event: EventId, max_attempts: i32) -> bool {
    let row = state(subject, event).await;
    row.dead || (!subject.features().full && !row.published && !row.locked && row.attempts >= max_attempts)
}

/// Waits until an event is published.
pub async fn published<S: Subject>(subject: &S, event: EventId) {
    crate::eventually("the event to be published", PATIENCE, async || state(subject, event).await.published)
        .await;
}

/// How long tests wait for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Makes one test of each promise for a subject. The expression is evaluated for each test and gives a future.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;
            $crate::store_suite! { @each $subject =>
                enqueue: an_event_exists_only_if_its_transaction_committed,
                enqueue: a_repeated_event_id_writes_nothing,
                enqueue: many_events_get_their_receipts_in_order,
                enqueue: json_arrives_digit_for_digit,
                enqueue: bytes_and_every_field_arrive,
                enqueue: a_delayed_event_waits,
                hooks: hooks_hear_of_writes_and_of_the_commit,
                hooks: hooks_hear_of_a_rollback,
                hooks: a_commit_after_an_ignored_error_is_not_told_as_one,
                hooks: rows_that_went_with_a_savepoint_are_not_told_as_committed,
                hooks: a_refused_commit_is_told_as_a_rollback,
                hooks: hooks_hear_of_many_events_at_once,
                hooks: a_unit_of_work_commits_all_its_events_or_none,
                claim: two_claimers_never_share_a_row,
                claim: a_claim_keeps_its_limits,
                claim: an_expired_lease_is_claimed_again_alone,
                claim: an_exhausted_row_is_dead_not_a_zombie,
                claim: excluded_topics_are_left_and_probes_find_them,
                claim: a_probe_that_finds_nothing_tells_of_suspects,
                claim: what_commits_behind_the_cursor_is_found,
                claim: an_undecodable_row_does_not_fail_its_batch,
                settle: every_verdict_is_written,
                settle: a_stale_settle_changes_nothing,
                settle: what_several_claims_brought_is_settled_at_once,
                settle: a_renewed_lease_lasts_and_a_lost_one_is_reported,
                settle: the_log_of_attempts_keeps_the_last_ten,
                relay: everything_is_delivered_once,
                relay: failures_back_off_and_die_at_the_limit,
                relay: a_reject_and_a_missing_route_are_dead_at_once,
                relay: poison_holds_up_nobody,
                relay: undecodable_rows_in_front_are_buried,
                relay: a_batch_that_panics_runs_again_one_by_one,
                relay: a_suspect_is_dispatched_alone,
                relay: run_once_reports_what_it_did,
                relay: what_was_closed_is_not_started_again,
                relay: a_stop_finishes_what_runs_and_repeats_nothing,
                relay: a_stop_releases_what_does_not_finish_uncharged,
                relay: payloads_in_flight_are_bounded,
                relay: trace_context_passes_through,
                relay: the_last_error_is_short_and_clean,
                handlers: interceptors_stand_around_every_dispatch,
                handlers: exclusive_handlers_go_by_aggregate_type_and_topic,
                hot: a_committed_event_is_handled_where_it_was_written,
                hot: what_does_not_exist_is_not_handled,
                hot: what_was_taken_back_and_written_again_is_handled_once,
                hot: a_full_path_loses_nothing,
                hot: a_late_commit_goes_the_way_over_the_table,
                hot: a_hot_event_that_fails_is_tried_again,
                hot: a_pause_and_a_stop_hold_for_hot_events,
                hot: a_pause_reaches_those_that_stand_by,
                hot: hot_events_wait_for_a_suspect_and_no_longer,
                hot: a_stop_waits_for_transactions_that_are_open,
                hot: runs_by_hand_lease_nothing,
                order: the_events_of_an_aggregate_arrive_in_order,
                order: a_retry_holds_back_the_rest_of_its_aggregate,
                order: a_scheduled_event_holds_back_what_is_behind_it,
                order: a_dead_event_blocks_its_aggregate_until_it_is_replayed,
                order: a_dead_event_is_skipped_where_that_is_asked_for,
                order: what_dies_without_a_dispatch_blocks_too,
                order: only_the_first_of_an_aggregate_can_be_claimed,
                order: expired_leases_of_an_aggregate_come_back_one_by_one,
                order: a_lost_lease_lets_nobody_overtake,
                order: a_long_and_slow_aggregate_holds_up_nobody,
                order: a_pause_and_a_stop_give_back_what_waits_behind_others,
                order: an_outage_holds_back_the_aggregate_everywhere,
                order_chaos: aggregates_keep_their_order_whatever_happens,
                tenants: what_tenants_cannot_have_is_refused,
                trouble: an_outage_costs_no_attempt_and_no_other_sink,
                trouble: an_outage_is_seen_in_the_table,
                trouble: a_sink_that_hangs_in_batches_is_down_not_guilty,
                trouble: a_blocked_thread_times_out,
                trouble: one_relay_works_the_other_takes_over,
                trouble: many_relays_share_a_table,
                trouble: a_pause_stops_delivery_and_outlives_relays,
                trouble: leases_are_renewed_while_handlers_run,
                fan_out: every_sink_gets_every_event_once,
                fan_out: a_sink_that_has_confirmed_is_not_sent_to_again,
                fan_out: an_outage_of_one_sink_holds_up_no_other,
                fan_out: a_slow_sink_does_not_slow_the_other,
                fan_out: what_one_sink_rejects_is_dead_and_replayed_to_the_rest,
                fan_out: a_failure_is_charged_though_another_sink_is_down,
                fan_out: a_stop_remembers_who_has_confirmed_and_a_crash_loses_nothing,
                fan_out: many_relays_share_a_table_with_fan_out,
                fan_out: a_hot_event_goes_to_every_sink,
                fan_out: sinks_that_are_gone_or_new_are_treated_as_such,
                fan_out: claims_leave_out_what_only_others_lack,
                fan_out: a_bare_table_refuses_fan_out,
                dead_letter: dead_events_go_to_the_dead_letter_route,
                dead_letter: a_dead_letter_route_that_is_down_is_waited_for,
                dead_letter: a_replay_takes_a_letter_out_of_flight,
                dead_letter: a_letter_that_may_kill_is_sent_alone_and_seldom,
                dead_letter: letters_of_a_paused_table_wait,
                dead_letter: the_cleaner_keeps_what_has_to_go_to_the_route,
                dead_letter: dead_events_are_tried_again_by_themselves,
                dead_letter: run_once_looks_after_dead_events,
                dead_letter: a_bare_table_refuses_dead_letters,
                admin: the_cleaner_touches_only_what_it_may,
                admin: dead_events_are_found_replayed_and_discarded,
                admin: counts_tell_what_waits,
                admin: what_is_due_is_what_sweeps_delete,
                browse: lists_go_by_sequence_page_by_page,
                browse: every_filter_finds_its_events,
                browse: a_list_that_did_not_look_at_everything_says_so,
                browse: an_event_is_shown_and_its_content_only_on_request,
                browse: statuses_tell_what_became_of_events,
                browse: published_events_are_sent_again_by_id_and_by_time,
                browse: chosen_dead_events_are_replayed_or_discarded,
                history: each_history_keeps_what_it_promises,
                history: batches_of_every_verdict_are_settled_by_each_history,
                history: no_history_takes_what_is_anothers,
                history: a_death_before_the_settle_repeats_and_loses_nothing,
                history: a_move_without_a_history_is_refused,
                history: duplicates_are_recognised_as_long_as_the_row_is_there,
                moved: what_was_moved_is_listed,
                moved: what_was_moved_is_shown_with_all_that_it_had,
                moved: what_was_moved_is_counted,
                moved: what_was_moved_is_cleaned_after_its_retention,
                moved: what_was_moved_is_sent_again_by_id_and_by_time,
                moved: what_was_written_again_stays_in_the_history,
                history: hot_events_go_where_the_others_go,
                diagnose: a_table_that_is_well_is_found_well,
                diagnose: a_table_that_is_missing_is_a_finding,
            }
        }
    };
    (@each $subject:expr => $($part:ident: $test:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            let subject = $subject.await;
            $crate::suite::$part::$test(&subject).await;
        }
    )*};
}

/// Makes one test of each promise that concerns a relay which tenants share, for a subject that declares it.
#[macro_export]
macro_rules! tenants_suite {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;
            $crate::store_suite! { @each $subject =>
                tenants: a_claim_takes_some_of_each_tenant,
                tenants: who_has_a_share_already_is_left_out,
                tenants: many_tenants_take_turns,
                tenants: no_tenant_is_last_for_ever,
                tenants: many_tenants_that_wait_let_the_relay_rest,
                tenants: expired_leases_hold_up_no_tenant,
                tenants: who_had_a_share_goes_on_when_it_has_less,
                tenants: a_large_backlog_delays_no_other_tenant,
                tenants: a_tenant_that_hangs_holds_up_no_other,
                tenants: a_relay_for_some_leaves_the_others,
                tenants: what_tenants_cannot_have_is_refused,
                claim: two_claimers_never_share_a_row,
                claim: a_claim_keeps_its_limits,
                claim: an_expired_lease_is_claimed_again_alone,
                claim: an_exhausted_row_is_dead_not_a_zombie,
                claim: excluded_topics_are_left_and_probes_find_them,
                claim: a_probe_that_finds_nothing_tells_of_suspects,
                claim: what_commits_behind_the_cursor_is_found,
                claim: an_undecodable_row_does_not_fail_its_batch,
                settle: a_stale_settle_changes_nothing,
                relay: everything_is_delivered_once,
                relay: failures_back_off_and_die_at_the_limit,
                relay: poison_holds_up_nobody,
                relay: undecodable_rows_in_front_are_buried,
                relay: a_batch_that_panics_runs_again_one_by_one,
                relay: a_suspect_is_dispatched_alone,
                relay: run_once_reports_what_it_did,
                relay: a_stop_releases_what_does_not_finish_uncharged,
                relay: payloads_in_flight_are_bounded,
                hot: a_committed_event_is_handled_where_it_was_written,
                hot: a_full_path_loses_nothing,
                trouble: an_outage_costs_no_attempt_and_no_other_sink,
                trouble: a_sink_that_hangs_in_batches_is_down_not_guilty,
                trouble: one_relay_works_the_other_takes_over,
                trouble: many_relays_share_a_table,
                trouble: a_pause_stops_delivery_and_outlives_relays,
                trouble: leases_are_renewed_while_handlers_run,
                fan_out: every_sink_gets_every_event_once,
                fan_out: an_outage_of_one_sink_holds_up_no_other,
                fan_out: a_slow_sink_does_not_slow_the_other,
                dead_letter: dead_events_go_to_the_dead_letter_route,
                dead_letter: dead_events_are_tried_again_by_themselves,
            }
        }
    };
}
