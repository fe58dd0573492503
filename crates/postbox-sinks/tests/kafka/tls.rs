//! TLS and SCRAM, for which the client needs OpenSSL.

use std::process::Command;
use std::time::Duration;

use postbox_core::{DispatchErrorKind, Dispatcher as _};
use postbox_sinks::{KafkaSink, Options};
use postbox_testkit::sink_suite::{WRONG_PASSWORD, assert_complete, deliver, event, events, fresh};
use postbox_testkit::{KafkaServer, ServerOptions, broker_or_skip};
use serde_json::json;

use crate::reader::{Reader, installed};
use crate::support::{Certificates, options};

const PATIENCE: Duration = Duration::from_mins(1);

/// A broker whose clients use this protocol and have to trust the certificate.
fn server(made: &Certificates, protocol: &str, more: &[&str]) -> Result<KafkaServer, String> {
    installed()?;
    let read = |name: &str| std::fs::read_to_string(made.path(name)).unwrap();
    std::fs::write(made.path("broker.pem"), read("server.key") + &read("server.pem")).unwrap();
    let client = "listener.name.client";
    let mut wishes = ServerOptions::new()
        .setting(&format!(
            "listener.security.protocol.map=CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ))
        .setting(&format!("{client}.ssl.keystore.type=PEM"))
        .setting(&format!("{client}.ssl.keystore.location={}", made.text("broker.pem")))
        .setting(&format!("{client}.ssl.truststore.type=PEM"))
        .setting(&format!("{client}.ssl.truststore.location={}", made.text("ca.pem")));
    for setting in more {
        wishes = wishes.setting(&format!("{client}.{setting}"));
    }
    KafkaServer::try_with(&wishes)
}

/// The client's key, locked by a password.
fn lock(made: &Certificates, password: &str) {
    let locked = Command::new("openssl")
        .args(["pkcs8", "-topk8", "-in", &made.text("client.key"), "-out", &made.text("locked.key")])
        .args(["-passout", &format!("pass:{password}")])
        .output()
        .unwrap();
    assert!(locked.status.success(), "{}", String::from_utf8_lossy(&locked.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_names_are_checked_on_both_sides() {
    let made = broker_or_skip!(Certificates::make());
    let server = broker_or_skip!(server(&made, "SSL", &["ssl.client.auth=required"]));
    lock(&made, "unl0ck");
    let (ca, cert, key) = (made.text("ca.pem"), made.text("client.pem"), made.text("client.key"));
    let all = [("tls_ca", ca.as_str()), ("tls_cert", cert.as_str()), ("tls_key", key.as_str())];
    let url = |host: &str| format!("kafka+ssl://{host}:{}", server.port());
    let sink =
        |given: &[(&str, &str)]| KafkaSink::new(&url("127.0.0.1"), options(given).set("timeout", "8s"));
    let topic = fresh("tls");
    let sent = events(&topic, 100);
    deliver(&sink(&all).unwrap(), &sent[..50], PATIENCE).await;
    let locked = made.text("locked.key");
    let unlocked = [all[0], all[1], ("tls_key", &locked), ("tls_key_password", "unl0ck")];
    deliver(&sink(&unlocked).unwrap(), &sent[50..], PATIENCE).await;
    // That is seen at the start, before anything is sent.
    let wrong = [all[0], all[1], ("tls_key", &locked), ("tls_key_password", WRONG_PASSWORD)];
    let error = sink(&wrong).unwrap_err().to_string();
    assert!(error.contains("the Kafka client refuses it") && !error.contains(WRONG_PASSWORD), "{error}");

    // Nobody vouches for the broker; nobody for the client; or it is reached by a name that is not the certificate's.
    let by_name = options(&all).set("timeout", "4s");
    // Where a name has two addresses, the last words would be of the one at which nobody listens.
    let by_name = by_name.set("properties", json!({ "broker.address.family": "v4" }));
    for (what, url, given) in [
        ("the broker's authority", url("127.0.0.1"), options(&all[1..]).set("timeout", "4s")),
        ("the client's certificate", url("127.0.0.1"), options(&all[..1]).set("timeout", "4s")),
        ("the name", url("localhost"), by_name),
    ] {
        let error = KafkaSink::new(&url, given).unwrap().dispatch(&event(&topic, 1)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{what}: {error}");
        assert!(error.to_string().contains("certificate"), "{what}: {error}");
    }
    let plain = url("127.0.0.1").replace("kafka+ssl", "kafka");
    let plain = KafkaSink::new(&plain, Options::new().set("timeout", "3s")).unwrap();
    let error = plain.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");

    let reader = Reader::new(server.bootstrap()).set("security.protocol", "SSL").set("ssl.ca.location", &ca);
    let reader = reader.set("ssl.certificate.location", &cert).set("ssl.key.location", &key);
    let received: Vec<_> = reader.read(&topic).into_iter().map(|found| found.received).collect();
    assert_eq!(assert_complete(&sent, &received), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn scram_logs_in() {
    let made = broker_or_skip!(Certificates::make());
    let module = "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let wishes = [
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
        &format!("scram-sha-256.{module}"),
        &format!("scram-sha-512.{module}"),
    ];
    let server = broker_or_skip!(server(&made, "SASL_SSL", &wishes));
    let ca = made.text("ca.pem");
    let sink = |way: &str, password: &str| {
        let url = format!("kafka+ssl://relay:{password}@{}", server.addr());
        let given = options(&[("tls_ca", &ca), ("timeout", "5s"), ("sasl", way)]);
        KafkaSink::new(&url, given).unwrap()
    };
    let topic = fresh("scram");
    // Another password for each way, so that one cannot pass for the other.
    for (way, password) in [("scram-sha-256", "s3cret256"), ("scram-sha-512", "s3cret512")] {
        let given = format!("{}=[password={password}]", way.to_uppercase());
        let user = ["--entity-type", "users", "--entity-name", "relay"];
        let change = ["--alter", "--add-config", &given];
        server.tool("kafka.admin.ConfigCommand", &[&change[..], &user].concat()).unwrap();
        deliver(&sink(way, password), &events(&topic, 10), PATIENCE).await;
        let error = sink(way, WRONG_PASSWORD).dispatch(&event(&topic, 1)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("uthentication"), "{error}");
        assert!(!error.to_string().contains(WRONG_PASSWORD), "{error}");
    }
}
