//! What a path counts.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::*;

/// Counters by name.
#[derive(Default)]
struct Counters(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |counter| counter.load(Ordering::SeqCst))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.0.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(key.name().to_owned()).or_default()))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn what_finds_no_place_is_counted_and_places_come_back() {
    let counters = Counters::default();
    metrics::with_local_recorder(&counters, || {
        let path = HotPath::bounded(2, 100);
        assert!(path.reserve(1).is_none(), "nobody is there");
        let telemetry = Telemetry::new("outbox", "shop_outbox", 10);
        let end = path.attach("shop_outbox", Duration::from_mins(1), &telemetry).unwrap();
        assert!(path.attach("shop_outbox", Duration::from_mins(1), &telemetry).is_none(), "one end only");
        end.open(true);
        assert_eq!(path.remaining(), 2);
        let slots = [path.reserve(10).unwrap(), path.reserve(10).unwrap()];
        assert!(path.reserve(10).is_none() && path.remaining() == 0);
        drop(slots);
        assert!(path.reserve(101).is_none(), "larger than all the room there is");
        assert_eq!(path.remaining(), 2);
        drop(end);
        assert!(path.reserve(1).is_none(), "nobody is there any more");
    });
    assert_eq!(counters.of("outbox_hot_dropped_total"), 2);
}
