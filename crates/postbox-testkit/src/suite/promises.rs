//! The lists of promises, each a test of its own.

/// Makes one test of each promise for a subject. The expression is evaluated for each test and gives a future.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;
            $crate::store_suite! { @each $subject =>
                enqueue: an_event_exists_only_if_its_transaction_committed,
                enqueue: a_repeated_event_id_writes_nothing,
                enqueue: of_two_transactions_with_one_event_id_one_writes,
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
                inbox: of_many_that_race_for_a_message_one_is_first,
                inbox: a_rollback_lets_the_next_be_first,
                inbox: an_effect_its_memory_and_its_events_commit_together,
                inbox: a_batch_tells_of_each_message,
                inbox: batches_in_different_orders_do_not_deadlock,
                inbox: a_missing_inbox_is_said_to_be_missing,
                inbox: what_was_received_long_ago_is_cleaned,
                inbox: operators_see_what_was_received_and_can_have_it_forgotten,
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
                tenants: what_tenants_cannot_have_is_refused,
                trouble: an_outage_costs_no_attempt_and_no_other_sink,
                trouble: a_full_sink_goes_on_when_it_has_less,
                trouble: an_outage_is_seen_in_the_table,
                trouble: a_sink_that_hangs_in_batches_is_down_not_guilty,
                trouble: a_blocked_thread_times_out,
                trouble: one_relay_works_the_other_takes_over,
                trouble: who_closes_leaves_its_place_at_once,
                trouble: many_relays_share_a_table,
                trouble: relays_that_come_and_go_share_what_is_left,
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
                fan_out_rows: sinks_that_are_gone_or_new_are_treated_as_such,
                fan_out_rows: claims_leave_out_what_only_others_lack,
                fan_out_rows: a_bare_table_refuses_fan_out,
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
                browse: failed_events_are_tried_at_once_if_asked_for,
                browse: a_relay_takes_up_what_is_to_be_tried_at_once,
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
                diagnose: two_looks_tell_how_far_delivery_has_come,
            }
            $crate::store_suite! { @order $subject }
        }
    };
    (@mod $name:ident, $subject:expr => $($promises:tt)*) => {
        mod $name {
            use super::*;
            $crate::store_suite! { @each $subject => $($promises)* }
        }
    };
    (@order $subject:expr) => {
        $crate::store_suite! { @each $subject =>
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
    };
    (@each $subject:expr => $($part:ident: $test:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            let subject = $subject.await;
            $crate::suite::$part::$test(&subject).await;
        }
    )*};
}

/// Makes one test of each promise that concerns the events of an aggregate, for a subject that declares it.
#[macro_export]
macro_rules! order_suite {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;
            $crate::store_suite! { @order $subject }
        }
    };
}

/// Makes one test of each promise that concerns a relay which tenants share, for a subject that declares it.
#[macro_export]
macro_rules! tenants_suite {
    ($name:ident, $subject:expr) => {
        $crate::store_suite! { @mod $name, $subject =>
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
    };
}

/// Makes one test of each promise that concerns a relay which owns its rows, for an
/// [`OwnerSubject`](crate::suite::owner::OwnerSubject).
#[macro_export]
macro_rules! owner_suite {
    ($name:ident, $subject:expr) => {
        $crate::store_suite! { @mod $name, $subject =>
            owner: a_migrated_table_is_owned_and_a_shared_one_leased,
            owner: relays_of_different_strategies_refuse_to_start,
            owner: a_relay_that_shares_and_looks_seldom_is_not_forgotten,
            owner: two_strategies_that_start_at_once_do_not_work_at_once,
            owner: hazard_1_an_owner_that_was_taken_over_settles_nothing,
            owner: of_two_reigns_only_the_rows_of_the_first_are_lost,
            owner: a_take_over_finds_exactly_what_was_in_flight,
            owner_window: what_an_owner_has_in_flight_is_publishing,
            owner_window: what_an_owner_gave_back_is_not_in_flight_for_long,
            owner_window: a_pause_is_seen_by_every_claim,
            owner_window: what_commits_behind_the_reader_is_found,
            owner_window: hazard_25_a_repeated_settle_does_not_undo_a_replay,
            owner_window: a_journal_whose_reply_was_lost_hands_over_nothing,
            owner_window: hazard_10_an_owner_whose_sessions_were_killed_repeats_nothing_if_it_comes_back,
            owner_window: what_is_heard_late_of_a_lease_ends_nothing_in_flight,
            owner_window: what_a_settle_gave_back_that_failed_is_still_in_flight,
            owner_window: hazard_10_a_take_over_repeats_no_more_than_the_window,
        }
    };
}

/// Makes one test of each promise that concerns calls by idempotency key, for a
/// [`CallsSubject`](crate::suite::idempotency::CallsSubject).
#[macro_export]
macro_rules! idempotency_suite {
    ($name:ident, $subject:expr) => {
        $crate::store_suite! { @mod $name, $subject =>
            idempotency: of_16_racers_one_runs,
            idempotency: a_repeat_gets_the_answer,
            idempotency: another_content_is_a_mismatch,
            idempotency: after_a_crash_one_of_16_takes_over_and_the_old_one_is_fenced,
            idempotency: an_extended_lease_is_not_taken_over,
            idempotency: an_abandoned_call_runs_again,
            idempotency: effect_event_and_answer_commit_together,
            idempotency: a_transaction_that_was_fenced_off_has_no_effect,
            idempotency: a_commit_under_way_is_waited_for,
            idempotency: of_16_racers_with_a_crash_in_the_middle_the_effect_happens_once,
            idempotency: the_cleaner_forgets_old_calls_and_none_that_runs,
        }
    };
}
