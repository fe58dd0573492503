//! A broker, or a receiver of webhooks, is killed in the middle: nothing is lost, nothing is charged, and little comes twice.

use postbox_testkit::{
    KafkaServer, NatsServer, PulsarServer, RabbitServer, RedisServer, broker_or_skip, eventually_blocking,
};

use crate::common::{Place, TOPIC};
use crate::hook::Hook;
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EVENTS: usize = 50_000;
/// Written while the broker is down.
const LATER: usize = 10_000;
const BATCH: usize = 500;
/// What a relay has under way to a sink at most, in batches.
const BATCHES: usize = 4;

/// Who is killed.
trait Victim {
    fn prepare(&self, destination: &str);
    /// Where a relay finds it.
    fn sink(&self) -> String;
    fn kill(&self);
    fn start_again(&self);
    /// The `event_id` of all that is there, also from before the kill.
    fn ids(&self, destination: &str) -> Vec<String>;
    /// How many of those that were under way may be charged with an attempt.
    const CHARGED: usize = 0;
}

impl<S: Site> Victim for S {
    fn prepare(&self, destination: &str) {
        Site::prepare(self, destination);
    }

    fn sink(&self) -> String {
        Site::sink(self)
    }

    fn kill(&self) {
        (**self).kill();
    }

    fn start_again(&self) {
        (**self).start_again();
    }

    fn ids(&self, destination: &str) -> Vec<String> {
        Site::ids(self, destination)
    }
}

impl Victim for Hook {
    fn prepare(&self, _: &str) {}

    fn sink(&self) -> String {
        format!("http://suite:right@{}/{{topic}}#timeout=8s&allow_private=true", self.addr())
    }

    fn kill(&self) {
        Hook::kill(self);
    }

    fn start_again(&self) {
        Hook::start_again(self);
    }

    fn ids(&self, destination: &str) -> Vec<String> {
        let seen = self.seen(&format!("/{destination}"));
        seen.iter().map(|seen| seen["headers"]["postbox-event-id"].as_str().unwrap().to_owned()).collect()
    }

    // A request that breaks off after more than a second may have arrived, and is charged: on a busy machine as many as
    // the sink sends at a time.
    const CHARGED: usize = 32;
}

macro_rules! tests {
    ($($name:ident: $server:ty,)*) => {
        $(#[test]
        fn $name() {
            survives_a_kill(&broker_or_skip!(<$server>::private()));
        })*
    };
}

tests! {
    nats: NatsServer,
    redis: RedisServer,
    rabbitmq: RabbitServer,
    kafka: KafkaServer,
    pulsar: PulsarServer,
}

#[test]
fn webhooks() {
    survives_a_kill(&broker_or_skip!(Hook::start()));
}

fn survives_a_kill<V: Victim>(site: &V) {
    let place = Place::new();
    site.prepare(TOPIC);
    insert(&place, TOPIC, EVENTS - LATER);
    let mut program = relay(&place, BATCH, &["--sink", &site.sink()]);
    eventually_blocking("the first events", PATIENCE, || place.count("published_at IS NOT NULL") > 0);
    site.kill();
    program.wait_for_line("sink is down, its events wait", PATIENCE);
    assert!(place.count("published_at IS NULL") > 0, "the kill came too late");
    insert(&place, TOPIC, LATER);
    let charged = place.count("published_at IS NULL AND attempts > 1");
    assert!(charged <= V::CHARGED, "the outage was charged to {charged}");
    site.start_again();
    eventually_blocking("all events", PATIENCE, || place.count("published_at IS NULL") == 0);
    program.wait_for_line("sink is back", PATIENCE);
    program.stop(PATIENCE);

    let charged = place.count("attempts <> 1");
    assert!(charged <= V::CHARGED && place.count("attempts > 2") == 0, "{:?}", attempts(&place));
    let ids = site.ids(TOPIC);
    assert_eq!(distinct(&ids), EVENTS);
    let twice = ids.len() - EVENTS;
    assert!(twice <= BATCHES * BATCH, "{twice} came twice");
}

fn attempts(place: &Place) -> String {
    place.db.psql("SELECT attempts, count(*) FROM org_outbox GROUP BY 1")
}
