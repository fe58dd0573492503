//! A message that is recorded outside of the transaction with its effect is remembered though the effect was rolled back.

use postbox::{ConsumerName, EventId, Inbox};

async fn receive(pool: sqlx::PgPool, inbox: Inbox, consumer: ConsumerName) {
    let _ = inbox.record(&pool, &consumer, EventId::new()).await.unwrap();
}

fn main() {}
