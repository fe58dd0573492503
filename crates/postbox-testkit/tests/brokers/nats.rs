//! NATS, spoken to by hand: Debian has no client program for it.

use postbox_testkit::{NatsServer, ServerOptions, broker_or_skip};

use super::{survives, tell, tool};

#[test]
fn streams_survive_a_stop_and_a_crash() {
    let nats = broker_or_skip!(NatsServer::try_start());
    let stream = r#"{"name":"s","subjects":["s.*"]}"#;
    let answer = tell(
        nats.addr(),
        &format!(
            "CONNECT {{\"verbose\":false}}\r\nSUB r 1\r\n\
             PUB $JS.API.STREAM.CREATE.s r {}\r\n{stream}\r\nPUB s.a r 2\r\nhi\r\nPING\r\n",
            stream.len()
        ),
    );
    assert!(answer.contains("PONG") && answer.contains("\"seq\":1"), "{answer}");
    survives(&nats, || {
        tell(nats.addr(), "CONNECT {}\r\nSUB r 1\r\nPUB $JS.API.STREAM.INFO.s r 0\r\n\r\n")
            .contains("\"messages\":1")
    });
    let monitor = nats.monitor_url().strip_prefix("http://").unwrap().parse().unwrap();
    assert!(tell(monitor, "GET /jsz HTTP/1.0\r\n\r\n").contains("\"streams\": 1"));
}

#[test]
fn a_login_a_token_and_a_limit() {
    let ping = |nats: &NatsServer, who: &str| tell(nats.addr(), &format!("CONNECT {{{who}}}\r\nPING\r\n"));
    let nats =
        broker_or_skip!(NatsServer::try_with(&ServerOptions::new().login("me", "secret").max_message(1000)));
    assert_eq!(nats.url(), format!("nats://me:secret@127.0.0.1:{}", nats.port()));
    assert!(ping(&nats, "").contains("Authorization Violation"));
    let hello = ping(&nats, r#""user":"me","pass":"secret""#);
    assert!(hello.contains("PONG") && hello.contains("\"max_payload\":1000"), "{hello}");

    let nats = NatsServer::with(&ServerOptions::new().token("t0ken"));
    assert_eq!(nats.url(), format!("nats://t0ken@127.0.0.1:{}", nats.port()));
    assert!(ping(&nats, "").contains("Authorization Violation"));
    assert!(ping(&nats, r#""auth_token":"t0ken""#).contains("PONG"));
}

#[test]
fn a_bad_setting_is_told_with_the_servers_own_words() {
    broker_or_skip!(NatsServer::try_start());
    let error = NatsServer::try_with(&ServerOptions::new().setting("max_payload: many")).unwrap_err();
    assert!(error.contains("nats.conf:4"), "{error}");
}

#[test]
fn it_speaks_tls() {
    let nats = broker_or_skip!(NatsServer::try_with(&ServerOptions::new().tls()));
    assert_eq!(nats.url(), format!("tls://127.0.0.1:{}", nats.port()));
    assert!(tell(nats.addr(), "").contains("\"tls_required\":true"));
    // It says in plain words that it wants TLS before it speaks it, which openssl does not know.
    let (authority, certificate) = (nats.authority().unwrap(), nats.dir().unwrap().join("server.pem"));
    let args = ["verify", "-CAfile", authority.to_str().unwrap(), certificate.to_str().unwrap()];
    assert!(tool("openssl", &args, "").contains("OK"));
}
