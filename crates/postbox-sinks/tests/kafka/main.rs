//! Events in a real Apache Kafka, read by kcat.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(feature = "kafka")]

#[path = "../common/detour.rs"]
mod detour;
mod own;
mod reader;
#[cfg(feature = "kafka-tls")]
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "kafka-tls")]
mod tls;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use postbox_sinks::{KafkaSink, Options};
use postbox_testkit::sink_suite::{Abilities, Broker, Received, WRONG_PASSWORD};
use postbox_testkit::{KafkaServer, ServerOptions, sink_suite};
use tokio::sync::{Mutex, OwnedMutexGuard};

use detour::Detour;
use reader::Reader;

const USER: &str = "relay";
const PASSWORD: &str = "s3cret";

/// The broker and the way to it, which all tests of the suite use, one at a time: some stop it, some lead it astray.
struct Kafka {
    site: &'static Site,
    _turn: OwnedMutexGuard<()>,
}

struct Site {
    server: KafkaServer,
    detour: Detour,
    turn: Arc<Mutex<()>>,
}

async fn kafka() -> Result<Kafka, String> {
    static SITE: OnceLock<Result<Site, String>> = OnceLock::new();
    let site = tokio::task::block_in_place(|| {
        SITE.get_or_init(|| {
            let detour = Detour::start();
            let options = ServerOptions::new().login(USER, PASSWORD);
            let server = KafkaServer::try_behind(detour.addr(), &options)?;
            reader::installed()?;
            Ok(Site { server, detour, turn: Arc::default() })
        })
    });
    let site = site.as_ref().map_err(Clone::clone)?;
    let turn = Arc::clone(&site.turn).lock_owned().await;
    site.detour.lead_to(site.server.addr());
    Ok(Kafka { site, _turn: turn })
}

impl Kafka {
    fn reader(&self) -> Reader {
        Reader::new(self.site.server.bootstrap()).login(USER, PASSWORD)
    }

    fn with_password(&self, password: &str, options: &[(&str, &str)]) -> KafkaSink {
        let url = format!("kafka://{USER}:{password}@{}", self.site.detour.addr());
        let options = options
            .iter()
            .fold(Options::new().set("timeout", "4s"), |options, (name, value)| options.set(*name, *value));
        KafkaSink::new(&url, options).unwrap()
    }
}

impl Broker for Kafka {
    type Sink = KafkaSink;

    fn abilities(&self) -> Abilities {
        Abilities { gathering: &[("linger", "300ms")], ..Abilities::default() }
    }

    fn addr(&self) -> SocketAddr {
        self.site.server.addr()
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> KafkaSink {
        self.site.detour.lead_to(addr);
        self.with_password(PASSWORD, options)
    }

    fn sink_with_wrong_credentials(&self) -> KafkaSink {
        self.with_password(WRONG_PASSWORD, &[])
    }

    async fn prepare(&self, destination: &str) {
        tokio::task::block_in_place(|| self.reader().make(destination));
    }

    async fn read(&self, destination: &str) -> Vec<Received> {
        // The reader goes where the broker says that it is, too.
        self.site.detour.lead_to(self.addr());
        let messages = tokio::task::block_in_place(|| self.reader().read(destination));
        messages.into_iter().map(|message| message.received).collect()
    }

    async fn stop(&self) {
        tokio::task::block_in_place(|| self.site.server.stop());
    }

    async fn start_again(&self) {
        tokio::task::block_in_place(|| self.site.server.start_again());
    }
}

sink_suite!(suite, kafka());
