//! A Redis server of our own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;

/// The least that Redis takes as the limit of a value.
const LEAST_LIMIT: usize = 1 << 20;

server! {
    /// A Redis server that writes each change to its log before it answers, and so keeps it over a crash.
    ///
    /// Its least `max_message` is 1 MiB.
    RedisServer, "POSTBOX_TEST_REDIS_URL", plan
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_token("Redis")?;
    let program = find_program("redis-server")?;
    let addr = free_addr()?;
    let mut lines = vec![
        format!("bind {}", addr.ip()),
        format!("port {}", addr.port()),
        format!("dir {:?}", dir),
        "save \"\"".to_owned(),
        "appendonly yes".to_owned(),
        // Against a crash of the process, a write is enough; a crash of the machine ends the test as well.
        "appendfsync no".to_owned(),
    ];
    let mut hello = String::new();
    if let Some((user, password)) = &options.login {
        lines.push(format!("user {user} on >{password} ~* &* +@all"));
        lines.push("user default off".to_owned());
        hello = format!("AUTH {user} {password}\r\n");
    }
    if let Some(bytes) = options.max_message {
        if bytes < LEAST_LIMIT {
            return Err(format!("Redis takes no limit of a message below {LEAST_LIMIT} bytes"));
        }
        lines.push(format!("proto-max-bulk-len {bytes}"));
    }
    lines.extend(options.settings.iter().cloned());
    let file = dir.join("redis.conf");
    fs::write(&file, lines.join("\n"))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(Plan {
        launch: Launch {
            command: vec![program.into(), file.into()],
            env: Vec::new(),
            // Until its data are read it answers that it is loading.
            ready: Ready::Says(addr, format!("{hello}PING\r\nQUIT\r\n").into_bytes(), b"+PONG"),
            limit: Duration::from_secs(20),
            sick: None,
        },
        url: format!("redis://{}{addr}", options.userinfo()),
        also: None,
        addr,
    })
}
