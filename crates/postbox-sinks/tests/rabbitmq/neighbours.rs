//! One bad event takes nobody with it.

use postbox_core::{Delivery, DispatchErrorKind};
use postbox_testkit::broker_or_skip;
use postbox_testkit::sink_suite::{Broker as _, assert_complete, events, fresh, send};

use super::{LARGEST, Rabbit, error_of, reader, sized};

/// Those of a batch that are to arrive.
fn others(batch: &[Delivery], bad: impl Fn(usize) -> bool) -> Vec<Delivery> {
    batch.iter().enumerate().filter(|(n, _)| !bad(*n)).map(|(_, event)| event.clone()).collect()
}

/// The broker confirms many at once, and what it returned in between is found among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_no_queue_takes_is_rejected_and_nothing_else() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    for round in 1..=6 {
        let (topic, nowhere) = (fresh("somewhere"), fresh("nowhere"));
        // It confirms quickly, together with what has no queue to wait for.
        reader::ask(rabbit.0.url(), &["transient", &topic]);
        let mut batch = events(&topic, 1000);
        let bad = |n: usize| n % (round * 3) == 1 || (300..320).contains(&n);
        for (n, event) in batch.iter_mut().enumerate() {
            if bad(n) {
                event.destination = Some(nowhere.as_str().into());
            }
        }
        let sink = rabbit.sink(&[]);
        let outcomes = send(&sink, &batch).await;
        for (n, outcome) in outcomes.iter().enumerate() {
            if bad(n) {
                let error = error_of(Some(outcome));
                assert_eq!(error.kind(), DispatchErrorKind::Reject, "{n}: {error}");
                assert!(
                    error.to_string().contains("312 NO_ROUTE: there is no queue of that name"),
                    "{error}"
                );
            } else {
                assert!(matches!(outcome, Some(Ok(()))), "{n}: {outcome:?}");
            }
        }
        assert_eq!(assert_complete(&others(&batch, bad), &rabbit.read(&topic).await), 0, "some twice");
    }
}

/// The broker closes the channel over each of them, and does not say over which.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_closes_the_channel_is_rejected_and_nothing_else() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let sink = rabbit.sink(&[]);
    for (round, culprits) in
        [vec![150], vec![0], vec![299], vec![7, 8, 200], (100..110).collect()].into_iter().enumerate()
    {
        let topic = fresh("culprit");
        rabbit.prepare(&topic).await;
        let mut batch = events(&topic, 300);
        for &culprit in &culprits {
            batch[culprit] = sized(&topic, LARGEST + 1);
        }
        let bad = |n: usize| culprits.contains(&n);
        let outcomes = send(&sink, &batch).await;
        for (n, outcome) in outcomes.iter().enumerate() {
            if bad(n) {
                let error = error_of(Some(outcome));
                assert_eq!(error.kind(), DispatchErrorKind::Reject, "{n}: {error}");
                assert!(error.to_string().contains("is larger than configured max size"), "{error}");
            } else {
                assert!(matches!(outcome, Some(Ok(()))), "{n}: {outcome:?}");
            }
        }
        let received = rabbit.read(&topic).await;
        let twice = assert_complete(&others(&batch, bad), &received);
        // At first what was on its way before it; then its size is known.
        assert!(twice <= if round == 0 { 150 } else { 0 }, "{twice} are there twice with {culprits:?}");
        // The first arrival of each keeps the order.
        let mut seen = std::collections::BTreeSet::new();
        let first: Vec<i64> = received
            .iter()
            .map(|message| message.headers["sequence"].parse().unwrap())
            .filter(|sequence| seen.insert(*sequence))
            .collect();
        assert!(first.is_sorted(), "{first:?}");
    }
}

/// Another batch that is under way at the same time knows nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_beside_it_are_not_disturbed() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let topic = fresh("beside");
    rabbit.prepare(&topic).await;
    let sink = rabbit.sink(&[]);
    let mut bad = events(&topic, 100);
    bad[50] = sized(&topic, LARGEST + 1);
    let good: Vec<Vec<Delivery>> = (0..6).map(|_| events(&topic, 500)).collect();
    let all = good.iter().map(|batch| send(&sink, batch));
    let (outcomes, bad_outcomes) = tokio::join!(futures_util::future::join_all(all), send(&sink, &bad));
    assert!(outcomes.iter().flatten().all(|outcome| matches!(outcome, Some(Ok(())))));
    assert_eq!(error_of(bad_outcomes.get(50)).kind(), DispatchErrorKind::Reject);
    let beside: Vec<Delivery> = good.into_iter().flatten().collect();
    let mut received = rabbit.read(&topic).await;
    let ids: std::collections::BTreeSet<String> =
        beside.iter().map(|event| event.meta.event_id.to_string()).collect();
    received.retain(|message| ids.contains(message.event_id()));
    assert_eq!(assert_complete(&beside, &received), 0, "some twice");
}

/// With topic permissions an exchange may be closed to some routing keys only.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_not_be_written_to_is_tried_again_and_the_rest_arrives() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let (exchange, queue, user) = (fresh("exchange"), fresh("queue"), fresh("user"));
    reader::ask(rabbit.0.url(), &["bind", &exchange, "topic", &queue, "#"]);
    for args in [
        vec!["add_user", &user, "secret"],
        vec!["set_permissions", &user, "", ".*", ""],
        vec!["set_topic_permissions", &user, &exchange, "^open[.]", ".*"],
    ] {
        rabbit.0.ctl(&args).unwrap();
    }
    let sink = Rabbit::sink_as(&format!("{user}:secret"), rabbit.addr(), &[("exchange", &exchange)]);
    let mut batch = events("open.topic", 50);
    batch[20].destination = Some("closed.topic".into());
    let outcomes = send(&sink, &batch).await;
    let error = error_of(outcomes.get(20));
    assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
    assert!(error.to_string().contains("ACCESS_REFUSED"), "{error}");
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Some(Ok(())))).count(), 49);
}
