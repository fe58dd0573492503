//! ④ Claim where the events of an aggregate go in order: what is known of the table is in `ahead.rs`, this reads on in it and
//! leases what that chose.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Instant;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest};
use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::AssertSqlSafe;

use super::clock::{now, span};
use super::error::within;
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};
use crate::ahead::{Ahead, Fate};
use crate::left_out::Lane;
use crate::ordered::{CHUNK, Choice, Ordered};
use crate::seen::{Candidate, Row, Seen, names, number, strand};
use crate::sequenced::{Content, lease};

/// Whether the table has what order needs.
pub(super) fn expect_order(ordered: bool, table: &TableName) -> Result<(), StoreError> {
    if ordered {
        return Ok(());
    }
    let message = format!(
        "{table} has no index for ordering = \"aggregate\" ({name}_unpublished_by_sequence, {name}_dead_by_aggregate): run \
         `postbox migrate up --table {table}`, which adds it",
        name = table.table()
    );
    Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
}

impl Inner {
    pub(super) async fn claim_in_order(
        &self,
        ordered: &mut Ordered,
        opened: &Opened,
        request: &ClaimRequest,
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let at = now();
        ordered.hear(&self.news, at);
        let mut choice = Choice::new(request, at, topic_number);
        let chosen = self.choose(ordered, opened, request, &mut choice).await;
        ordered.sum_up(&choice, claim);
        let taken = match chosen {
            Ok(()) if choice.chosen.is_empty() => return Ok(()),
            Ok(()) => self.take_in_order(&mut ordered.ahead, opened, request, &choice.chosen, claim).await,
            Err(error) => Err(error),
        };
        if taken.is_err() {
            ordered.lose(&choice);
        }
        taken
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
            let mut reader = self.reader.take().await?;
            let look =
                sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(opened.statements.ahead.as_str()))
                    .bind(ordered.ahead.cursor)
                    .bind(now().saturating_sub(span(request.lock_ttl)))
                    .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
                    .fetch_one(&mut reader.connection);
            let answer = within(OPERATION_LIMIT, look).await?.unwrap_or_default();
            reader.keep();
            let mut seen: Vec<Seen> = answer.split(';').filter_map(seen).collect();
            // An aggregate function promises no order.
            seen.sort_unstable_by_key(|seen| seen.row.sequence);
            ordered.read(choice, seen, asked);
        }
        Ok(())
    }

    /// Leases what was chosen. A run ends at the first row that could not be had or read: what was leased behind it goes back.
    async fn take_in_order(
        &self,
        ahead: &mut Ahead,
        opened: &Opened,
        request: &ClaimRequest,
        chosen: &[Row],
        claim: &mut Claim,
    ) -> Result<(), StoreError> {
        let suspect = request.mode == ClaimMode::Suspect;
        let (exhausted, rows): (Vec<Row>, Vec<Row>) =
            chosen.iter().partition(|row| row.attempts >= i64::from(request.max_attempts));
        let candidates =
            |rows: &[Row]| rows.iter().map(|row| row.candidate(suspect)).collect::<Vec<Candidate>>();
        if !exhausted.is_empty() {
            claim.buried = self.bury(opened, request, &candidates(&exhausted)).await?;
            for row in &exhausted {
                let dead = claim.buried.iter().any(|buried| buried.sequence == row.sequence);
                ahead.settled(row.sequence, if dead { Fate::Dead } else { Fate::Lost }, now());
            }
            claim.more = true;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let (token, candidates) = (self.settings.token(), candidates(&rows));
        let (contents, at, leased) = self.read_and_lease(opened, request, &candidates, &token).await?;
        let mut contents: HashMap<i64, Content> =
            contents.into_iter().map(|content| (content.sequence, content)).collect();
        let mut ended: HashSet<i64> = HashSet::new();
        for row in &rows {
            let content = contents.remove(&row.sequence);
            let Some((attempts, content)) = leased.attempts(row.sequence).zip(content) else {
                ended.insert(row.strand);
                ahead.settled(row.sequence, Fate::Lost, at);
                continue;
            };
            if ended.contains(&row.strand) {
                claim.returned.push(lease(row.sequence, &token, at, attempts));
                continue;
            }
            let unreadable = claim.undecodable.len();
            content.leased(&token, at, attempts, row.bound.then_some(row.strand), claim);
            if claim.undecodable.len() > unreadable {
                ended.insert(row.strand);
            }
        }
        claim.rows.sort_unstable_by_key(|row| row.delivery.meta.sequence);
        Ok(())
    }
}

/// The number of a topic, as the table tells it.
fn topic_number(topic: &str) -> u64 {
    let mut hex = String::with_capacity(topic.len() * 2);
    for byte in topic.bytes() {
        let _ = write!(hex, "{byte:02X}");
    }
    number(hex.as_str())
}

/// Reads a row of the answer of `ahead.sql`.
fn seen(text: &str) -> Option<Seen> {
    let mut parts = text.split(' ');
    let mut next = || parts.next()?.parse::<i64>().ok();
    let (sequence, available_at, attempts) = (next()?, next()?, next()?);
    let (lock, bytes, dead) = (next()?, usize::try_from(next()?).ok()?, next()? != 0);
    let (topic, aggregate, done) = (parts.next()?, parts.next()?, parts.next()?);
    let bound = aggregate != "-";
    let strand = strand(bound.then(|| number(aggregate)), sequence);
    let (expired, lane) = (lock == 1, Lane { topic: number(topic), done: 0 });
    let row = Row { sequence, available_at, attempts, expired, bytes, lane, strand, bound };
    let done = if done == "-" { Vec::new() } else { names(&text_of(done).unwrap_or_default()) };
    Some(Seen { row, locked: lock == 2, dead, done })
}

/// The text of its bytes in hex.
fn text_of(hex: &str) -> Option<String> {
    let byte = |place| u8::from_str_radix(hex.get(place..place + 2)?, 16).ok();
    String::from_utf8((0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?).ok()
}
