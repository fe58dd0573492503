//! URL and options of a Kafka sink as settings of librdkafka.

use std::time::Duration;

use postbox_core::redact::is_secret_name;
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use super::producer::Reporter;
use crate::address::Address;
use crate::destination::Destination;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader};
use crate::tls::TlsFiles;
use crate::url::SinkError;

/// Below the relay's `dispatch_timeout`, which is 30 s unless told otherwise: the client says first what is wrong.
const TIMEOUT: Duration = Duration::from_secs(20);

/// For TCP, TLS and login together. The client tries again until an event's `timeout`, so it is a part of that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client's own default; brokers take a batch of 1 MiB unless told otherwise.
pub(super) const MAX_MESSAGE: usize = 1_000_000;

/// Properties that cannot be given, and what to do instead.
const TAKEN: &[(&str, &str)] = &[
    ("bootstrap.servers", "name the brokers in the URL"),
    ("metadata.broker.list", "name the brokers in the URL"),
    ("acks", "it is always all: an event that a broker may forget is not delivered"),
    ("request.required.acks", "it is always all: an event that a broker may forget is not delivered"),
    ("enable.idempotence", "it is always true: what the client repeats is in the log once"),
    ("delivery.report.only.error", "every delivery is waited for"),
    ("transactional.id", "events are not sent in Kafka's transactions"),
    ("message.timeout.ms", "use the option timeout"),
    ("delivery.timeout.ms", "use the option timeout"),
    ("socket.connection.setup.timeout.ms", "use the option connect_timeout"),
    ("message.max.bytes", "use the option max_message"),
    ("compression.codec", "use the option compression"),
    ("compression.type", "use the option compression"),
    ("linger.ms", "use the option linger"),
    ("queue.buffering.max.ms", "use the option linger"),
    ("security.protocol", "write kafka:// or kafka+ssl://, with user:password@ for SASL"),
    ("sasl.mechanism", "use the option sasl"),
    ("sasl.mechanisms", "use the option sasl"),
    ("sasl.username", "use the option user, or user:password@ in the URL"),
    ("sasl.password", "use the option password, or user:password@ in the URL"),
    ("ssl.ca.location", "use the option tls_ca"),
    ("ssl.certificate.location", "use the option tls_cert"),
    ("ssl.key.location", "use the option tls_key"),
    ("ssl.key.password", "use the option tls_key_password"),
];

/// Which time a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Timestamp {
    /// That of the event.
    #[default]
    OccurredAt,
    /// That of its sending.
    Sent,
}

/// A Kafka sink's settings, checked.
pub(super) struct Config {
    pub(super) address: Address,
    pub(super) client: ClientConfig,
    pub(super) destination: Destination,
    pub(super) encoding: Encoding,
    pub(super) timeout: Duration,
    pub(super) timestamp: Timestamp,
    pub(super) max_message: usize,
}

impl Config {
    /// Reads and checks everything; nothing is connected.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let mut address = Address::parse(url, &mut options)?;
        let mut options = Reader::new(url, options);
        let destination = Destination::from_options(&address, &mut options);
        let encoding = Encoding::from_options(Binding::KAFKA, &mut options);
        let timeout = options.duration("timeout", 100, 300_000).unwrap_or(TIMEOUT);
        // Less than a second is nothing that the client takes.
        let connect_timeout = options.duration("connect_timeout", 1_000, 300_000).unwrap_or(CONNECT_TIMEOUT);
        let times = [("occurred_at", Timestamp::OccurredAt), ("sent", Timestamp::Sent)];
        let timestamp = options.choice("timestamp", &times).unwrap_or_default();
        let max_message = options.size("max_message", 1_000, 1_000_000_000).unwrap_or(MAX_MESSAGE);
        let mut client = defaults(timeout, connect_timeout);
        client.set("bootstrap.servers", address.hosts_with_port().join(","));
        client.set("message.max.bytes", max_message.to_string());
        delivery(&mut client, &mut options);
        security(&mut client, &mut address, &mut options);
        properties(&mut client, &mut options);
        options.finish()?;
        whole(&client).map_err(|problem| SinkError::new(url, problem))?;
        Ok(Self { address, client, destination, encoding, timeout, timestamp, max_message })
    }
}

/// What is the same for all; properties may say otherwise.
fn defaults(timeout: Duration, connect_timeout: Duration) -> ClientConfig {
    let [timeout, connect_timeout] = [timeout, connect_timeout].map(|limit| limit.as_millis().to_string());
    let mut client = ClientConfig::new();
    // Where nobody listens the client need not tell: what matters comes back as an error of an event.
    client.set_log_level(RDKafkaLogLevel::Warning);
    for (name, value) in [
        ("client.id", "postbox"),
        ("acks", "all"),
        ("enable.idempotence", "true"),
        // The same key, the same partition, whether Java writes or we.
        ("partitioner", "murmur2_random"),
        ("message.timeout.ms", &timeout),
        ("request.timeout.ms", &timeout),
        ("socket.timeout.ms", &timeout),
        ("socket.connection.setup.timeout.ms", &connect_timeout),
        ("socket.keepalive.enable", "true"),
        // A broker that is back is noticed soon.
        ("reconnect.backoff.max.ms", "2000"),
        // A topic that is just being made is waited for; one that is not there is told of before the timeout.
        ("topic.metadata.propagation.max.ms", "5000"),
        // Large messages travel alone: brokers limit batches, and one must not take others with it.
        ("batch.size", "1000000"),
    ] {
        client.set(name, value);
    }
    client
}

fn delivery(client: &mut ClientConfig, options: &mut Reader) {
    let words = ["none", "gzip", "snappy", "lz4", "zstd"].map(|word| (word, word));
    client.set("compression.type", options.choice("compression", &words).unwrap_or("none"));
    // A batch is handed over at once: a millisecond gathers it.
    let linger = options.duration("linger", 0, 1000).unwrap_or(Duration::from_millis(1));
    client.set("linger.ms", linger.as_millis().to_string());
}

fn security(client: &mut ClientConfig, address: &mut Address, options: &mut Reader) {
    let tls = address.scheme == "kafka+ssl";
    let (user, password) = address.take_login(options);
    let mechanisms =
        [("plain", "PLAIN"), ("scram-sha-256", "SCRAM-SHA-256"), ("scram-sha-512", "SCRAM-SHA-512")];
    let mechanism = options.choice("sasl", &mechanisms);
    let TlsFiles { ca, client: own } = TlsFiles::from_options(options, tls, "kafka+ssl");
    let key_password = options.secret("tls_key_password");
    client.set(
        "security.protocol",
        match (tls, user.is_some()) {
            (false, false) => "plaintext",
            (false, true) => "sasl_plaintext",
            (true, false) => "ssl",
            (true, true) => "sasl_ssl",
        },
    );
    match (&user, &password) {
        (Some(user), Some(password)) => {
            client.set("sasl.mechanism", mechanism.unwrap_or("PLAIN"));
            client.set("sasl.username", user).set("sasl.password", password.reveal());
        }
        (None, None) if mechanism.is_some() => {
            options.problem("sasl", "is given without user and password", "add them, or remove it");
        }
        (None, None) => {}
        (Some(_), None) => options.problem("password", "is missing", "a user needs a password"),
        (None, Some(_)) => options.problem("user", "is missing", "a password needs a user"),
    }
    if key_password.is_some() && !tls {
        options.problem(
            "tls_key_password",
            "is given for a connection without TLS",
            "write kafka+ssl:// in the URL",
        );
    }
    let scram = mechanism.is_some_and(|mechanism| mechanism.starts_with("SCRAM"));
    if (tls || scram) && !cfg!(feature = "kafka-tls") {
        let (name, what) = if tls { ("kafka+ssl://", "") } else { ("sasl", "SCRAM ") };
        let problem = format!("{what}needs OpenSSL, which this build is without");
        options.problem(name, &problem, "cargo build --features kafka-tls");
        // The client would say the same once more.
        client.set("security.protocol", "plaintext").set("sasl.mechanism", "PLAIN");
        return;
    }
    let (certificate, key) = own.unzip();
    let names = ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"];
    for (name, file) in names.into_iter().zip([ca, certificate, key]) {
        if let Some(file) = file {
            client.set(name, file.display().to_string());
        }
    }
    if let Some(password) = key_password {
        client.set("ssl.key.password", password.reveal());
    }
}

/// The option `properties`: anything else that librdkafka knows.
fn properties(client: &mut ClientConfig, options: &mut Reader) {
    for (name, value) in options.map("properties") {
        if let Some((_, instead)) = TAKEN.iter().find(|(taken, _)| *taken == name) {
            options.problem("properties", &format!("must not have {name}"), instead);
            continue;
        }
        let alone = ClientConfig::new().set(&name, &value).create_native_config();
        if let Err(KafkaError::ClientConfig(_, reason, ..)) = &alone {
            let reason = if is_secret_name(&name) { "its value cannot be used" } else { reason };
            options.problem("properties", &format!("has {name:?}"), reason);
        }
        client.set(name, value);
    }
}

/// Has the client check all settings together, as it does when it is made. Without a broker's name it connects to nobody.
fn whole(client: &ClientConfig) -> Result<(), String> {
    let mut client = client.clone();
    client.remove("bootstrap.servers");
    let made: Result<BaseProducer<Reporter>, KafkaError> = client.create_with_context(Reporter::default());
    match made {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientCreation(reason)) => Err(format!("the Kafka client refuses it: {reason}")),
        Err(KafkaError::ClientConfig(_, reason, name, _)) if !is_secret_name(&name) => Err(reason),
        Err(KafkaError::ClientConfig(_, _, name, _)) => Err(format!("the value of {name} cannot be used")),
        Err(_) => Err("the Kafka client cannot be made".to_owned()),
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client's settings, which hold the password.
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
