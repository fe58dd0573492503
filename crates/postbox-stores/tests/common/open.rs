//! A driver's own transaction, with the events that it has written.

use postbox_core::Receipt;
use postbox_testkit::suite::OpenTransaction;
use sqlx::{Database, Transaction};

pub(crate) struct Open<D: Database> {
    pub(crate) tx: Transaction<'static, D>,
    pub(crate) receipts: Vec<Receipt>,
}

impl<D: Database> OpenTransaction for Open<D> {
    fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    async fn commit(self) {
        self.tx.commit().await.unwrap();
    }

    async fn roll_back(self) {
        self.tx.rollback().await.unwrap();
    }
}
