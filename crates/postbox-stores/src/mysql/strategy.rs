//! How relays of a table make sure that rows are their own, and that all of them do it in the same way.

use std::time::Instant;

use postbox_core::store::{Order, Tenants};
use postbox_core::{StoreError, TableName};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::claim::ClaimState;
use super::clock::span;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::row::text;
use super::store::{Inner, Opened};
use crate::strategy::{Strategy, mismatch, name};

/// Whether the relay of such a table owns it.
///
/// # Errors
/// When it shall and cannot.
pub(super) fn owns(
    strategy: Strategy,
    table: &TableName,
    owners: bool,
    single_active: bool,
    order: Order,
    tenants: &Tenants,
) -> Result<bool, StoreError> {
    let obstacle = if tenants.fair {
        Some("tenants share it (fair_tenants), and their rows are leased: leave claim at \"auto\"".to_owned())
    } else if order != Order::None {
        Some("ordering = \"aggregate\" leases rows on MySQL and MariaDB: leave claim at \"auto\"".to_owned())
    } else if !single_active {
        Some("several relays share it (single_active is off)".to_owned())
    } else if !owners {
        Some(format!(
            "postbox_relay was made by an earlier version: run `postbox migrate up --table {table}`"
        ))
    } else {
        None
    };
    strategy.owns(table.table(), obstacle.as_deref())
}

impl Inner {
    /// Refuses to start beside relays that claim in another way: an owner reads rows that others would lease.
    pub(super) async fn check_others(
        &self,
        connection: &mut MySqlConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        let Some(owners) = &opened.statements.owners else { return Ok(()) };
        let others = sqlx::query(AssertSqlSafe(owners.others.as_str())).bind(&opened.key);
        let Some(row) = within(OPERATION_LIMIT, others.fetch_optional(connection)).await? else {
            return Ok(());
        };
        let text = |column: usize| text(&row, column).map_err(classify);
        let (mine, (strategy, holder, shared)) = (name(opened.owns()), (text(0)?, text(1)?, text(2)?));
        let refused = |theirs: &str, relay: &str| mismatch(&self.label, self.leader_ttl, mine, theirs, relay);
        match (strategy.zip(holder), shared) {
            (Some((strategy, holder)), _) if strategy != mine => Err(refused(&strategy, &holder)),
            (_, Some(relay)) if opened.owns() => Err(refused(name(false), &relay)),
            _ => Ok(()),
        }
    }

    /// Leaves a sign that relays share the table, so that none comes to own it. Renewed like a leader's place.
    pub(super) async fn show_sharing(
        &self,
        state: &mut ClaimState,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        let recent = |shown: Instant| shown.elapsed() < self.leader_ttl / 3;
        let Some(owners) = &opened.statements.owners else { return Ok(()) };
        if state.shown.is_some_and(recent) {
            return Ok(());
        }
        let (now, mut link) = (Instant::now(), self.claims.take().await?);
        let show = sqlx::query(AssertSqlSafe(owners.share.as_str()))
            .bind(&self.holder)
            .bind(span(self.leader_ttl))
            .bind(&opened.key)
            .execute(&mut link.connection);
        within(OPERATION_LIMIT, show).await?;
        link.keep();
        state.shown = Some(now);
        Ok(())
    }
}
