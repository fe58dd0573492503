//! A TCP proxy that breaks connections in the ways networks do, on demand.
//!
//! It runs on a thread of its own: a test that blocks its thread does not stall it, whatever runtime the test has.

mod connection;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::eventually_blocking;

/// What happens to bytes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Delay(Duration),
    Cut,
    Blackhole,
    SwallowReplies,
}

/// The mode, and how often connections were cut: a cut that is lifted at once must still be seen.
#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    cuts: u64,
}

/// Waits for one request, whose reply is to be lost.
#[derive(Debug)]
struct Trigger {
    needle: Vec<u8>,
    fired: watch::Sender<bool>,
}

/// What the handle and the connections share.
#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    upstream: Mutex<SocketAddr>,
    trigger: Mutex<Option<Trigger>>,
    accepted: AtomicUsize,
}

impl Shared {
    fn mode(&self) -> Mode {
        self.state.borrow().mode
    }

    fn trigger(&self) -> MutexGuard<'_, Option<Trigger>> {
        self.trigger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy in front of one server; it passes everything on until told otherwise, and ends with this value.
///
/// A connection that has lost bytes in [`Proxy::blackhole`] or [`Proxy::swallow_replies`] is closed when the proxy
/// passes again: TCP never delivers a stream with a hole in it, so neither does this.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for `upstream` on a free port of 127.0.0.1.
    pub fn start(upstream: SocketAddr) -> Self {
        Self::try_start(upstream).unwrap_or_else(|error| panic!("cannot start a proxy: {error}"))
    }

    fn try_start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = StdListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let (state, _) = watch::channel(State { mode: Mode::Pass, cuts: 0 });
        let (upstream, trigger) = (Mutex::new(upstream), Mutex::new(None));
        let shared = Arc::new(Shared { state, upstream, trigger, accepted: AtomicUsize::new(0) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, serving) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { addr, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections were accepted so far, those refused by [`Proxy::cut`] included.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Leads connections from now on to another server; those that are open stay where they are.
    pub fn redirect(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Passes everything on.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// Holds each piece back, in both directions, for this long. Order stays; throughput suffers too.
    pub fn delay(&self, by: Duration) {
        self.set(Mode::Delay(by));
    }

    /// Closes all connections now, and each new one at once, until told otherwise.
    pub fn cut(&self) {
        self.set(Mode::Cut);
    }

    /// Takes everything from both sides and passes nothing on; sockets stay open: a half-open connection.
    pub fn blackhole(&self) {
        self.set(Mode::Blackhole);
    }

    /// Passes requests on but no replies; sockets stay open.
    pub fn swallow_replies(&self) {
        self.set(Mode::SwallowReplies);
    }

    /// Loses the reply to the next request that contains `needle`: the server gets it and carries it out, the client
    /// sees its connection close. Once; then the proxy goes on as before.
    ///
    /// The bytes are those on the wire. With the extended protocol of PostgreSQL, a statement's text is there when it
    /// is prepared, not when a prepared one runs; COMMIT and statements without parameters mostly go as text.
    pub fn cut_replies_after_requests_containing(&self, needle: impl Into<Vec<u8>>) -> ReplyCut {
        let needle = needle.into();
        assert!(!needle.is_empty(), "an empty needle is in every request");
        let (fired, receiver) = watch::channel(false);
        *self.shared.trigger() = Some(Trigger { needle, fired });
        ReplyCut { fired: receiver }
    }

    fn set(&self, mode: Mode) {
        self.shared.state.send_modify(|state| {
            state.mode = mode;
            state.cuts += u64::from(mode == Mode::Cut);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Tells when the reply was lost; see [`Proxy::cut_replies_after_requests_containing`].
#[derive(Debug)]
pub struct ReplyCut {
    fired: watch::Receiver<bool>,
}

impl ReplyCut {
    /// Whether it has happened: the server has answered, and both connections are closed.
    pub fn has_fired(&self) -> bool {
        *self.fired.borrow()
    }

    /// Waits until it has happened.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn fired(&mut self) {
        self.fired.wait_for(|fired| *fired).await.expect("the proxy was dropped, or given another needle");
    }

    /// Waits until it has happened, on a thread that may block.
    #[track_caller]
    pub fn wait(&self, limit: Duration) {
        eventually_blocking("the reply to be cut", limit, || self.has_fired());
    }
}

/// Accepts until it is dropped; connections end with it.
async fn accept(listener: StdListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("a listener made for this");
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // Out of descriptors, or the client is gone already: nothing that ends the proxy.
        let Ok((client, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let born = *shared.state.borrow();
        if born.mode != Mode::Cut {
            let upstream = *shared.upstream.lock().unwrap_or_else(PoisonError::into_inner);
            connections.spawn(connection::serve(client, upstream, Arc::clone(&shared), born.cuts));
        }
    }
}
