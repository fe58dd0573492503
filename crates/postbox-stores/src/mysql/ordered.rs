//! ④ Claim where the events of an aggregate go in order: what is known of the table is in `crate::ordered`, this reads on in
//! it and leases what that chose.
//!
//! Writers commit in another order than they draw their numbers, so what was read on by sequence may lack a row that has
//! committed since, behind the reader. So whoever has locked a run looks once more, by aggregate, for anything that is not
//! published before it: then nothing can come in between, as long as the writers of an aggregate wait for each other.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use postbox_core::store::{Claim, ClaimRequest, OnDead, Token};
use postbox_core::{Code, Order, StoreError, StoreErrorKind, TableName};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::clause::with_list;
use super::clock::span;
use super::error::{classify, within};
use super::lease::{Locked, Lost};
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::store::{Inner, Opened};
use crate::ahead::{Ahead, Fate};
use crate::left_out::Lane;
use crate::ordered::{CHUNK, Choice, Ordered};
use crate::row::{Cells as _, Times as _};
use crate::seen::{Row, Seen, names, number, strand};
use crate::sequenced::lease;

/// Whether the table has what order needs.
pub(super) fn expect_order(indexed: bool, table: &TableName) -> Result<(), StoreError> {
    if indexed {
        return Ok(());
    }
    let message = format!(
        "{table} has no indexes for ordering = \"aggregate\": `postbox migrate up --order-index --table {table}` adds them; the \
         writers of an aggregate must lock its row, or another, before they enqueue"
    );
    Err(StoreError::new(Code::OrderUnsupported, StoreErrorKind::Refused, message))
}

/// Reads a row of `ahead.sql`.
fn seen(row: &MySqlRow) -> Result<Seen, sqlx::Error> {
    let (sequence, lock): (i64, i64) = (row.try_get(0)?, row.try_get(3)?);
    let aggregate = aggregate(row, 7)?;
    Ok(Seen {
        row: Row {
            sequence,
            available_at: row.micros(1)?,
            attempts: row.try_get::<i32, _>(2)?.into(),
            expired: lock == 1,
            bytes: usize::try_from(row.try_get::<i64, _>(4)?).unwrap_or(usize::MAX),
            lane: Lane { topic: number(row.text(6)?.unwrap_or_default().as_str()), done: 0 },
            strand: strand(aggregate, sequence),
            bound: aggregate.is_some(),
        },
        locked: lock == 2,
        dead: row.try_get(5)?,
        done: row.text(10)?.map(|done| names(&done)).unwrap_or_default(),
    })
}

/// The number of an aggregate from three columns: tenant, type, id.
fn aggregate(row: &MySqlRow, place: usize) -> Result<Option<u64>, sqlx::Error> {
    let Some(id) = row.text(place + 2)? else { return Ok(None) };
    Ok(Some(number((row.uuid(place), row.text(place + 1)?, id))))
}

impl Inner {
    pub(super) async fn claim_in_order(
        &self,
        ordered: &mut Ordered,
        lost: &mut Lost,
        opened: &Opened,
        request: &ClaimRequest,
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        ordered.hear(&self.news, now);
        let mut choice = Choice::new(request, now, |topic| number(topic));
        let chosen = self.choose(ordered, opened, request, &mut choice).await;
        ordered.sum_up(&choice, claim);
        let leased = match chosen {
            Ok(()) if choice.chosen.is_empty() => return Ok(()),
            Ok(()) => {
                self.take_in_order(&mut ordered.ahead, lost, opened, request, &choice.chosen, claim).await
            }
            Err(error) => Err(error),
        };
        if leased.is_err() {
            ordered.lose(&choice);
        }
        leased
    }

    /// Chooses rows, reading on in the table as long as there are too few of them.
    async fn choose(
        &self,
        ordered: &mut Ordered,
        opened: &Opened,
        request: &ClaimRequest,
        choice: &mut Choice<'_>,
    ) -> Result<(), StoreError> {
        while ordered.wants_more(choice) {
            let asked = Instant::now();
            let mut link = self.claims.take().await?;
            let look = sqlx::query(AssertSqlSafe(opened.statements.ahead.as_str()))
                .bind(span(request.lock_ttl))
                .bind(ordered.ahead.cursor)
                .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
                .fetch_all(&mut link.connection);
            let rows = within(OPERATION_LIMIT, look).await?;
            link.keep();
            let seen = rows.iter().map(seen).collect::<Result<Vec<Seen>, _>>().map_err(classify)?;
            ordered.read(choice, seen, asked);
        }
        Ok(())
    }

    /// Leases what was chosen. A run ends at the first row that could not be had or read: what is behind it stays.
    async fn take_in_order(
        &self,
        ahead: &mut Ahead,
        lost: &mut Lost,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Row],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let (token, mut tries) = (self.settings.token(), Tries::new());
        let mut sequences: Vec<i64> = chosen.iter().map(|row| row.sequence).collect();
        sequences.sort_unstable();
        let rows = loop {
            let mut link = self.claims.take().await?;
            match self.lease_in_order(&mut link, opened, request, chosen, &sequences, &token).await {
                Ok(rows) => {
                    link.keep();
                    break rows;
                }
                Err(error) => {
                    self.may_be_lost(lost, &token, &sequences, &error);
                    tries.again(link, error).await?;
                }
            }
        };
        let now = self.clock.now();
        let mut rows: HashMap<i64, Locked> =
            rows.into_iter().map(|row| (row.content.sequence, row)).collect();
        let mut ended: HashSet<i64> = HashSet::new();
        for row in chosen {
            let Some(locked) = rows.remove(&row.sequence) else {
                ahead.settled(row.sequence, Fate::Lost, now);
                continue;
            };
            let (at, attempts) = (locked.at, locked.attempts_with_this());
            if locked.attempts >= i64::from(request.max_attempts) {
                claim.buried.push(locked.buried());
                ahead.settled(row.sequence, Fate::Dead, now);
                claim.more = true;
            } else if ended.contains(&row.strand) {
                claim.returned.push(lease(row.sequence, &token, at, attempts));
            } else {
                let unreadable = claim.undecodable.len();
                locked.content.leased(&token, at, attempts, row.bound.then_some(row.strand), claim);
                if claim.undecodable.len() > unreadable {
                    ended.insert(row.strand);
                }
            }
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
    }

    /// Locks rows, makes sure that nothing is before them, and leases what can go.
    async fn lease_in_order(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Row],
        sequences: &[i64],
        token: &Token,
    ) -> Result<Vec<Locked>, StoreError> {
        link.begin().await?;
        let mut rows = self.lock_rows(link, opened, request, sequences, sequences.len()).await?;
        let had: HashSet<i64> = rows.iter().map(|row| row.content.sequence).collect();
        // The first of each strand that could not be had, as far as it was chosen.
        let mut first_missing: HashMap<i64, i64> = HashMap::new();
        for row in chosen.iter().filter(|row| row.bound && !had.contains(&row.sequence)) {
            let first = first_missing.entry(row.strand).or_insert(row.sequence);
            *first = (*first).min(row.sequence);
        }
        for (strand, sequence) in self.others(link, opened, chosen, &had, &rows).await? {
            let first = first_missing.entry(strand).or_insert(sequence);
            *first = (*first).min(sequence);
        }
        let strands: HashMap<i64, i64> = chosen.iter().map(|row| (row.sequence, row.strand)).collect();
        // An event that has used up its attempts dies, and what that means for those behind it is for the next claim to say.
        let mut dies: HashMap<i64, i64> = HashMap::new();
        for row in rows.iter().filter(|row| row.attempts >= i64::from(request.max_attempts)) {
            if let Some(strand) = strands.get(&row.content.sequence) {
                let first = dies.entry(*strand).or_insert(row.content.sequence);
                *first = (*first).min(row.content.sequence);
            }
        }
        rows.retain(|row| {
            let sequence = row.content.sequence;
            let Some(strand) = strands.get(&sequence) else { return false };
            first_missing.get(strand).is_none_or(|first| sequence < *first)
                && dies.get(strand).is_none_or(|first| sequence <= *first)
        });
        self.write_leases(link, opened, request, token, &rows).await?;
        link.commit().await?;
        Ok(rows)
    }

    /// Rows of these aggregates that are not published and not ours, with their strands, up to the last of ours.
    async fn others(
        &self,
        link: &mut Taken<'_>,
        opened: &Opened,
        chosen: &[Row],
        had: &HashSet<i64>,
        rows: &[Locked],
    ) -> Result<Vec<(i64, i64)>, StoreError> {
        let on_dead = match self.settings.order {
            Order::Aggregate(on_dead) => on_dead,
            Order::None => OnDead::Skip,
        };
        let bound: HashSet<i64> = chosen.iter().filter(|row| row.bound).map(|row| row.sequence).collect();
        let id_of = |row: &Locked| Some(row.content.what.as_ref().ok()?.meta.aggregate.as_ref()?.id.clone());
        let mut ids: Vec<String> = rows.iter().filter_map(id_of).collect();
        ids.sort_unstable();
        ids.dedup();
        let last = had.intersection(&bound).max().copied().unwrap_or_default();
        let mut others = Vec::new();
        // What cannot be read is not delivered: whatever is before it.
        for part in ids.chunks(CHUNK) {
            let sql = with_list(opened.statements.verify(on_dead), part.len());
            let places = part.len().next_power_of_two();
            let padded = part.iter().chain(part.last().into_iter().cycle()).take(places);
            let query = padded.fold(sqlx::query(AssertSqlSafe(sql)), |query, id| query.bind(id.clone()));
            let found = within(OPERATION_LIMIT, query.bind(last).fetch_all(&mut link.connection)).await?;
            for row in &found {
                let read = || Ok((row.try_get::<i64, _>(0)?, aggregate(row, 1)?));
                let (sequence, aggregate) = read().map_err(classify)?;
                if !had.contains(&sequence) {
                    others.push((strand(aggregate, sequence), sequence));
                }
            }
        }
        Ok(others)
    }
}
