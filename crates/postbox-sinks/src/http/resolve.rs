//! [`Pinned`]: names become addresses here and nowhere else, so that what was judged is what is connected to.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::guard::{Guard, Refused};

/// Looks the addresses of a name up.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy)]
pub(super) struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// The resolver of the HTTP client. It answers only addresses that the guard let pass, and the client connects to
/// exactly those: an answer that changes between the check and the connection (DNS rebinding) has no moment to do so.
pub(super) struct Pinned {
    guard: Guard,
    /// The proxy was named by the operator and stands where it stands.
    proxy: Option<String>,
    lookup: Arc<dyn Lookup>,
}

/// Why a name was not resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("cannot resolve {host}")]
    Lookup { host: String, source: io::Error },
    #[error("{host} has no address")]
    Nothing { host: String },
    #[error("{host} is not sent to")]
    Refused { host: String, source: Refused },
}

impl Pinned {
    pub(super) fn new(guard: Guard, proxy: Option<String>, lookup: Arc<dyn Lookup>) -> Self {
        Self { guard, proxy, lookup }
    }

    /// Judges what a lookup found. One bad address spoils the answer: a public name that also has a private address
    /// is how rebinding looks, and which of them would be tried first is not ours to say.
    fn judge(&self, host: String, found: io::Result<Vec<IpAddr>>) -> Result<Vec<IpAddr>, ResolveError> {
        let found = match found {
            Ok(found) if found.is_empty() => return Err(ResolveError::Nothing { host }),
            Ok(found) => found,
            Err(source) => return Err(ResolveError::Lookup { host, source }),
        };
        if self.proxy.as_deref() != Some(host.as_str())
            && !self.guard.has_host(&host)
            && let Some(source) = found.iter().find_map(|address| self.guard.check(*address).err())
        {
            return Err(ResolveError::Refused { host, source });
        }
        Ok(found)
    }

    async fn addresses(self: Arc<Self>, host: String) -> Result<Vec<IpAddr>, ResolveError> {
        let found = self.lookup.lookup(&host).await;
        self.judge(host, found)
    }
}

/// A handle that the client can own.
#[derive(Clone)]
pub(super) struct PinnedResolver(pub(super) Arc<Pinned>);

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (pinned, host) = (Arc::clone(&self.0), name.as_str().to_ascii_lowercase());
        Box::pin(async move {
            let found = pinned.addresses(host).await?;
            // Port 0: the client puts in the URL's.
            Ok(Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}
