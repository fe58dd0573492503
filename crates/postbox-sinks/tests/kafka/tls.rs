//! TLS and SCRAM, for which the client needs OpenSSL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use postbox_core::{DispatchErrorKind, Dispatcher as _};
use postbox_sinks::{KafkaSink, Options};
use postbox_testkit::sink_suite::{WRONG_PASSWORD, assert_complete, deliver, event, events, fresh};
use postbox_testkit::{KafkaServer, ServerOptions, broker_or_skip};

use crate::reader::{Reader, installed};

/// A certificate for this machine that signs itself, and with its key the broker's own.
fn certificate(dir: &Path) -> Result<(PathBuf, PathBuf), String> {
    let (key, certificate, both) = (dir.join("key.pem"), dir.join("ca.pem"), dir.join("broker.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .map_err(|error| format!("no openssl: {error}"))?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    std::fs::write(&both, read(&key) + &read(&certificate)).unwrap();
    Ok((certificate, both))
}

/// A broker whose clients use this protocol and have to trust the certificate.
fn server(dir: &Path, protocol: &str) -> Result<(KafkaServer, PathBuf), String> {
    installed()?;
    let (ca, own) = certificate(dir)?;
    let client = "listener.name.client";
    let options = ServerOptions::new()
        .setting(&format!(
            "listener.security.protocol.map=CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ))
        .setting(&format!("{client}.ssl.keystore.type=PEM"))
        .setting(&format!("{client}.ssl.keystore.location={}", own.display()))
        .setting(&format!("{client}.sasl.enabled.mechanisms=SCRAM-SHA-512"))
        .setting(&format!(
            "{client}.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ));
    Ok((KafkaServer::try_with(&options)?, ca))
}

fn options(ca: &Path) -> Options {
    Options::new().set("tls_ca", ca.display().to_string()).set("timeout", "5s")
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_delivers_to_whom_it_trusts_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (server, ca) = broker_or_skip!(server(dir.path(), "SSL"));
    let url = format!("kafka+ssl://{}", server.addr());
    let topic = fresh("tls");
    let all = events(&topic, 100);
    deliver(&KafkaSink::new(&url, options(&ca)).unwrap(), &all, Duration::from_mins(1)).await;
    let reader = Reader::new(server.bootstrap()).set("security.protocol", "SSL");
    let found = reader.set("ssl.ca.location", &ca.display().to_string()).read(&topic);
    let received: Vec<_> = found.into_iter().map(|found| found.received).collect();
    assert_eq!(assert_complete(&all, &received), 0);

    let distrusts = KafkaSink::new(&url, Options::new().set("timeout", "3s")).unwrap();
    let error = distrusts.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
    assert!(error.to_string().contains("certificate"), "{error}");
    let plain = url.replace("kafka+ssl", "kafka");
    let plain = KafkaSink::new(&plain, Options::new().set("timeout", "3s")).unwrap();
    let error = plain.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scram_logs_in() {
    let dir = tempfile::tempdir().unwrap();
    let (server, ca) = broker_or_skip!(server(dir.path(), "SASL_SSL"));
    let user = ["--entity-type", "users", "--entity-name", "relay"];
    let password = ["--alter", "--add-config", "SCRAM-SHA-512=[password=s3cret]"];
    server.tool("kafka.admin.ConfigCommand", &[&password[..], &user].concat()).unwrap();
    let sink = |password: &str| {
        let url = format!("kafka+ssl://relay:{password}@{}", server.addr());
        KafkaSink::new(&url, options(&ca).set("sasl", "scram-sha-512")).unwrap()
    };
    let topic = fresh("scram");
    deliver(&sink("s3cret"), &events(&topic, 10), Duration::from_mins(1)).await;
    let error = sink(WRONG_PASSWORD).dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
    assert!(error.to_string().contains("uthentication"), "{error}");
    assert!(!error.to_string().contains(WRONG_PASSWORD), "{error}");
}
