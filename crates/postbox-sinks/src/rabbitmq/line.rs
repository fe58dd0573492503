//! [`Line`]: a connection with a channel that confirms, for one batch at a time.

use std::future::poll_fn;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use lapin::auth::AuthProvider;
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::{AsyncTcpStream, OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, Event};
use postbox_core::DispatchError;
use tokio::time::timeout;

use super::config::{Auth, RabbitConfig};
use super::error;
use crate::address::Host;

type Events = Mutex<std::pin::Pin<Box<dyn Stream<Item = Event> + Send>>>;

/// A connection and its only channel.
pub(super) struct Line {
    connection: Connection,
    pub(super) channel: Channel,
    events: Events,
    cutter: Cutter,
}

impl Line {
    /// Connects to one of the hosts. `first` is where to begin; it goes on with each that does not answer, so that whoever
    /// gives this up and tries again does not wait for the same one.
    pub(super) async fn open(config: &RabbitConfig, first: &AtomicUsize) -> Result<Self, DispatchError> {
        let hosts = &config.address.hosts;
        let mut failed = DispatchError::unavailable("no host");
        for _ in 0..hosts.len() {
            let host = first.load(Ordering::Relaxed) % hosts.len();
            first.store(host + 1, Ordering::Relaxed);
            match Self::open_at(config, &hosts[host]).await {
                Ok(line) => {
                    first.store(host, Ordering::Relaxed);
                    return Ok(line);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn open_at(config: &RabbitConfig, host: &Host) -> Result<Self, DispatchError> {
        let port = config.address.default_port();
        let shown = host.with_port(port);
        // Whatever goes wrong from here on, or whoever drops this: no half-open connection is left behind.
        let cutter = Cutter::armed();
        let opening = Self::open_with(config, host, host.port.unwrap_or(port), cutter);
        match timeout(config.connect_timeout, opening).await {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(error::of_connect(&shown, &error)),
            Err(_) => {
                let text = format!("no answer within {:?}", config.connect_timeout);
                Err(error::of_connect(&shown, &text))
            }
        }
    }

    async fn open_with(
        config: &RabbitConfig,
        host: &Host,
        port: u16,
        cutter: Cutter,
    ) -> Result<Self, lapin::Error> {
        let (tls, limit, wire) = (tls(config)?, config.connect_timeout, cutter.wire.clone());
        // Its type has no name here: so it is this one that is asked, and not the same that is handed in.
        let runtime = lapin::runtime::default_runtime()?;
        let own = runtime.clone();
        let connect = async move |uri: AMQPUri, _| {
            let place = (uri.authority.host.clone(), uri.authority.port);
            let connecting = AsyncTcpStream::connect(&own, own.to_socket_addrs(place));
            // The client waits for this in a thread of its own, which must come to its end.
            let connected = timeout(limit, connecting).await;
            let stream = connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
            if let AsyncTcpStream::Plain(plain) = &stream {
                wire.put(plain.get_ref().as_fd().try_clone_to_owned()?);
            }
            match uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => {
                    let secured = timeout(limit, stream.into_tls(&uri.authority.host, tls.as_ref())).await;
                    Ok(secured.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?)
                }
            }
        };
        let connection =
            Connection::connector(uri(config, host, port), runtime, connect, properties(config)).await?;
        let events = Mutex::new(connection.events_listener().boxed());
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel, events, cutter })
    }

    /// A batch begins on it: from now on it is cut when it is dropped, because what was not sent yet is not to be sent later.
    /// Whoever gave it up has it sent again.
    pub(super) fn begin(&mut self) {
        self.cutter.armed = true;
    }

    /// All of the batch is confirmed: when it is dropped now it takes its leave from the broker.
    pub(super) fn finish(&mut self) {
        self.cutter.armed = false;
    }

    /// Whether it can be used for another batch.
    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected() && self.channel.status().connected()
    }

    /// The largest frame that both sides agreed on.
    pub(super) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Why the broker takes nothing from anybody just now, if it said so.
    pub(super) fn blocked(&self) -> Option<String> {
        if !self.connection.status().blocked() {
            return None;
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reason = "it does not say why".to_owned();
        while let Some(Some(event)) = events.next().now_or_never() {
            if let Event::ConnectionBlocked(said) = event {
                reason = said;
            }
        }
        Some(reason)
    }

    /// Whether the broker answers at all.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        let question = self.channel.confirm_select(ConfirmSelectOptions::default());
        matches!(timeout(limit, question).await, Ok(Ok(())))
    }

    /// Comes back when the client has finished with the answer of the broker that it is at, if it is at one: one answer may
    /// confirm several messages.
    pub(super) async fn at_rest(&self) {
        // It asks for the last confirmation under the lock that the client holds for the whole of an answer.
        poll_fn(|context| {
            let _ = pin!(self.channel.wait_for_confirms()).poll(context);
            Poll::Ready(())
        })
        .await;
    }
}

fn uri(config: &RabbitConfig, host: &Host, port: u16) -> AMQPUri {
    let (username, password) = match &config.auth {
        Auth::Plain(user, password) => (user.clone(), password.reveal().to_owned()),
        Auth::External => (String::new(), String::new()),
    };
    AMQPUri {
        scheme: if config.encrypted { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username, password },
            host: host.name.clone(),
            port,
        },
        vhost: config.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(config.frame_max),
            heartbeat: Some(config.heartbeat),
            ..AMQPQueryString::default()
        },
    }
}

fn properties(config: &RabbitConfig) -> ConnectionProperties {
    /// The client's certificate says who it is.
    struct External;
    impl AuthProvider for External {}

    let properties = ConnectionProperties::default()
        .with_connection_name(config.name.as_str().into())
        .with_client_property("product".into(), "Postbox".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
    match config.auth {
        Auth::Plain(..) => properties,
        Auth::External => properties.with_auth_provider(External),
    }
}

/// Read anew for each connection: certificates are renewed.
fn tls(config: &RabbitConfig) -> Result<OwnedTLSConfig, std::io::Error> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| {
            std::io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
        })
    };
    let identity = match &config.tls.client {
        Some((cert, key)) => Some(OwnedIdentity::PKCS8 { pem: read(cert)?, key: read(key)? }),
        None => None,
    };
    let chain = config.tls.ca.as_deref().map(read).transpose()?;
    let cert_chain = chain.map(|chain| String::from_utf8_lossy(&chain).into_owned());
    Ok(OwnedTLSConfig { identity, cert_chain })
}

/// Ends a connection from outside. The client has no way to: it waits for the broker's farewell, and for ever for the
/// greeting of one that says nothing.
#[derive(Debug)]
struct Cutter {
    wire: Wire,
    /// Whether it cuts when it is dropped.
    armed: bool,
}

/// The connection's socket, once there is one.
#[derive(Debug, Clone, Default)]
struct Wire(Arc<Mutex<Socket>>);

#[derive(Debug, Default)]
enum Socket {
    #[default]
    None,
    Open(TcpStream),
    Cut,
}

impl Cutter {
    fn armed() -> Self {
        Self { wire: Wire::default(), armed: true }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        if self.armed {
            self.wire.set(Socket::Cut);
        }
    }
}

impl Wire {
    fn put(&self, socket: OwnedFd) {
        self.set(Socket::Open(socket.into()));
    }

    fn set(&self, next: Socket) {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let close = |socket: &TcpStream| drop(socket.shutdown(Shutdown::Both));
        match (&*socket, &next) {
            (Socket::Cut, Socket::Open(late)) => return close(late),
            (Socket::Open(open), Socket::Cut) => close(open),
            _ => {}
        }
        *socket = next;
    }
}
