//! The rules that are left out, each with the tests that shall notice.

/// One rule that is left out.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    /// What it lacks.
    pub(super) without: &'static str,
    pub(super) edits: &'static [Edit],
    /// Parts of the names of the tests that shall notice, of the store on PostgreSQL.
    pub(super) tests: &'static [&'static str],
}

/// What stands in a file, and what stands there instead.
pub(super) struct Edit {
    pub(super) file: &'static str,
    pub(super) is: &'static str,
    pub(super) becomes: &'static str,
}

const fn edit(file: &'static str, is: &'static str, becomes: &'static str) -> Edit {
    Edit { file, is, becomes }
}

const FENCE: &str = "t.locked_by = s.token AND t.attempts = s.attempts AND ";
const OWNER: &str = "  AND EXISTS (SELECT 1 FROM owner)\n";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "no-fence",
        without: "the token of a lease in its settle",
        edits: &[
            edit("crates/postbox-stores/src/postgres/sql/settle.sql", FENCE, ""),
            edit("crates/postbox-stores/src/postgres/sql/settle_delivered.sql", FENCE, ""),
        ],
        tests: &["migrated::a_stale_settle_changes_nothing"],
    },
    Mutant {
        name: "no-owner-fence",
        without: "the owner's row in its settle",
        edits: &[
            edit("crates/postbox-stores/src/postgres/sql/own_settle.sql", OWNER, ""),
            edit("crates/postbox-stores/src/postgres/sql/own_settle_delivered.sql", OWNER, ""),
        ],
        tests: &["hazard_1_an_owner_that_was_taken_over_settles_nothing"],
    },
    Mutant {
        name: "sub-select-fence",
        without: "the lock on the owner's row during a settle",
        edits: &[
            edit("crates/postbox-stores/src/postgres/sql/own_settle.sql", " FOR KEY SHARE", ""),
            edit("crates/postbox-stores/src/postgres/sql/own_settle_delivered.sql", " FOR KEY SHARE", ""),
        ],
        tests: &["a_settle_does_not_slip_in_behind_a_take_over"],
    },
    Mutant {
        name: "settle-before-dispatch",
        without: "the dispatch before the settle",
        edits: &[edit(
            "crates/postbox-core/src/relay/unit.rs",
            "    let database = telemetry.database();\n",
            "    let database = telemetry.database();\n    (0..batch.len()).for_each(|index| receipts.record(index, Ok(())));\n",
        )],
        tests: &["migrated::a_stop_releases_what_does_not_finish_uncharged", "migrated::a_retry"],
    },
    Mutant {
        name: "in-subquery",
        without: "the rows of a claim chosen and locked once, before they are leased",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/sql/claim.sql",
            "    FROM budget b\n    WHERE t.id = ANY (ARRAY[b.id]) AND b.fits AND {{wanted}}",
            "    WHERE t.id IN (SELECT p.id FROM {{table}} p WHERE p.published_at IS NULL AND p.dead_at IS NULL AND p.available_at <= now()
                     AND p.locked_at IS NULL AND (SELECT mine AND NOT paused FROM gate)
                   ORDER BY p.available_at, p.sequence LIMIT $7 FOR UPDATE SKIP LOCKED)",
        )],
        tests: &["hazard_11_"],
    },
    Mutant {
        name: "hot-lease-by-now",
        without: "the clock in a hot event's lease: it has the time when its transaction began",
        edits: &[edit("crates/postbox-stores/src/postgres/writing.rs", "clock_timestamp()", "now()")],
        tests: &["a_transaction_that_began_long_ago_has_a_whole_lease"],
    },
    Mutant {
        name: "suspects-in-company",
        without: "the rule that a suspect is claimed alone",
        edits: &[edit(
            "crates/postbox-core/src/relay/claim.rs",
            "            ClaimMode::Suspect | ClaimMode::Probe(_) => 1,\n",
            "            ClaimMode::Suspect => self.settings.batch_size,\n            ClaimMode::Probe(_) => 1,\n",
        )],
        tests: &["migrated::a_suspect_is_dispatched_alone", "bare::a_suspect_is_dispatched_alone"],
    },
    Mutant {
        name: "unsorted-settles",
        without: "the common order of locking",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/settling.rs",
            "settlements.sort_unstable_by_key(|settlement| settlement.lease.row);",
            "settlements.sort_by_cached_key(|_| Uuid::new_v4());",
        )],
        tests: &["hazard_18"],
    },
    Mutant {
        name: "no-predecessor",
        without: "the look at what is before a row in its aggregate, where an owner keeps order",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/walk.rs",
            "            self.goes_on = false;\n            // Only the first",
            "            // Only the first",
        )],
        tests: &["ordered::a_scheduled_event_holds_back", "ordered::a_retry_holds_back", "ordered::a_dead_event_blocks"],
    },
    Mutant {
        name: "no-look-before-sleep",
        without: "the last look before a relay sleeps",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/wake.rs",
            "if self.checked.load(Ordering::Relaxed) == seen.answered {",
            "if seen.answered > 0 {",
        )],
        tests: &["wake::no_wake_up_is_lost"],
    },
    Mutant {
        name: "no-wait-for-disk",
        without: "the wait for the disk before an owner claims",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/durable.rs",
            "pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()",
            "pg_current_wal_flush_lsn() IS NOT NULL",
        )],
        tests: &["durable::hazard_33_what_an_owner_claims_is_on_disk"],
    },
    Mutant {
        name: "nobody-charged",
        without: "the charge for what an owner had in flight when it died",
        edits: &[edit("crates/postbox-stores/src/postgres/sql/lead.sql", "WHERE NOT p.own AND", "WHERE false AND")],
        tests: &["after_a_take_over_strands_wait", "hazard_1_", "migrated::a_suspect_is_dispatched_alone"],
    },
    Mutant {
        name: "locked-take-over",
        without: "the take-over that passes by what an outsider has locked",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/sql/lead.sql",
            "    FOR UPDATE OF t SKIP LOCKED\n",
            "    FOR UPDATE OF t\n",
        )],
        tests: &["outsiders::a_locked_row_prevents_no_take_over"],
    },
    Mutant {
        name: "locked-renewal",
        without: "the renewal of leases that passes by what an outsider has locked",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/sql/extend.sql",
            "    FOR UPDATE OF t SKIP LOCKED\n",
            "    FOR UPDATE OF t\n",
        )],
        tests: &["outsiders::a_locked_row_keeps_no_lease_from_being_renewed"],
    },
    Mutant {
        name: "locked-suspect",
        without: "the pause after a turn of suspects in vain",
        edits: &[edit(
            "crates/postbox-core/src/relay/suspect.rs",
            "        if !self.waiting && !self.found {\n",
            "        if false {\n",
        )],
        tests: &["outsiders::a_locked_suspect_holds_up_nobody"],
    },
    Mutant {
        name: "forgetful-owner",
        without: "what an owner that comes back to its place still has in flight",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/leader.rs",
            "        self.reigns(epoch);\n",
            "        *self.window() = super::window::Window::default();\n",
        )],
        tests: &["outsiders::an_owner_that_comes_back_to_its_place_knows_what_still_runs"],
    },
    Mutant {
        name: "no-beat-at-the-end",
        without: "the signs of life of a relay that stops",
        edits: &[edit(
            "crates/postbox-core/src/relay/stop.rs",
            "            if running(self) {\n",
            "            if false {\n",
        )],
        tests: &["outsiders::a_relay_that_stops_keeps_its_place_while_something_runs"],
    },
    Mutant {
        name: "early-farewell",
        without: "the rule that rows of a settle leave the window when all of it has been written",
        edits: &[edit(
            "crates/postbox-stores/src/postgres/settling.rs",
            "        let settled = self.settle_all(opened, settlements).await;\n",
            "        self.let_go(settlements.iter().map(|s| &s.lease));\n        let settled = self.settle_all(opened, settlements).await;\n",
        )],
        tests: &["what_a_settle_gave_back_that_failed_is_still_in_flight"],
    },
];
