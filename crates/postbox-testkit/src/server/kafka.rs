//! An Apache Kafka of our own: one process that is broker and controller.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::broker::{Plan, free_addr, server};
use super::instance::{Launch, Ready};
use super::java;
use super::options::ServerOptions;
use super::room::on_disk;
use super::run;

/// Any will do; clients ask for none.
const CLUSTER: &str = "cG9zdGJveC10ZXN0LTEyMw";

/// One node has all copies there are; nobody waits for others; the cleaner's buffer alone would be half of the memory.
const SETTINGS: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2097152
num.network.threads=2
num.io.threads=4
";

server! {
    /// An Apache Kafka broker, which makes a topic of one partition when it is first written to.
    ///
    /// A login is by SASL/PLAIN, without TLS. It takes about four seconds to start: tests that need not stop it share one.
    KafkaServer, "POSTBOX_TEST_KAFKA_URL", plan, on_disk
}

impl KafkaServer {
    /// Starts a private broker that tells its clients to come to this address: that of a proxy. For Kafka's clients
    /// ask whom they reach first where the brokers are, and go there.
    pub fn try_behind(proxy: SocketAddr, options: &ServerOptions) -> Result<Self, String> {
        Self::try_with(&ServerOptions { advertised: Some(proxy), ..options.clone() })
    }

    /// Runs a class of the private broker's own tools on it, past any login: what it printed, or what it complained of.
    pub fn tool(&self, class: &str, args: &[&str]) -> Result<String, String> {
        let dir = self.dir().ok_or("only a private broker has its tools")?;
        let settings =
            fs::read_to_string(dir.join("server.properties")).map_err(|error| error.to_string())?;
        let internal = settings.split("INTERNAL://").nth(1).and_then(|rest| rest.split(',').next());
        let all = java::command("kafka", &self.folder())?;
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).args([class, "--bootstrap-server", internal.unwrap_or_default()]).args(args);
        run(&mut command)
    }

    /// The address as Kafka's clients want it, `host:port`.
    pub fn bootstrap(&self) -> String {
        self.addr().to_string()
    }
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_token("Kafka")?;
    options.without_tls("Kafka")?;
    let mut command = java::command("kafka", dir)?;
    let (client, internal, controller) = (free_addr()?, free_addr()?, free_addr()?);
    let advertised = options.advertised.unwrap_or(client);
    let data = dir.join("data");
    let protocol = if options.login.is_some() { "SASL_PLAINTEXT" } else { "PLAINTEXT" };
    let mut lines = vec![
        format!("listeners=CLIENT://{client},INTERNAL://{internal},CONTROLLER://{controller}"),
        format!("advertised.listeners=CLIENT://{advertised},INTERNAL://{internal}"),
        format!("listener.security.protocol.map=CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        format!("controller.quorum.voters=1@{controller}"),
        format!("log.dirs={}", data.display()),
    ];
    if let Some((user, password)) = &options.login {
        lines.push("listener.name.client.sasl.enabled.mechanisms=PLAIN".to_owned());
        lines.push(format!(
            "listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
             required user_{user}=\"{password}\";"
        ));
    }
    if let Some(bytes) = options.max_message {
        lines.push(format!("message.max.bytes={bytes}"));
    }
    lines.extend(options.settings.iter().cloned());
    let file = dir.join("server.properties");
    let identity = format!("version=1\ncluster.id={CLUSTER}\nnode.id=1\n");
    // What Kafka's own tool for formatting writes; to run it takes as long as the whole start.
    fs::create_dir(&data)
        .and_then(|()| fs::write(data.join("meta.properties"), identity))
        .and_then(|()| fs::write(&file, SETTINGS.to_owned() + &lines.join("\n") + "\n"))
        .map_err(|error| format!("cannot write Kafka's configuration: {error}"))?;
    for flag in ["defaultLogLevel=warn", "log.kafka.server.KafkaRaftServer=info"] {
        command.push(format!("-Dorg.slf4j.simpleLogger.{flag}").into());
    }
    command.extend(["kafka.Kafka".into(), file.into()]);
    Ok(Plan {
        launch: Launch {
            command,
            env: Vec::new(),
            ready: Ready::Logs("Kafka Server started"),
            limit: Duration::from_secs(90),
            sick: None,
        },
        url: format!("kafka://{}{client}", options.userinfo()),
        also: None,
        addr: client,
    })
}
