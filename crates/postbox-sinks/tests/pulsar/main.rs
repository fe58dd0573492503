//! Events in a real Apache Pulsar, read by its own client.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(feature = "pulsar")]

#[path = "../common/detour.rs"]
mod detour;
mod own;
mod reader;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use postbox_sinks::{Options, PulsarSink};
use postbox_testkit::sink_suite::{Abilities, Broker, Received, WRONG_PASSWORD};
use postbox_testkit::{PulsarServer, ServerOptions, sink_suite};
use tokio::sync::{Mutex, OwnedMutexGuard};

use detour::Detour;

/// The broker and the way to it, which all tests of the suite use, one at a time: some stop it, some lead it astray.
struct Pulsar {
    site: &'static Site,
    _turn: OwnedMutexGuard<()>,
}

struct Site {
    server: PulsarServer,
    detour: Detour,
    turn: Arc<Mutex<()>>,
}

async fn pulsar() -> Result<Pulsar, String> {
    static SITE: OnceLock<Result<Site, String>> = OnceLock::new();
    let site = tokio::task::block_in_place(|| {
        SITE.get_or_init(|| {
            let detour = Detour::start();
            let options = ServerOptions::new().token(PulsarServer::TOKEN);
            let server = PulsarServer::try_behind(detour.addr(), &options)?;
            Ok(Site { server, detour, turn: Arc::default() })
        })
    });
    let site = site.as_ref().map_err(Clone::clone)?;
    let turn = Arc::clone(&site.turn).lock_owned().await;
    site.detour.lead_to(site.server.addr());
    Ok(Pulsar { site, _turn: turn })
}

impl Pulsar {
    fn with_token(&self, token: &str, options: &[(&str, &str)]) -> PulsarSink {
        let url = format!("pulsar://{token}@{}", self.site.detour.addr());
        let short = Options::new().set("timeout", "4s").set("connect_timeout", "2s");
        let options = options.iter().fold(short, |options, (name, value)| options.set(*name, *value));
        PulsarSink::new(&url, options).unwrap()
    }
}

impl Broker for Pulsar {
    type Sink = PulsarSink;

    fn abilities(&self) -> Abilities {
        Abilities {
            large: 4 * 1024 * 1024,
            too_large: Some(6 * 1024 * 1024),
            patience: Duration::from_mins(2),
            ..Abilities::default()
        }
    }

    fn addr(&self) -> SocketAddr {
        self.site.server.addr()
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> PulsarSink {
        self.site.detour.lead_to(addr);
        self.with_token(PulsarServer::TOKEN, options)
    }

    fn sink_with_wrong_credentials(&self) -> PulsarSink {
        self.with_token(WRONG_PASSWORD, &[])
    }

    async fn prepare(&self, _destination: &str) {
        // The broker makes topics when they are first used.
    }

    async fn read(&self, destination: &str) -> Vec<Received> {
        self.site.detour.lead_to(self.addr());
        let read = || reader::read(&self.site.server, Some(PulsarServer::TOKEN), destination);
        tokio::task::block_in_place(read).into_iter().map(|found| found.received).collect()
    }

    async fn stop(&self) {
        tokio::task::block_in_place(|| self.site.server.stop());
    }

    async fn start_again(&self) {
        tokio::task::block_in_place(|| self.site.server.start_again());
    }
}

sink_suite!(suite, pulsar());
