//! [`AnyStore`]: a relay's table in any of the databases.

use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};
use uuid::Uuid;

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
        each!(self, store => store.open().await)
    }

    async fn require(&self, wanted: Requirements) -> Result<(), StoreError> {
        each!(self, store => store.require(wanted).await)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        each!(self, store => store.claim(request).await)
    }

    async fn settle(&self, settlements: &[Settlement], admit: usize) -> Result<Settled, StoreError> {
        each!(self, store => store.settle(settlements, admit).await)
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        each!(self, store => store.extend(leases).await)
    }

    fn forget(&self, leases: &[Lease]) {
        each!(self, store => store.forget(leases));
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        each!(self, store => store.letters(request).await)
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Vec<Uuid>, StoreError> {
        each!(self, store => store.settle_letters(letters).await)
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        each!(self, store => store.redrive(request).await)
    }

    async fn wait(&self, at_most: Duration) {
        each!(self, store => store.wait(at_most).await);
    }

    async fn close(&self) {
        each!(self, store => store.close().await);
    }
}
