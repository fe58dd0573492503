//! A Redis server of our own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;
use super::room::on_disk;
use super::tls::Certificates;

/// The least that Redis takes as the limit of a value.
const LEAST_LIMIT: usize = 1 << 20;

server! {
    /// A Redis server that writes each change to its log before it answers, and so keeps it over a crash.
    ///
    /// Its least `max_message` is 1 MiB.
    RedisServer, "POSTBOX_TEST_REDIS_URL", plan, on_disk
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_token("Redis")?;
    let program = find_program("redis-server")?;
    let plain = free_addr()?;
    let mut lines = vec![
        format!("bind {}", plain.ip()),
        format!("port {}", plain.port()),
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
    // The plain port stays, for our own question whether it serves.
    let (scheme, addr) = if options.tls { ("rediss", free_addr()?) } else { ("redis", plain) };
    if options.tls {
        let Certificates { authority, certificate, key } = Certificates::make(dir)?;
        lines.push(format!("tls-port {}", addr.port()));
        lines.push(format!("tls-ca-cert-file \"{}\"", authority.display()));
        lines.push(format!("tls-cert-file \"{}\"", certificate.display()));
        lines.push(format!("tls-key-file \"{}\"", key.display()));
        lines.push("tls-auth-clients no".to_owned());
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
            ready: Ready::Says(plain, format!("{hello}PING\r\nQUIT\r\n").into_bytes(), b"+PONG"),
            limit: Duration::from_secs(20),
            sick: None,
        },
        url: format!("{scheme}://{}{addr}", options.userinfo()),
        also: None,
        addr,
    })
}
