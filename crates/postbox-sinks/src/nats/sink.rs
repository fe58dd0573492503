//! [`NatsSink`]: the client, and how a batch goes over it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::jetstream::context::{ContextBuilder, GetStreamByNameErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{ConnectOptions, Event, ServerAddr, jetstream};
use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use tokio::sync::watch;
use tokio::time::timeout;

use super::config::{Login, NatsConfig};
use super::error;
use crate::connection::{Link, Shared};
use crate::options::Options;
use crate::url::SinkError;

/// As many as the relay may have under way at once; more would only wait in the client.
const MOST_IN_FLIGHT: usize = 16_384;
const BATCH: usize = 1_000;
/// So many subjects are asked about at once, when nobody answered for them.
const QUESTIONS: usize = 32;

/// Delivers events to NATS JetStream; clones share one connection.
///
/// ```
/// use postbox_sinks::{NatsSink, Options};
///
/// let sink = NatsSink::new("nats://broker:4222", Options::new().set("destination", "events.{topic}"))?;
/// assert_eq!(sink.to_string(), "nats://broker:4222");
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
#[derive(Debug, Clone)]
pub struct NatsSink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: NatsConfig,
    shared: Shared<Connection>,
}

/// A connection to one server. When it is lost it is not mended but made anew, at the next delivery: so it is made with the
/// addresses and credentials of that time, and nothing that was given up is sent late.
#[derive(Clone)]
struct Connection {
    context: jetstream::Context,
    state: Arc<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    lost: watch::Sender<bool>,
    /// What the server complained of last; it does not say about which message.
    complaint: Mutex<Option<String>>,
}

impl Link for Connection {
    fn is_lost(&self) -> bool {
        *self.state.lost.borrow()
    }
}

impl ConnectionState {
    fn heard(&self, event: &Event) {
        match event {
            Event::Disconnected | Event::Closed => drop(self.lost.send_replace(true)),
            Event::ServerError(error) => {
                *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            _ => {}
        }
    }

    /// It was told of, and the next silence may have another cause.
    fn forget_complaint(&self) {
        *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// An error with what the server complained of, if it did.
    fn with_complaint(&self, error: DispatchError) -> DispatchError {
        match &*self.complaint.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(complaint) => {
                DispatchError::unavailable(format!("{complaint} (the server's last complaint)"))
            }
            None => error,
        }
    }
}

impl NatsSink {
    /// A sink by its URL and options. Nothing is connected yet.
    ///
    /// # Errors
    /// With all that is wrong with them.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let config = NatsConfig::new(url, options)?;
        Ok(Self(Arc::new(Inner { config, shared: Shared::new() })))
    }

    async fn connect(&self) -> Result<Connection, DispatchError> {
        let config = &self.0.config;
        let state = Arc::new(ConnectionState::default());
        let hosts = config.address.hosts_with_port();
        let servers = hosts.iter().map(|host| format!("nats://{host}").parse::<ServerAddr>());
        let servers: Vec<ServerAddr> =
            servers.collect::<Result<_, _>>().map_err(DispatchError::unavailable)?;
        let heard = Arc::clone(&state);
        let options = self
            .login()?
            .name(&config.name)
            .connection_timeout(config.connect_timeout)
            .max_reconnects(servers.len())
            .event_callback(move |event| {
                heard.heard(&event);
                std::future::ready(())
            });
        // Each server has its own limit; this one is for names that do not resolve.
        let hosts = u32::try_from(servers.len()).unwrap_or(1);
        let limit = config.connect_timeout * hosts + Duration::from_secs(1);
        let client = match timeout(limit, options.connect(servers)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(error::of_connect(&error)),
            Err(_) => return Err(DispatchError::unavailable("cannot connect to NATS: timed out")),
        };
        let builder = ContextBuilder::new().timeout(config.timeout).max_ack_inflight(MOST_IN_FLIGHT);
        let context = match &config.domain {
            Some(domain) => builder.domain(domain).build(client),
            None => builder.build(client),
        };
        Ok(Connection { context, state })
    }

    fn login(&self) -> Result<ConnectOptions, DispatchError> {
        let config = &self.0.config;
        let mut options = ConnectOptions::new().require_tls(config.encrypted);
        if let Some(ca) = &config.tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &config.tls.client {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(match &config.login {
            Login::None => options,
            Login::Password(user, password) => {
                options.user_and_password(user.clone(), password.reveal().to_owned())
            }
            Login::Token(token) => options.token(token.reveal().to_owned()),
            Login::Nkey(seed) => options.nkey(seed.reveal().to_owned()),
            Login::Creds(path) => {
                let creds = std::fs::read_to_string(path);
                let options = creds.and_then(|creds| options.credentials(&creds));
                options.map_err(|error| {
                    DispatchError::unavailable(format!("the credentials in {}: {error}", path.display()))
                })?
            }
        })
    }

    /// Subject and message of an event.
    pub(super) fn message(&self, delivery: &Delivery) -> Result<(String, PublishMessage), DispatchError> {
        let config = &self.0.config;
        let subject = config.destination.of(delivery)?.into_owned();
        check_subject(&subject)?;
        let message = config.encoding.message(delivery);
        let mut headers = HeaderMap::new();
        let mut add = |name: &str, value: &str| {
            let cannot = |problem: &dyn fmt::Display| {
                DispatchError::reject(format!("NATS cannot carry the header {name:?}: {problem}"))
            };
            let header = HeaderName::try_from(name).map_err(|error| cannot(&error))?;
            headers.insert(header, value.parse::<HeaderValue>().map_err(|error| cannot(&error))?);
            Ok(())
        };
        for (name, value) in &message.headers {
            // Orders to the server are not for events to give.
            if !name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
                add(name, value)?;
            }
        }
        add("message_key", &message.key)?;
        // With its subject: a stream that takes several of one event would know the second again, and leave it out.
        add("Nats-Msg-Id", &format!("{}@{subject}", delivery.meta.event_id))?;
        let publish = PublishMessage::build().headers(headers).payload(message.payload.into_owned().into());
        Ok((subject, publish))
    }

    /// Why nobody answered for a subject.
    async fn unanswered(&self, context: &jetstream::Context, subject: &str) -> DispatchError {
        let waits =
            |why: &str| DispatchError::unavailable(format!("no stream answers for {subject:?}: {why}"));
        match timeout(self.0.config.timeout, context.stream_by_subject(subject)).await {
            Ok(Ok(stream)) => waits(&format!("the stream {stream} has no leader just now")),
            Ok(Err(error)) if error.kind() == GetStreamByNameErrorKind::NotFound => {
                let any = timeout(self.0.config.timeout, context.stream_names().next()).await;
                match any {
                    Ok(Some(Ok(_))) => DispatchError::reject(format!(
                        "no stream takes the subject {subject:?}: add it to one, then replay the event"
                    )),
                    Ok(None) => waits("there is none yet"),
                    Ok(Some(Err(_))) | Err(_) => waits("JetStream cannot be asked"),
                }
            }
            Ok(Err(_)) | Err(_) => waits("JetStream cannot be asked, or is not enabled"),
        }
    }
}

/// A subject that can be published to, and that is not the server's own.
fn check_subject(subject: &str) -> Result<(), DispatchError> {
    let problem = if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "it holds white space"
    } else if subject.split('.').any(str::is_empty) {
        "it has an empty part"
    } else if subject.split('.').any(|part| part == "*" || part == ">") {
        "it has a wildcard"
    } else if subject.starts_with("$JS.") || subject.starts_with("$SYS.") {
        "it is one of the server's own"
    } else {
        return Ok(());
    };
    Err(DispatchError::reject(format!("{subject:?} cannot be a subject: {problem}")))
}

fn lost() -> DispatchError {
    DispatchError::unavailable("the connection to NATS was lost")
}

impl fmt::Display for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.config.address.fmt(f)
    }
}

impl Dispatcher for NatsSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let connection = match self.0.shared.get(async || self.connect().await).await {
            Ok(connection) => connection,
            Err(error) => return receipts.rest_failed(error),
        };
        let Connection { context, state } = &connection;
        let mut gone = state.lost.subscribe();
        let mut acks = FuturesUnordered::new();
        for (index, delivery) in batch.iter().enumerate() {
            let (subject, message) = match self.message(delivery) {
                Ok(message) => message,
                Err(error) => {
                    receipts.record(index, Err(error));
                    continue;
                }
            };
            // The client takes it at once, unless its connection hangs.
            let sent = tokio::select! {
                biased;
                _ = gone.wait_for(|gone| *gone) => return receipts.rest_failed(lost()),
                sent = timeout(self.0.config.timeout, context.send_publish(subject.clone(), message)) => sent,
            };
            match sent {
                Ok(Ok(ack)) => acks.push(async move { (index, subject, ack.await) }),
                Ok(Err(error)) => {
                    receipts.record(index, Err(error::of_publish(&error).unwrap_or_else(lost)));
                }
                Err(_) => {
                    state.lost.send_replace(true);
                    return receipts.rest_failed(lost());
                }
            }
        }
        let (mut confirmed, mut silent, mut unanswered) = (0, 0, BTreeMap::<String, Vec<usize>>::new());
        loop {
            let (index, subject, outcome) = tokio::select! {
                biased;
                next = acks.next() => match next {
                    Some(next) => next,
                    None => break,
                },
                _ = gone.wait_for(|gone| *gone) => return receipts.rest_failed(lost()),
            };
            match outcome {
                Ok(_) => {
                    confirmed += 1;
                    receipts.record(index, Ok(()));
                }
                Err(failed) => match error::of_publish(&failed) {
                    Some(error) if error::is_silence(&failed) => {
                        silent += 1;
                        receipts.record(index, Err(state.with_complaint(error)));
                    }
                    Some(error) => receipts.record(index, Err(error)),
                    None => unanswered.entry(subject).or_default().push(index),
                },
            }
        }
        if silent > 0 {
            state.forget_complaint();
        }
        if silent > 0 && confirmed == 0 {
            // A connection that is open at this end only looks just like that.
            state.lost.send_replace(true);
        }
        // Each question may take its whole time: many at once.
        let mut reasons = stream::iter(unanswered)
            .map(|(subject, indices)| async move { (self.unanswered(context, &subject).await, indices) })
            .buffer_unordered(QUESTIONS);
        while let Some((error, indices)) = reasons.next().await {
            for index in indices {
                receipts.record(index, Err(error.clone()));
            }
        }
    }

    fn batch_limit(&self) -> usize {
        BATCH
    }
}
