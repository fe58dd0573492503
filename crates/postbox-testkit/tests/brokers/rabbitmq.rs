//! RabbitMQ, asked by rabbitmqctl.

use postbox_testkit::{RabbitServer, ServerOptions, broker_or_skip};

use super::{is_trusted, survives, tell};

#[test]
fn durable_queues_survive_a_stop_and_a_crash() {
    let options = ServerOptions::new().login("me", "secret").max_message(1000);
    let rabbit = broker_or_skip!(RabbitServer::try_with(&options));
    assert_eq!(rabbit.url(), format!("amqp://me:secret@127.0.0.1:{}", rabbit.port()));
    let ctl = |args: &[&str]| rabbit.ctl(args).unwrap_or_else(|error| panic!("{error}"));

    assert!(ctl(&["list_users"]).contains("me\t[administrator]"));
    ctl(&["authenticate_user", "me", "secret"]);
    assert!(rabbit.ctl(&["authenticate_user", "guest", "guest"]).is_err());
    let limit = "application:get_env(rabbit, max_message_size).";
    assert_eq!(ctl(&["eval", limit]).trim(), "{ok,1000}");

    let queue = r#"rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"q">>), true, false, [], none, <<"me">>)."#;
    ctl(&["eval", queue]);
    let message = r#"rabbit_basic:publish(rabbit_misc:r(<<"/">>, exchange, <<>>), <<"q">>, [{delivery_mode, 2}], <<"hi">>)."#;
    ctl(&["eval", message]);
    survives(&rabbit, || ctl(&["list_queues", "name", "durable", "messages"]).contains("q\ttrue\t1"));
}

#[test]
fn the_shared_node_greets() {
    let rabbit = broker_or_skip!(RabbitServer::try_shared());
    assert!(rabbit.url().starts_with("amqp://guest:guest@"));
    assert!(tell(rabbit.addr(), "AMQP\0\0\x09\x01").contains("RabbitMQ"));
}

#[test]
fn it_speaks_tls() {
    let rabbit = broker_or_skip!(RabbitServer::try_with(&ServerOptions::new().tls()));
    assert_eq!(rabbit.url(), format!("amqps://guest:guest@127.0.0.1:{}", rabbit.port()));
    assert!(is_trusted(&rabbit));
}
