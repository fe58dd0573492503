//! Events of an aggregate at real brokers: in order, also when the broker is killed in the middle.

use std::collections::{HashMap, HashSet};

use postbox_testkit::{
    KafkaServer, NatsServer, RabbitServer, RedisServer, broker_or_skip, eventually_blocking,
};

use crate::common::{Place, TABLE, TOPIC};
use crate::site::{PATIENCE, Site, relay};

const EVENTS: usize = 20_000;
/// Written while the broker is down, and about the same aggregates.
const LATER: usize = 2_000;
const AGGREGATES: usize = 300;

macro_rules! tests {
    ($($name:ident: $server:ty,)*) => {
        $(#[test]
        fn $name() {
            aggregates_keep_their_order(&broker_or_skip!(<$server>::private()));
        })*
    };
}

tests! {
    kafka: KafkaServer,
    nats: NatsServer,
    rabbitmq: RabbitServer,
    redis: RedisServer,
}

fn write(place: &Place, events: usize) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id)
         SELECT '00000000-0000-0000-0000-000000000000', '{TOPIC}', '{{}}', gen_random_uuid(), 'order', n % {AGGREGATES}
         FROM generate_series(1, {events}) n"
    ));
}

fn aggregates_keep_their_order(site: &impl Site) {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", TABLE, "--ordered"]);
    site.prepare(TOPIC);
    write(&place, EVENTS);
    let mut program = relay(&place, 500, &["--sink", &site.sink(), "--ordering", "aggregate"]);
    let published = || place.count("published_at IS NOT NULL");
    eventually_blocking("some to arrive", PATIENCE, || published() > 1_000);
    site.kill();
    write(&place, LATER);
    program.wait_for_line("sink is down, its events wait", PATIENCE);
    site.start_again();
    eventually_blocking("all to arrive", PATIENCE, || published() == EVENTS + LATER);
    program.stop(PATIENCE);

    let rows = place.db.psql(&format!("SELECT event_id, aggregate_id, sequence FROM {TABLE}"));
    let row = |line: &str| {
        let [id, aggregate, sequence] = line.split('|').collect::<Vec<_>>().try_into().unwrap();
        (id.to_owned(), (aggregate.to_owned(), sequence.parse::<i64>().unwrap()))
    };
    let written: HashMap<String, (String, i64)> = rows.lines().map(row).collect();
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    // What comes a second time is no news.
    for id in site.ids(TOPIC).into_iter().filter(|id| seen.insert(id.clone())) {
        let (aggregate, sequence) = &written[&id];
        let before = last.insert(aggregate, *sequence);
        assert!(before < Some(*sequence), "{aggregate}: {sequence} after {before:?}");
    }
    assert_eq!((seen.len(), last.len()), (EVENTS + LATER, AGGREGATES));
}
