//! What the layer counts: a recorder of a shop's own, and calls of each result.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use postbox_core::telemetry::METRICS;

use crate::shop::Shop;

const NAME: &str = "idempotency_calls_total";

/// Keeps counters, by name and labels.
#[derive(Default)]
pub(crate) struct Counted(Mutex<BTreeMap<Key, Arc<AtomicU64>>>);

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(key.clone()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Counted {
    /// What was counted, by result. Nothing else is counted, and nothing under another name or without its labels.
    fn by_result(&self) -> BTreeMap<String, u64> {
        let documented = METRICS.iter().find(|metric| metric.name == NAME).unwrap();
        let counters = self.0.lock().unwrap();
        let of_one = |(key, value): (&Key, &Arc<AtomicU64>)| {
            assert_eq!(key.name(), format!("outbox_{NAME}"));
            let (names, values): (Vec<&str>, Vec<&str>) =
                key.labels().map(|label| (label.key(), label.value())).unzip();
            assert_eq!(names, documented.labels);
            assert!(values[0].ends_with("shop_idempotency"), "{key}");
            assert!(documented.help.contains(values[1]), "the help names every result: {key}");
            (values[1].to_owned(), value.load(Ordering::Relaxed))
        };
        counters.iter().map(of_one).filter(|(_, value)| *value > 0).collect()
    }
}

pub(crate) async fn calls_are_counted_by_their_results<S: Shop>(shop: &S) {
    let (door, ask) = (shop.door(), shop.ask("/gate").key("k"));
    let counted = |expected: &[(&str, u64)]| {
        let expected = expected.iter().map(|(result, value)| ((*result).to_owned(), *value)).collect();
        assert_eq!(door.counted.by_result(), expected);
    };
    let send = || {
        let ask = ask.clone();
        tokio::spawn(async move { ask.send().await.status })
    };
    // Without a key, or with one that is none, there is no call by key.
    assert_eq!(shop.ask("/echo").send().await.status, 201);
    assert_eq!(shop.ask("/echo").key("two words").send().await.status, 400);
    counted(&[]);
    let slow = send();
    door.floor.are_at_gate(1).await;
    assert_eq!(ask.send().await.status, 409);
    assert_eq!(ask.clone().body("another").send().await.status, 422);
    counted(&[("first", 1), ("busy", 1), ("mismatch", 1)]);
    shop.expire("k").await;
    let next = send();
    door.floor.are_at_gate(1).await;
    // The first in, first out of the gate.
    door.floor.gate.add_permits(1);
    assert_eq!(slow.await.unwrap(), 409);
    counted(&[("first", 1), ("busy", 1), ("mismatch", 1), ("taken_over", 1), ("lost", 1)]);
    door.floor.gate.add_permits(1);
    assert_eq!(next.await.unwrap(), 200);
    for _ in 0..2 {
        assert_eq!(ask.send().await.status, 200);
    }
    shop.drop_table().await;
    assert_eq!(ask.send().await.status, 503);
    counted(&[
        ("first", 1),
        ("busy", 1),
        ("mismatch", 1),
        ("taken_over", 1),
        ("lost", 1),
        ("replayed", 2),
        ("unavailable", 1),
    ]);
}
