//! How relays make sure that rows are their own, and that all relays of a table do it in the same way.

use std::time::Instant;

use postbox_core::store::Tenants;
use postbox_core::{Layout, StoreError};
use sqlx::{PgConnection, Row as _};

use super::claim::ClaimState;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
pub(super) use crate::strategy::name;
use crate::strategy::{Strategy, mismatch};

/// Whether the relay of such a table owns it.
///
/// # Errors
/// When it shall and cannot.
pub(super) fn owns(
    strategy: Strategy,
    table: &str,
    layout: Layout,
    single_active: bool,
    tenants: &Tenants,
) -> Result<bool, StoreError> {
    let obstacle = match (layout, single_active) {
        _ if tenants.fair => Some("tenants share it (fair_tenants), and their rows are leased"),
        (Layout::Bare, _) => Some("it has only the standard columns; `postbox migrate up` adds the others"),
        (Layout::Full, false) => Some("several relays share it (single_active is off)"),
        (Layout::Full, true) => None,
    };
    strategy.owns(table, obstacle)
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
        let (mine, (strategy, holder, shared)) = (name(opened.owns), (text(0)?, text(1)?, text(2)?));
        match (strategy.zip(holder), shared) {
            (Some((strategy, holder)), _) if strategy != mine => Err(self.mismatch(mine, &strategy, &holder)),
            (_, Some(relay)) if opened.owns => Err(self.mismatch(mine, name(false), &relay)),
            _ => Ok(()),
        }
    }

    fn mismatch(&self, mine: &str, theirs: &str, relay: &str) -> StoreError {
        mismatch(&self.label, self.leader_ttl, mine, theirs, relay)
    }

    /// Leaves a sign that relays share the table, so that none comes to own it. Renewed like a leader's place.
    pub(super) async fn show_sharing(
        &self,
        state: &mut ClaimState,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        let recent = |shown: Instant| shown.elapsed() < self.leader_ttl / 3;
        if opened.layout == Layout::Bare || state.shown.is_some_and(recent) {
            return Ok(());
        }
        let now = Instant::now();
        let show = opened
            .query(&opened.statements.share)
            .bind(&opened.key)
            .bind(&self.holder)
            .bind(self.leader_ttl.as_secs_f64())
            .execute(connection);
        within(OPERATION_LIMIT, show).await?;
        state.shown = Some(now);
        Ok(())
    }
}
