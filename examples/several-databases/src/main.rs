//! Two databases in one process, each with its outbox: orders in `sales.db`, invoices in `billing.db`. An order becomes an invoice
//! without a transaction over both: its event commits with it, is delivered until it has arrived, and has its effect once.
//!
//! `cargo run -p several-databases` needs nothing but a folder to write to. At the first start billing is not there; orders are
//! placed and kept all the same, and invoiced as soon as it is.

mod billing;
mod orders;

use std::env;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use postbox::{Postboxes, sqlite};
use sqlx::sqlite::SqliteConnectOptions;

/// Anything that can go wrong, in its own words.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How many orders one run places.
const ORDERS: usize = 5;

#[tokio::main]
async fn main() -> ExitCode {
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).init();
    let folder = env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    match run(&folder).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("several-databases: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where a database is. A server's URL would do as well, with that server's pool.
fn file(folder: &Path, name: &str) -> Result<SqliteConnectOptions> {
    Ok(sqlite::connect_options(&format!("sqlite:{}", folder.join(name).display()))?)
}

async fn run(folder: &Path) -> Result<()> {
    let orders = orders::open(file(folder, "sales.db")?).await?;
    // Lazily: who connects now would wait for it, or give up.
    let billing = sqlx::SqlitePool::connect_lazy_with(file(folder, "billing.db")?);
    let billing_was_there = folder.join("billing.db").exists();

    let (to_billing, told) = (billing::receive(&billing), billing::tell());
    let postboxes = Postboxes::builder()
        .database("orders", &orders, [orders::TABLE.parse()?], |builder| {
            builder.route("shop.order.**", to_billing.clone())
        })
        .database("billing", &billing, [billing::TABLE.parse()?], |builder| {
            builder.route("billing.**", told.clone())
        })
        .start()?;

    postboxes.reached("orders").await;
    let outbox = postboxes.outbox("orders", &orders::TABLE.parse()?).ok_or("the orders have no outbox")?;
    for _ in 0..ORDERS {
        orders::place(&orders, &outbox).await?;
    }
    println!("{ORDERS} orders placed");

    if !billing_was_there {
        // What a readiness check would say.
        let problem = loop {
            match postboxes.problems().into_iter().find(|problem| problem.contains("in billing")) {
                Some(problem) => break problem,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        println!("not ready: {problem}");
        billing::make(file(folder, "billing.db")?).await?;
        println!("billing is there");
    }

    let all = orders::count(&orders).await?;
    while billing::told(&billing).await? < all {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{all} orders, {} invoices, each told once", billing::invoices(&billing).await?);
    postboxes.shutdown().await?;
    Ok(())
}
