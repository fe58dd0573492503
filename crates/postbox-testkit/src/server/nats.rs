//! A NATS server of our own, with JetStream.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;
use super::room::on_disk;
use super::tls::Certificates;

server! {
    /// A NATS server with JetStream, which keeps its streams over a stop.
    NatsServer, "POSTBOX_TEST_NATS_URL", plan, on_disk
}

impl NatsServer {
    /// Where it tells about itself: `/varz`, `/connz`, `/jsz`, `/healthz`.
    pub fn monitor_url(&self) -> &str {
        self.also().expect("a NATS server without its second URL")
    }
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    let program = find_program("nats-server")?;
    let (addr, monitor) = (free_addr()?, free_addr()?);
    let mut lines = vec![
        format!("listen: {addr}"),
        format!("http: {monitor}"),
        format!("jetstream {{ store_dir: {:?} }}", dir.join("data")),
    ];
    match (&options.login, &options.token) {
        (Some((user, password)), _) => {
            lines.push(format!("authorization {{ user: {user:?}, password: {password:?} }}"));
        }
        (None, Some(token)) => lines.push(format!("authorization {{ token: {token:?} }}")),
        (None, None) => {}
    }
    if let Some(bytes) = options.max_message {
        lines.push(format!("max_payload: {bytes}"));
    }
    if options.tls {
        let Certificates { certificate, key, .. } = Certificates::make(dir)?;
        lines.push(format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\" }}",
            certificate.display(),
            key.display()
        ));
    }
    let scheme = if options.tls { "tls" } else { "nats" };
    lines.extend(options.settings.iter().cloned());
    let file = dir.join("nats.conf");
    fs::write(&file, lines.join("\n"))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(Plan {
        launch: Launch {
            command: vec![program.into(), "-c".into(), file.into()],
            env: Vec::new(),
            ready: Ready::Http(monitor, "/healthz", String::new()),
            limit: Duration::from_secs(20),
            sick: None,
        },
        url: format!("{scheme}://{}{addr}", options.userinfo()),
        also: Some(format!("http://{monitor}")),
        addr,
    })
}
