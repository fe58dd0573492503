//! [`IdempotencyLayerBuilder`]: what a layer can be told.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode};
use postbox_core::idempotency::{Call, IdempotencyStore};

use crate::layer::IdempotencyLayer;
use crate::response::KEPT;

/// Who calls.
pub(crate) type Principal = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// What a layer was told.
pub(crate) struct Settings {
    pub(crate) header: HeaderName,
    pub(crate) methods: Vec<Method>,
    pub(crate) required: bool,
    pub(crate) lengths: RangeInclusive<usize>,
    pub(crate) body_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) lease: Duration,
    pub(crate) keep: Vec<HeaderName>,
    pub(crate) stores: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    pub(crate) types: Option<Arc<str>>,
    pub(crate) prefix: String,
    pub(crate) database: Option<String>,
}

/// Builds an [`IdempotencyLayer`]. It must be told who calls, with [`principal`](Self::principal) or
/// [`single_principal`](Self::single_principal); everything else has a default.
#[must_use = "a builder does nothing until it is built"]
pub struct IdempotencyLayerBuilder<S, P = Unsaid> {
    store: S,
    principal: P,
    settings: Settings,
}

/// Nobody has said who calls.
#[derive(Debug, Clone, Copy)]
pub struct Unsaid(());

/// Somebody has.
#[derive(Clone)]
pub struct Said(Principal);

/// Whether a builder knows who calls.
#[diagnostic::on_unimplemented(
    message = "the layer does not know who calls",
    label = "say so before `build`",
    note = "`.principal(|parts| …)` finds the caller in what your authentication left in the request; two callers who choose the \
            same key must not see each other's answers",
    note = "`.single_principal()` is for services that all callers use in the same name"
)]
pub trait KnowsPrincipal {
    #[doc(hidden)]
    fn principal(self) -> Said;
}

impl KnowsPrincipal for Said {
    fn principal(self) -> Said {
        self
    }
}

impl<S: IdempotencyStore> IdempotencyLayerBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        let settings = Settings {
            header: HeaderName::from_static("idempotency-key"),
            methods: vec![Method::POST, Method::PATCH],
            required: false,
            lengths: 1..=Call::KEY_LIMIT,
            body_limit: 2 << 20,
            response_limit: 256 << 10,
            lease: Duration::from_secs(30),
            keep: KEPT.to_vec(),
            stores: Arc::new(is_final),
            types: None,
            prefix: "outbox".to_owned(),
            database: None,
        };
        Self { store, principal: Unsaid(()), settings }
    }
}

/// Whether a repeat would get the same: not where the server failed, nor where the caller is told to log in or to come again.
fn is_final(status: StatusCode) -> bool {
    let again = matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
    );
    !status.is_server_error() && !status.is_informational() && !again
}

impl<S: IdempotencyStore, P> IdempotencyLayerBuilder<S, P> {
    /// Finds out who calls: the account, user or API client, as your authentication has left it in the request, whose layer must
    /// be outside of this one. The name is stored as it is (one that is long, by its hash): give an id, never a secret. Without an
    /// answer the call is refused with 401.
    ///
    /// ```
    /// # use postbox_core::idempotency::{Call, IdempotencyStore};
    /// # use postbox_web::IdempotencyLayer;
    /// # #[derive(Clone)] struct Account { id: u64 }
    /// # fn layer<S: IdempotencyStore>(store: S) -> IdempotencyLayer<S> {
    /// IdempotencyLayer::builder(store)
    ///     .principal(|parts| parts.extensions.get::<Account>().map(|account| account.id.to_string()))
    ///     .build()
    /// # }
    /// ```
    pub fn principal<F>(self, find: F) -> IdempotencyLayerBuilder<S, Said>
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        let Self { store, settings, .. } = self;
        IdempotencyLayerBuilder { store, principal: Said(Arc::new(find)), settings }
    }

    /// All callers are one: a key of one of them is a key of all. Only for services whose callers know and trust each other.
    pub fn single_principal(self) -> IdempotencyLayerBuilder<S, Said> {
        self.principal(|_| Some(String::new()))
    }

    /// The methods it is for: POST and PATCH. Others pass untouched, whatever headers they have.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// Refuses calls without a key, with 400. By default they run as if the layer were not there.
    pub fn require_key(mut self) -> Self {
        self.settings.required = true;
        self
    }

    /// Reads the key from another field than `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.settings.header = name;
        self
    }

    /// How many characters a key may have: 1 to 255, which is the most. Ask for more than a few: keys that are easily guessed, or
    /// used twice by chance, are none.
    pub fn key_length(mut self, lengths: RangeInclusive<usize>) -> Self {
        self.settings.lengths = (*lengths.start()).max(1)..=(*lengths.end()).min(Call::KEY_LIMIT);
        self
    }

    /// The largest body of a call with a key (2 MiB), which is read into memory before the call runs; a larger one is refused
    /// with 413.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.settings.body_limit = bytes;
        self
    }

    /// The largest body of an answer that is stored (256 KiB). The first caller gets a larger one all the same; repeats are told,
    /// with 410, that the call was done and its answer is not kept. It is never run again for that. A body that has no end within a
    /// second, and any `text/event-stream`, counts as larger: the call ends when its answer begins.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// Stores these headers of answers too, beside those that describe the answer (`content-type`, `content-encoding`,
    /// `content-language`, `content-location`, `etag`, `last-modified`, `link`, `location`). `Set-Cookie` is never stored.
    pub fn keep_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.keep.extend(names);
        self
    }

    /// Which answers are stored, by their status. The others release the key, so that a repeat runs again. By default the
    /// stored ones are 2xx, 3xx and 4xx, except those that tell the caller to come again (408, 425, 429) or to log in (401, 407).
    ///
    /// Whatever was committed through [`IdempotentTx`](crate::IdempotentTx) is stored in any case.
    pub fn store_when(mut self, stores: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.settings.stores = Arc::new(stores);
        self
    }

    /// For how long a call is reserved for who runs it (30 s). It is renewed at a third while the handler runs, so it need not be
    /// longer than a handler; it is how long repeats wait after the process that ran the call has died. At least one second.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.max(Duration::from_secs(1));
        self
    }

    /// Where problems are explained, such as `https://api.example.com/problems/`: the `type` of an answer is this and a word such
    /// as `key-reused` ([`ProblemKind::slug`](crate::ProblemKind::slug)). Without it the type is `about:blank`.
    pub fn problem_types(mut self, base: impl Into<String>) -> Self {
        self.settings.types = Some(base.into().into());
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// The name of the database, where the service works on several: a label of its metrics.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.settings.database = Some(name.into());
        self
    }

    /// The layer.
    pub fn build(self) -> IdempotencyLayer<S>
    where
        P: KnowsPrincipal,
    {
        let Said(principal) = self.principal.principal();
        IdempotencyLayer::new(self.store, principal, self.settings)
    }
}

impl<S, P> fmt::Debug for IdempotencyLayerBuilder<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Said")
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("methods", &self.methods)
            .field("required", &self.required)
            .field("body_limit", &self.body_limit)
            .field("response_limit", &self.response_limit)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
