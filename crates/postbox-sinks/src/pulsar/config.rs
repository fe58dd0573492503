//! URL and options of a Pulsar sink.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pulsar::authentication::basic::BasicAuthentication;
use pulsar::compression::{Compression, CompressionLz4, CompressionZstd};
use pulsar::producer::Message;
use pulsar::routing_policy::{CustomRoutingPolicy, RoutingPolicy};
use pulsar::{
    Authentication, ConnectionRetryOptions, OperationRetryOptions, ProducerOptions, Pulsar, PulsarBuilder,
    TokioExecutor,
};

use crate::address::Address;
use crate::destination::Destination;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader, Secret};
use crate::url::SinkError;

/// Connection and confirmation together stay below the relay's `dispatch_timeout`, which is 30 s unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What brokers take unless told otherwise (`maxMessageSize`).
const MAX_MESSAGE: usize = 5 * 1024 * 1024;

/// How many messages wait for the connection; more wait outside.
const OUTBOUND: usize = 1000;

/// How a client proves who it is.
enum Login {
    None,
    Token(Secret),
    Basic(String, Secret),
}

/// A Pulsar sink's settings, checked.
pub(super) struct Config {
    pub(super) address: Address,
    pub(super) destination: Destination,
    pub(super) encoding: Encoding,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) max_message: usize,
    compression: Packing,
    login: Login,
    certificates: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Packing {
    None,
    Lz4,
    Zstd,
}

impl Config {
    /// Reads and checks everything; nothing is connected.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let address = Address::parse(url, &mut options)?;
        let mut options = Reader::new(url, options);
        let destination = Destination::from_options(&address, &mut options);
        let encoding = Encoding::from_options(Binding::PULSAR, &mut options);
        let timeout = options.duration("timeout", 100, 300_000).unwrap_or(TIMEOUT);
        let connect_timeout = options.duration("connect_timeout", 100, 300_000).unwrap_or(CONNECT_TIMEOUT);
        let max_message = options.size("max_message", 1_000, 1_000_000_000).unwrap_or(MAX_MESSAGE);
        let words = [("none", Packing::None), ("lz4", Packing::Lz4), ("zstd", Packing::Zstd)];
        let compression = options.choice("compression", &words).unwrap_or(Packing::None);
        let login = login(&address, &mut options);
        let certificates = options.file("tls_ca").and_then(|file| match std::fs::read(&file) {
            Ok(bytes) if bytes.windows(11).any(|part| part == b"-----BEGIN ") => Some(bytes),
            Ok(_) => {
                options.problem("tls_ca", "names a file without certificates", "it wants PEM");
                None
            }
            Err(error) => {
                options.problem(
                    "tls_ca",
                    &format!("names a file that cannot be read: {error}"),
                    "name another",
                );
                None
            }
        });
        if certificates.is_some() && address.scheme != "pulsar+ssl" {
            options.problem("tls_ca", "is given without TLS", "write pulsar+ssl:// in the URL");
        }
        options.finish()?;
        Ok(Self {
            address,
            destination,
            encoding,
            timeout,
            connect_timeout,
            max_message,
            compression,
            login,
            certificates,
        })
    }

    /// A client to one of the hosts; they take turns.
    pub(super) fn client(&self, turn: usize) -> PulsarBuilder<TokioExecutor> {
        let host = &self.address.hosts[turn % self.address.hosts.len()];
        let url = format!("{}://{}", self.address.scheme, host.with_port(self.address.default_port()));
        // Short: what does not work now is told, and the relay tries again.
        let connection = ConnectionRetryOptions {
            min_backoff: Duration::from_millis(20),
            max_backoff: Duration::from_secs(1),
            max_retries: 2,
            connection_timeout: self.connect_timeout,
            keep_alive: Duration::from_secs(30),
            ..ConnectionRetryOptions::default()
        };
        let operation = OperationRetryOptions {
            operation_timeout: self.timeout,
            retry_delay: Duration::from_millis(500),
            max_retries: Some(4),
        };
        let mut builder = Pulsar::builder(url, TokioExecutor)
            .with_connection_retry_options(connection)
            .with_operation_retry_options(operation)
            .with_outbound_channel_size(OUTBOUND);
        if let Some(certificates) = &self.certificates {
            builder = builder.with_certificate_chain(certificates.clone());
        }
        match &self.login {
            Login::None => builder,
            Login::Token(token) => builder.with_auth(Authentication {
                name: "token".to_owned(),
                data: token.reveal().as_bytes().to_vec(),
            }),
            Login::Basic(user, password) => {
                builder.with_auth_provider(BasicAuthentication::new(user, password.reveal()))
            }
        }
    }

    /// How producers are.
    pub(super) fn producer(&self) -> ProducerOptions {
        ProducerOptions {
            compression: match self.compression {
                Packing::None => None,
                Packing::Lz4 => Some(Compression::Lz4(CompressionLz4::default())),
                Packing::Zstd => Some(Compression::Zstd(CompressionZstd::default())),
            },
            block_queue_if_full: true,
            routing_policy: Some(RoutingPolicy::Custom(Arc::new(ByKey))),
            ..ProducerOptions::default()
        }
    }
}

/// The token or the name and password, of the URL or of options.
fn login(address: &Address, options: &mut Reader) -> Login {
    let (token, user, password) = (options.secret("token"), options.text("user"), options.secret("password"));
    if address.user.is_some() && (token.is_some() || user.is_some() || password.is_some()) {
        options.problem(
            "token, user or password",
            "is given, and a login in the URL too",
            "keep one of the two",
        );
    }
    let (user, password, token) = match (address.user.clone(), address.password.clone()) {
        // Without a password it is a token.
        (Some(alone), None) => (None, None, Some(Secret::new(alone))),
        (Some(user), Some(password)) => (Some(user), Some(password), None),
        _ => (user, password, token),
    };
    match (token, user, password) {
        (Some(token), None, None) => Login::Token(token),
        (None, Some(user), Some(password)) => Login::Basic(user, password),
        (None, None, None) => Login::None,
        (Some(_), ..) => {
            options.problem("token", "is given, and a user or password too", "keep one of the two");
            Login::None
        }
        _ => {
            options.problem("user", "and password belong together", "give both, or a token");
            Login::None
        }
    }
}

/// The partition that Java's clients choose for a key: by the hash of their strings.
#[derive(Debug)]
struct ByKey;

impl CustomRoutingPolicy for ByKey {
    fn route(&self, message: &Message, partitions: usize) -> usize {
        let key = message.partition_key.as_deref().unwrap_or_default();
        partition(key, partitions)
    }
}

pub(super) fn partition(key: &str, partitions: usize) -> usize {
    let hash =
        key.encode_utf16().fold(0_u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit)));
    let positive = usize::try_from(hash & 0x7fff_ffff).unwrap_or_default();
    positive % partitions.max(1)
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address's user, who may be a token.
        let address = self.address.to_string();
        f.debug_struct("Config")
            .field("address", &address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
