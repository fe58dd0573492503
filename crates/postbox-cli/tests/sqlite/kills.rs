//! Kills of relays of a file, judged by an oracle.

use postbox_core::{Outbox, Record, Topic};
use postbox_stores::sqlite;
use postbox_testkit::{Oracle, eventually_blocking};

use crate::common::{self, LONG, TOPIC};
use crate::folder::{Folder, TABLE, block_on};

/// P2 under kill -9 at any instant, with a standby that takes over and writers in another process.
#[test]
fn six_thousand_events_through_ten_kills() {
    let folder = Folder::new();
    let oracle = Oracle::new();
    let waiting = || folder.json("status")["tables"][0]["counts"]["pending"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| block_on(write(&folder, 6_000, &oracle)));
        let mut relays = [folder.relay(&[]), folder.relay(&[])];
        for kill in 0..10 {
            let before = folder.delivered().len();
            eventually_blocking("deliveries to go on", LONG, || {
                folder.delivered().len() > before + 100 || (writer.is_finished() && waiting() == 0)
            });
            relays[kill % 2].kill9();
            relays[kill % 2] = folder.relay(&[]);
        }
        writer.join().unwrap();
        eventually_blocking("everything to be published", LONG, || waiting() == 0);
        for mut relay in relays {
            relay.sigterm();
            assert!(relay.wait(LONG).success());
        }
    });
    for line in folder.delivered() {
        oracle.delivered(line["event_id"].as_str().unwrap().parse().unwrap());
    }
    oracle.expect_dead([]);
    // In flight are at most four batches of 100.
    println!("{:?}", oracle.verdict(10 * 4 * 100).unwrap());
}

/// Writes in this process, as fast as it can.
async fn write(folder: &Folder, events: usize, oracle: &Oracle) {
    let pool = folder.pool().await;
    let outbox = Outbox::new(TABLE.parse().unwrap());
    let topic: Topic = TOPIC.parse().unwrap();
    common::writer::write(
        oracle,
        events,
        || events,
        async |_, ids, commits| {
            let mut tx = sqlite::begin(&pool).await.unwrap();
            let records = ids.iter().map(|id| Record::builder(topic.clone()).event_id(*id).json(&1));
            outbox.enqueue_all(&mut tx, records).await.unwrap();
            if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        },
    )
    .await;
}
