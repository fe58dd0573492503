//! How relays of a table make sure that rows are their own, and that all of them do it in the same way.

use std::time::{Duration, Instant};

use postbox_core::{Order, StoreError, TableName};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::claim::ClaimState;
use super::clock::span;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::builder::Settings;
use crate::row::Cells as _;
use crate::strategy::check_others;

/// Whether the relay of such a table owns it.
///
/// # Errors
/// When ownership is asked for and not possible.
pub(super) fn owns(settings: &Settings, table: &TableName) -> Result<bool, StoreError> {
    let obstacle = if settings.tenants.fair {
        Some("tenants share it (fair_tenants), and their rows are leased: leave claim at \"auto\"")
    } else if settings.order != Order::None {
        Some("ordering = \"aggregate\" leases rows on MySQL and MariaDB: leave claim at \"auto\"")
    } else if !settings.single_active {
        Some("several relays share it (single_active is off)")
    } else {
        None
    };
    settings.strategy.owns(table.table(), obstacle)
}

impl Inner {
    /// Refuses to start beside relays that claim in another way: an owner reads rows that others would lease.
    pub(super) async fn check_others(
        &self,
        connection: &mut MySqlConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        let others = sqlx::query(AssertSqlSafe(opened.statements.owners.others.as_str())).bind(&opened.key);
        let Some(row) = within(OPERATION_LIMIT, others.fetch_optional(connection)).await? else {
            return Ok(());
        };
        let text = |column: usize| row.text(column).map_err(classify);
        check_others(&self.settings, opened.owns(), text(0)?.zip(text(1)?), text(2)?)
    }

    /// Leaves a sign that relays share the table, so that none comes to own it. Renewed like a leader's place.
    pub(super) async fn show_sharing(
        &self,
        state: &mut ClaimState,
        opened: &Opened,
        poll_interval: Duration,
    ) -> Result<(), StoreError> {
        let ttl = self.settings.ttl_for(poll_interval);
        let recent = |shown: Instant| shown.elapsed() < ttl / 3;
        if state.shown.is_some_and(recent) {
            return Ok(());
        }
        let (now, mut link) = (Instant::now(), self.claims.take().await?);
        let show = sqlx::query(AssertSqlSafe(opened.statements.owners.share.as_str()))
            .bind(&self.settings.holder)
            .bind(span(ttl))
            .bind(&opened.key)
            .execute(&mut link.connection);
        within(OPERATION_LIMIT, show).await?;
        link.keep();
        state.shown = Some(now);
        Ok(())
    }
}
