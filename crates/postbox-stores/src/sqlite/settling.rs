//! ⑥ Settle: what became of rows, fenced by their leases. Where delivered rows do not stay, they are deleted, or move to the history
//! first: SQLite cannot do both in one statement, so it is one transaction; it has one writer, so nothing can come in between.

use std::collections::HashSet;

use postbox_core::store::{Lease, Renewed, Settled, Settlement, Verdict};
use postbox_core::{Order, StoreError};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::clock::now;
use super::error::classify;
use super::history;
use super::store::{Inner, Opened};
use crate::history::Sent;
use crate::sequenced::{array, claims_of, fence, key_of, sequence_of, verdict};
use crate::table::Template;

impl Inner {
    /// Runs a statement about leases, and answers which of them it did not find.
    pub(super) async fn fenced<'a>(
        &self,
        sql: &str,
        document: String,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> Result<Vec<&'a Lease>, StoreError> {
        let mut writer = self.writer.begin().await?;
        let found = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql))
            .bind(now())
            .bind(document)
            .fetch_all(&mut writer.connection)
            .await
            .map_err(classify)?;
        writer.commit().await?;
        let found: HashSet<i64> = found.into_iter().collect();
        Ok(leases.filter(|lease| !found.contains(&sequence_of(lease.row))).collect())
    }

    pub(super) async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let opened = self.opened().await?;
        let lost: Vec<Uuid> = if let Some(gone) = &opened.statements.gone {
            self.settle_gone(opened, gone, settlements).await?
        } else if let Some(claims) = claims_of(settlements) {
            self.settle_delivered(opened, &claims).await?
        } else {
            let leases = settlements.iter().map(|settlement| &settlement.lease);
            let at = OffsetDateTime::now_utc();
            let document = settlements.iter().map(|one| verdict(one, at)).collect::<Value>().to_string();
            let lost = self.fenced(&opened.statements.settle, document, leases).await?;
            lost.iter().map(|lease| lease.row).collect()
        };
        if self.settings.order != Order::None {
            self.news.settled(settlements, &lost, now());
        }
        Ok(Settled { lost, ..Settled::default() })
    }

    /// Everything arrived: one statement for each claim, and its usual answer is a number.
    async fn settle_delivered(
        &self,
        opened: &Opened,
        claims: &[(&Lease, Vec<i64>)],
    ) -> Result<Vec<Uuid>, StoreError> {
        let sql = opened.statements.settle_delivered.as_str();
        let settle = |at: i64, lease: &Lease, sequences: &str| {
            let query = sqlx::query(AssertSqlSafe(sql)).bind(at).bind(sequences.to_owned());
            query.bind(lease.token.to_string()).bind(lease.attempts)
        };
        let wanted: usize = claims.iter().map(|(_, sequences)| sequences.len()).sum();
        if let [(lease, sequences)] = claims {
            let sequences = array(sequences.iter().copied());
            let mut done = self.writer.execute(|at| settle(at, lease, &sequences)).await?;
            let mut lost = Vec::new();
            if done.changed != wanted as u64 {
                lost = not_settled(
                    &mut done.taken.connection,
                    &opened.statements.not_settled,
                    done.at,
                    sequences,
                )
                .await?;
            }
            done.taken.keep();
            return Ok(lost);
        }
        let mut writer = self.writer.begin().await?;
        let (at, mut changed) = (now(), 0);
        for (lease, sequences) in claims {
            let settle = settle(at, lease, &array(sequences.iter().copied()));
            changed += settle.execute(&mut writer.connection).await.map_err(classify)?.rows_affected();
        }
        let mut lost = Vec::new();
        if changed != wanted as u64 {
            let sequences = array(claims.iter().flat_map(|(_, sequences)| sequences.iter().copied()));
            lost = not_settled(&mut writer.connection, &opened.statements.not_settled, at, sequences).await?;
        }
        writer.commit().await?;
        Ok(lost)
    }

    pub(super) async fn extend(&self, leases: &[Lease]) -> Result<Renewed, StoreError> {
        let opened = self.opened().await?;
        let lost = self.fenced(&opened.statements.extend, fence(leases.iter()), leases.iter()).await?;
        Ok(Renewed { lost: lost.into_iter().cloned().collect(), ..Renewed::default() })
    }
}

/// Rows that were not published at this time: their leases were lost. (One that another relay published in the very same
/// microsecond is not told from ours; it is published all the same.)
async fn not_settled(
    connection: &mut SqliteConnection,
    sql: &str,
    at: i64,
    sequences: String,
) -> Result<Vec<Uuid>, StoreError> {
    let lost = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned()))
        .bind(at)
        .bind(sequences)
        .fetch_all(connection);
    Ok(lost.await.map_err(classify)?.into_iter().map(key_of).collect())
}

/// The fence of one claim: `?2` sequences, a JSON array `?3` token `?4` attempts
const CLAIM: &str = "t.sequence IN (SELECT value FROM json_each(?2)) AND t.locked_by = ?3 AND t.attempts = ?4
    AND +t.published_at IS NULL";

/// The fence of many: `?2` a JSON array of `[sequence, token, attempts]`. Each is looked up by its key.
const CLAIMS: &str = "json_each(?2) AS s CROSS JOIN {{table}} AS t ON t.sequence = s.value ->> 0
    WHERE t.locked_by = s.value ->> 1 AND t.attempts = s.value ->> 2 AND +t.published_at IS NULL";

/// The statements.
#[derive(Debug)]
pub(super) struct Gone {
    /// Brings the rows of one claim into the history; none where they are only deleted.
    arrive: Option<String>,
    /// Deletes the rows of one claim.
    leave: String,
    /// Brings the rows of many claims into the history, or deletes them; answers which.
    each: String,
    /// Deletes rows that are in the history now. `?1` sequences, a JSON array
    left: Option<String>,
    /// Which rows of one claim were not settled.
    not_settled: String,
}

impl Gone {
    /// None where delivered rows stay.
    pub(super) fn new(names: &Template, sent: &Sent) -> Option<Self> {
        let leave = names.fill(&format!("DELETE FROM {{{{table}}}} AS t WHERE {CLAIM} AND ?1 IS NOT NULL"));
        match sent {
            Sent::Kept => None,
            Sent::Moved(history) => {
                let arrive = history::arrive(history);
                Some(Self {
                    arrive: Some(names.fill(&format!("{arrive} FROM {{{{table}}}} AS t WHERE {CLAIM}"))),
                    leave,
                    each: names.fill(&format!("{arrive} FROM {CLAIMS} RETURNING sequence")),
                    left: Some(names.fill(
                        "DELETE FROM {{table}} WHERE sequence IN (SELECT value FROM json_each(?1))",
                    )),
                    not_settled: names.fill(
                        "SELECT value FROM json_each(?2)
                         WHERE NOT EXISTS (SELECT 1 FROM {{history}} h WHERE h.sequence = value AND +h.published_at = ?1)",
                    ),
                })
            }
            Sent::Deleted => Some(Self {
                arrive: None,
                leave,
                each: names.fill(&format!(
                    "DELETE FROM {{{{table}}}} WHERE sequence IN (SELECT t.sequence FROM {CLAIMS} AND ?1 IS NOT NULL)
                     RETURNING sequence"
                )),
                left: None,
                // What is there is another's. What is gone was delivered, whoever deleted it.
                not_settled: names.fill(
                    "SELECT value FROM json_each(?2)
                     WHERE EXISTS (SELECT 1 FROM {{table}} t WHERE t.sequence = value) AND ?1 IS NOT NULL",
                ),
            }),
        }
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &String> {
        [&self.leave, &self.each, &self.not_settled].into_iter().chain(&self.arrive).chain(&self.left)
    }
}

impl Inner {
    /// Writes what became of rows; answers those that were no longer this relay's.
    async fn settle_gone(
        &self,
        opened: &Opened,
        gone: &Gone,
        settlements: &[Settlement],
    ) -> Result<Vec<Uuid>, StoreError> {
        if let Some(claims) = claims_of(settlements) {
            return self.gone_delivered(gone, &claims).await;
        }
        let (delivered, rest): (Vec<&Settlement>, Vec<&Settlement>) =
            settlements.iter().partition(|settlement| settlement.verdict == Verdict::Delivered);
        let mut writer = self.writer.begin().await?;
        let at = now();
        let mut found: HashSet<i64> = HashSet::new();
        if !delivered.is_empty() {
            let leases = fence(delivered.iter().map(|settlement| &settlement.lease));
            let settled = run(&mut writer.connection, &gone.each, at, leases).await?;
            if let Some(left) = &gone.left {
                let left = sqlx::query(AssertSqlSafe(left.as_str())).bind(array(settled.iter().copied()));
                left.execute(&mut writer.connection).await.map_err(classify)?;
            }
            found.extend(settled);
        }
        if !rest.is_empty() {
            let failed_at = OffsetDateTime::now_utc();
            let document = rest.iter().map(|one| verdict(one, failed_at)).collect::<Value>().to_string();
            found.extend(run(&mut writer.connection, &opened.statements.settle, at, document).await?);
        }
        writer.commit().await?;
        let rows = settlements.iter().map(|settlement| settlement.lease.row);
        Ok(rows.filter(|row| !found.contains(&sequence_of(*row))).collect())
    }

    /// Everything arrived: one or two statements for each claim, and their usual answer is a number.
    async fn gone_delivered(
        &self,
        gone: &Gone,
        claims: &[(&Lease, Vec<i64>)],
    ) -> Result<Vec<Uuid>, StoreError> {
        let query = |sql: &str, at: i64, lease: &Lease, sequences: &str| {
            let query = sqlx::query(AssertSqlSafe(sql.to_owned())).bind(at).bind(sequences.to_owned());
            query.bind(lease.token.to_string()).bind(lease.attempts)
        };
        let wanted: usize = claims.iter().map(|(_, sequences)| sequences.len()).sum();
        if let ([(lease, sequences)], None) = (claims, &gone.arrive) {
            let sequences = array(sequences.iter().copied());
            let mut done = self.writer.execute(|at| query(&gone.leave, at, lease, &sequences)).await?;
            let mut lost = Vec::new();
            if done.changed != wanted as u64 {
                lost = not_settled(&mut done.taken.connection, &gone.not_settled, done.at, sequences).await?;
            }
            done.taken.keep();
            return Ok(lost);
        }
        let mut writer = self.writer.begin().await?;
        let (at, mut changed) = (now(), 0);
        for (lease, sequences) in claims {
            let sequences = array(sequences.iter().copied());
            if let Some(arrive) = &gone.arrive {
                let arrive = query(arrive, at, lease, &sequences).execute(&mut writer.connection);
                arrive.await.map_err(classify)?;
            }
            let leave = query(&gone.leave, at, lease, &sequences).execute(&mut writer.connection);
            changed += leave.await.map_err(classify)?.rows_affected();
        }
        let mut lost = Vec::new();
        if changed != wanted as u64 {
            let sequences = array(claims.iter().flat_map(|(_, sequences)| sequences.iter().copied()));
            lost = not_settled(&mut writer.connection, &gone.not_settled, at, sequences).await?;
        }
        writer.commit().await?;
        Ok(lost)
    }
}

/// Runs a statement about rows; answers which it found.
async fn run(
    connection: &mut SqliteConnection,
    sql: &str,
    at: i64,
    document: String,
) -> Result<Vec<i64>, StoreError> {
    let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned())).bind(at).bind(document);
    query.fetch_all(connection).await.map_err(classify)
}

#[cfg(test)]
mod tests {
    use super::super::admin::counts_sql;
    use super::super::migrate::{Extras, Format, print_up_with};
    use super::super::plans::{lives, plan};
    use super::super::schema::names;
    use super::*;

    /// Rows are found by their key or by the history's index, whatever SQLite has been told of the tables.
    #[tokio::test]
    async fn every_statement_has_a_plan_that_fits_a_large_history() {
        let table = "org_outbox".parse().unwrap();
        for (life, mut connection, _) in lives().await {
            let ddl =
                print_up_with(&table, Format::Sql, Extras { history: true, ..Extras::default() }).unwrap();
            for sql in [ddl.as_str(), "INSERT INTO org_outbox_history SELECT * FROM org_outbox; ANALYZE"] {
                sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
            }
            let names = names(&mut connection, &table).await.unwrap();
            let history = history::find(&mut connection, &table).await.unwrap().unwrap();
            let mut statements = Vec::new();
            for sent in [Sent::Moved(history), Sent::Deleted] {
                let gone = Gone::new(&names, &sent).unwrap();
                statements.extend(gone.all().map(|sql| (sql.clone(), "USING INTEGER PRIMARY KEY (rowid=?)")));
            }
            let by_time = "org_outbox_history_by_time (published_at";
            statements.push((names.fill(include_str!("sql/sweep_history.sql")), by_time));
            statements.push((counts_sql(&names, true), by_time));
            for (sql, wanted) in statements {
                let plan = plan(&mut connection, &sql).await;
                assert!(plan.contains(wanted), "{life}: no {wanted} in:\n{plan}\n{sql}");
                for bad in ["SCAN org_outbox\n", "SCAN org_outbox_history\n", "SCAN t\n", "SCAN h\n"] {
                    assert!(!plan.contains(bad), "{life}: {bad} in:\n{plan}\n{sql}");
                }
            }
        }
    }
}
