//! What the databases have in common about calls by idempotency key.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::idempotency::{Begun, Call, StoredResponse};
use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use uuid::Uuid;

/// How often a call is looked at that was begun, forgotten and begun again by others in between.
pub(crate) const TRIES: usize = 10;

/// A call as the table has it.
pub(crate) struct Found {
    /// It has the same content.
    pub(crate) same: bool,
    pub(crate) done: bool,
    pub(crate) token: Uuid,
    /// Of its lease.
    pub(crate) remaining: Duration,
    pub(crate) status: Option<u16>,
    pub(crate) headers: Option<Vec<u8>>,
    pub(crate) body: Option<Vec<u8>>,
}

impl Found {
    /// What is to be said of it; none if it is to be taken over.
    pub(crate) fn answer(&self) -> Option<Begun> {
        if !self.same {
            return Some(Begun::Mismatch);
        }
        if self.done {
            let (status, headers) = (self.status.unwrap_or(200), self.headers.as_deref().unwrap_or_default());
            return Some(Begun::Replay(StoredResponse::from_table(status, headers, self.body.clone())));
        }
        (!self.remaining.is_zero()).then_some(Begun::Busy { remaining: self.remaining })
    }
}

/// The statements about calls.
#[derive(Debug)]
pub(crate) struct Statements {
    /// The table's name, for people.
    pub(crate) label: String,
    pub(crate) begin: Arc<str>,
    pub(crate) look: Arc<str>,
    pub(crate) take_over: Arc<str>,
    pub(crate) extend: Arc<str>,
    pub(crate) finish: Arc<str>,
    pub(crate) finished: Arc<str>,
    pub(crate) abandon: Arc<str>,
    pub(crate) sweep: Arc<str>,
}

/// Those of a database: the files in the folder of whoever calls it, with the names of the module that has this outbox table.
macro_rules! statements {
    ($outbox:expr, $quote:literal) => {{
        let names = $crate::table::Template::of($outbox, $quote);
        let fill = |sql: &str| std::sync::Arc::from(names.fill(sql));
        $crate::idempotency::Statements {
            label: $crate::idempotency::label($outbox),
            begin: fill(include_str!("sql/idempotency/begin.sql")),
            look: fill(include_str!("sql/idempotency/look.sql")),
            take_over: fill(include_str!("sql/idempotency/take_over.sql")),
            extend: fill(include_str!("sql/idempotency/extend.sql")),
            finish: fill(include_str!("sql/idempotency/finish.sql")),
            finished: fill(include_str!("sql/idempotency/finished.sql")),
            abandon: fill(include_str!("sql/idempotency/abandon.sql")),
            sweep: fill(include_str!("sql/idempotency/sweep.sql")),
        }
    }};
}
pub(crate) use statements;

/// The table's name, for people.
pub(crate) fn label(outbox: &TableName) -> String {
    let schema = outbox.schema().map(|schema| format!("{schema}.")).unwrap_or_default();
    format!("{schema}{}", outbox.idempotency())
}

/// A missing table is made by another command than that of the outbox.
pub(crate) fn explain(error: StoreError, outbox: &TableName) -> StoreError {
    let what = match error.code() {
        Code::TableMissing => "does not exist",
        Code::TableMismatch => "is not as it must be",
        _ => return error,
    };
    let message = format!(
        "{} {what}: make it with `postbox migrate up --idempotency --table {outbox}`, or with `migrate::up_with` from your own code",
        label(outbox)
    );
    StoreError::new(Code::IdempotencyMissing, StoreErrorKind::Refused, message).caused_by(error)
}

/// Others begin and forget a call all the time.
pub(crate) fn restless(call: &Call) -> StoreError {
    let message = format!("a call of {} was begun and forgotten by others again and again", call.route());
    StoreError::new(Code::DatabaseError, StoreErrorKind::Conflict, message)
}
