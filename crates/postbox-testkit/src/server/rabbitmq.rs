//! A RabbitMQ node of our own, with the name service that Erlang wants.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;
use super::room::on_disk;
use super::run;
use super::tls::Certificates;

/// The tool, where the package puts it.
const CTL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";

/// The server likewise. What has these names on the PATH changes to an account of its own first, and forgets what it was
/// told on the way.
pub const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// With a name service of its own, each node may have the same name.
const NODE: &str = "rabbit@localhost";

/// `$0` is the name service's port, `$1` the server. Whatever is Erlang starts a name service when it finds none, which
/// outlives it: so ours, which is in the group and goes with it, is there first.
const TOGETHER: &str = r#"
epmd -address 127.0.0.1 -port "$0" &
until epmd -port "$0" -names >/dev/null 2>&1; do
    kill -0 $! || exit 1
    sleep 0.02
done
exec "$1"
"#;

server! {
    /// A RabbitMQ node that keeps durable queues and persistent messages over a stop.
    ///
    /// Its users are `guest`, whose password is the same, or the one of the options. It takes about nine seconds to start:
    /// tests that need not stop it share one.
    RabbitServer, "POSTBOX_TEST_RABBITMQ_URL", plan, on_disk
}

impl RabbitServer {
    /// Runs `rabbitmqctl` on a private node: what it printed, or what it complained of.
    pub fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let dir = self.dir().ok_or("only a private node can be asked by rabbitmqctl")?;
        if self.pid().is_none() {
            return Err("the node is stopped".to_owned());
        }
        let epmd = fs::read_to_string(epmd_file(dir)).map_err(|error| format!("no port of epmd: {error}"))?;
        let mut command = Command::new(CTL);
        command.args(["-q", "-n", NODE]).args(args);
        // The password among nodes is in the home folder.
        run(command.env("HOME", dir).env("ERL_EPMD_PORT", epmd).current_dir(dir))
    }
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_token("RabbitMQ")?;
    let server = find_server()?;
    let (plain, nodes, epmd) = (free_addr()?, free_addr()?.port(), free_addr()?.port().to_string());
    let mut lines = vec![
        format!("listeners.tcp.1 = {plain}"),
        "log.console = true".to_owned(),
        "log.file = false".to_owned(),
        // A test's machine may be nearly full; a broker that blocks its publishers helps nobody.
        "disk_free_limit.absolute = 50MB".to_owned(),
    ];
    let (user, password) = options.login.clone().unwrap_or_else(|| ("guest".to_owned(), "guest".to_owned()));
    lines.extend([format!("default_user = {user}"), format!("default_pass = {password}")]);
    if let Some(bytes) = options.max_message {
        lines.push(format!("max_message_size = {bytes}"));
    }
    // The plain port stays, for our own question whether it serves.
    let (scheme, addr) = if options.tls { ("amqps", free_addr()?) } else { ("amqp", plain) };
    if options.tls {
        let Certificates { authority, certificate, key } = Certificates::make(dir)?;
        lines.push(format!("listeners.ssl.1 = {addr}"));
        lines.push(format!("ssl_options.cacertfile = {}", authority.display()));
        lines.push(format!("ssl_options.certfile = {}", certificate.display()));
        lines.push(format!("ssl_options.keyfile = {}", key.display()));
        lines.push("ssl_options.verify = verify_none".to_owned());
    }
    lines.extend(options.settings.iter().cloned());
    let write = |file: PathBuf, text: &str| {
        fs::write(&file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))
            .map(|()| OsString::from(file))
    };
    write(epmd_file(dir), &epmd)?;
    let env = vec![
        ("HOME", dir.into()),
        ("ERL_EPMD_PORT", epmd.clone().into()),
        ("RABBITMQ_NODENAME", NODE.into()),
        ("RABBITMQ_DIST_PORT", nodes.to_string().into()),
        ("RABBITMQ_CONFIG_FILE", write(dir.join("rabbitmq.conf"), &(lines.join("\n") + "\n"))?),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", write(dir.join("plugins"), "[].\n")?),
        ("RABBITMQ_MNESIA_BASE", dir.join("data").into()),
        ("RABBITMQ_LOG_BASE", dir.join("logs").into()),
        ("RABBITMQ_PID_FILE", dir.join("node.pid").into()),
        // The machine's own settings are for the machine's own node.
        ("RABBITMQ_CONF_ENV_FILE", dir.join("none").into()),
        // The node's process takes the place of the script's, so that signals reach it.
        ("RABBITMQ_ALLOW_INPUT", "1".into()),
        ("RABBITMQ_SERVER_START_ARGS", "-noinput".into()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
    ];
    Ok(Plan {
        launch: Launch {
            command: ["sh", "-c", TOGETHER, &epmd]
                .map(OsString::from)
                .into_iter()
                .chain([server.into()])
                .collect(),
            env,
            // The greeting of AMQP 0-9-1; a frame of the first channel's is the answer.
            ready: Ready::Says(plain, b"AMQP\x00\x00\x09\x01".to_vec(), b"\x01\x00\x00"),
            limit: Duration::from_secs(90),
            sick: None,
        },
        url: format!("{scheme}://{user}:{password}@{addr}"),
        also: None,
        addr,
    })
}

fn epmd_file(dir: &Path) -> PathBuf {
    dir.join("epmd.port")
}

/// The server, with the program that it needs beside it.
fn find_server() -> Result<PathBuf, String> {
    if !Path::new(SERVER).exists() {
        return Err("no rabbitmq-server found: run `cargo xtask test`, which installs it".to_owned());
    }
    find_program("epmd").map(|_| SERVER.into())
}
