//! An Apache Pulsar of our own: broker, bookie and metadata in one process.

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

/// What Pulsar reaches into, as its own script has it.
const OPENS: &[&str] = &[
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
];

/// One bookie has all copies; small caches and files; no flush to the disk itself, which only matters when the machine crashes; no
/// topics of the broker's own. What was written stays: without a retention the broker looks every two minutes for what no
/// subscription waits for, and removes all of it but the ledger that is written to, which begins anew when the broker does.
/// `allowEphemeralPorts` makes the bookie take the port that it is told. A disk that is nearly full is
/// enough: by itself the bookie writes nothing where less than a twentieth is free, however much that is.
const SETTINGS: &str = "\
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=16
brokerDeleteInactiveTopicsEnabled=false
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
brokerShutdownTimeoutMs=1000
loadBalancerEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
numIOThreads=2
numHttpServerThreads=8
numExecutorThreadPoolSize=2
numCacheExecutorThreadPoolSize=1
numOrderedExecutorThreads=2
allowEphemeralPorts=true
httpServerEnabled=false
journalSyncData=false
journalMaxSizeMB=16
journalPreAllocSizeMB=1
flushInterval=1000
logSizeLimit=16777216
diskUsageThreshold=0.999
diskUsageWarnThreshold=0.999
diskUsageLwmThreshold=0.999
";

/// After a crash the bookie finds its old registration, and may then lose and renew the new one for ever (a known fault, issue
/// 17759 of Pulsar): what was written before cannot be read while it does.
const SICK: &str = "re-acquired lock at /ledgers/available/";

/// Signs [`PulsarServer::TOKEN`].
const KEY: &str = "YSBrZXkgZm9yIHRoZSB0ZXN0cyBvZiBQb3N0Ym94LCBub3QgYSBzZWNyZXQ=";

server! {
    /// An Apache Pulsar with the namespace `public/default`, where topics are made when they are first used.
    ///
    /// A login is Pulsar's basic authentication; the only token that it can be told to ask for is [`PulsarServer::TOKEN`].
    /// It takes about seven seconds to start: tests that need not stop it share one.
    PulsarServer, "POSTBOX_TEST_PULSAR_URL", plan, on_disk
}

impl PulsarServer {
    /// A token that is signed as Pulsar wants it, and never expires.
    pub const TOKEN: &str =
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0ZXN0In0.12ExaSzk-Ka-CM4NnIxEoe2MII1uZZNEsJ_RC38thQE";

    /// Starts a private broker that tells its clients to come to this address: that of a proxy. For Pulsar's clients
    /// ask whom they reach first who has a topic, and go there.
    pub fn try_behind(proxy: SocketAddr, options: &ServerOptions) -> Result<Self, String> {
        Self::try_with(&ServerOptions { advertised: Some(proxy), ..options.clone() })
    }

    /// Runs a program of one Java source file that uses Pulsar's own client: what it printed, or what it complained of.
    pub fn java(&self, source: &Path, args: &[&str]) -> Result<String, String> {
        let all = java::command("pulsar", &self.folder())?;
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).arg(source).args(args);
        run(&mut command)
    }

    /// Where the administration is, as `http://host:port`.
    pub fn admin_url(&self) -> &str {
        self.also().expect("a Pulsar without its second URL")
    }
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_tls("Pulsar")?;
    let mut command = java::command("pulsar", dir)?;
    let (addr, admin, bookie) = (free_addr()?, free_addr()?, free_addr()?);
    let mut lines =
        vec![format!("brokerServicePort={}", addr.port()), format!("webServicePort={}", admin.port())];
    let mut header = String::new();
    if let Some((settings, shown)) = authentication(dir, options)? {
        lines.extend(settings);
        header = format!("Authorization: {shown}\r\n");
    }
    if let Some(proxy) = options.advertised {
        lines.push(format!("advertisedListeners=proxy:pulsar://{proxy}"));
        lines.push("internalListenerName=proxy".to_owned());
    }
    if let Some(bytes) = options.max_message {
        lines.push(format!("maxMessageSize={bytes}"));
    }
    lines.extend(options.settings.iter().cloned());
    let file = dir.join("standalone.conf");
    fs::write(&file, SETTINGS.to_owned() + &lines.join("\n") + "\n")
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    command.push("-XX:MaxDirectMemorySize=256m".into());
    command.push("-Dio.netty.tryReflectionSetAccessible=true".into());
    command.extend(OPENS.iter().map(|package| format!("--add-opens={package}=ALL-UNNAMED").into()));
    command.extend(["org.apache.pulsar.PulsarStandaloneStarter".into(), "--config".into(), file.into()]);
    command.extend(["--metadata-dir".into(), dir.join("metadata").into()]);
    command.extend(["--bookkeeper-dir".into(), dir.join("bookkeeper").into()]);
    command.extend(["--bookkeeper-port".into(), bookie.port().to_string().into()]);
    command.extend(["--no-functions-worker".into(), "--no-stream-storage".into()]);
    Ok(Plan {
        launch: Launch {
            command,
            env: Vec::new(),
            // The last thing that is made at the first start; and it tells that the metadata can be read.
            ready: Ready::Http(admin, "/admin/v2/namespaces/public/default", header),
            limit: Duration::from_mins(2),
            sick: Some(SICK),
        },
        url: format!("pulsar://{}{addr}", options.userinfo()),
        also: Some(format!("http://{admin}")),
        addr,
    })
}

/// The settings for who may come in, and what a caller of the administration has to show.
fn authentication(dir: &Path, options: &ServerOptions) -> Result<Option<(Vec<String>, String)>, String> {
    let (kind, secret, parameters, shown) = match (&options.login, options.token.as_deref()) {
        (Some((user, password)), _) => {
            let hash = run(Command::new("openssl").args(["passwd", "-apr1", password]))?;
            let file = dir.join("passwords");
            fs::write(&file, format!("{user}:{hash}"))
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
            let encoded = run(Command::new("sh")
                .args(["-c", r#"printf %s "$0" | base64 -w0"#])
                .arg(format!("{user}:{password}")))?;
            (
                "Basic",
                format!("basicAuthConf=file://{}", file.display()),
                format!(r#"{{"userId":"{user}","password":"{password}"}}"#),
                format!("Basic {encoded}"),
            )
        }
        (None, Some(PulsarServer::TOKEN)) => (
            "Token",
            format!("tokenSecretKey=data:;base64,{KEY}"),
            format!("token:{}", PulsarServer::TOKEN),
            format!("Bearer {}", PulsarServer::TOKEN),
        ),
        (None, Some(_)) => return Err("Pulsar here knows PulsarServer::TOKEN alone".to_owned()),
        (None, None) => return Ok(None),
    };
    let settings = vec![
        "authenticationEnabled=true".to_owned(),
        format!(
            "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}"
        ),
        secret,
        // The broker is a client of itself.
        format!("brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.Authentication{kind}"),
        format!("brokerClientAuthenticationParameters={parameters}"),
    ];
    Ok(Some((settings, shown)))
}
