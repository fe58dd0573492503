//! TLS: the server's certificate and name are checked, and the client shows its own.

use postbox_core::{DispatchErrorKind, Dispatcher as _};
use postbox_sinks::NatsSink;
use postbox_testkit::sink_suite::{deliver, event, events, fresh, refused};
use postbox_testkit::{NatsServer, ServerOptions, broker_or_skip};

use super::PATIENCE;
use super::support::{Certificates, options};
use super::wire::Wire;

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked_both_ways() {
    let certificates = broker_or_skip!(Certificates::make());
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        certificates.path("server.pem"),
        certificates.path("server.key"),
        certificates.path("ca.pem")
    );
    let server = broker_or_skip!(NatsServer::try_with(&ServerOptions::new().setting(&tls)));
    let (ca, cert, key) =
        (certificates.text("ca.pem"), certificates.text("client.pem"), certificates.text("client.key"));
    let url = format!("nats+tls://{}", server.addr());
    let all = [("tls_ca", ca.as_str()), ("tls_cert", cert.as_str()), ("tls_key", key.as_str())];
    let sink = NatsSink::new(&url, options(&all)).unwrap();
    // There is no stream, and nothing else that is wrong.
    let error = sink.dispatch(&event(&fresh("tls"), 1)).await.unwrap_err().to_string();
    assert!(error.contains("there is none yet"), "{error}");
    for some in [&all[..1], &[]] {
        let sink = NatsSink::new(&url, options(some)).unwrap();
        let error = sink.dispatch(&event(&fresh("tls"), 1)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("cannot connect to NATS"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_delivers_to_whom_the_certificate_names_alone() {
    let certificates = broker_or_skip!(Certificates::make());
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}",
        certificates.path("server.pem"),
        certificates.path("server.key")
    );
    // Without TLS too, for the reader and to show that a name leads here.
    let wishes = ServerOptions::new().setting(&tls).setting("allow_non_tls: true");
    let server = broker_or_skip!(NatsServer::try_with(&wishes));
    let topic = fresh("name");
    let mut wire = Wire::connect(server.addr(), None);
    wire.make_stream(&topic);
    let ca = certificates.text("ca.pem");
    let sink = |scheme: &str, host: &str, given: &[(&str, &str)]| {
        NatsSink::new(&format!("{scheme}://{host}:{}", server.port()), options(given)).unwrap()
    };
    deliver(&sink("nats+tls", "127.0.0.1", &[("tls_ca", &ca)]), &events(&topic, 5), PATIENCE).await;
    deliver(&sink("nats", "localhost", &[]), &[event(&topic, 6)], PATIENCE).await;
    // It can be reached by this name, and is trusted, but its certificate has another.
    let other = sink("nats+tls", "localhost", &[("tls_ca", &ca)]);
    let error = refused(&other, &event(&topic, 7), PATIENCE).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("not valid for name"), "{error}");
    assert_eq!(wire.read_stream(&topic).len(), 6);
}
