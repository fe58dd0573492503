//! [`AnyStore`]: a relay's table in any of the databases.

use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Renewed, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};

use crate::mysql::MySqlStore;
use crate::postgres::PgStore;
use crate::sqlite::SqliteStore;

/// An outbox table for one relay.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AnyStore {
    Postgres(PgStore),
    Sqlite(SqliteStore),
    MySql(MySqlStore),
}

/// The same for every database.
macro_rules! each {
    // Boxed, or the largest of them would make all others large.
    ($self:ident, $store:ident => async $answer:expr) => {
        match $self {
            Self::Postgres($store) => $answer.await,
            Self::Sqlite($store) => $answer.await,
            Self::MySql($store) => Box::pin($answer).await,
        }
    };
    ($self:ident, $store:ident => $answer:expr) => {
        match $self {
            Self::Postgres($store) => $answer,
            Self::Sqlite($store) => $answer,
            Self::MySql($store) => $answer,
        }
    };
}

impl Store for AnyStore {
    fn table(&self) -> &str {
        each!(self, store => store.table())
    }

    fn order(&self) -> Order {
        each!(self, store => store.order())
    }

    fn fair_tenants(&self) -> bool {
        each!(self, store => store.fair_tenants())
    }

    async fn open(&self) -> Result<(), StoreError> {
        each!(self, store => async store.open())
    }

    async fn require(&self, wanted: Requirements) -> Result<(), StoreError> {
        each!(self, store => async store.require(wanted))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        each!(self, store => async store.claim(request))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        each!(self, store => async store.settle(settlements))
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        each!(self, store => async store.extend(leases))
    }

    fn forget(&self, leases: &[Lease]) {
        each!(self, store => store.forget(leases));
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        each!(self, store => async store.letters(request))
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Settled, StoreError> {
        each!(self, store => async store.settle_letters(letters))
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        each!(self, store => async store.redrive(request))
    }

    async fn wait(&self, at_most: Duration) {
        each!(self, store => async store.wait(at_most));
    }

    async fn close(&self) {
        each!(self, store => async store.close());
    }
}
