//! TLS: the broker's certificate and name are checked, at the first connection and at the one that it sends its clients to.

use std::net::TcpListener;
use std::time::Duration;

use postbox_core::DispatchErrorKind;
use postbox_sinks::PulsarSink;
use postbox_testkit::sink_suite::{assert_complete, deliver, event, events, fresh, refused};
use postbox_testkit::{PulsarServer, ServerOptions, broker_or_skip};

use super::reader::read;
use super::support::{Certificates, options};

#[tokio::test(flavor = "multi_thread")]
async fn tls_delivers_to_whom_it_trusts_alone() {
    let made = broker_or_skip!(Certificates::make());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let wishes = ServerOptions::new()
        .setting(&format!("brokerServicePortTls={port}"))
        .setting(&format!("tlsCertificateFilePath={}", made.text("server.pem")))
        .setting(&format!("tlsKeyFilePath={}", made.text("server.key")));
    let server = broker_or_skip!(PulsarServer::try_with(&wishes));
    let ca = made.text("ca.pem");
    let sink = |host: &str, given: &[(&str, &str)]| {
        let short = [("timeout", "4s"), ("connect_timeout", "2s")];
        PulsarSink::new(&format!("pulsar+ssl://{host}:{port}"), options(&[&short, given].concat())).unwrap()
    };

    let topic = fresh("tls");
    let all = events(&topic, 100);
    deliver(&sink("127.0.0.1", &[("tls_ca", &ca)]), &all, Duration::from_mins(1)).await;
    let received: Vec<_> = read(&server, None, &topic).into_iter().map(|found| found.received).collect();
    assert_eq!(assert_complete(&all, &received), 0);

    let stranger = refused(&sink("127.0.0.1", &[]), &event(&topic, 1), Duration::from_secs(30)).await;
    assert_eq!(stranger.kind(), DispatchErrorKind::Unavailable, "{stranger}");
    // It can be reached by this name, but its certificate has another. The library's switch for that is for native-tls alone: rustls, which
    // is built here, checks names whatever it says. (Nor does the library say why it was refused.)
    let plain = format!("pulsar://localhost:{}", server.addr().port());
    deliver(&PulsarSink::new(&plain, options(&[])).unwrap(), &[event(&topic, 1)], Duration::from_mins(1))
        .await;
    let other =
        refused(&sink("localhost", &[("tls_ca", &ca)]), &event(&topic, 1), Duration::from_secs(30)).await;
    assert_eq!(other.kind(), DispatchErrorKind::Unavailable, "{other}");
    assert_eq!(read(&server, None, &topic).len(), all.len() + 1);
}
