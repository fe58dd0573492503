//! ④ Rows that the database itself cannot show: found one by one, and buried.

use postbox_core::store::{Buried, Claim, ClaimRequest};
use postbox_core::{Code, EventId, StoreError};
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::{classify, sqlstate, within};
use super::link::OPERATION_LIMIT;
use super::store::{Inner, Opened};

/// Whether the database failed over what is in a row, not over the statement or the connection.
pub(super) fn is_about_data(error: &StoreError) -> bool {
    sqlstate(error).is_some_and(|state| ["22", "54", "XX"].iter().any(|class| state.starts_with(class)))
}

impl Inner {
    /// A value that the database itself cannot show (a number of gigabytes, a character that is none) fails the claim of its whole
    /// batch. Looks at the rows one by one and buries those that cannot be read; the next claim then goes through.
    pub(super) async fn bury_unreadable(
        &self,
        connection: &mut PgConnection,
        opened: &Opened,
        request: &ClaimRequest,
        why: &StoreError,
    ) -> Result<Claim, StoreError> {
        let ids = opened
            .scalar::<Uuid>(&opened.statements.due)
            .bind(i64::try_from(request.limit.max(100)).unwrap_or(i64::MAX))
            .bind(request.max_attempts)
            .persistent(false)
            .fetch_all(&mut *connection);
        let ids = within(OPERATION_LIMIT, ids).await?;
        let mut claim = Claim { more: true, ..Claim::default() };
        for id in ids {
            let read = opened.query(&opened.statements.show).bind(id);
            let read = within(OPERATION_LIMIT, read.persistent(false).execute(&mut *connection)).await;
            let Err(error) = read else { continue };
            self.claims.turn_over(connection).await?;
            if !is_about_data(&error) {
                return Err(error);
            }
            let row = opened
                .query(&opened.statements.bury)
                .bind(id)
                .bind(format!(
                    "{}: the database cannot show the event: {}",
                    Code::Undecodable,
                    error.message()
                ))
                .bind(request.max_attempts)
                .persistent(false)
                .fetch_optional(&mut *connection);
            if let Some(row) = within(OPERATION_LIMIT, row).await? {
                let read = || -> Result<Buried, sqlx::Error> {
                    Ok(Buried {
                        topic: row.try_get(0)?,
                        event_id: EventId(row.try_get(1)?),
                        sequence: row.try_get(2)?,
                    })
                };
                let buried = read().map_err(classify)?;
                // Or the next one that cannot be read takes it back.
                self.claims.turn_over(connection).await?;
                claim.buried.push(buried);
            }
        }
        if claim.buried.is_empty() {
            // None of these, then: nothing that could be mended here.
            return Err(StoreError::new(why.code(), why.kind(), why.message()));
        }
        Ok(claim)
    }
}
