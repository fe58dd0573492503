//! `begin` opens a transaction on a pool; a connection is none.

use postbox::Outbox;

async fn begin(connection: &mut sqlx::PgConnection, outbox: Outbox) {
    let _ = outbox.begin(connection).await;
}

fn main() {}
