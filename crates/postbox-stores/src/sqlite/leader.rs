//! Who is the active relay of a table: a locked file beside the database, and a row with a time limit.
//!
//! The system unlocks the file when its process ends, however that happens: the next relay takes over at its next
//! look. A relay that is stuck keeps the lock but not the row, whose time runs out. Where the file cannot be locked the
//! row decides alone. Being alone is an optimisation: every write is fenced by its claim.

use std::fs::{File, OpenOptions, TryLockError};
use std::time::{Duration, Instant};

use postbox_core::StoreError;
use sqlx::AssertSqlSafe;

use super::clock::{now, span};
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::gate::no_relay_row;

/// The place of the active relay, as this relay holds it.
#[derive(Debug)]
pub(super) struct Lead {
    renewed: Instant,
    ttl: Duration,
    /// Unlocked when it is dropped.
    file: Option<File>,
}

impl Inner {
    /// Tries to become the active relay.
    pub(super) async fn take_lead(
        &self,
        opened: &Opened,
        poll_interval: Duration,
    ) -> Result<Option<Lead>, StoreError> {
        let ttl = self.settings.ttl_for(poll_interval);
        let file = self.lock_file(opened);
        let session = file.is_some();
        // Looks before it writes: relays that stand by take no locks.
        let mut reader = self.reader.take().await?;
        let look = sqlx::query_scalar::<_, bool>(AssertSqlSafe(opened.statements.may_lead.as_str()))
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(session)
            .bind(now())
            .fetch_optional(&mut reader.connection);
        let free =
            within(OPERATION_LIMIT, look).await?.ok_or_else(|| no_relay_row(&self.label, &opened.key))?;
        reader.keep();
        if !free {
            return Ok(None);
        }
        let mut writer = self.writer.begin().await?;
        let now = now();
        let epoch = sqlx::query_scalar::<_, i64>(AssertSqlSafe(opened.statements.lead.as_str()))
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(session)
            .bind(now)
            .bind(now.saturating_add(span(ttl)))
            .fetch_optional(&mut writer.connection)
            .await
            .map_err(classify)?;
        writer.commit().await?;
        let Some(epoch) = epoch else { return Ok(None) };
        tracing::info!(table = &*self.label, relay = self.settings.holder, epoch, session, "active relay");
        Ok(Some(Lead { renewed: Instant::now(), ttl, file }))
    }

    /// Renews the row when a third of its time is over, or when the lock file could be had at last. Only the relay's
    /// turning loop calls this, so that a stuck relay loses its place.
    pub(super) async fn renew_lead(&self, lead: &mut Lead, opened: &Opened) -> Result<(), StoreError> {
        let mut due = lead.renewed.elapsed() >= lead.ttl / 3;
        if lead.file.is_none() {
            // Another had it for the moment of a look, or was stuck with it and has let go.
            lead.file = self.lock_file(opened);
            due |= lead.file.is_some();
        }
        if !due {
            return Ok(());
        }
        let started = Instant::now();
        let mut writer = self.writer.begin().await?;
        sqlx::query(AssertSqlSafe(opened.statements.renew.as_str()))
            .bind(&opened.key)
            .bind(&self.settings.holder)
            .bind(lead.file.is_some())
            .bind(now().saturating_add(span(lead.ttl)))
            .execute(&mut writer.connection)
            .await
            .map_err(classify)?;
        // Whether the row is still ours is for the claim to see.
        writer.commit().await?;
        lead.renewed = started;
        Ok(())
    }

    /// Leaves the place to another relay at once.
    pub(super) async fn resign(&self) {
        let Some(opened) = self.opened.get() else { return };
        let Some(lead) = self.state.lock().await.lead.take() else { return };
        let resign = async {
            let mut writer = self.writer.begin().await?;
            sqlx::query(AssertSqlSafe(opened.statements.resign.as_str()))
                .bind(&opened.key)
                .bind(&self.settings.holder)
                .execute(&mut writer.connection)
                .await
                .map_err(classify)?;
            writer.commit().await
        };
        if let Err(error) = resign.await {
            // Its time limit ends it as well.
            tracing::warn!(table = &*self.label, %error, "could not resign");
        }
        drop(lead);
    }

    /// The locked file, or none: another relay has it, or this directory does not allow it. The file stays: to delete
    /// it would let two relays lock two files of one name.
    fn lock_file(&self, opened: &Opened) -> Option<File> {
        let open = || {
            let new = OpenOptions::new().create(true).truncate(false).write(true).open(&opened.lock_file);
            // Another user may have made it: to read it is enough.
            new.or_else(|_| File::open(&opened.lock_file))
        };
        let problem = match open().map(|file| (file.try_lock(), file)) {
            Ok((Ok(()), file)) => return Some(file),
            Ok((Err(TryLockError::WouldBlock), _)) => return None,
            Ok((Err(TryLockError::Error(error)), _)) | Err(error) => error,
        };
        let file = opened.lock_file.display();
        tracing::debug!(table = &*self.label, %file, %problem, "no lock file: the row decides alone");
        None
    }
}
