//! Who is the active relay of a table: the session lock where there is one, and a row with a time limit.
//!
//! Behind a transaction pooler there is no session to hold a lock, and the row alone decides: then a relay that was killed is
//! missed when its time is over, not at once.
//!
//! Being alone is an optimisation. Correctness never depends on it: every write is fenced by its claim.

use std::time::{Duration, Instant};

use postbox_core::{Layout, StoreError};
use sqlx::{PgConnection, Row as _};

use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::strategy;

/// The place of the active relay, as this relay holds it.
#[derive(Debug)]
pub(super) struct Lead {
    pub(super) renewed: Instant,
    pub(super) ttl: Duration,
    /// Which reign this is; 0 where there is no row to count them.
    pub(super) epoch: i64,
}

impl Lead {
    /// Whether a third of its time is over.
    pub(super) fn wants_renewal(&self) -> bool {
        self.renewed.elapsed() >= self.ttl / 3
    }
}

impl Inner {
    /// Tries to become the active relay.
    pub(super) async fn take_lead(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        poll_interval: Duration,
    ) -> Result<Option<Lead>, StoreError> {
        let ttl = self.settings.ttl_for(poll_interval);
        if !opened.pooled && !self.lock(connection, opened, ttl).await? {
            return Ok(None);
        }
        let renewed = Instant::now();
        if opened.layout == Layout::Bare {
            return Ok(Some(Lead { renewed, ttl, epoch: 0 }));
        }
        let row = opened
            .query(&opened.statements.lead)
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(!opened.pooled)
            .bind(ttl.as_secs_f64())
            .bind(strategy::name(opened.owns))
            .fetch_optional(&mut *connection);
        let Some(row) = within(OPERATION_LIMIT, row).await? else {
            self.unlock(connection, opened).await?;
            return Ok(None);
        };
        let (epoch, left_behind): (i64, i64) =
            (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        tracing::info!(
            table = &*self.label,
            relay = self.settings.holder,
            epoch,
            left_behind,
            "active relay"
        );
        self.reigns(epoch);
        Ok(Some(Lead { renewed, ttl, epoch }))
    }

    /// Renews the row when a third of its time is over. Only the relay's turning loop calls this, so that a stuck
    /// relay loses its place.
    pub(super) async fn renew_lead(
        &self,
        lead: &mut Lead,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        if opened.layout == Layout::Bare || !lead.wants_renewal() {
            return Ok(());
        }
        let now = Instant::now();
        let renew = opened
            .query(&opened.statements.renew)
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(lead.ttl.as_secs_f64())
            .bind(self.has_nothing_in_flight())
            .execute(connection);
        // Whether the row is still ours is for the claim to see, in the same statement as its rows.
        within(OPERATION_LIMIT, renew).await?;
        lead.renewed = now;
        Ok(())
    }

    /// Tries to lock the table for this session.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let lock = sqlx::query_scalar::<_, bool>("SELECT pg_try_advisory_lock($1)").bind(opened.lock);
        if !within(OPERATION_LIMIT, lock.fetch_one(&mut *connection)).await? {
            return Ok(false);
        }
        // The server ends the session of a relay that has gone silent, and with it the lock (hazard 9).
        let idle = sqlx::query("SELECT set_config('idle_session_timeout', $1, false)");
        within(OPERATION_LIMIT, idle.bind(ttl.as_millis().to_string()).execute(connection)).await?;
        Ok(true)
    }

    /// Gives back the session lock after the row turned out to be another's.
    pub(super) async fn unlock(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
    ) -> Result<(), StoreError> {
        if opened.pooled {
            return Ok(());
        }
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(opened.lock).execute(connection);
        within(OPERATION_LIMIT, unlock).await.map(|_| ())
    }

    /// Gives back the session lock, after the row: whoever has the lock and finds the row of another takes that one for dead.
    /// The end of the session would give it back too, but when the server gets to it, and not before the next relay asks.
    async fn unlock_at_the_end(&self, opened: &Opened) {
        if !self.settings.single_active || opened.pooled {
            return;
        }
        // Without a connection there is no lock.
        let Some(mut link) = self.claims.take_open().await else { return };
        if self.unlock(&mut link.connection, opened).await.is_ok() {
            let _ = link.keep().await;
        }
    }

    /// Leaves the place to another relay at once.
    pub(super) async fn resign(&self) {
        let Some(opened) = self.opened.get() else { return };
        let (led, shared) = {
            let mut state = self.state.lock().await;
            (state.lead.take().is_some(), state.shown.take().is_some())
        };
        if opened.layout == Layout::Bare || !(led || shared) {
            self.unlock_at_the_end(opened).await;
            return;
        }
        let Ok(mut link) = self.settles.take().await else { return };
        let resign = opened
            .query(if led { &opened.statements.resign } else { &opened.statements.unshare })
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .execute(&mut link.connection);
        let resigned = match within(OPERATION_LIMIT, resign).await {
            Ok(_) => link.keep().await,
            Err(error) => Err(error),
        };
        if let Err(error) = resigned {
            // Its time limit ends it as well.
            tracing::warn!(table = &*self.label, %error, "could not resign");
        }
        self.unlock_at_the_end(opened).await;
    }
}
