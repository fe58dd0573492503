//! [`RedisSink`]: the client, and how a batch goes over it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _, Pipeline,
    RedisConnectionInfo, RedisResult, TlsCertificates, Value,
};
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use super::config::RedisConfig;
use super::error;
use crate::connection::{Link, Shared};
use crate::options::Options;
use crate::url::SinkError;

const BATCH: usize = 1_000;

/// Entries of one write: enough that the round trip does not count, few enough that receipts come as one goes.
const WRITE_ENTRIES: usize = 100;
const WRITE_BYTES: usize = 1 << 20;

/// Redis's own default of `proto-max-bulk-len`.
const USUAL_LIMIT: usize = 512 << 20;

/// Delivers events to Redis Streams; clones share one connection.
///
/// ```
/// use postbox_sinks::{Options, RedisSink};
///
/// let sink = RedisSink::new("redis://broker:6379", Options::new().set("destination", "events:{topic}"))?;
/// assert_eq!(sink.to_string(), "redis://broker:6379");
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RedisSink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RedisConfig,
    shared: Shared<Connection>,
}

/// A connection. When it is lost it is made anew at the next delivery.
#[derive(Clone)]
struct Connection {
    redis: MultiplexedConnection,
    lost: Arc<AtomicBool>,
    /// The largest value that the server takes.
    largest: usize,
}

impl Link for Connection {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Entries that are written together.
struct Write {
    pipeline: Pipeline,
    /// The places of their events in the batch.
    indices: Vec<usize>,
    bytes: usize,
}

impl Write {
    fn new() -> Self {
        let mut pipeline = Pipeline::with_capacity(WRITE_ENTRIES + 1);
        pipeline.ignore_errors();
        Self { pipeline, indices: Vec::with_capacity(WRITE_ENTRIES), bytes: 0 }
    }

    /// Whether the next entry belongs into another one. Where replicas are waited for all are one: a connection that waits
    /// does nothing else, and one wait is for all that went before it.
    fn is_full(&self, waits: bool) -> bool {
        !waits && (self.indices.len() >= WRITE_ENTRIES || self.bytes >= WRITE_BYTES)
    }
}

impl RedisSink {
    /// A sink by its URL and options. Nothing is connected yet.
    ///
    /// # Errors
    /// With all that is wrong with them.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let config = RedisConfig::new(url, options)?;
        Ok(Self(Arc::new(Inner { config, shared: Shared::new() })))
    }

    async fn connect(&self) -> Result<Connection, DispatchError> {
        let config = &self.0.config;
        let client = self.client().map_err(|error| error::of_connect(&error))?;
        let times = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.timeout));
        // The client's own limit does not hold for the greeting.
        let limit = config.connect_timeout + config.timeout;
        let connecting = client.get_multiplexed_async_connection_with_config(&times);
        let mut redis = match timeout(limit, connecting).await {
            Ok(connected) => connected.map_err(|error| error::of_connect(&error))?,
            Err(_) => return Err(DispatchError::unavailable("cannot connect to Redis: timed out")),
        };
        let largest = match config.max_payload {
            Some(largest) => largest,
            None => largest_value(&mut redis).await,
        };
        Ok(Connection { redis, lost: Arc::default(), largest })
    }

    fn client(&self) -> RedisResult<Client> {
        let config = &self.0.config;
        let host = &config.address.hosts[0];
        let (host, port) = (host.name.clone(), host.port.unwrap_or(config.address.default_port()));
        let mut login = RedisConnectionInfo::default().set_db(config.database);
        if let Some(user) = &config.user {
            login = login.set_username(user);
        }
        if let Some(password) = &config.password {
            login = login.set_password(password.reveal());
        }
        if !config.encrypted {
            let info = ConnectionAddr::Tcp(host, port).into_connection_info()?.set_redis_settings(login);
            return Client::open(info);
        }
        name_tls_provider();
        let tls = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
        let info = tls.into_connection_info()?.set_redis_settings(login);
        let root_cert = config.tls.ca.as_ref().map(std::fs::read).transpose()?;
        let client_tls = match &config.tls.client {
            Some((cert, key)) => {
                Some(ClientTlsConfig { client_cert: std::fs::read(cert)?, client_key: std::fs::read(key)? })
            }
            None => None,
        };
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
    }

    /// The command that adds an event, and the size of its payload.
    pub(super) fn command(&self, delivery: &Delivery, largest: usize) -> Result<(Cmd, usize), DispatchError> {
        let config = &self.0.config;
        let stream = config.destination.of(delivery)?;
        let message = config.encoding.message(delivery);
        let parts = message.headers.iter().map(|(_, value)| value.len()).chain([message.payload.len()]);
        if let Some(actual) = parts.max().filter(|actual| *actual > largest) {
            let limit = config.max_payload.map_or("proto-max-bulk-len", |_| "max_payload");
            return Err(DispatchError::reject(format!(
                "it has {actual} bytes, and Redis takes at most {largest} ({limit}): raise that, and replay the event"
            )));
        }
        let mut add = redis::cmd("XADD");
        add.arg(&*stream);
        if let Some(maxlen) = config.maxlen {
            add.arg("MAXLEN").arg("~").arg(maxlen);
        }
        add.arg("*").arg("key").arg(&message.key);
        for (name, value) in &message.headers {
            if !matches!(&**name, "key" | "payload") {
                add.arg(&**name).arg(&**value);
            }
        }
        add.arg("payload").arg(&*message.payload);
        Ok((add, message.payload.len()))
    }

    /// Sends entries and waits for what Redis says of each.
    async fn write(
        &self,
        write: &Write,
        connection: &Connection,
    ) -> Result<Vec<Result<(), DispatchError>>, DispatchError> {
        let mut redis = connection.redis.clone();
        let replies: RedisResult<Vec<RedisResult<Value>>> = write.pipeline.query_async(&mut redis).await;
        let mut replies = replies.map_err(|failed| {
            connection.lost.store(true, Ordering::Relaxed);
            error::of_command(&failed)
        })?;
        if let Some(wanted) = self.0.config.wait_replicas {
            match replies.pop() {
                Some(Ok(Value::Int(have))) if u64::try_from(have).is_ok_and(|have| have >= wanted) => {}
                Some(Ok(Value::Int(have))) => {
                    let text = format!("only {have} of {wanted} replicas have it (wait_replicas)");
                    return Err(DispatchError::unavailable(text));
                }
                Some(Err(failed)) => return Err(error::of_command(&failed)),
                other => return Err(DispatchError::retry(format!("WAIT was answered with {other:?}"))),
            }
        }
        let outcome = |reply: RedisResult<Value>| match reply {
            Ok(_) => Ok(()),
            Err(failed) => {
                if error::breaks_connection(&failed) {
                    connection.lost.store(true, Ordering::Relaxed);
                }
                Err(error::of_command(&failed))
            }
        };
        Ok(replies.into_iter().map(outcome).collect())
    }

    /// The events of a batch as writes; what cannot be written is told at once.
    fn writes(&self, batch: &[Delivery], largest: usize, receipts: &mut Receipts) -> Vec<Write> {
        let waits = self.0.config.wait_replicas.is_some();
        let mut writes: Vec<Write> = Vec::new();
        for (index, delivery) in batch.iter().enumerate() {
            let (command, bytes) = match self.command(delivery, largest) {
                Ok(command) => command,
                Err(error) => {
                    receipts.record(index, Err(error));
                    continue;
                }
            };
            if writes.last().is_none_or(|write| write.is_full(waits)) {
                writes.push(Write::new());
            }
            if let Some(write) = writes.last_mut() {
                write.pipeline.add_command(command);
                write.indices.push(index);
                write.bytes += bytes;
            }
        }
        if let Some(replicas) = self.0.config.wait_replicas {
            // Within the time that is waited for replies.
            let patience = self.0.config.timeout.as_millis() / 2;
            for write in &mut writes {
                write.pipeline.cmd("WAIT").arg(replicas).arg(u64::try_from(patience).unwrap_or(1));
            }
        }
        writes
    }
}

/// What the server takes at most, if it tells; managed ones do not.
async fn largest_value(redis: &mut MultiplexedConnection) -> usize {
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg("proto-max-bulk-len");
    let told: RedisResult<Vec<String>> = ask.query_async(redis).await;
    let told = told.ok().and_then(|pair| pair.get(1)?.parse().ok());
    told.unwrap_or(USUAL_LIMIT)
}

/// The client asks for the process's provider of cryptography. A process that has none yet gets ours.
fn name_tls_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have been quicker, and that is as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

impl fmt::Display for RedisSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.config.address.fmt(f)
    }
}

impl Dispatcher for RedisSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let connection = match self.0.shared.get(async || self.connect().await).await {
            Ok(connection) => connection,
            Err(error) => return receipts.rest_failed(error),
        };
        // All are under way at once. Each hands over its bytes when it is first polled, and that happens in this order, if
        // the runtime does not make one of them wait because this task has done enough.
        let mut writes: FuturesUnordered<_> = self
            .writes(batch, connection.largest, receipts)
            .into_iter()
            .map(|write| {
                let connection = &connection;
                async move { (self.write(&write, connection).await, write.indices) }
            })
            .collect();
        while let Some((outcomes, indices)) = unconstrained(writes.next()).await {
            match outcomes {
                Ok(outcomes) => {
                    for (index, outcome) in indices.into_iter().zip(outcomes) {
                        receipts.record(index, outcome);
                    }
                }
                Err(error) => {
                    for index in indices {
                        receipts.record(index, Err(error.clone()));
                    }
                }
            }
        }
    }

    fn batch_limit(&self) -> usize {
        BATCH
    }
}
