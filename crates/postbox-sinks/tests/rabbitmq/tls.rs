//! TLS: the broker's certificate and name are checked, and the client shows its own.

use std::net::TcpListener;
use std::time::Duration;

use postbox_core::DispatchErrorKind;
use postbox_sinks::RabbitSink;
use postbox_testkit::sink_suite::{deliver, event, fresh, refused};
use postbox_testkit::{RabbitServer, ServerOptions, broker_or_skip};

use super::reader;
use super::support::{Certificates, options};

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_on_both_sides() {
    broker_or_skip!(reader::python());
    let made = broker_or_skip!(Certificates::make());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut wishes = ServerOptions::new().setting(&format!("listeners.ssl.1 = 127.0.0.1:{port}"));
    for (name, file) in [("cacertfile", "ca.pem"), ("certfile", "server.pem"), ("keyfile", "server.key")] {
        wishes = wishes.setting(&format!("ssl_options.{name} = {}", made.text(file)));
    }
    wishes =
        wishes.setting("ssl_options.verify = verify_peer").setting("ssl_options.fail_if_no_peer_cert = true");
    for setting in
        ["auth_mechanisms.1 = PLAIN", "auth_mechanisms.2 = EXTERNAL", "ssl_cert_login_from = common_name"]
    {
        wishes = wishes.setting(setting);
    }
    let rabbit = broker_or_skip!(RabbitServer::try_with(&wishes));
    let topic = fresh("tls");
    reader::ask(rabbit.url(), &["declare", &topic]);

    let (ca, cert, key) = (made.text("ca.pem"), made.text("client.pem"), made.text("client.key"));
    let all = [("tls_ca", ca.as_str()), ("tls_cert", cert.as_str()), ("tls_key", key.as_str())];
    let sink = |given: &[(&str, &str)]| {
        let url = format!("amqps://guest:guest@127.0.0.1:{port}?timeout=2s");
        RabbitSink::new(&url, options(given)).unwrap()
    };
    deliver(&sink(&all), &[event(&topic, 1)], Duration::from_secs(30)).await;
    assert_eq!(reader::read(rabbit.url(), &topic).len(), 1);
    // Who the certificate names is a user.
    let plugins = rabbit.dir().unwrap().join("plugins");
    std::fs::write(&plugins, "[rabbitmq_auth_mechanism_ssl].\n").unwrap();
    rabbit.ctl(&["eval", &format!("rabbit_plugins:ensure({:?}).", plugins.display().to_string())]).unwrap();
    rabbit.ctl(&["add_user", "client", "of no use"]).unwrap();
    rabbit.ctl(&["set_permissions", "client", "", ".*", ""]).unwrap();
    let url = format!("amqps://127.0.0.1:{port}?timeout=2s&auth=external");
    let by_certificate = RabbitSink::new(&url, options(&all)).unwrap();
    deliver(&by_certificate, &[event(&topic, 2)], Duration::from_secs(30)).await;
    assert_eq!(reader::read(rabbit.url(), &topic).len(), 2);

    for missing in [&all[1..], &all[..1]] {
        let error = refused(&sink(missing), &event(&topic, 3), Duration::from_secs(20)).await;
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    }

    // It can be reached by this name, and is trusted, but its certificate has another.
    let named = |url: &str| RabbitSink::new(&url.replace("127.0.0.1", "localhost"), options(&[])).unwrap();
    deliver(&named(rabbit.url()), &[event(&topic, 4)], Duration::from_secs(30)).await;
    let url = format!("amqps://guest:guest@localhost:{port}?timeout=2s");
    let other = RabbitSink::new(&url, options(&all)).unwrap();
    let error = refused(&other, &event(&topic, 5), Duration::from_secs(20)).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("not valid for name"), "{error}");
    assert_eq!(reader::read(rabbit.url(), &topic).len(), 3);
}
