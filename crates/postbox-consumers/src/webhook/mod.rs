//! [`Webhook`]: requests through an inbox.

mod verify;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http_body_util::LengthLimitError;
use postbox_core::inbox::InboxDriver;
use postbox_core::{Code, DispatchError, DispatchErrorKind, Seen};
use time::OffsetDateTime;
use tower_service::Service;

use crate::consumer::Consumer;
use crate::identify::{EVENT_ID, Unknown};
use crate::message::{Envelope, Message, decoded};
pub use verify::WebhookError;
use verify::{Keys, Signed};

const TOO_LARGE: (StatusCode, &str) = (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");

/// What stands before the fields of an event that no standard of HTTP has a name for.
const PREFIX: &str = "postbox-";

/// Receives webhooks: a tower service, for `Router::route_service` of axum, or [`receive`](Self::receive) in a handler of yours.
///
/// ```
/// # use postbox_consumers::{Consumer, Message, Webhook};
/// # use postbox_core::{ConsumerName, HandlerResult, Inbox, OutboxTransaction};
/// # use postbox_stores::sqlite::SqlxSqlite;
/// # async fn reduce(_: &mut OutboxTransaction<SqlxSqlite>, _: &Message) -> HandlerResult { Ok(()) }
/// # fn example(pool: &sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::new("stock_outbox".parse()?);
/// let consumer = Consumer::new(pool, inbox, ConsumerName::from_static("stock"), reduce);
/// let secret = std::env::var("WEBHOOK_SECRET")?; // whsec_…, as the sender has it; several while they are changed
/// let hook = Webhook::signed(consumer, &[&secret])?;
/// let app: axum::Router = axum::Router::new().route_service("/hooks", hook);
/// # Ok(())
/// # }
/// ```
///
/// | what happened | answer | what the sink of Postbox makes of it |
/// | --- | --- | --- |
/// | the effect is committed, or was before | 204 | delivered |
/// | the handler failed | 500 | tried again, and dead after its `max_attempts`: there, where it can be replayed |
/// | the handler says `unavailable`, or the database does not answer | 503 with `Retry-After` | tried again |
/// | the handler says `reject`, or the payload is not what it expects | 422 | dead at once |
/// | no id | 400 | dead at once |
/// | a signature that is none of ours, or an old one | 401 | held back, as this sink is set up wrongly |
/// | a body that is too large | 413 | dead at once |
/// | a body that ended early | 408 | tried again |
///
/// A sender tries again by itself and keeps what is dead: so nothing is tried in place here, and there are no dead letters of the receiver's own.
///
/// A message is known by its `webhook-id`, which is the event id: of all that a request says about itself only that is signed, beside time and body.
/// Another [`Identify`](crate::Identify) must not rely on headers, unless the sender is trusted otherwise.
#[derive(Debug)]
#[must_use = "a webhook does nothing until it receives"]
pub struct Webhook<D: InboxDriver> {
    consumer: Consumer<D>,
    keys: Option<Keys>,
    tolerance: Duration,
    limit: usize,
}

impl<D: InboxDriver> Webhook<D> {
    /// Takes webhooks that are signed with one of these secrets.
    ///
    /// # Errors
    /// When one is no secret, or there is none.
    pub fn signed(consumer: Consumer<D>, secrets: &[&str]) -> Result<Self, WebhookError> {
        Ok(Self { keys: Some(Keys::parse(secrets)?), ..Self::unsigned(consumer) })
    }

    /// Takes whatever comes. For senders that are known otherwise: by mutual TLS, a gateway, a network.
    pub fn unsigned(consumer: Consumer<D>) -> Self {
        Self { consumer, keys: None, tolerance: Duration::from_mins(5), limit: 2 << 20 }
    }

    /// How far from now a signature's time may be; 5 minutes. Longer gives who overheard a request longer to repeat it; the inbox knows it all the same.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The largest body, in bytes; 2 MiB.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Takes a request: has its effect, if it is new, and answers after the commit.
    ///
    /// # Cancel safety
    /// Dropped, the transaction is rolled back, or committed if that was under way: the sender repeats, and the inbox knows.
    pub async fn receive(&self, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        let body = match whole(body, self.limit).await {
            Ok(body) => body,
            Err((status, why)) => return refuse(status, why),
        };
        let signed_id = match self.verified(&parts.headers, &body) {
            Ok(id) => id,
            Err(why) => return refuse(StatusCode::UNAUTHORIZED, why),
        };
        let envelope = envelope(parts.uri.path(), &parts.headers, signed_id, body);
        let id = match self.consumer.identify.of(&envelope) {
            Ok(id) => id,
            Err(unknown) => {
                tracing::warn!(consumer = %self.consumer.name(), error = %unknown, "a webhook is refused");
                let why = match unknown {
                    // What a function of ours said is not the sender's.
                    Unknown::Panicked { .. } => format!("{}: its id cannot be told", Code::MessageIdInvalid),
                    Unknown::Missing { .. } | Unknown::Unnumbered(_) | Unknown::Invalid(_) => {
                        unknown.to_string()
                    }
                };
                return refuse(StatusCode::BAD_REQUEST, why);
            }
        };
        let message = Message { id, tries: 0, envelope };
        match self.consumer.attempt(&message).await {
            Ok(Seen::First | Seen::Before) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => self.failed(&message, &error),
        }
    }

    /// The id that is vouched for, if signatures are wanted.
    fn verified<'a>(&self, headers: &'a HeaderMap, body: &[u8]) -> Result<Option<&'a str>, &'static str> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let id = text("webhook-id");
        let Some(keys) = &self.keys else { return Ok(id) };
        let (Some(id), Some(timestamp), Some(signature)) =
            (id, text("webhook-timestamp"), text("webhook-signature"))
        else {
            return Err("webhook-id, webhook-timestamp and webhook-signature are needed");
        };
        let now = OffsetDateTime::now_utc().unix_timestamp();
        keys.check(&Signed { id, timestamp, signature }, body, now, self.tolerance).map(|()| Some(id))
    }

    fn failed(&self, message: &Message, error: &DispatchError) -> Response {
        let (consumer, source, message_id) = (self.consumer.name(), &message.source, message.id());
        tracing::warn!(%consumer, source, %message_id, %error, "a webhook failed");
        // Without the error: it is not the sender's.
        match error.kind() {
            DispatchErrorKind::Reject => {
                refuse(StatusCode::UNPROCESSABLE_ENTITY, "the message is refused for good")
            }
            DispatchErrorKind::Unavailable => {
                let wait = self.consumer.backoff.after(1).as_secs().max(1);
                again(StatusCode::SERVICE_UNAVAILABLE, Some(wait))
            }
            DispatchErrorKind::Retry(after) => {
                again(StatusCode::INTERNAL_SERVER_ERROR, after.map(|after| after.as_secs().max(1)))
            }
        }
    }
}

/// All of a body, or what is to be answered.
async fn whole(body: Body, limit: usize) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let (mut bytes, mut chunks) = (Vec::new(), body.into_data_stream());
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            if is_limit(&error) {
                return TOO_LARGE;
            }
            // The message is not to blame: a sender that hears of it sends it again.
            (StatusCode::REQUEST_TIMEOUT, "the body ended early")
        })?;
        if bytes.len() + chunk.len() > limit {
            return Err(TOO_LARGE);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Whether somebody else's limit ended the body, such as a layer's: sent again, it would be as large.
fn is_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn refuse(status: StatusCode, why: impl Into<String>) -> Response {
    (status, why.into()).into_response()
}

fn again(status: StatusCode, after: Option<u64>) -> Response {
    let mut answer = refuse(status, "not now; send it again");
    answer.headers_mut().extend(after.map(|after| (RETRY_AFTER, after.into())));
    answer
}

/// The message of a request. Fields of Postbox have the names that they have at brokers.
fn envelope(path: &str, headers: &HeaderMap, id: Option<&str>, payload: Vec<u8>) -> Envelope {
    let mut envelope = Envelope { source: path.to_owned(), payload, ..Envelope::default() };
    // First, so that it counts: who changed another header has changed nothing.
    envelope.headers.extend(id.map(|id| (EVENT_ID.to_owned(), id.to_owned())));
    for (name, value) in headers {
        let Ok(text) = value.to_str() else { continue };
        match name.as_str().strip_prefix(PREFIX) {
            Some("message-key") => envelope.key = Some(decoded(text).into_owned()),
            Some(field) => envelope.headers.push((field.replace('-', "_"), decoded(text).into_owned())),
            None => envelope.headers.push((name.as_str().to_owned(), text.to_owned())),
        }
    }
    envelope
}

impl<D: InboxDriver> Clone for Webhook<D> {
    fn clone(&self) -> Self {
        let Self { consumer, keys, tolerance, limit } = self;
        Self { consumer: consumer.clone(), keys: keys.clone(), tolerance: *tolerance, limit: *limit }
    }
}

impl<D: InboxDriver> Service<Request<Body>> for Webhook<D> {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let webhook = self.clone();
        Box::pin(async move { Ok(webhook.receive(request).await) })
    }
}
