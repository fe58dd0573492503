/// Makes sqlx's transactions on a database those of the outbox, of the inbox and of calls by idempotency key. What they then do stands
/// in the database's folder, in the files of these names.
macro_rules! on_sqlx {
    ($marker:ty, $database:ty) => {
        impl postbox_core::OutboxTx<$marker> for &mut sqlx::Transaction<'_, $database> {
            type Error = sqlx::Error;

            async fn insert(
                self,
                insertion: postbox_core::Insertion<'_>,
            ) -> Result<Vec<postbox_core::Inserted>, sqlx::Error> {
                super::tx::insert(&mut **self, insertion).await
            }
        }

        impl postbox_core::InboxTx<$marker> for &mut sqlx::Transaction<'_, $database> {
            type Error = sqlx::Error;

            async fn record(
                self,
                recording: postbox_core::Recording<'_>,
            ) -> Result<Vec<String>, sqlx::Error> {
                super::inbox::record(&mut **self, recording).await
            }

            fn trouble(error: &sqlx::Error) -> postbox_core::InboxTrouble {
                super::inbox::trouble(error)
            }
        }

        impl postbox_core::InboxDriver for $marker {
            async fn record(
                tx: &mut Self::Transaction,
                recording: postbox_core::Recording<'_>,
            ) -> Result<Vec<String>, sqlx::Error> {
                super::inbox::record(&mut **tx, recording).await
            }

            async fn is_recorded(
                tx: &mut Self::Transaction,
                recording: postbox_core::Recording<'_>,
            ) -> Result<bool, sqlx::Error> {
                super::inbox::is_recorded(&mut *tx, recording).await
            }

            fn trouble(error: &sqlx::Error) -> postbox_core::InboxTrouble {
                super::inbox::trouble(error)
            }
        }

        impl postbox_core::idempotency::IdempotencyTx<$marker> for &mut sqlx::Transaction<'_, $database> {
            type Error = sqlx::Error;

            async fn finish(self, what: postbox_core::idempotency::Finish<'_>) -> Result<bool, sqlx::Error> {
                super::idempotency::finish(&mut *self, what).await
            }
        }

        impl postbox_core::idempotency::IdempotencyDriver for $marker {
            async fn finish(
                tx: &mut Self::Transaction,
                what: postbox_core::idempotency::Finish<'_>,
            ) -> Result<bool, sqlx::Error> {
                super::idempotency::finish(&mut *tx, what).await
            }
        }
    };
}
pub(crate) use on_sqlx;
