//! One connection through the proxy: two pumps, and an eye on the mode.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};

use super::{Mode, Shared};

const CHUNK: usize = 64 * 1024;

/// How long the server may take to finish after a reply was cut; it usually hangs up at once.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the two directions of a connection know of each other.
#[derive(Default)]
struct Link {
    lost_requests: AtomicBool,
    lost_replies: AtomicBool,
    /// Set before the request goes out: no reply to it can slip through.
    cut: Mutex<Option<watch::Sender<bool>>>,
    /// The reply has come and is lost: no further request goes to the server.
    hang_up: Notify,
}

impl Link {
    fn has_hole(&self) -> bool {
        self.lost_requests.load(Ordering::Relaxed) || self.lost_replies.load(Ordering::Relaxed)
    }

    fn is_cut(&self) -> bool {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Carries one connection to its end; `cuts` is the count of cuts when it was accepted.
pub(super) async fn serve(mut client: TcpStream, upstream: SocketAddr, shared: Arc<Shared>, cuts: u64) {
    let link = Link::default();
    if shared.mode() == Mode::Blackhole {
        // As far as the client can see it is connected; the server never hears of it.
        link.lost_requests.store(true, Ordering::Relaxed);
        tokio::select! {
            () = swallow(&mut client) => {}
            () = doomed(&shared, &link, cuts) => {}
        }
        return;
    }
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    // Nagle would add delays of its own to those that the test asks for.
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = requests(from_client, to_server, &shared, &link) => {}
            () = replies(from_server, to_client, &shared, &link) => {}
            () = doomed(&shared, &link, cuts) => {}
        }
    }
    // Closed first, told afterwards: whoever waits for it may rely on it.
    drop((client, server));
    let fired = link.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(fired) = fired {
        fired.send_replace(true);
    }
}

/// Ends when the connection must be closed: it was cut, or it has a hole and the proxy passes again.
async fn doomed(shared: &Shared, link: &Link, cuts: u64) {
    let mut state = shared.state.subscribe();
    loop {
        let now = *state.borrow_and_update();
        let passes = matches!(now.mode, Mode::Pass | Mode::Delay(_));
        if now.cuts != cuts || (passes && link.has_hole()) || state.changed().await.is_err() {
            return;
        }
    }
}

/// Client to server. Ends only when the server cannot be written to; the end of the client's stream is passed on.
async fn requests(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared, link: &Link) {
    let mut chunk = vec![0; CHUNK];
    let mut seen = Vec::new();
    loop {
        let read = tokio::select! {
            read = from.read(&mut chunk) => read.unwrap_or(0),
            () = link.hang_up.notified() => 0,
        };
        let mode = mode_after_delay(shared).await;
        if mode == Mode::Blackhole {
            link.lost_requests.store(true, Ordering::Relaxed);
        }
        let lost = link.lost_requests.load(Ordering::Relaxed);
        if read == 0 {
            if !lost {
                to.shutdown().await.ok();
            }
            return pending().await;
        }
        if lost {
            continue;
        }
        look_for_trigger(shared, link, &mut seen, &chunk[..read]);
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

/// Server to client. Ends with the server's stream, so that what it sent last still arrives.
async fn replies(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared, link: &Link) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = from.read(&mut chunk).await.unwrap_or(0);
        if link.is_cut() {
            // Without further requests the server ends by itself, once it has carried out what it got.
            link.hang_up.notify_one();
            tokio::time::timeout(LAST_WORDS, async {
                while matches!(from.read(&mut chunk).await, Ok(1..)) {}
            })
            .await
            .ok();
            return;
        }
        let mode = mode_after_delay(shared).await;
        if matches!(mode, Mode::Blackhole | Mode::SwallowReplies) {
            link.lost_replies.store(true, Ordering::Relaxed);
        }
        let lost = link.lost_replies.load(Ordering::Relaxed);
        if read == 0 {
            if lost {
                return pending().await;
            }
            to.shutdown().await.ok();
            return;
        }
        if !lost && to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

/// The mode that applies to the piece just read. A delayed piece meets the mode at the end of its delay.
async fn mode_after_delay(shared: &Shared) -> Mode {
    if let Mode::Delay(by) = shared.mode() {
        tokio::time::sleep(by).await;
    }
    shared.mode()
}

/// Takes the trigger when its needle is in the stream, also where it lies across two pieces.
fn look_for_trigger(shared: &Shared, link: &Link, seen: &mut Vec<u8>, piece: &[u8]) {
    let mut trigger = shared.trigger();
    let Some(wanted) = trigger.as_ref() else {
        seen.clear();
        return;
    };
    seen.extend_from_slice(piece);
    let length = wanted.needle.len();
    if seen.windows(length).any(|window| window == wanted.needle) {
        *link.cut.lock().unwrap_or_else(PoisonError::into_inner) =
            trigger.take().map(|trigger| trigger.fired);
    } else {
        // Only what could be the beginning of a needle is kept.
        seen.drain(..seen.len().saturating_sub(length - 1));
    }
}

async fn swallow(client: &mut TcpStream) {
    let mut chunk = vec![0; CHUNK];
    while matches!(client.read(&mut chunk).await, Ok(1..)) {}
    pending::<()>().await;
}
