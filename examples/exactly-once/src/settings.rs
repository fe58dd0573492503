//! What is said on the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::SqlitePool;

use crate::Result;

pub(crate) const USAGE: &str = "usage: exactly-once [--chaos] [--for 20s] [--customers 8] [--nats URL]
  --chaos        kill shop, relay, stock or broker at random (the broker only if it is a private one)
  --for          how long customers order
  --customers    how many do so at once
  --nats         a NATS server with JetStream; without it a private nats-server is started";

/// A process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Shop,
    Relay,
    Stock,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Shop, Self::Relay, Self::Stock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Relay => "relay",
            Self::Stock => "stock",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Which part this process is; none for the director.
    pub(crate) part: Option<Part>,
    pub(crate) chaos: bool,
    pub(crate) time: Duration,
    pub(crate) customers: usize,
    pub(crate) nats: Option<String>,
    /// Where the parts have their databases.
    pub(crate) dir: PathBuf,
    /// Where the shop listens.
    pub(crate) port: u16,
    /// In front of the names of streams.
    pub(crate) name: String,
}

impl Settings {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut settings = Self {
            part: None,
            chaos: false,
            time: Duration::from_secs(20),
            customers: 8,
            nats: None,
            dir: PathBuf::new(),
            port: 0,
            name: format!("once-{:08x}", fastrand::u32(..)),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--chaos" => settings.chaos = true,
                "--for" => settings.time = seconds(&value()?)?,
                "--customers" => settings.customers = number(&value()?)?,
                "--nats" => settings.nats = Some(value()?),
                "--dir" => settings.dir = value()?.into(),
                "--port" => settings.port = number(&value()?)?,
                "--name" => settings.name = value()?,
                "--part" => {
                    let name = value()?;
                    settings.part = Part::ALL.into_iter().find(|part| part.name() == name);
                }
                other => return Err(format!("what is {other:?}?")),
            }
        }
        Ok(settings)
    }

    /// What a part is started with.
    pub(crate) fn args(&self, part: Part) -> Vec<String> {
        let nats = self.nats.clone().unwrap_or_default();
        let listens = self.port.to_string();
        let all = [("--part", part.name()), ("--nats", &nats), ("--port", &listens), ("--name", &self.name)];
        let all = all.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
        all.chain(["--dir".to_owned(), self.dir.display().to_string()]).collect()
    }

    pub(crate) fn nats(&self) -> Result<&str> {
        Ok(self.nats.as_deref().ok_or("no URL of NATS")?)
    }

    /// The database of the shop: orders, outbox, idempotency keys.
    pub(crate) async fn shop(&self) -> Result<SqlitePool> {
        open(&self.dir.join("shop.db")).await
    }

    /// The database of the stock: shelf, movements, inbox.
    pub(crate) async fn stock(&self) -> Result<SqlitePool> {
        open(&self.dir.join("stock.db")).await
    }
}

async fn open(file: &Path) -> Result<SqlitePool> {
    let options = postbox::sqlite::connect_options(&format!("sqlite:{}", file.display()))?;
    Ok(SqlitePool::connect_with(options.create_if_missing(true)).await?)
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    number(text.trim_end_matches('s')).map(Duration::from_secs)
}

fn number<N: std::str::FromStr>(text: &str) -> std::result::Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
