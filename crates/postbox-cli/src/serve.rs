//! HTTP for whoever connects, within limits: who opens connections for fun, or says nothing on them, shall take neither the relay's
//! file handles nor the place of a health check.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

/// What nobody gets more of.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at a time; others wait in the kernel's queue.
    connections: usize,
    /// How long the head of a request may take, and how long a connection may wait for the next one.
    head: Duration,
}

/// Longer than the 10 s after which a dashboard asks again and the usual 15 s of a scraper: these keep their connections.
const LIMITS: Limits = Limits { connections: 256, head: Duration::from_secs(20) };

/// Serves until the process ends.
///
/// # Cancel safety
/// When it is dropped, nobody else is let in; who is connected already is served to the end.
pub(crate) async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    serve_within(LIMITS, listener, router).await
}

async fn serve_within(limits: Limits, listener: TcpListener, router: Router) -> io::Result<()> {
    let mut listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(limits.connections));
    // One version only: to find out which it is, bytes would be waited for without a limit.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head);
    loop {
        // Never closed, so that there is always a place in the end.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        // Errors such as too many open files are waited out there.
        let (stream, _) = Listener::accept(&mut listener).await;
        let _ = stream.set_nodelay(true);
        let (builder, service) = (builder.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let _place = place;
            // Who goes away in the middle is nobody's failure.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, serve_within};
    use axum::Router;
    use axum::routing::get;
    use std::net::{SocketAddr, TcpListener};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    /// One place, and little patience.
    const LIMITS: Limits = Limits { connections: 1, head: Duration::from_millis(100) };

    fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let slow = || async {
            tokio::time::sleep(LIMITS.head * 3).await;
            "slow"
        };
        let router = Router::new().route("/", get(|| async { "here" })).route("/slow", get(slow));
        tokio::spawn(serve_within(LIMITS, listener, router));
        address
    }

    async fn say(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// What the server says until it closes the connection.
    async fn heard(mut stream: TcpStream) -> String {
        let mut text = String::new();
        let end = stream.read_to_string(&mut text);
        tokio::time::timeout(Duration::from_mins(1), end).await.expect("it is closed").unwrap();
        text
    }

    #[tokio::test]
    async fn who_says_nothing_is_sent_away_and_leaves_a_place() {
        let address = start();
        for said in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: x\r\n"] {
            let silent = say(address, said).await;
            // Behind it: there is one place only.
            let next = say(address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            let answer = heard(next).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("here"), "{said:?}: {answer}");
            assert_eq!(heard(silent).await, "", "{said:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_may_take_longer_and_then_a_connection_waits_as_long_as_a_head() {
        let answer = heard(say(start(), "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("slow"), "{answer}");
    }
}
