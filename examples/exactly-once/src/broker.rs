//! A private `nats-server`, which can be killed as the parts can.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::Result;

/// Runs the server until standard input is closed, by whatever end of ours: nothing is left behind.
const SCRIPT: &str = r#""$@" & pid=$!; read -r _; kill -9 $pid; wait $pid"#;

#[derive(Debug)]
pub(crate) struct Broker {
    port: u16,
    dir: PathBuf,
    child: Option<Child>,
}

impl Broker {
    pub(crate) async fn start(dir: &Path) -> Result<Self> {
        let mut broker = Self { port: free_port().await?, dir: dir.join("nats"), child: None };
        broker.start_again().await?;
        Ok(broker)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends it as a crash would.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.stdin.take());
            let _ = child.wait().await;
        }
    }

    /// Starts it with what it had.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        let port = self.port.to_string();
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh", "nats-server", "-a", "127.0.0.1", "-p", &port, "-js", "-sd"])
            .arg(&self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn()?);
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if Instant::now() > until {
                return Err("nats-server does not start: is it installed? Or give --nats URL".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

pub(crate) async fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port())
}
