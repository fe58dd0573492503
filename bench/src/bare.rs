//! The bare SQL of the row lease: a plain loop of claim and set-based settle, overlapped on two connections.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection, Row as _};
use tokio::sync::mpsc;
use uuid::Uuid;

const CLAIM: &str = "WITH picked AS MATERIALIZED (
        SELECT id FROM bench_outbox
        WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
          AND (locked_at IS NULL OR locked_at < now() - interval '60 seconds')
        ORDER BY available_at, sequence LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE bench_outbox t SET locked_at = now(), attempts = t.attempts + 1, locked_by = $2
    FROM picked WHERE t.id = picked.id
    RETURNING t.id, t.event_id, t.topic, t.attempts, t.payload::text";

const SETTLE: &str =
    "UPDATE bench_outbox SET published_at = now(), locked_at = NULL, locked_by = NULL, last_error = NULL
    WHERE id = ANY ($1) AND locked_by = $2";

async fn connect(options: &PgConnectOptions) -> PgConnection {
    options.clone().disable_statement_logging().connect().await.expect("a connection")
}

/// Drains the table; returns when it is empty.
pub(crate) async fn drain(options: &PgConnectOptions, batch: usize) {
    let (mut claims, mut settles) = (connect(options).await, connect(options).await);
    let (sender, mut receiver) = mpsc::channel::<Vec<Uuid>>(2);
    let settler = tokio::spawn(async move {
        while let Some(ids) = receiver.recv().await {
            sqlx::query(SETTLE).bind(ids).bind("bench").execute(&mut settles).await.expect("a settle");
        }
    });
    loop {
        let limit = i64::try_from(batch).expect("a batch size");
        let rows =
            sqlx::query(CLAIM).bind(limit).bind("bench").fetch_all(&mut claims).await.expect("a claim");
        let ids: Vec<Uuid> = rows
            .iter()
            .map(|row| {
                // What any relay must at least read.
                let (_, _): (&str, &str) = (row.get(2), row.get(4));
                row.get(0)
            })
            .collect();
        if ids.is_empty() {
            break;
        }
        sender.send(ids).await.expect("the settler");
    }
    drop(sender);
    settler.await.expect("the settler");
}
