//! How relays make sure that rows are their own, and that all relays of a table do it in the same way.

use std::time::{Duration, Instant};

use postbox_core::store::Tenants;
use postbox_core::{Code, Layout, StoreError, StoreErrorKind};
use sqlx::{PgConnection, Row as _};

use super::claim::ClaimState;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};

/// How a relay makes sure that rows are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Ownership where it is possible, else leases.
    #[default]
    Auto,
    /// Each row is leased, which writes it once more.
    Lease,
    /// The active relay owns the table: it writes what it has in flight into its own row. Needs a migrated table and
    /// `single_active`.
    Owner,
}

impl Strategy {
    /// Whether the relay of such a table owns it.
    ///
    /// # Errors
    /// When it shall and cannot.
    pub(super) fn owns(
        self,
        table: &str,
        layout: Layout,
        single_active: bool,
        tenants: &Tenants,
    ) -> Result<bool, StoreError> {
        let obstacle = match (layout, single_active) {
            _ if tenants.fair => Some("tenants share it (fair_tenants), and their rows are leased"),
            (Layout::Bare, _) => {
                Some("it has only the standard columns; `postbox migrate up` adds the others")
            }
            (Layout::Full, false) => Some("several relays share it (single_active is off)"),
            (Layout::Full, true) => None,
        };
        match (self, obstacle) {
            (Self::Lease, _) | (Self::Auto, Some(_)) => Ok(false),
            (Self::Auto | Self::Owner, None) => Ok(true),
            (Self::Owner, Some(why)) => {
                let message = format!("claim = \"owner\": {table} cannot be owned: {why}");
                Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message))
            }
        }
    }
}

/// The name of a strategy in `postbox_relay`.
pub(super) fn name(owns: bool) -> &'static str {
    if owns { "owner" } else { "lease" }
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
        let message = format!(
            "{} is relayed by {relay} with claim = \"{theirs}\", this relay has \"{mine}\"; a relay that died is forgotten after \
             {} s",
            self.label,
            self.leader_ttl.as_secs()
        );
        StoreError::new(Code::StrategyMismatch, StoreErrorKind::Refused, message)
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

/// After how long without a sign of life the active relay loses its place.
pub(super) const LEADER_TTL: Duration = Duration::from_secs(15);
