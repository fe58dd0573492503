//! A broker is down: what waits for it keeps nobody else waiting, and is not charged for it.

use postbox_testkit::{KafkaServer, NatsServer, RedisServer, broker_or_skip, eventually_blocking};

use crate::common::Place;
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EACH: usize = 20_000;
const DOWN: &str = "shop.order.placed.v1";
const WELL: &str = "audit.login.failed.v1";

#[test]
fn nats_is_down_and_redis_has_everything_meanwhile() {
    let nats = broker_or_skip!(NatsServer::private());
    let redis = broker_or_skip!(RedisServer::private());
    one_is_down_and_the_other_is_well(&nats, &redis);
}

#[test]
fn kafka_is_down_and_nats_has_everything_meanwhile() {
    let kafka = broker_or_skip!(KafkaServer::private());
    let nats = broker_or_skip!(NatsServer::private());
    one_is_down_and_the_other_is_well(&kafka, &nats);
}

fn one_is_down_and_the_other_is_well(down: &impl Site, well: &impl Site) {
    let place = Place::new();
    down.prepare(DOWN);
    well.prepare(WELL);
    down.stop();
    let config = format!(
        "[sinks.orders]\nurl = \"{}\"\n[sinks.audit]\nurl = \"{}\"\n\
         [[route]]\ntopic = \"shop.**\"\nsink = \"orders\"\n[[route]]\ntopic = \"audit.**\"\nsink = \"audit\"\n",
        down.sink(),
        well.sink()
    );
    place.file("postbox.toml", &config);
    // Those that will wait are first in line.
    insert(&place, DOWN, EACH);
    insert(&place, WELL, EACH);
    let mut program = relay(&place, 500, &[]);
    let published = |topic: &str| place.count(&format!("topic = '{topic}' AND published_at IS NOT NULL"));
    eventually_blocking("the events of the one that works", PATIENCE, || published(WELL) == EACH);
    program.wait_for_line("sink is down, its events wait", PATIENCE);
    let untouched = format!("topic = '{DOWN}' AND published_at IS NULL AND attempts = 0");
    // A probe is under way now and then.
    eventually_blocking("all to wait uncharged", PATIENCE, || place.count(&untouched) == EACH);

    down.start_again();
    eventually_blocking("the others", PATIENCE, || published(DOWN) == EACH);
    program.stop(PATIENCE);
    assert_eq!(place.count("attempts <> 1"), 0);
    for ids in [down.ids(DOWN), well.ids(WELL)] {
        assert_eq!((ids.len(), distinct(&ids)), (EACH, EACH));
    }
}
