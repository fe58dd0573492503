//! The application: made of its parts, run, and stopped in order.

mod shop;
mod web;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::{Pool, migrate};
use crate::Result;

/// Runs until a signal.
pub(crate) async fn run(pool: Pool, listener: TcpListener) -> Result<()> {
    let (shop, postbox) = shop::open(pool).await?;
    println!("open http://{}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let failed = postbox.failed();
    let end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
            () = failed => {} // without its relay, better start anew
        }
    };
    // First nobody may order any more, then what was ordered is handled to the end.
    axum::serve(listener, web::router(shop, postbox.health())).with_graceful_shutdown(end).await?;
    postbox.shutdown().await?;
    Ok(())
}
