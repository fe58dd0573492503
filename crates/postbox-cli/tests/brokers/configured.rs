//! Two brokers by a configuration file: tables with options, a destination of the route's, each event to both.

use postbox_testkit::sink_suite::fresh;
use postbox_testkit::{KafkaServer, RabbitServer, broker_or_skip, eventually_blocking};

use crate::common::Place;
use crate::site::{PATIENCE, Site, distinct, insert, relay};

const EACH: usize = 2_000;

#[test]
fn both_brokers_have_each_event_once_where_the_route_says() {
    // Neither is stopped, so others may use them too: hence names of our own.
    let kafka = broker_or_skip!(KafkaServer::try_shared());
    let rabbit = broker_or_skip!(RabbitServer::try_shared());
    let place = Place::new();
    let topics = [fresh("placed"), fresh("paid")];
    let destinations = topics.each_ref().map(|topic| format!("events.{topic}"));
    for destination in &destinations {
        kafka.prepare(destination);
        rabbit.prepare(destination);
    }
    let config = format!(
        "[sinks.log]\nurl = \"{}\"\ncompression = \"lz4\"\ntimeout = \"15s\"\n\
         [sinks.queues]\nurl = \"{}\"\nmandatory = true\ndestination = \"not.this\"\n\
         [[route]]\ntopic = \"**\"\nsinks = [\"log\", \"queues\"]\ndestination = \"events.{{topic}}\"\n",
        kafka.url(),
        rabbit.url()
    );
    place.file("postbox.toml", &config);
    place.ok(&["config", "check"]);
    for topic in &topics {
        insert(&place, topic, EACH);
    }
    let mut program = relay(&place, 500, &[]);
    let done = "published_at IS NOT NULL AND attempts = 1";
    eventually_blocking("all events", PATIENCE, || place.count(done) == EACH * topics.len());
    program.stop(PATIENCE);
    for destination in &destinations {
        for ids in [kafka.ids(destination), rabbit.ids(destination)] {
            assert_eq!((ids.len(), distinct(&ids)), (EACH, EACH), "{destination}");
        }
    }
}
