//! A broker is killed in the middle: nothing is lost, nothing is charged, and little comes twice.

use postbox_testkit::{
    KafkaServer, NatsServer, PulsarServer, RabbitServer, RedisServer, broker_or_skip, eventually_blocking,
};

use crate::common::{Place, TOPIC};
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EVENTS: usize = 50_000;
/// Written while the broker is down.
const LATER: usize = 10_000;
const BATCH: usize = 500;
/// What a relay has under way to a sink at most, in batches.
const BATCHES: usize = 4;

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

fn survives_a_kill(site: &impl Site) {
    let place = Place::new();
    site.prepare(TOPIC);
    insert(&place, TOPIC, EVENTS - LATER);
    let mut program = relay(&place, BATCH, &["--sink", &site.sink()]);
    eventually_blocking("the first events", PATIENCE, || place.count("published_at IS NOT NULL") > 0);
    site.kill();
    program.wait_for_line("sink is down, its events wait", PATIENCE);
    assert!(place.count("published_at IS NULL") > 0, "the kill came too late");
    insert(&place, TOPIC, LATER);
    assert_eq!(place.count("published_at IS NULL AND attempts > 1"), 0, "the outage was charged");
    site.start_again();
    eventually_blocking("all events", PATIENCE, || place.count("published_at IS NULL") == 0);
    program.wait_for_line("sink is back", PATIENCE);
    program.stop(PATIENCE);

    assert_eq!(place.count("attempts <> 1"), 0, "{:?}", attempts(&place));
    let ids = site.ids(TOPIC);
    assert_eq!(distinct(&ids), EVENTS);
    let twice = ids.len() - EVENTS;
    assert!(twice <= BATCHES * BATCH, "{twice} came twice");
}

fn attempts(place: &Place) -> String {
    place.db.psql("SELECT attempts, count(*) FROM org_outbox GROUP BY 1")
}
