//! ⑥ Settle: what became of rows, in one fenced statement for all that are fenced in the same way.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use postbox_core::redact::Summary;
use postbox_core::store::{Lease, Renewed, Settled, Settlement, Token, Verdict};
use postbox_core::{Layout, StoreError, StoreErrorKind};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::{classify, sqlstate, within};
use super::link::OPERATION_LIMIT;
use super::owner::are_alike;
use super::statements::Own;
use super::store::{Inner, Opened};
use super::topics;
use crate::owned::{is_owned, needs_no_write};

impl Inner {
    pub(super) async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let settled = self.settle_all(opened, settlements).await;
        match &settled {
            // What was busy comes again, and may be as the settle left it whose answer was lost.
            Ok(settled) if settled.busy.is_empty() => self.unsure.store(false, Ordering::Relaxed),
            // A refusal is an answer, though none to what was asked before it: only a lost one leaves a result unknown.
            Err(error) if error.kind() == StoreErrorKind::Connection => {
                self.unsure.store(true, Ordering::Relaxed);
            }
            Ok(_) | Err(_) => {}
        }
        let settled = settled?;
        // When nothing of it comes again, and not before: what is in flight no more may be read at once, and a settle that is
        // repeated would end its next flight.
        self.let_go(settlements.iter().map(|s| &s.lease).filter(|lease| !settled.busy.contains(&lease.row)));
        Ok(settled)
    }

    async fn settle_all(&self, opened: &Opened, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        let all: Vec<&Settlement> = settlements.iter().collect();
        if are_alike(&all) {
            return self.settle_group(opened, all).await;
        }
        let rest = all.into_iter().filter(|s| !needs_no_write(s));
        // Rows of one token are settled by one statement.
        let (owned, leased): (Vec<_>, Vec<_>) = rest.partition(|s| is_owned(&s.lease));
        let mut groups: HashMap<&str, Vec<&Settlement>> = HashMap::new();
        for settlement in owned {
            groups.entry(&*settlement.lease.token).or_default().push(settlement);
        }
        let groups = std::iter::once(leased).chain(groups.into_values()).filter(|group| !group.is_empty());
        for (before, group) in groups.enumerate() {
            let part = self.settle_group(opened, group).await.inspect_err(|_| {
                // What was settled before it comes again, and is as it was left then.
                if before > 0 {
                    self.unsure.store(true, Ordering::Relaxed);
                }
            })?;
            settled.lost.extend(part.lost);
            settled.busy.extend(part.busy);
        }
        Ok(settled)
    }

    async fn settle_group(
        &self,
        opened: &Opened,
        mut settlements: Vec<&Settlement>,
    ) -> Result<Settled, StoreError> {
        let alike = opened.statements.own.as_ref().filter(|_| are_alike(&settlements));
        let mut link = self.settles.take().await?;
        let (begun, sure) = (Instant::now(), !self.unsure.load(Ordering::Relaxed));
        let settled = if self.waits_for_locks(&settlements) {
            let written = if let Some(own) = alike {
                self.write_alike(opened, own, &settlements, &mut link.connection).await
            } else {
                in_order(&mut settlements);
                self.write(opened, &settlements, &mut link.connection).await
            };
            match written {
                Ok(lost) => Ok(Settled { lost, ..Settled::default() }),
                Err(error) if is_lock_timeout(&error) => {
                    if alike.is_some() {
                        // Some may have been written before the others were waited for.
                        self.unsure.store(true, Ordering::Relaxed);
                    }
                    let settled = self.settle_free(opened, &settlements, &mut link.connection).await;
                    let rows = settled.as_ref().map_or(0, |settled| settled.busy.len());
                    tracing::warn!(
                        table = &*self.label,
                        rows,
                        "somebody has locked rows that are to be settled"
                    );
                    settled
                }
                Err(error) => Err(error),
            }
        } else {
            self.settle_free(opened, &settlements, &mut link.connection).await
        };
        let settled = match settled {
            Ok(settled) => link.keep().await.map(|()| settled),
            Err(error) => Err(error),
        };
        let settled = settled?;
        self.note_busy(&settlements, &settled.busy);
        // Only what changed something was written, and waited for the disk.
        if sure && settled.lost.len() + settled.busy.len() < settlements.len() {
            self.durable.up_to(begun);
        }
        if opened.layout == Layout::Bare {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            let leases = settlements.iter().map(|s| &s.lease);
            for lease in leases.filter(|lease| !settled.busy.contains(&lease.row)) {
                renewed.remove(&(lease.row, lease.since));
            }
        }
        Ok(settled)
    }

    /// Writes that rows have arrived, where they were read; answers those that are another's by now.
    async fn write_alike(
        &self,
        opened: &Opened,
        own: &Own,
        settlements: &[&Settlement],
        connection: &mut PgConnection,
    ) -> Result<Vec<Uuid>, StoreError> {
        let left = self.settle_alike(connection, opened, own, settlements).await?;
        if left.is_empty() {
            return Ok(left);
        }
        let mut left: Vec<&Settlement> =
            settlements.iter().filter(|s| left.contains(&s.lease.row)).copied().collect();
        in_order(&mut left);
        self.write(opened, &left, connection).await
    }

    /// Writes what became of rows, whatever that is; answers those that are another's by now.
    pub(super) async fn write(
        &self,
        opened: &Opened,
        settlements: &[&Settlement],
        connection: &mut PgConnection,
    ) -> Result<Vec<Uuid>, StoreError> {
        let rows = self.send(opened, settlements, connection).await?;
        self.lost(opened, settlements, &rows, connection).await
    }

    /// Sends one settle; answers the rows that it changed.
    async fn send(
        &self,
        opened: &Opened,
        settlements: &[&Settlement],
        connection: &mut PgConnection,
    ) -> Result<Vec<PgRow>, StoreError> {
        if let (Some(own), Some(true)) =
            (&opened.statements.own, settlements.first().map(|s| is_owned(&s.lease)))
        {
            let query = self.settle_own(opened, own, settlements);
            return within(OPERATION_LIMIT, query.fetch_all(connection)).await;
        }
        let all_delivered = settlements.iter().all(|s| s.verdict == Verdict::Delivered);
        let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.row).collect();
        let attempts: Vec<i32> = settlements.iter().map(|s| s.lease.attempts).collect();
        let query = match (&opened.statements.settle_delivered, all_delivered) {
            (Some(sql), true) => {
                let tokens: Vec<&str> = settlements.iter().map(|s| &*s.lease.token).collect();
                opened.query(sql).bind(&ids).bind(tokens).bind(&attempts)
            }
            _ => self.settle_mixed(opened, settlements, &ids, &attempts),
        };
        within(OPERATION_LIMIT, query.fetch_all(connection)).await
    }

    /// Rows that were not changed: another's by now. After a settle whose answer was lost, rows may also be as that one
    /// left them; then only those count that another visibly has.
    async fn lost(
        &self,
        opened: &Opened,
        settlements: &[&Settlement],
        changed: &[PgRow],
        connection: &mut PgConnection,
    ) -> Result<Vec<Uuid>, StoreError> {
        if changed.len() == settlements.len() {
            return Ok(Vec::new());
        }
        let unchanged = without(settlements.iter().map(|s| s.lease.row).collect(), changed)?;
        if !self.unsure.load(Ordering::Relaxed) {
            return Ok(unchanged);
        }
        if let (Some(own), Some(first)) =
            (&opened.statements.own, settlements.first().filter(|s| is_owned(&s.lease)))
        {
            let mine = self.is_mine(connection, opened, own, &first.lease).await?;
            return Ok(if mine { Vec::new() } else { unchanged });
        }
        let asked = settlements.iter().filter(|s| unchanged.contains(&s.lease.row)).map(|s| &s.lease);
        let taken = opened
            .scalar::<Uuid>(&opened.statements.taken)
            .bind(asked.clone().map(|lease| lease.row).collect::<Vec<_>>())
            .bind(asked.clone().map(|lease| lease.token.to_string()).collect::<Vec<_>>())
            .bind(asked.map(|lease| lease.attempts).collect::<Vec<_>>())
            .fetch_all(connection);
        within(OPERATION_LIMIT, taken).await
    }

    /// The time that a lock has if it is still this relay's.
    fn locked_at(&self, lease: &Lease) -> OffsetDateTime {
        let renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.get(&(lease.row, lease.since)).copied().unwrap_or(lease.since)
    }

    fn settle_mixed<'q>(
        &self,
        opened: &'q Opened,
        settlements: &[&'q Settlement],
        ids: &'q [Uuid],
        attempts: &'q [i32],
    ) -> Query<'q, Postgres, PgArguments> {
        let Verdicts { numbers, waits, errors, failures } = Verdicts::of(settlements);
        let query = opened.query(&opened.statements.settle).bind(ids);
        match opened.layout {
            Layout::Full => {
                let tokens: Vec<&str> = settlements.iter().map(|s| &*s.lease.token).collect();
                let query = query.bind(tokens).bind(attempts).bind(numbers).bind(waits);
                query.bind(errors).bind(failures).bind(topics::confirmed(settlements))
            }
            Layout::Bare => {
                let since: Vec<_> = settlements.iter().map(|s| self.locked_at(&s.lease)).collect();
                let max = self.max_attempts.load(Ordering::Relaxed);
                query.bind(since).bind(attempts).bind(numbers).bind(waits).bind(errors).bind(max)
            }
        }
    }

    /// Rows of an owner have no lease of their own: they last as long as the table is its own.
    pub(super) async fn extend_all(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        let opened = self.opened().await?;
        let (owned, mut others): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(is_owned);
        let mut renewed =
            if others.is_empty() { Renewed::default() } else { self.extend(&mut others).await? };
        if let Some(own) = opened.statements.own.as_ref().filter(|_| !owned.is_empty()) {
            // Of one reign, or of two: what ran when the last one ended may still run.
            let mut reigns: Vec<(Token, bool)> = Vec::new();
            let mut link = self.settles.take().await?;
            for lease in &owned {
                if !reigns.iter().any(|(token, _)| *token == lease.token) {
                    let mine = self.is_mine(&mut link.connection, opened, own, lease).await?;
                    reigns.push((lease.token.clone(), mine));
                }
            }
            link.keep().await?;
            let gone = |lease: &Lease| reigns.iter().any(|(token, mine)| !mine && *token == lease.token);
            renewed.lost.extend(owned.into_iter().filter(gone));
        }
        self.let_go(&renewed.lost);
        Ok(renewed)
    }

    async fn extend(&self, leases: &mut [Lease]) -> Result<Renewed, StoreError> {
        let opened = self.opened().await?;
        leases.sort_unstable_by_key(|lease| lease.row);
        let ids: Vec<Uuid> = leases.iter().map(|lease| lease.row).collect();
        let attempts: Vec<i32> = leases.iter().map(|lease| lease.attempts).collect();
        let mut link = self.settles.take().await?;
        let leases = &*leases;
        let fenced = |sql| {
            let query = opened.query(sql).bind(&ids);
            let query = match opened.layout {
                Layout::Full => query.bind(leases.iter().map(|lease| &*lease.token).collect::<Vec<_>>()),
                Layout::Bare => {
                    query.bind(leases.iter().map(|lease| self.locked_at(lease)).collect::<Vec<_>>())
                }
            };
            query.bind(&attempts)
        };
        let renew = fenced(&opened.statements.extend).fetch_all(&mut link.connection);
        let rows = within(OPERATION_LIMIT, renew).await?;
        let (old, mut lost) = (without(ids.clone(), &rows)?, Vec::new());
        if !old.is_empty() {
            // What somebody has locked was not renewed, and is not lost.
            let held = fenced(&opened.statements.held).fetch_all(&mut link.connection);
            lost = without(old.clone(), &within(OPERATION_LIMIT, held).await?)?;
        }
        link.keep().await?;
        if opened.layout == Layout::Bare {
            let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            for row in &rows {
                let (id, at): (Uuid, OffsetDateTime) =
                    (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
                let since = leases.iter().find(|lease| lease.row == id).map(|lease| lease.since);
                renewed.extend(since.map(|since| ((id, since), at)));
            }
        }
        let of = |which: &dyn Fn(&Uuid) -> bool| {
            leases.iter().filter(|lease| which(&lease.row)).cloned().collect()
        };
        Ok(Renewed {
            lost: of(&|row| lost.contains(row)),
            busy: of(&|row| old.contains(row) && !lost.contains(row)),
        })
    }
}

/// What became of rows, column by column, as the statements take it.
pub(super) struct Verdicts<'a> {
    /// 0 delivered, 1 retry, 2 release, 3 dead.
    pub(super) numbers: Vec<i32>,
    /// Microseconds.
    pub(super) waits: Vec<Option<i64>>,
    pub(super) errors: Vec<Option<&'a str>>,
    /// For the log of attempts.
    pub(super) failures: Vec<Option<String>>,
}

impl<'a> Verdicts<'a> {
    pub(super) fn of(settlements: &[&'a Settlement]) -> Self {
        let (mut numbers, mut waits) = (Vec::new(), Vec::new());
        let (mut errors, mut failures) = (Vec::new(), Vec::new());
        for settlement in settlements {
            let (number, wait, error) = match &settlement.verdict {
                Verdict::Delivered => (0, None, None),
                Verdict::Retry { after, reason } => (1, Some(*after), Some(reason.as_str())),
                Verdict::Release { after, reason } => (2, *after, reason.as_ref().map(Summary::as_str)),
                Verdict::Dead { reason } => (3, None, Some(reason.as_str())),
            };
            numbers.push(number);
            waits.push(wait.map(|wait| i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)));
            errors.push(error);
            failures.push(settlement.failure.as_ref().and_then(|f| serde_json::to_string(f).ok()));
        }
        Self { numbers, waits, errors, failures }
    }
}

/// The order of locking, the same for everybody (hazard 18).
pub(super) fn in_order(settlements: &mut [&Settlement]) {
    settlements.sort_unstable_by_key(|settlement| settlement.lease.row);
}

/// Whether a row could not be locked in time.
pub(super) fn is_lock_timeout(error: &StoreError) -> bool {
    sqlstate(error).is_some_and(|state| state == "55P03")
}

/// The ids that the answer does not name.
fn without(mut ids: Vec<Uuid>, rows: &[PgRow]) -> Result<Vec<Uuid>, StoreError> {
    let found = rows.iter().map(|row| row.try_get(0)).collect::<Result<std::collections::HashSet<Uuid>, _>>();
    let found = found.map_err(classify)?;
    ids.retain(|id| !found.contains(id));
    Ok(ids)
}
