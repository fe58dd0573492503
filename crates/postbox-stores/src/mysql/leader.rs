//! Who is the active relay of a table: a lock of a session of its own, and a row with a time limit.
//!
//! The server gives the lock back when its session ends, however that happens: the next relay takes over at its next look. A
//! relay that is stuck keeps neither: its session has gone silent and is ended, and its row expires. Being alone is an
//! optimisation: every write is fenced by its claim, or by the owner's row.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use postbox_core::{StoreError, TableName};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::clause::{bind_list, with_list};
use super::clock::{at, span};
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken, Tries, say};
use super::statements::Owners;
use super::store::{Inner, Opened};
use super::window::{self, Window};
use crate::gate::no_relay_row;
use crate::row::{Cells as _, Times as _};
use crate::strategy;

/// The place of the active relay, as this relay holds it.
#[derive(Debug)]
pub(super) struct Lead {
    renewed: Instant,
    ttl: Duration,
    /// Which reign this is.
    pub(super) epoch: i64,
    /// Whether the session holds the lock, as far as is known.
    locked: bool,
}

/// What became of the place of the active relay.
struct Taking {
    epoch: i64,
    /// It was this relay's already.
    own: bool,
    /// So many rows of its predecessor's are to be claimed one by one.
    left_behind: u64,
}

impl Lead {
    /// Whether a third of its time is over.
    pub(super) fn wants_renewal(&self) -> bool {
        self.renewed.elapsed() >= self.ttl / 3
    }
}

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
        let ttl = self.settings.ttl_for(poll_interval);
        let locked = self.lock(opened, ttl).await?;
        // Looks before it writes: relays that stand by take no locks of rows.
        let mut link = self.claims.take().await?;
        let look = sqlx::query_scalar::<_, Option<bool>>(AssertSqlSafe(opened.statements.may_lead.as_str()))
            .bind(&self.settings.holder)
            .bind(locked)
            .bind(&opened.key)
            .fetch_optional(&mut link.connection);
        let free =
            within(OPERATION_LIMIT, look).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        link.keep();
        let renewed = Instant::now();
        let taken = if free == Some(true) { self.take_place(opened, locked, ttl).await? } else { None };
        let Some(Taking { epoch, own, left_behind }) = taken else {
            self.unlock(opened).await;
            return Ok(None);
        };
        if !own {
            // What this relay had in flight in an earlier reign is not its own any more.
            *self.window() = Window::of(epoch);
        }
        tracing::info!(
            table = &*self.label,
            relay = self.settings.holder,
            epoch,
            session = locked,
            left_behind,
            "active relay"
        );
        Ok(Some(Lead { renewed, ttl, epoch, locked }))
    }

    /// Takes the place of the active relay, if it is free.
    async fn take_place(
        &self,
        opened: &Opened,
        locked: bool,
        ttl: Duration,
    ) -> Result<Option<Taking>, StoreError> {
        let mut tries = Tries::new();
        loop {
            let mut link = self.claims.take().await?;
            match self.take_place_once(&mut link, opened, locked, ttl).await {
                Ok(taken) => {
                    link.keep();
                    return Ok(taken);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    /// What the last one had in flight may have killed it: those rows are charged, and look like leases that ran out. A relay that
    /// comes back to its own place finds it as it was: also after a take-over whose answer was lost.
    async fn take_place_once(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        locked: bool,
        ttl: Duration,
    ) -> Result<Option<Taking>, StoreError> {
        let statements = &opened.statements;
        link.begin().await?;
        let place = sqlx::query(AssertSqlSafe(statements.place.as_str()))
            .bind(&self.settings.holder)
            .bind(locked)
            .bind(&self.settings.holder)
            .bind(&opened.key)
            .fetch_optional(&mut link.connection);
        let place =
            within(OPERATION_LIMIT, place).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        let read = || Ok((place.try_get::<Option<bool>, _>(0)?, place.try_get(1)?, place.try_get(2)?));
        let (free, own, epoch): (Option<bool>, bool, i64) = read().map_err(classify)?;
        if free != Some(true) {
            say(&mut link.connection, "ROLLBACK").await?;
            return Ok(None);
        }
        let (mut left_behind, next) = (0, if own { epoch } else { epoch + 1 });
        if !own {
            let owners = &statements.owners;
            left_behind = charge(&mut link.connection, owners, &opened.key, epoch).await?;
            let reign =
                sqlx::query(AssertSqlSafe(owners.reign.as_str())).bind(&opened.key).bind(next).bind(next);
            within(OPERATION_LIMIT, reign.execute(&mut link.connection)).await?;
        }
        let lead = sqlx::query(AssertSqlSafe(statements.lead.as_str()))
            .bind(next)
            .bind(strategy::name(opened.owns()))
            .bind(&self.settings.holder)
            .bind(locked)
            .bind(span(ttl))
            .bind(&opened.key)
            .execute(&mut link.connection);
        within(OPERATION_LIMIT, lead).await?;
        link.commit().await?;
        Ok(Some(Taking { epoch: next, own, left_behind }))
    }

    /// Renews the row when a third of its time is over, and shows the server that its session is alive. Only the relay's
    /// turning loop calls this, so that a stuck relay loses its place.
    pub(super) async fn renew_lead(&self, lead: &mut Lead, opened: &Opened) -> Result<(), StoreError> {
        if !lead.wants_renewal() {
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
            .bind(&self.settings.holder)
            .execute(&mut link.connection);
        // Whether the row is still ours is for the claim to see.
        within(OPERATION_LIMIT, renew).await?;
        link.keep();
        // A window of what has long left it is of no use to anybody.
        if let Some(own) = opened.statements.own.as_ref().filter(|_| self.window().is_empty()) {
            self.clear(own, lead.epoch).await?;
        }
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
        // It can be taken twice (hazard 7): only if it is not held already.
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
        let (lead, shared) = {
            let mut state = self.state.lock().await;
            state.stop_reading().await;
            (state.lead.take(), state.shown.take().is_some())
        };
        let statement = match lead {
            Some(_) => &opened.statements.resign,
            None if shared => &opened.statements.owners.unshare,
            None => return,
        };
        let resign = async {
            if let (Some(own), Some(lead)) = (&opened.statements.own, &lead) {
                self.clear(own, lead.epoch).await?;
            }
            let mut link = self.settles.take().await?;
            let resign = sqlx::query(AssertSqlSafe(statement.as_str()))
                .bind(&opened.key)
                .bind(&self.settings.holder)
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

/// Rows that are charged by one statement.
const PART: usize = 512;

/// Charges what a reign has left in flight one attempt each, and has it look like leases that ran out; answers how much that was. Rows that an
/// outsider has locked are left out.
async fn charge(
    connection: &mut MySqlConnection,
    owners: &Owners,
    key: &str,
    epoch: i64,
) -> Result<u64, StoreError> {
    let window = sqlx::query(AssertSqlSafe(owners.window.as_str())).bind(key);
    let Some(row) = within(OPERATION_LIMIT, window.fetch_optional(&mut *connection)).await? else {
        return Ok(0);
    };
    let (written, to) = (row.text(1).map_err(classify)?, row.time(2).map_err(classify)?);
    // One of another reign tells of a table of this name that is gone, or of a reign that had none.
    let current = row.try_get::<i64, _>(0).map_err(classify)? == epoch;
    let (Some(written), Some(to), true) = (written, to, current) else { return Ok(0) };
    let mut charged = 0;
    for part in window::read(&written).chunks(PART) {
        let look = bind_list(sqlx::query(AssertSqlSafe(with_list(&owners.in_flight, part.len()))), part);
        let rows = within(OPERATION_LIMIT, look.bind(at(to)).fetch_all(&mut *connection)).await?;
        let free: Vec<i64> =
            rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)?;
        if free.is_empty() {
            continue;
        }
        let charge = sqlx::query(AssertSqlSafe(with_list(&owners.left_behind, free.len())));
        let charge = bind_list(charge, &free).execute(&mut *connection);
        charged += within(OPERATION_LIMIT, charge).await?.rows_affected();
    }
    Ok(charged)
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
