//! How relays make sure that rows are their own, and that all relays of a table do it in the same way.

use std::time::{Duration, Instant};

use postbox_core::{Layout, StoreError};
use sqlx::{PgConnection, Row as _};

use super::claim::ClaimState;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::builder::Settings;
use crate::strategy::check_others;

/// Whether the relay of such a table owns it.
///
/// # Errors
/// When ownership is asked for and not possible.
pub(super) fn owns(settings: &Settings, table: &str, layout: Layout) -> Result<bool, StoreError> {
    let obstacle = match (layout, settings.single_active) {
        _ if settings.tenants.fair => Some("tenants share it (fair_tenants), and their rows are leased"),
        (Layout::Bare, _) => Some("it has only the standard columns; `postbox migrate up` adds the others"),
        (Layout::Full, false) => Some("several relays share it (single_active is off)"),
        (Layout::Full, true) => None,
    };
    settings.strategy.owns(table, obstacle)
}

impl Inner {
    /// Refuses to start beside relays that claim in another way: an owner reads rows that others would lease.
    pub(super) async fn check_others(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        let others = opened.query(&opened.statements.others).bind(&opened.key).fetch_optional(connection);
        let Some(row) = within(OPERATION_LIMIT, others).await? else { return Ok(()) };
        let text = |column: usize| row.try_get::<Option<String>, _>(column).map_err(classify);
        check_others(&self.settings, opened.owns, text(0)?.zip(text(1)?), text(2)?)
    }

    /// Leaves a sign that relays share the table, so that none comes to own it. Renewed like a leader's place.
    pub(super) async fn show_sharing(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
        poll_interval: Duration,
    ) -> Result<(), StoreError> {
        let ttl = self.settings.ttl_for(poll_interval);
        let recent = |shown: Instant| shown.elapsed() < ttl / 3;
        if opened.layout == Layout::Bare || state.shown.is_some_and(recent) {
            return Ok(());
        }
        let now = Instant::now();
        let show = opened
            .query(&opened.statements.share)
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(ttl.as_secs_f64())
            .execute(connection);
        within(OPERATION_LIMIT, show).await?;
        state.shown = Some(now);
        Ok(())
    }
}
