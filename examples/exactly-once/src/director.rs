//! The director: starts the parts, kills them if asked to, and has the books audited.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::broker::{Broker, free_port};
use crate::customers::Ledger;
use crate::settings::{Part, Settings};
use crate::{Result, audit, shop, stock};

/// What was killed, and how often.
pub(crate) type Kills = BTreeMap<&'static str, u32>;

/// Runs the whole story; whether the books balance.
pub(crate) async fn run(settings: &Settings) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let mut settings = settings.clone();
    settings.dir = folder.path().to_owned();
    settings.port = free_port().await?;
    let mut broker = None;
    if settings.nats.is_none() {
        let own = Broker::start(folder.path()).await?;
        settings.nats = Some(own.url());
        broker = Some(own);
    }
    shop::prepare(&settings).await?;
    stock::prepare(&settings).await?;
    let mut parts = Parts { children: BTreeMap::new(), settings: settings.clone() };
    for part in Part::ALL {
        parts.start(part)?;
    }
    let chaos = if settings.chaos { "with" } else { "without" };
    println!("{} customers order for {:?}, {chaos} chaos", settings.customers, settings.time);
    let (ledger, until) = (Ledger::default(), Instant::now() + settings.time);
    let customers = async {
        let all = (0..settings.customers).map(|_| ledger.customer(settings.port, until));
        join_all(all).await;
    };
    let (kills, ()) = tokio::join!(chaos_until(until, &mut parts, broker.as_mut()), customers);
    let books = audit::audit(&settings, &ledger.entries(), &kills?).await?;
    parts.stop().await;
    if let Some(broker) = &mut broker {
        broker.kill().await;
    }
    Ok(books)
}

async fn join_all(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Kills something every now and then, with SIGKILL, and starts it again. A part that ends by itself is started, too.
async fn chaos_until(until: Instant, parts: &mut Parts, mut broker: Option<&mut Broker>) -> Result<Kills> {
    let mut kills = Kills::new();
    while Instant::now() < until {
        sleep(Duration::from_millis(fastrand::u64(300..1200))).await;
        parts.start_the_fallen()?;
        if !parts.settings.chaos {
            continue;
        }
        match (fastrand::usize(0..=Part::ALL.len()), &mut broker) {
            (3, Some(broker)) => {
                *kills.entry("broker").or_default() += 1;
                broker.kill().await;
                sleep(Duration::from_millis(fastrand::u64(0..500))).await;
                broker.start_again().await?;
            }
            (which, _) => {
                let part = Part::ALL[which % Part::ALL.len()];
                *kills.entry(part.name()).or_default() += 1;
                parts.kill(part).await;
                sleep(Duration::from_millis(fastrand::u64(0..500))).await;
                parts.start(part)?;
            }
        }
    }
    Ok(kills)
}

struct Parts {
    children: BTreeMap<Part, Child>,
    settings: Settings,
}

impl Parts {
    fn start(&mut self, part: Part) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        // It ends when we do: our end of its standard input is closed then.
        command.args(self.settings.args(part)).stdin(Stdio::piped()).kill_on_drop(true);
        self.children.insert(part, command.spawn()?);
        Ok(())
    }

    fn start_the_fallen(&mut self) -> Result<()> {
        for part in Part::ALL {
            let fallen = match self.children.get_mut(&part) {
                Some(child) => child.try_wait()?.is_some(),
                None => true,
            };
            if fallen {
                self.start(part)?;
            }
        }
        Ok(())
    }

    /// SIGKILL: no code of the part runs any more.
    async fn kill(&mut self, part: Part) {
        if let Some(mut child) = self.children.remove(&part) {
            let _ = child.kill().await;
        }
    }

    async fn stop(&mut self) {
        for part in Part::ALL {
            self.kill(part).await;
        }
    }
}
