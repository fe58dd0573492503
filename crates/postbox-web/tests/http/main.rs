//! The layer as callers see it: over HTTP, on a real PostgreSQL, a real MariaDB and a real SQLite file.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod answers;
mod client;
mod counted;
mod databases;
mod refusals;
mod shop;
mod trouble;
mod with_transaction;

use databases::{OnMariaDb, OnPostgres, OnSqlite};

/// Makes one test of each for each database.
macro_rules! on_each {
    ($($part:ident: $test:ident,)*) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() { crate::$part::$test(&crate::OnPostgres::open().await).await; })*
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() { crate::$part::$test(&crate::OnMariaDb::open().await).await; })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() { crate::$part::$test(&crate::OnSqlite::open().await).await; })*
        }
    };
}

on_each! {
    answers: a_repeat_gets_the_same_answer_and_nothing_runs,
    answers: quotes_make_no_other_key,
    answers: two_principals_have_keys_of_their_own,
    answers: what_is_final_is_stored_and_what_is_not_runs_again,
    answers: what_a_layer_is_told_decides_about_keys_headers_and_statuses,
    answers: an_answer_that_is_too_large_is_not_kept_and_not_run_again,
    answers: an_answer_without_an_end_is_given_and_not_kept,
    answers: calls_without_a_key_and_other_methods_pass,
    refusals: another_body_path_or_query_is_another_request,
    refusals: what_stands_before_a_nested_router_is_part_of_its_paths,
    refusals: a_key_that_is_missing_or_wrong_is_refused,
    refusals: a_body_that_is_too_large_is_refused,
    refusals: a_caller_who_is_not_known_is_refused,
    refusals: without_the_table_nothing_runs,
    trouble: while_the_first_runs_repeats_wait,
    trouble: a_caller_who_goes_away_does_not_cut_the_handler_off,
    trouble: a_panic_releases_the_key,
    trouble: a_lease_is_renewed_while_the_handler_runs,
    trouble: who_was_taken_over_is_told_so,
    trouble: of_16_callers_one_is_served_by_the_handler,
    counted: calls_are_counted_by_their_results,
    with_transaction: order_event_and_answer_are_one_commit,
    with_transaction: what_fails_is_rolled_back_and_runs_again,
    with_transaction: a_refusal_is_stored_without_an_effect,
    with_transaction: a_success_without_a_commit_is_told_as_a_failure,
    with_transaction: an_error_that_was_ignored_is_not_committed,
    with_transaction: what_was_rolled_back_on_purpose_is_an_answer_like_any_other,
    with_transaction: without_a_key_it_is_an_ordinary_transaction,
    with_transaction: a_large_answer_is_committed_and_not_kept,
    with_transaction: an_order_whose_answer_has_no_end_is_committed,
    with_transaction: of_16_callers_with_a_crash_in_the_middle_one_order_is_placed,
}
