//! The HTTP client: its TLS, its pool, and nothing that the environment could slip in.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, Url};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::causes;
use super::guard::Guard;
use super::resolve::{Lookup, Pinned, PinnedResolver};
use crate::tls::TlsFiles;

/// How to connect.
#[derive(Debug, Clone, Default)]
pub(super) struct Connect {
    pub(super) guard: Guard,
    pub(super) proxy: Option<Url>,
    pub(super) tls: TlsFiles,
    /// For a request and its answer.
    pub(super) timeout: Duration,
    /// For its connection: less, so that a host which cannot be reached is known from one that does not answer.
    pub(super) reach: Duration,
    pub(super) concurrency: usize,
}

/// A connection that is not used for so long is closed: before most receivers and balancers do it at their end.
const IDLE: Duration = Duration::from_secs(15);
const KEEP_ALIVE: Duration = Duration::from_secs(20);

impl Connect {
    /// Makes the client. Nothing is connected to yet.
    ///
    /// # Errors
    /// In words, when a file cannot be used.
    pub(super) fn client(&self, lookup: Arc<dyn Lookup>) -> Result<Client, String> {
        let proxy_host = self.proxy.as_ref().and_then(|url| url.host_str().map(str::to_owned));
        let resolver = Pinned::new(self.guard.clone(), proxy_host, lookup);
        let mut builder = Client::builder()
            .tls_backend_preconfigured(self.tls_config()?)
            .dns_resolver(PinnedResolver(Arc::new(resolver)))
            // A redirect would lead to where nobody has looked.
            .redirect(Policy::none())
            // Of the environment; the option's is added below.
            .no_proxy()
            .referer(false)
            .user_agent(concat!("postbox/", env!("CARGO_PKG_VERSION")))
            .timeout(self.timeout)
            .connect_timeout(self.reach)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(self.concurrency)
            .tcp_keepalive(KEEP_ALIVE)
            .http2_keep_alive_interval(KEEP_ALIVE);
        if let Some(url) = &self.proxy {
            builder = builder.proxy(Proxy::all(url.clone()).map_err(|error| causes(&error))?);
        }
        builder.build().map_err(|error| causes(&error))
    }

    fn tls_config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?);
        let mut config = match &self.tls.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable(certificate, &error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.tls.ca else {
            // The machine's own, as with every sink; a container may have none, and then it is Mozilla's list.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                roots.roots = webpki_roots::TLS_SERVER_ROOTS.to_vec();
            }
            return Ok(roots);
        };
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unusable(path, &error))?;
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?.collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(unusable(path, &"it holds no certificate")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &dyn fmt::Display) -> String {
    format!("cannot use {}: {error}", path.display())
}
