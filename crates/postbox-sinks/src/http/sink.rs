//! [`HttpSink`]: one request for each event.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use postbox_core::{Delivery, DispatchError, DispatchErrorKind, Dispatcher, Receipts};
use reqwest::{Client, Response};
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::Config;
use super::error;
use super::resolve::{Lookup, SystemLookup};
use crate::options::Options;
use crate::url::SinkError;

/// The most of a failed request's answer that is read.
const READ_OF_FAILURE: usize = 4 << 10;
/// The most of a good answer that is read, so that its connection can be used again.
const READ_OF_SUCCESS: usize = 16 << 10;
/// A connection that breaks sooner than this may have been closed before the request.
const STALE: Duration = Duration::from_secs(1);
/// How long either may take.
const READ_TIME: Duration = Duration::from_millis(500);

/// Sends each event as a request to a URL; a `2xx` answer means that it arrived.
///
/// Clones share connections and the limit of requests at a time.
///
/// ```
/// use postbox_sinks::{HttpSink, Options};
///
/// let options = Options::new().set("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); // shared with the receiver
/// let sink = HttpSink::new("https://shop.example/hooks/{topic}", options)?;
/// assert_eq!(sink.to_string(), "https://shop.example/"); // a path may be a secret
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
///
/// # Cancel safety
/// A dispatch that is dropped ends its requests where they are: an event may have arrived although nobody was told,
/// and comes again with the same id.
#[derive(Clone)]
pub struct HttpSink(Arc<Inner>);

struct Inner {
    config: Config,
    /// For messages.
    host: String,
    client: Client,
    turns: Semaphore,
}

impl HttpSink {
    /// The webhook that a URL and its options mean. Options can also stand in the URL, behind a `#`: its query is the
    /// receiver's.
    ///
    /// # Errors
    /// When the URL or an option cannot be used, or the host is one that must be allowed first.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        Self::with_lookup(url, options, Arc::new(SystemLookup))
    }

    pub(super) fn with_lookup(
        url: &str,
        options: Options,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, SinkError> {
        let config = Config::new(url, options)?;
        let client = config
            .connect
            .client(lookup)
            .map_err(|problem| SinkError::new(config.target.origin(), problem))?;
        let turns = Semaphore::new(config.connect.concurrency);
        Ok(Self(Arc::new(Inner { host: config.target.shown(), client, turns, config })))
    }

    /// The last moment for a request to begin: so that it and its answer still fall within the relay's own timeout, where
    /// that is 2.5 times this sink's or more (30 s and 10 s by default).
    fn last_start(&self) -> Instant {
        Instant::now() + self.0.config.connect.timeout * 3 / 2
    }
}

impl Inner {
    /// Sends one event when it is its turn.
    async fn deliver(&self, delivery: &Delivery, last_start: Instant) -> Result<(), DispatchError> {
        let turn = if Instant::now() < last_start {
            timeout_at(last_start, self.turns.acquire()).await.ok()
        } else {
            None
        };
        // The semaphore is never closed: no turn means that the time was up.
        let Some(Ok(_turn)) = turn else {
            return Err(error::no_turn(&self.host, self.config.connect.timeout * 3 / 2));
        };
        let started = Instant::now();
        let mut response = match self.send(delivery).await {
            // A connection that the receiver closed while it was idle breaks at once, and looks as if the request had been
            // the cause. On a new one it shows whether the receiver is there.
            Err(Unsent::Broken(_)) if started.elapsed() < STALE => self.send(delivery).await,
            sent => sent,
        }
        .map_err(Unsent::into_verdict)?;
        let status = response.status();
        let most = if status.is_success() { READ_OF_SUCCESS } else { READ_OF_FAILURE };
        let body = read(&mut response, most).await;
        if status.is_success() {
            return Ok(());
        }
        let body = error::without_request(&body, response.url(), &self.config.headers);
        error::of_status(&self.host, status, response.headers(), body.as_bytes())
    }

    async fn send(&self, delivery: &Delivery) -> Result<Response, Unsent> {
        // Built for each try: the signature holds the time of sending.
        let request = self.config.request(&self.client, delivery, OffsetDateTime::now_utc());
        let request = request.map_err(|problem| Unsent::Other(error::no_request(&self.host, problem)))?;
        self.client.execute(request).await.map_err(|error| {
            let verdict = error::of_client(&self.host, &error, self.config.connect.timeout);
            if error::is_broken(&error) { Unsent::Broken(verdict) } else { Unsent::Other(verdict) }
        })
    }

    /// Sends the events of one message key, one after another.
    async fn deliver_chain(
        &self,
        chain: Vec<usize>,
        batch: &[Delivery],
        last_start: Instant,
        shared: &Shared<'_>,
    ) {
        for index in chain {
            // Once the receiver is known to be down, the rest need not find that out for themselves.
            let outcome = match shared.down.get() {
                Some(error) => Err(error.clone()),
                None => self.deliver(&batch[index], last_start).await,
            };
            if let Err(error) = &outcome
                && error.kind() == DispatchErrorKind::Unavailable
            {
                let _ = shared.down.set(error.clone());
            }
            shared.receipts.lock().unwrap_or_else(PoisonError::into_inner).record(index, outcome);
        }
    }
}

/// A request without an answer.
enum Unsent {
    /// Its connection was lost.
    Broken(DispatchError),
    Other(DispatchError),
}

impl Unsent {
    fn into_verdict(self) -> DispatchError {
        match self {
            Self::Broken(verdict) | Self::Other(verdict) => verdict,
        }
    }
}

/// What the requests of one batch share.
struct Shared<'a> {
    receipts: Mutex<&'a mut Receipts>,
    down: OnceLock<DispatchError>,
}

/// Reads the beginning of an answer. What goes wrong here changes nothing: the status is known.
async fn read(response: &mut Response, most: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while body.len() < most
            && let Ok(Some(chunk)) = response.chunk().await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(most - body.len())]);
        }
    };
    let _ = timeout(READ_TIME, reading).await;
    body
}

/// The places of a batch by message key, each key's in their order.
fn chains(batch: &[Delivery]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::with_capacity(batch.len());
    let mut of_key: HashMap<String, usize> = HashMap::with_capacity(batch.len());
    for (index, delivery) in batch.iter().enumerate() {
        let chain = *of_key.entry(delivery.meta.message_key()).or_insert_with(|| {
            chains.push(Vec::new());
            chains.len() - 1
        });
        chains[chain].push(index);
    }
    chains
}

impl Dispatcher for HttpSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.0.deliver(delivery, self.last_start()).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let last_start = self.last_start();
        let shared = Shared { receipts: Mutex::new(receipts), down: OnceLock::new() };
        futures_util::stream::iter(chains(batch))
            .for_each_concurrent(None, |chain| self.0.deliver_chain(chain, batch, last_start, &shared))
            .await;
    }

    /// As many as are sent at a time: more would only wait here instead of in the relay.
    fn batch_limit(&self) -> usize {
        self.0.config.connect.concurrency
    }
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpSink({})", self.0.config.target.origin())
    }
}

impl fmt::Display for HttpSink {
    /// Scheme and host; a path may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.config.target.origin())
    }
}
