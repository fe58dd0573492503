//! What is counted, and under which labels.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::*;
use crate::inbox::{Inbox, MessageId};
use crate::testing::MemoryOutbox;

/// Keeps counters, by name and labels.
#[derive(Default)]
struct Counted(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<String> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(name).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Counted {
    fn all(&self) -> Vec<(String, u64)> {
        let counters = self.0.lock().unwrap();
        let counted = counters.iter().map(|(name, value)| (name.clone(), value.load(Ordering::Relaxed)));
        counted.filter(|(_, value)| *value > 0).collect()
    }
}

#[test]
fn what_is_received_is_counted_by_consumer_and_result() {
    let (recorder, pool) = (Counted::default(), MemoryOutbox::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stock: ConsumerName = "stock".parse().unwrap();
    metrics::with_local_recorder(&recorder, || {
        let inbox = Inbox::new("public.shop_outbox".parse().unwrap()).metrics_prefix("shop");
        runtime.block_on(async {
            let mut tx = pool.begin().await.unwrap();
            let [a, b] = ["a", "b"].map(|id| MessageId::new(id).unwrap());
            for _ in 0..3 {
                let _ = inbox.record(&mut tx, &stock, &a).await.unwrap();
            }
            let _ = inbox.record_all(&mut tx, &stock, &[a, b.clone(), b]).await.unwrap();
        });
    });
    let name = |result| {
        format!("shop_inbox_processed_total{{table=public.shop_inbox,consumer=stock,result={result}}}")
    };
    assert_eq!(recorder.all(), [(name("before"), 4), (name("first"), 2)]);
}

#[test]
fn a_database_that_has_a_name_is_a_label_and_one_without_is_none() {
    let recorder = Counted::default();
    metrics::with_local_recorder(&recorder, || {
        for database in [None, Some("orders")] {
            let telemetry = Telemetry::in_database("outbox", database, "t", 2);
            telemetry.cleaned(1);
            telemetry.enqueued(&Topic::from_static("shop.order.placed.v1"));
        }
    });
    let names: Vec<String> = recorder.all().into_iter().map(|(name, _)| name).collect();
    let topic = "topic=shop.order.placed.v1";
    let expected = [
        "outbox_cleaned_total{database=orders,table=t}".to_owned(),
        "outbox_cleaned_total{table=t}".to_owned(),
        format!("outbox_enqueue_total{{database=orders,table=t,{topic}}}"),
        format!("outbox_enqueue_total{{table=t,{topic}}}"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn hazard_50_topics_beyond_the_limit_share_a_label() {
    let recorder = Counted::default();
    metrics::with_local_recorder(&recorder, || {
        let telemetry = Telemetry::new("outbox", "t", 2);
        for n in (0..10).chain(0..10) {
            let topic: Topic = format!("org.thing{n}.happened.v1").parse().unwrap();
            telemetry.enqueued(&topic);
            telemetry.dispatched(&topic, true, Duration::ZERO, 3);
            telemetry.dispatched(&topic, false, Duration::ZERO, 1);
            telemetry.died(&topic);
            telemetry.dead_lettered(&topic);
        }
    });
    let mut expected = Vec::new();
    for (topic, times) in [("org.thing0.happened.v1", 2), ("org.thing1.happened.v1", 2), ("other", 16)] {
        for name in ["dead", "dlq", "enqueue"] {
            expected.push((format!("outbox_{name}_total{{table=t,topic={topic}}}"), times));
        }
        for (result, events) in [("failure", 1), ("success", 3)] {
            let labels = format!("table=t,topic={topic},result={result}");
            expected.push((format!("outbox_dispatch_total{{{labels}}}"), events * times));
        }
    }
    expected.sort();
    assert_eq!(recorder.all(), expected);
}

#[test]
fn hazard_50_consumers_beyond_the_limit_share_a_label() {
    let recorder = Counted::default();
    metrics::with_local_recorder(&recorder, || {
        let telemetry = Telemetry::new("outbox", "t", 2);
        for n in (0..10).chain(0..10) {
            telemetry.processed(&format!("c{n}").parse().unwrap(), 1, 0);
        }
    });
    let counted: Vec<u64> = recorder.all().into_iter().map(|(_, value)| value).collect();
    assert_eq!(counted, [2, 2, 16], "{:?}", recorder.all());
}
