//! What every peer of this package does alike: the protocol of ../README.md.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// So many are written at once.
pub const BULK: usize = 1000;

/// What every event carries: about 300 bytes of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Payload {
    pub n: usize,
    pub text: String,
}

/// How many were handled, and when that began.
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static STARTED: OnceLock<Instant> = OnceLock::new();

pub fn url() -> String {
    std::env::var("POSTBOX_BENCH_PG_URL").expect("POSTBOX_BENCH_PG_URL: use cargo xtask bench peers")
}

/// All that handlers do.
pub fn handle() {
    STARTED.get_or_init(Instant::now);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Does what the arguments say, and prints how long it took. `left` answers a row while something is not acknowledged.
pub async fn main<F, D>(fill: impl FnOnce(Vec<Payload>) -> F, drain: impl FnOnce() -> D, left: &str)
where
    F: Future<Output = Duration>,
    D: Future<Output = ()>,
{
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, count] = args.as_slice() else { panic!("fill N, or drain N") };
    let count: usize = count.parse().expect("a number");
    let took = if what == "fill" {
        fill((1..=count).map(payload).collect()).await
    } else {
        drain().await;
        until_acknowledged(count, left).await
    };
    println!("{}", serde_json::json!({ "seconds": took.as_secs_f64() }));
    std::process::exit(0);
}

fn payload(n: usize) -> Payload {
    Payload { n, text: format!("{n:032x}").repeat(8) }
}

/// First by the handlers' own count, which costs the server nothing; then by what the database says.
async fn until_acknowledged(count: usize, left: &str) -> Duration {
    let mut watch = PgConnection::connect(&url()).await.expect("the server");
    while HANDLED.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    while sqlx::query(AssertSqlSafe(left)).fetch_optional(&mut watch).await.expect("an answer").is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    STARTED.get().expect("something was handled").elapsed()
}
