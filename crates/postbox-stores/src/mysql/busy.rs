//! Rows that somebody else has locked, such as an operator's open session. They keep no others from being settled or renewed.

use std::collections::HashSet;

use postbox_core::StoreError;
use sqlx::{AssertSqlSafe, Row as _};

use super::clause::{bind_list, with_list};
use super::error::{classify, within};
use super::link::{OPERATION_LIMIT, Taken, say};
use super::store::Inner;

/// So many rows are looked for by one statement.
const PART: usize = 1024;

impl Inner {
    /// Which of these rows somebody has locked at the moment. For after a lock was waited for in vain.
    pub(super) async fn busy(&self, mut sequences: Vec<i64>) -> Result<HashSet<i64>, StoreError> {
        let statements = &self.opened().await?.statements;
        sequences.sort_unstable();
        let mut link = self.settles.take().await?;
        link.begin().await?;
        let mut busy: HashSet<i64> = HashSet::new();
        for part in sequences.chunks(PART) {
            // What is gone is nobody's.
            busy.extend(found(&mut link, &statements.published, part).await?);
            for free in found(&mut link, &statements.free, part).await? {
                busy.remove(&free);
            }
        }
        say(&mut link.connection, "ROLLBACK").await?;
        link.keep();
        if !busy.is_empty() {
            let message = "somebody has locked rows that are to be settled or renewed";
            tracing::warn!(table = &*self.label, rows = busy.len(), message);
        }
        Ok(busy)
    }
}

/// The sequences that a statement finds of these.
async fn found(link: &mut Taken<'_>, sql: &str, sequences: &[i64]) -> Result<Vec<i64>, StoreError> {
    let query = sqlx::query(AssertSqlSafe(with_list(sql, sequences.len())));
    let rows = bind_list(query, sequences).fetch_all(&mut link.connection);
    let rows = within(OPERATION_LIMIT, rows).await?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)
}
