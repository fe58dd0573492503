//! What the `Idempotency-Key` layer adds to an axum handler that does nothing: one caller over one connection that stays open, so
//! that a call's time is the server's. The bare handler and each way of the layer take turns.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::Response;
use axum::routing::post;
use postbox::idempotency::{IdempotencyDriver, IdempotencyStore};
use postbox::mysql::{MySqlIdempotency, SqlxMySql};
use postbox::postgres::{PgIdempotency, SqlxPostgres};
use postbox::sqlite::{SqliteIdempotency, SqlxSqlite};
use postbox::web::{IdempotencyLayer, IdempotentTx, IdempotentTxError};
use postbox::{TableName, mysql, postgres, sqlite};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::drain::median;

/// What is compared with the first.
const WAYS: [(&str, &str, Key); 4] = [
    ("bare handler", "/bare", Key::New),
    ("layer, new key", "/layer", Key::New),
    ("layer with IdempotentTx, new key", "/transaction", Key::New),
    ("layer, repeat", "/layer", Key::Same),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    New,
    Same,
}

/// On SQLite, and on PostgreSQL or MariaDB where there is one.
pub(crate) async fn run(calls: usize, rounds: usize) {
    println!("{calls} calls of an empty axum handler in a row, over HTTP/1.1, {rounds} rounds; milliseconds");
    if let Ok(url) = std::env::var("POSTBOX_BENCH_PG_URL") {
        let pool = PgPoolOptions::new().max_connections(4).connect(&url).await.expect("a server");
        let table: TableName = "public.bench_outbox".parse().expect("a name");
        let extras = postgres::migrate::Extras { idempotency: true, ..Default::default() };
        let mut connection = pool.acquire().await.expect("a connection");
        postgres::migrate::up_with(&mut connection, &table, extras, |_| {}).await.expect("a table");
        drop(connection);
        compare::<_, SqlxPostgres>("PostgreSQL", PgIdempotency::new(pool, table), calls, rounds).await;
    }
    if let Ok(url) = std::env::var("POSTBOX_BENCH_MARIADB_URL") {
        let options = crate::mysql::database(&url).await;
        let pool = MySqlPoolOptions::new().max_connections(4).connect_with(options).await.expect("a server");
        let table: TableName = "bench_outbox".parse().expect("a name");
        let extras = mysql::migrate::Extras { idempotency: true, ..Default::default() };
        let mut connection = pool.acquire().await.expect("a connection");
        mysql::migrate::up_with(&mut connection, &table, extras, |_| {}).await.expect("a table");
        drop(connection);
        compare::<_, SqlxMySql>("MariaDB", MySqlIdempotency::new(pool, table), calls, rounds).await;
    }
    let folder =
        std::env::var_os("POSTBOX_BENCH_FOLDER").expect("POSTBOX_BENCH_FOLDER: use cargo xtask bench");
    let folder = PathBuf::from(folder).join(format!("bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let url = format!("sqlite:{}?mode=rwc", folder.join("calls.db").display());
    let options = sqlite::connect_options(&url).expect("a URL");
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.expect("a file");
    let table: TableName = "bench_outbox".parse().expect("a name");
    let extras = sqlite::migrate::Extras { idempotency: true, ..Default::default() };
    let mut connection = pool.acquire().await.expect("a connection");
    sqlite::migrate::up_with(&mut connection, &table, extras, |_| {}).await.expect("a table");
    drop(connection);
    compare::<_, SqlxSqlite>("SQLite", SqliteIdempotency::new(pool.clone(), table), calls, rounds).await;
    pool.close().await;
    std::fs::remove_dir_all(folder).ok();
}

async fn compare<S, D>(database: &str, store: S, calls: usize, rounds: usize)
where
    S: IdempotencyStore<Driver = D>,
    D: IdempotencyDriver,
{
    let layer = IdempotencyLayer::builder(store).single_principal().build();
    let app = Router::new()
        .route("/layer", post(async || "done"))
        .route("/transaction", post(in_transaction::<D>))
        .layer(layer)
        .route("/bare", post(async || "done"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut halves = WAYS.map(|_| Vec::new());
    let mut tails = WAYS.map(|_| Vec::new());
    for round in 0..=rounds {
        for (way, (_, path, key)) in WAYS.into_iter().enumerate() {
            // The first round pays for connections and plans.
            let calls = if round == 0 { calls / 10 + 1 } else { calls };
            let mut times = measure(&address, path, key, calls).await;
            times.sort_unstable();
            if round > 0 {
                halves[way].push(at(&times, 50));
                tails[way].push(at(&times, 99));
            }
        }
    }
    server.abort();
    let mut bare = None;
    for ((name, ..), (halves, tails)) in WAYS.iter().zip(halves.iter_mut().zip(&mut tails)) {
        let (half, tail) = (median(halves), median(tails));
        let bare = *bare.get_or_insert(half);
        println!(
            "{database}, {name:<33} p50 {half:>7.3}   p99 {tail:>7.3}   p50 above bare {:>7.3}",
            half - bare
        );
    }
}

async fn in_transaction<D: IdempotencyDriver>(
    tx: IdempotentTx<D>,
) -> Result<Response, IdempotentTxError<D::Error>> {
    tx.commit("done").await
}

/// Milliseconds below which so many of a hundred are.
fn at(sorted: &[Duration], percent: usize) -> f64 {
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted[place].as_secs_f64() * 1000.0
}

/// The time of each call, one after the other.
async fn measure(address: &str, path: &str, key: Key, calls: usize) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.expect("the server");
    stream.set_nodelay(true).expect("an option");
    let same = Uuid::now_v7();
    let mut buffer = vec![0; 4096];
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let key = if key == Key::Same { same } else { Uuid::now_v7() };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nidempotency-key: \"{key}\"\r\ncontent-length: 0\r\n\r\n"
        );
        let started = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut length = 0;
        // All answers end with the same word.
        while !buffer[..length].ends_with(b"\r\n\r\ndone") {
            let more = stream.read(&mut buffer[length..]).await.expect("an answer");
            assert!(more > 0, "{}", String::from_utf8_lossy(&buffer[..length]));
            length += more;
        }
        times.push(started.elapsed());
        assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..length]));
    }
    times
}
