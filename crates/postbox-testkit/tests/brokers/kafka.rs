//! Kafka, asked by kcat.

use postbox_testkit::{KafkaServer, ServerOptions, broker_or_skip};

use super::{survives, tool};

fn kcat(kafka: &KafkaServer, args: &[&str], input: &str) -> String {
    let bootstrap = kafka.bootstrap();
    // Bounded: an answer that never comes is a failure, not a hang.
    let mut all = vec!["20", "kcat", "-b", &bootstrap];
    all.extend(args);
    tool("timeout", &all, input)
}

#[test]
fn topics_survive_a_stop_and_a_crash() {
    let kafka = broker_or_skip!(KafkaServer::try_start());
    assert_eq!(kafka.url(), format!("kafka://127.0.0.1:{}", kafka.port()));
    kcat(&kafka, &["-P", "-t", "things", "-K", ":"], "k:v\n");
    let read = ["-C", "-q", "-e", "-t", "things", "-o", "beginning", "-K", ":"];
    survives(&kafka, || kcat(&kafka, &read, "") == "k:v\n");
}

#[test]
fn a_login_and_a_limit() {
    let options = ServerOptions::new().login("me", "secret").max_message(1000);
    let kafka = broker_or_skip!(KafkaServer::try_with(&options));
    assert_eq!(kafka.url(), format!("kafka://me:secret@127.0.0.1:{}", kafka.port()));
    let login = |password: &str| {
        ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=me", password]
            .map(|setting| format!("-X{setting}"))
    };
    let (right, wrong) = (login("sasl.password=secret"), login("sasl.password=guess"));
    let produce = |login: &[String], message: &str| {
        let mut args: Vec<&str> = login.iter().map(String::as_str).collect();
        args.extend(["-Xmessage.timeout.ms=5000", "-P", "-t", "things"]);
        kcat(&kafka, &args, message)
    };
    assert_eq!(produce(&right, "small\n"), "");
    assert!(produce(&right, &"x".repeat(2000)).contains("too large"));
    assert!(produce(&wrong, "small\n").contains("Authentication failed"));
}

#[test]
fn the_shared_broker_answers() {
    let kafka = broker_or_skip!(KafkaServer::try_shared());
    assert!(kcat(kafka, &["-L"], "").contains("1 brokers"));
}

#[test]
fn a_bad_setting_is_told_with_the_servers_own_words() {
    broker_or_skip!(KafkaServer::try_shared());
    let error = KafkaServer::try_with(&ServerOptions::new().setting("num.io.threads=many")).unwrap_err();
    assert!(error.contains("num.io.threads"), "{error}");
}
