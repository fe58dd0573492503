//! What every source must keep, written once: a broker brings a [`Bench`], `consumer_suite!` makes tests of it.
#![allow(dead_code, reason = "each test program takes what it needs of it")]

mod probe;
mod shop;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use postbox_consumers::{Consumer, Identify, Source};
use postbox_core::{AggregateKey, Backoff, Delivery, MessageId};
use postbox_stores::sqlite::SqlxSqlite;
use postbox_testkit::eventually;

pub(crate) use probe::{Fault, Probed};
pub(crate) use shop::{Effects, Shop, order};

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Where a source of a bench puts its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dead {
    /// Where [`Bench::dead`] finds them.
    Here,
    /// Where nobody takes them.
    Nowhere,
}

/// A message of the dead letters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Letter {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) payload: Vec<u8>,
}

/// A fresh destination at a real broker, the sink of Postbox that writes there, and sources that read it.
pub(crate) trait Bench: Send + Sync {
    type Source: Source<Incoming: 'static> + 'static;

    /// Whether what is left after a stop is delivered to the next once.
    const NEXT_GETS_EACH_ONCE: bool = true;

    fn next_gets_each_once(&self) -> bool {
        Self::NEXT_GETS_EACH_ONCE
    }

    /// Sends events by the sink of Postbox. What is sent again in another round is another message of the same event.
    fn send(
        &self,
        events: &[Delivery],
        round: usize,
        options: &[(&str, &str)],
    ) -> impl Future<Output = ()> + Send;

    /// Another source of the same group of consumers, with a connection of its own.
    fn source(&self, dead: Dead) -> impl Future<Output = Self::Source> + Send;

    /// Ends the connections of all sources, as a crash of their process would.
    fn crash(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// What is at the dead letters.
    fn dead(&self) -> impl Future<Output = Vec<Letter>> + Send;

    /// How many messages the broker has that were not acknowledged. Asked for while no source runs.
    fn left(&self) -> impl Future<Output = u64> + Send;
}

/// A consumer that is quick to try again.
pub(crate) fn consumer(shop: &Shop, effects: &Effects) -> Consumer<SqlxSqlite> {
    shop.consumer(effects.clone()).backoff(Backoff::fixed(Duration::from_millis(20))).tries(3).at_once(4)
}

pub(crate) async fn messages_have_their_effect_once(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders: Vec<Delivery> = (0..30).map(|n| order(n, "")).collect();
    for round in 0..2 {
        bench.send(&orders, round, &[]).await;
    }
    let (source, probe) = Probed::around(bench.source(Dead::Here).await, Fault::None);
    let running = consumer(&shop, &effects).spawn(source);
    eventually("both rounds", PATIENCE, async || probe.acknowledged() == 60).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!((report.first, report.before, report.dead), (30, 30, 0));
    shop.assert_once(&orders).await;
    assert_eq!(bench.left().await, 0, "all are acknowledged");
}

pub(crate) async fn every_form_of_a_sinks_message_is_known_by_its_event(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders: Vec<Delivery> = (0..3).map(|n| order(n, "")).collect();
    bench.send(&orders[..1], 0, &[]).await;
    bench.send(&orders[1..2], 0, &[("cloudevents", "binary")]).await;
    bench.send(&orders[2..], 0, &[("cloudevents", "structured")]).await;
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("three effects", PATIENCE, async || shop.effects().await.len() == 3).await;
    running.shutdown().await.unwrap();
    shop.assert_once(&orders).await;
    for (n, order) in orders.iter().enumerate() {
        let seen = effects.seen(order);
        assert_eq!((seen.n, seen.topic.as_deref()), (n, Some("shop.order.placed.v1")));
    }
}

/// By what it is about and its number, whatever form it comes in and whatever other id it has.
pub(crate) async fn an_event_of_an_aggregate_is_known_by_its_number(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let numbered = |n: usize, id: &str, sequence: i64| {
        let mut event = order(n, "");
        event.meta.aggregate = Some(AggregateKey::new("order", id));
        event.meta.sequence = sequence;
        event
    };
    // Three events, then the first two again, under other event ids.
    let forms: [&[(&str, &str)]; 3] = [&[], &[("cloudevents", "binary")], &[("cloudevents", "structured")]];
    for (n, form) in forms.iter().chain(&forms[1..]).enumerate() {
        let (id, sequence) = [("4|2", 7), ("4|2", 8), ("43", 7)][n % 3];
        bench.send(&[numbered(n, id, sequence)], 0, form).await;
    }
    // Of no aggregate: its number says nothing to a consumer that knows messages by it.
    let nobodys = order(9, "");
    bench.send(std::slice::from_ref(&nobodys), 0, &[]).await;
    let (source, probe) = Probed::around(bench.source(Dead::Here).await, Fault::None);
    let running = consumer(&shop, &effects).identify(Identify::composite()).spawn(source);
    eventually("all are settled", PATIENCE, async || probe.acknowledged() == 6).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!((report.first, report.before, report.dead), (3, 2, 1));
    let mut found = shop.effects().await;
    found.sort();
    let expected = [("4|2", 7), ("4|2", 8), ("43", 7)]
        .map(|(id, n)| MessageId::composite("order", id, "shop.order.placed.v1", n).unwrap().to_string());
    assert_eq!(found, expected);
    let reason = &bench.dead().await[0].headers["postbox-dead-reason"];
    assert!(reason.contains(r#"no header "aggregate_type", "aggregate_id""#), "{reason}");
}

pub(crate) async fn a_handler_that_fails_is_called_again(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders = [order(0, r#","fail":2"#), order(1, r#","panic":1"#), order(2, "")];
    bench.send(&orders, 0, &[]).await;
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("three effects", PATIENCE, async || shop.effects().await.len() == 3).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!((report.first, report.dead), (3, 0));
    shop.assert_once(&orders).await;
    assert_eq!(orders.each_ref().map(|order| effects.runs(order)), [3, 2, 1]);
    assert!(bench.dead().await.is_empty());
    assert_eq!(bench.left().await, 0);
}

pub(crate) async fn a_poison_message_goes_to_the_dead_letters(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders = [order(0, r#","fail":99"#), order(1, r#","reject":true"#), order(2, "")];
    bench.send(&orders, 0, &[]).await;
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("two dead letters", PATIENCE, async || bench.dead().await.len() == 2).await;
    eventually("the one behind them", PATIENCE, async || shop.effects().await.len() == 1).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!((report.first, report.dead), (1, 2));
    shop.assert_once(&orders[2..]).await;
    assert_eq!(orders.each_ref().map(|order| effects.runs(order)), [3, 1, 1]);
    let letters = bench.dead().await;
    for (order, attempts, reason) in
        [(&orders[0], "3", "broken on purpose"), (&orders[1], "1", "refused on purpose")]
    {
        let id = order.meta.event_id.to_string();
        let letter = letters.iter().find(|letter| letter.headers.get("event_id") == Some(&id)).unwrap();
        assert_eq!(letter.headers["postbox-dead-attempts"], attempts);
        assert!(letter.headers["postbox-dead-reason"].contains(reason), "{letter:?}");
        assert_eq!(letter.headers["postbox-dead-consumer"], "stock");
        assert!(
            !letter.headers["postbox-dead-source"].is_empty()
                && letter.headers.contains_key("postbox-dead-at")
        );
        assert!(letter.payload.starts_with(b"{\"n\":"), "{letter:?}");
    }
    assert_eq!(bench.left().await, 0, "all are acknowledged");
}

pub(crate) async fn what_cannot_be_buried_is_not_acknowledged(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders = [order(0, r#","fail":99"#)];
    bench.send(&orders, 0, &[]).await;
    let (source, probe) = Probed::around(bench.source(Dead::Nowhere).await, Fault::None);
    let running = consumer(&shop, &effects).spawn(source);
    eventually("a burial that fails", PATIENCE, async || probe.burials_failed() > 1).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!((report.dead, report.given_back, probe.acknowledged()), (0, 1, 0));
    assert_eq!(bench.left().await, 1, "it is still there");
    // Somebody who can bury it gets it.
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("a dead letter", PATIENCE, async || bench.dead().await.len() == 1).await;
    assert_eq!(running.shutdown().await.unwrap().dead, 1);
    assert_eq!(bench.left().await, 0);
    assert!(shop.effects().await.is_empty());
}

pub(crate) async fn a_stop_finishes_what_runs_and_takes_nothing_more(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders: Vec<Delivery> = (0..20).map(|n| order(n, r#","slow":50"#)).collect();
    bench.send(&orders, 0, &[]).await;
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("some effects", PATIENCE, async || shop.effects().await.len() >= 3).await;
    let first = running.shutdown().await.unwrap();
    let done = u64::try_from(shop.effects().await.len()).unwrap();
    assert!(done < 20, "the stop came too late");
    assert_eq!((first.first, first.before), (done, 0));
    assert_eq!(bench.left().await, 20 - done, "what was done is acknowledged, and no more");
    let running = consumer(&shop, &effects).spawn(bench.source(Dead::Here).await);
    eventually("all effects", PATIENCE, async || shop.effects().await.len() == 20).await;
    let second = running.shutdown().await.unwrap();
    assert_eq!(second.first, 20 - done);
    assert!(
        second.before == 0 || !bench.next_gets_each_once(),
        "an orderly stop repeats nothing: {second:?}"
    );
    shop.assert_once(&orders).await;
}

pub(crate) async fn a_crash_between_commit_and_acknowledgement_repeats_no_effect(bench: &impl Bench) {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let orders: Vec<Delivery> = (0..6).map(|n| order(n, "")).collect();
    bench.send(&orders, 0, &[]).await;
    let (source, probe) = Probed::around(bench.source(Dead::Here).await, Fault::NeverAcknowledges);
    let running = consumer(&shop, &effects).spawn(source);
    eventually("a commit without an acknowledgement", PATIENCE, async || probe.acknowledged() > 0).await;
    running.abort();
    let mut running = running;
    assert!(running.ended().await.is_err());
    bench.crash().await;
    let committed = u64::try_from(shop.effects().await.len()).unwrap();
    assert!(committed > 0);
    let (source, probe) = Probed::around(bench.source(Dead::Here).await, Fault::None);
    let running = consumer(&shop, &effects).spawn(source);
    eventually("all are acknowledged", PATIENCE, async || probe.acknowledged() == 6).await;
    let report = running.shutdown().await.unwrap();
    // A commit that was under way may have come through after we looked; no effect happened twice all the same.
    assert_eq!(report.first + report.before, 6);
    assert!(report.before >= committed, "{report:?}, of which {committed} had been committed");
    shop.assert_once(&orders).await;
    assert_eq!(bench.left().await, 0);
}

#[allow(unused_macros, unused_imports, reason = "webhooks have no broker")]
mod suite {
    /// Makes one test of each promise. The expression is evaluated for each test: a bench, or why there is none.
    macro_rules! consumer_suite {
    ($bench:expr) => {
        consumer_suite! { @each $bench =>
            messages_have_their_effect_once,
            every_form_of_a_sinks_message_is_known_by_its_event,
            an_event_of_an_aggregate_is_known_by_its_number,
            a_handler_that_fails_is_called_again,
            a_poison_message_goes_to_the_dead_letters,
            what_cannot_be_buried_is_not_acknowledged,
            a_stop_finishes_what_runs_and_takes_nothing_more,
            a_crash_between_commit_and_acknowledgement_repeats_no_effect,
        }
    };
    (@each $bench:expr => $($test:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            let bench = postbox_testkit::broker_or_skip!($bench.await);
            crate::common::$test(&bench).await;
        }
    )*};
}
    pub(crate) use consumer_suite;
}
#[allow(unused_imports, reason = "webhooks have no broker")]
pub(crate) use suite::consumer_suite;
