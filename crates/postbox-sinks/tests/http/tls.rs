//! TLS: HTTP/2, an authority of one's own, certificates of both sides.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use axum::http::{StatusCode, Version};
use axum::response::IntoResponse as _;
use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Dispatcher as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::receiver::{Desk, service};
use crate::sink;

/// Accepts connections after their handshake.
struct TlsListener(TcpListener, TlsAcceptor);

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, peer) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// An authority and what it signed, made anew for each test.
struct Authority(TempDir);

impl Authority {
    /// None where there is no openssl.
    fn new() -> Option<Self> {
        let authority = Self(tempfile::tempdir().unwrap());
        authority.openssl("ca", &["-subj", "/CN=authority"])?;
        for (name, alternative) in [("server", "IP:127.0.0.1"), ("client", "DNS:client")] {
            let alternative = format!("subjectAltName={alternative}");
            let (ca, key) = (authority.path("ca.pem"), authority.path("ca.key"));
            let signed = ["-CA", &ca, "-CAkey", &key, "-subj", "/CN=x", "-addext", &alternative];
            authority.openssl(name, &[&signed[..], &["-addext", "basicConstraints=CA:FALSE"]].concat())?;
        }
        Some(authority)
    }

    fn openssl(&self, name: &str, more: &[&str]) -> Option<()> {
        let (key, certificate) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.pem")));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-keyout", &key, "-out", &certificate])
            .args(more)
            .output()
            .ok()?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(Path::new(&self.path(name))).unwrap()
    }

    /// A receiver with a certificate of this authority; asks for the client's if it should.
    async fn receiver(&self, asks: bool) -> (String, Arc<Desk>) {
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if asks {
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate("ca.pem")).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(Path::new(&self.path("server.key"))).unwrap();
        let mut config = builder.with_single_cert(vec![self.certificate("server.pem")], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let desk = Desk::new(|_| Box::pin(async { StatusCode::OK.into_response() }));
        let listener = TlsListener(listener, TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(axum::serve(listener, service(Arc::clone(&desk))).into_future());
        (url, desk)
    }
}

#[tokio::test]
async fn hazard_53_an_authority_of_ones_own_and_http_2() {
    let Some(authority) = Authority::new() else {
        postbox_testkit::skip!("no openssl to make certificates with")
    };
    let (url, desk) = authority.receiver(false).await;
    let event = delivery("a.b.c.v1", "{}");
    sink(&url, json!({"tls_ca": authority.path("ca.pem")})).dispatch(&event).await.unwrap();
    assert_eq!(desk.seen.lock().unwrap()[0].version, Version::HTTP_2);
    // The public authorities did not sign it, and neither did another one of that name.
    let stranger = Authority::new().unwrap();
    for given in [json!({}), json!({"tls_ca": stranger.path("ca.pem")})] {
        let error = sink(&url, given).dispatch(&event).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    // A name that the certificate does not have.
    let wrong = url.replace("127.0.0.1", "localhost");
    let error = sink(&wrong, json!({"tls_ca": authority.path("ca.pem")})).dispatch(&event).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert_eq!(desk.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_receiver_can_ask_for_our_certificate() {
    let Some(authority) = Authority::new() else {
        postbox_testkit::skip!("no openssl to make certificates with")
    };
    let (url, desk) = authority.receiver(true).await;
    let event = delivery("a.b.c.v1", "{}");
    let mut given = json!({"tls_ca": authority.path("ca.pem")});
    let error = sink(&url, given.clone()).dispatch(&event).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(desk.seen.lock().unwrap().is_empty());
    given["tls_cert"] = json!(authority.path("client.pem"));
    given["tls_key"] = json!(authority.path("client.key"));
    sink(&url, given).dispatch(&event).await.unwrap();
    assert_eq!(desk.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn files_that_hold_no_certificate_are_told_at_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let options = postbox_sinks::Options::new().set("tls_ca", path);
    let error = postbox_sinks::AnySink::new("https://hooks.example.com/", options).unwrap_err().to_string();
    assert!(error.contains(&format!("cannot use {path}: it holds no certificate")), "{error}");
}
