//! Redis, asked by redis-cli.

use postbox_testkit::{RedisServer, ServerOptions, broker_or_skip};

use super::{is_trusted, survives, tool};

fn cli(redis: &RedisServer, url: &str, words: &[&str]) -> String {
    let mut args = vec!["--no-auth-warning", "-u", url];
    args.extend(words);
    let answer = tool("redis-cli", &args, "");
    assert!(!answer.contains("refused"), "{answer}{}", redis.log());
    answer
}

#[test]
fn streams_survive_a_stop_and_a_crash() {
    let redis = broker_or_skip!(RedisServer::try_start());
    cli(&redis, redis.url(), &["xadd", "s", "1-1", "k", "v"]);
    survives(&redis, || cli(&redis, redis.url(), &["xrange", "s", "-", "+"]).trim() == "1-1\nk\nv");
}

#[test]
fn a_login_and_a_limit() {
    let options = ServerOptions::new().login("me", "secret").max_message(1 << 20);
    let redis = broker_or_skip!(RedisServer::try_with(&options));
    assert_eq!(redis.url(), format!("redis://me:secret@127.0.0.1:{}", redis.port()));
    let stranger = format!("redis://{}", redis.addr());
    assert!(cli(&redis, &stranger, &["ping"]).contains("NOAUTH"));
    assert_eq!(cli(&redis, redis.url(), &["ping"]).trim(), "PONG");
    assert!(cli(&redis, redis.url(), &["config", "get", "proto-max-bulk-len"]).contains("1048576"));
    survives(&redis, || cli(&redis, redis.url(), &["ping"]).trim() == "PONG");
}

#[test]
fn it_speaks_tls() {
    let redis = broker_or_skip!(RedisServer::try_with(&ServerOptions::new().tls()));
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}", redis.port()));
    assert!(is_trusted(&redis));
    let authority = redis.authority().unwrap();
    let pong = cli(&redis, redis.url(), &["--cacert", authority.to_str().unwrap(), "ping"]);
    assert_eq!(pong.trim(), "PONG");
}

#[test]
fn what_redis_does_not_have_is_refused() {
    broker_or_skip!(RedisServer::try_start());
    let error = |options| RedisServer::try_with(&options).unwrap_err();
    assert!(error(ServerOptions::new().max_message(1000)).contains("1048576"));
    assert!(error(ServerOptions::new().token("t")).contains("token"));
    assert!(
        error(ServerOptions::new().setting("appendonly maybe")).contains("argument must be 'yes' or 'no'")
    );
}
