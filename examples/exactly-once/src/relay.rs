//! The relay: what the shop has committed goes to the broker, at least once.

use std::time::Duration;

use postbox::sinks::{NatsSink, Options};
use postbox::sqlite::SqliteStore;
use postbox::{Backoff, Relay};

use crate::settings::Settings;
use crate::{Result, shop};

pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let pool = settings.shop().await?;
    let destination = format!("{}.{{topic}}", settings.name);
    let sink = NatsSink::new(settings.nats()?, Options::new().set("destination", destination))?;
    let relay = Relay::builder(SqliteStore::new(&pool, shop::table()?)).route("**", sink).set(|settings| {
        // A relay that was killed is followed by the next one after this.
        settings.lock_ttl = Duration::from_secs(3);
        settings.dispatch_timeout = Duration::from_secs(2);
        settings.poll_interval = Duration::from_millis(200);
        // A broker that was killed is back soon.
        settings.circuit = Backoff::fixed(Duration::from_millis(300));
    });
    let running = relay.build()?.spawn();
    running.ended().await;
    Err("the relay has ended".into())
}
