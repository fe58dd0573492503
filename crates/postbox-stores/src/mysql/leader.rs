//! Who is the active relay of a table: a lock of a session of its own, and a row with a time limit.
//!
//! The server gives the lock back when its session ends, however that happens: the next relay takes over at its next look. A
//! relay that is stuck keeps neither: its session has gone silent and is ended, and its row expires. Being alone is an
//! optimisation: every write is fenced by its claim.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use postbox_core::{StoreError, TableName};
use sqlx::AssertSqlSafe;

use super::clock::span;
use super::error::within;
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};

/// The place of the active relay, as this relay holds it.
#[derive(Debug)]
pub(super) struct Lead {
    renewed: Instant,
    ttl: Duration,
    /// Whether the session holds the lock, as far as is known.
    locked: bool,
}

/// The active relay must have missed several ticks before it loses its place.
const TICKS: u32 = 5;

/// The name of a lock: the server has one list of them for all its databases, and names of 64 characters, in which upper and
/// lower case are the same.
pub(super) fn lock_name(what: &str, schema: &str, table: &TableName) -> String {
    let (mut name, key) = (format!("postbox-{what}-"), format!("{schema}.{}", table.table()));
    for (start, from) in [(0xcbf2_9ce4_8422_2325_u64, "outbox:"), (0x8422_2325_cbf2_9ce4, "")] {
        let hash = from
            .bytes()
            .chain(key.bytes())
            .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let _ = write!(name, "{hash:016x}");
    }
    name
}

impl Inner {
    /// Tries to become the active relay.
    pub(super) async fn take_lead(
        &self,
        opened: &Opened,
        poll_interval: Duration,
    ) -> Result<Option<Lead>, StoreError> {
        let ttl = self.leader_ttl.max(poll_interval.saturating_mul(TICKS));
        let locked = self.lock(opened, ttl).await?;
        // Looks before it writes: relays that stand by take no locks of rows.
        let mut link = self.claims.take().await?;
        let look = sqlx::query_scalar::<_, Option<bool>>(AssertSqlSafe(opened.statements.may_lead.as_str()))
            .bind(&self.holder)
            .bind(locked)
            .bind(&opened.key)
            .fetch_optional(&mut link.connection);
        let free = within(OPERATION_LIMIT, look).await?.ok_or_else(|| self.no_relay_row(opened))?;
        let mut epoch = None;
        if free == Some(true) {
            let renewed = sqlx::query(AssertSqlSafe(opened.statements.lead.as_str()))
                .bind(&self.holder)
                .bind(locked)
                .bind(span(ttl))
                .bind(&self.holder)
                .bind(locked)
                .bind(&opened.key)
                .execute(&mut link.connection);
            if within(OPERATION_LIMIT, renewed).await?.rows_affected() > 0 {
                let reign = sqlx::query_scalar::<_, i64>(AssertSqlSafe(opened.statements.epoch.as_str()));
                let reign = reign.bind(&opened.key).fetch_one(&mut link.connection);
                epoch = Some(within(OPERATION_LIMIT, reign).await?);
            }
        }
        link.keep();
        let Some(epoch) = epoch else {
            self.unlock(opened).await;
            return Ok(None);
        };
        tracing::info!(table = &*self.label, relay = self.holder, epoch, session = locked, "active relay");
        Ok(Some(Lead { renewed: Instant::now(), ttl, locked }))
    }

    /// Renews the row when a third of its time is over, and shows the server that its session is alive. Only the relay's
    /// turning loop calls this, so that a stuck relay loses its place.
    pub(super) async fn renew_lead(&self, lead: &mut Lead, opened: &Opened) -> Result<(), StoreError> {
        if lead.renewed.elapsed() < lead.ttl / 3 {
            return Ok(());
        }
        let started = Instant::now();
        // One whose session was lost has it again, if nobody else was quicker.
        lead.locked = self.lock(opened, lead.ttl).await?;
        let mut link = self.claims.take().await?;
        let renew = sqlx::query(AssertSqlSafe(opened.statements.renew.as_str()))
            .bind(span(lead.ttl))
            .bind(lead.locked)
            .bind(&opened.key)
            .bind(&self.holder)
            .execute(&mut link.connection);
        // Whether the row is still ours is for the claim to see.
        within(OPERATION_LIMIT, renew).await?;
        link.keep();
        lead.renewed = started;
        Ok(())
    }

    /// Tries to lock the table for the session that is only for this; answers whether it has the lock.
    async fn lock(&self, opened: &Opened, ttl: Duration) -> Result<bool, StoreError> {
        let mut link = self.session.take().await?;
        if link.fresh {
            // The server ends a session that has gone silent, and with it the lock (hazard 9).
            let idle = sqlx::query("SET SESSION wait_timeout = ?")
                .bind(i64::try_from(ttl.as_secs()).unwrap_or(1).max(1));
            within(OPERATION_LIMIT, idle.execute(&mut link.connection)).await?;
        }
        // It can be link twice (hazard 7): only if it is not held already.
        let lock = sqlx::query_scalar::<_, Option<bool>>(
            "SELECT COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), FALSE) OR COALESCE(GET_LOCK(?, 0), 0) = 1",
        );
        let lock = lock.bind(&opened.lock).bind(&opened.lock).fetch_one(&mut link.connection);
        let locked = within(OPERATION_LIMIT, lock).await?;
        link.keep();
        Ok(locked == Some(true))
    }

    /// Gives the lock back, before the end of the session does.
    async fn unlock(&self, opened: &Opened) {
        let Some(mut link) = self.session.take_open().await else { return };
        let unlock = sqlx::query("DO RELEASE_LOCK(?)").bind(&opened.lock).execute(&mut link.connection);
        if within(OPERATION_LIMIT, unlock).await.is_ok() {
            link.keep();
        }
    }

    /// Leaves the place to another relay at once.
    pub(super) async fn resign(&self) {
        let Some(opened) = self.opened.get() else { return };
        if self.state.lock().await.lead.take().is_none() {
            return;
        }
        let resign = async {
            let mut link = self.settles.take().await?;
            let resign = sqlx::query(AssertSqlSafe(opened.statements.resign.as_str()))
                .bind(&opened.key)
                .bind(&self.holder)
                .execute(&mut link.connection);
            within(OPERATION_LIMIT, resign).await?;
            link.keep();
            Ok::<_, StoreError>(())
        };
        if let Err(error) = resign.await {
            // Its time limit ends it as well.
            tracing::warn!(table = &*self.label, %error, "could not resign");
        }
        // After the row: whoever has the lock and finds the row of another takes that one for dead.
        self.unlock(opened).await;
    }
}

#[cfg(test)]
mod tests {
    use super::lock_name;

    #[test]
    fn names_of_locks_are_short_and_differ() {
        let table = "org_outbox".parse().unwrap();
        let name = lock_name("migrate", "shop", &table);
        assert!(name.len() <= 64 && name == name.to_lowercase(), "{name}");
        assert_ne!(name, lock_name("migrate", "shop2", &table));
        assert_ne!(name, lock_name("relay", "shop", &table));
    }
}
