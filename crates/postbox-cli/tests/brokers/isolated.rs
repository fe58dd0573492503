//! A broker is down: what waits for it keeps nobody else waiting, and is not charged for it.

use postbox_testkit::{NatsServer, RedisServer, broker_or_skip, eventually_blocking};

use crate::common::Place;
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EACH: usize = 20_000;
const DOWN: &str = "shop.order.placed.v1";
const WELL: &str = "audit.login.failed.v1";

#[test]
fn one_broker_is_down_and_the_other_has_everything_meanwhile() {
    let nats = broker_or_skip!(NatsServer::private());
    let redis = broker_or_skip!(RedisServer::private());
    let place = Place::new();
    nats.prepare(DOWN);
    nats.stop();
    let config = format!(
        "[sinks.orders]\nurl = \"{}\"\n[sinks.audit]\nurl = \"{}\"\n\
         [[route]]\ntopic = \"shop.**\"\nsink = \"orders\"\n[[route]]\ntopic = \"audit.**\"\nsink = \"audit\"\n",
        nats.url(),
        redis.url()
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

    nats.start_again();
    eventually_blocking("the others", PATIENCE, || published(DOWN) == EACH);
    program.stop(PATIENCE);
    assert_eq!(place.count("attempts <> 1"), 0);
    for ids in [nats.ids(DOWN), redis.ids(WELL)] {
        assert_eq!((ids.len(), distinct(&ids)), (EACH, EACH));
    }
}
