//! What is promised of interceptors.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::dispatcher::DispatchErrorKind;
use crate::event::EventId;
use crate::testing::delivery;

type Log = Arc<Mutex<Vec<String>>>;

fn log(log: &Log, line: impl Into<String>) {
    log.lock().unwrap().push(line.into());
}

fn lines(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}

/// Writes down when it runs, with its name.
struct Noting(&'static str, Log);

impl EventInterceptor for Noting {
    async fn before_dispatch(&self, delivery: &Delivery) -> HandlerResult {
        tokio::task::yield_now().await;
        log(&self.1, format!("{} before {}", self.0, delivery.meta.sequence));
        Ok(())
    }

    async fn after_dispatch(
        &self,
        delivery: &Delivery,
        outcome: &Result<(), DispatchError>,
    ) -> HandlerResult {
        tokio::task::yield_now().await;
        let outcome = outcome.as_ref().map_or_else(|error| error.code().as_str(), |()| "ok");
        log(&self.1, format!("{} after {} {outcome}", self.0, delivery.meta.sequence));
        Ok(())
    }
}

/// A sink that takes batches and does with each event what the test wants.
struct Sink<F>(F);

impl<F> Dispatcher for Sink<F>
where
    F: Fn(i64) -> Result<(), DispatchError> + Send + Sync + 'static,
{
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        tokio::task::yield_now().await;
        (self.0)(delivery.meta.sequence)
    }

    fn batch_limit(&self) -> usize {
        100
    }
}

fn batch(number: i64) -> Vec<Delivery> {
    let one = |sequence| {
        let mut delivery = delivery("org.thing.created.v1", "{}");
        delivery.meta.sequence = sequence;
        delivery.meta.event_id = EventId::new();
        delivery
    };
    (1..=number).map(one).collect()
}

async fn run(sink: &BoxDispatcher, batch: &[Delivery]) -> Vec<(usize, String)> {
    let mut receipts = Receipts::new(batch.len());
    sink.dispatch_batch(batch, &mut receipts).await;
    let mut outcomes: Vec<_> = receipts
        .take()
        .into_iter()
        .map(|(place, outcome)| (place, outcome.map_or_else(|e| e.code().to_string(), |()| "ok".to_owned())))
        .collect();
    outcomes.sort();
    outcomes
}

fn around(interceptors: &Interceptors, sink: impl Dispatcher) -> BoxDispatcher {
    interceptors.around(BoxDispatcher::new(sink))
}

#[tokio::test]
async fn they_are_nested_and_see_the_outcome_of_each_event() {
    let seen = Log::default();
    let mut interceptors = Interceptors::default();
    interceptors.add(Noting("a", Arc::clone(&seen)));
    interceptors.add(Noting("b", Arc::clone(&seen)));
    let sink =
        around(&interceptors, Sink(|n| if n == 2 { Err(DispatchError::reject("no")) } else { Ok(()) }));
    assert_eq!(sink.batch_limit(), 100);
    assert_eq!(run(&sink, &batch(1)).await, [(0, "ok".to_owned())]);
    assert_eq!(lines(&seen), ["a before 1", "b before 1", "b after 1 ok", "a after 1 ok"]);
    seen.lock().unwrap().clear();

    let outcomes = run(&sink, &batch(3)).await;
    assert_eq!(outcomes.iter().map(|(_, o)| o.as_str()).collect::<Vec<_>>(), ["ok", "OUTBOX_REJECTED", "ok"]);
    let after: Vec<_> = lines(&seen).into_iter().filter(|line| line.contains("2 OUTBOX")).collect();
    assert_eq!(after, ["b after 2 OUTBOX_REJECTED", "a after 2 OUTBOX_REJECTED"]);
    assert_eq!(lines(&seen).len(), 12);

    let single = sink.dispatch(&batch(2)[1]).await.unwrap_err();
    assert_eq!(single.kind(), DispatchErrorKind::Reject);
}

#[tokio::test]
async fn an_error_before_ends_the_dispatch_by_its_class_and_leaves_the_others_alone() {
    let (seen, sent) = (Log::default(), Log::default());
    let mut interceptors = Interceptors::default();
    interceptors.add(Noting("outer", Arc::clone(&seen)));
    interceptors.add(before(|delivery| match delivery.meta.sequence {
        1 => Err(DispatchError::reject("never").into()),
        2 => Err(std::io::Error::other("not now").into()),
        3 => panic!("oh"),
        4 => Err(DispatchError::unavailable("down").into()),
        _ => Ok(()),
    }));
    interceptors.add(Noting("inner", Arc::clone(&seen)));
    let sink = {
        let sent = Arc::clone(&sent);
        around(
            &interceptors,
            Sink(move |n: i64| {
                log(&sent, n.to_string());
                Ok(())
            }),
        )
    };
    let codes: Vec<_> = run(&sink, &batch(6)).await.into_iter().map(|(_, code)| code).collect();
    assert_eq!(
        codes,
        ["OUTBOX_REJECTED", "OUTBOX_DISPATCH_FAILED", "OUTBOX_PANIC", "OUTBOX_UNAVAILABLE", "ok", "ok"]
    );
    assert_eq!(lines(&sent), ["5", "6"], "the sink sees only what has passed");
    let lines = lines(&seen);
    for n in 1..=6 {
        let of =
            |who: &str| lines.iter().filter(|l| l.starts_with(who) && l.contains(&format!(" {n}"))).count();
        assert_eq!(of("outer"), 2, "{n}: the one around it hears of the end");
        assert_eq!(of("inner"), if n < 5 { 0 } else { 2 }, "{n}: the one within is not reached");
    }
    let nothing = run(&sink, &batch(4)).await;
    assert_eq!(nothing.len(), 4, "a batch of which nothing is left is not dispatched");
}

#[tokio::test]
async fn what_goes_wrong_after_a_dispatch_changes_nothing() {
    struct Wrong;
    impl EventInterceptor for Wrong {
        async fn after_dispatch(&self, _: &Delivery, _: &Result<(), DispatchError>) -> HandlerResult {
            Err(std::io::Error::other("too late").into())
        }
    }
    let seen = Log::default();
    let mut interceptors = Interceptors::default();
    let last = Arc::clone(&seen);
    interceptors.add(after(move |delivery, outcome| {
        log(&last, format!("{} {}", delivery.meta.sequence, outcome.is_ok()));
    }));
    interceptors.add(Wrong);
    interceptors.add(after(|_, _| panic!("oh")));
    let sink = around(&interceptors, Sink(|_| Ok(())));
    assert_eq!(run(&sink, &batch(2)).await, [(0, "ok".to_owned()), (1, "ok".to_owned())]);
    assert_eq!(lines(&seen), ["1 true", "2 true"]);
}

/// Does not answer for the second event.
struct Hang;

impl Dispatcher for Hang {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        if delivery.meta.sequence == 2 { std::future::pending().await } else { Ok(()) }
    }
}

#[tokio::test]
async fn every_before_has_its_after_even_when_the_dispatch_panics_or_is_cut_off() {
    let seen = Log::default();
    let with = |sink: BoxDispatcher| {
        let mut interceptors = Interceptors::default();
        interceptors.add(Noting("a", Arc::clone(&seen)));
        interceptors.around(sink)
    };
    let panics = with(BoxDispatcher::new(Sink(|n| if n == 2 { panic!("oh") } else { Ok(()) })));
    let task = tokio::spawn(async move {
        let mut receipts = Receipts::new(3);
        panics.dispatch_batch(&batch(3), &mut receipts).await;
    });
    let panic = task.await.unwrap_err().into_panic();
    assert_eq!(crate::panic::message(&*panic), "oh", "the engine hears of it as if nobody were around");
    assert_eq!(lines(&seen)[3..], ["a after 1 ok", "a after 2 OUTBOX_PANIC", "a after 3 OUTBOX_PANIC"]);
    seen.lock().unwrap().clear();

    let hangs = with(BoxDispatcher::new(Hang));
    let mut receipts = Receipts::new(2);
    let batch = batch(2);
    let cut = tokio::time::timeout(Duration::from_millis(20), hangs.dispatch_batch(&batch, &mut receipts));
    cut.await.unwrap_err();
    assert_eq!(receipts.take().len(), 1, "what has arrived is kept");
    while lines(&seen).len() < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lines(&seen)[2..], ["a after 1 ok", "a after 2 OUTBOX_TIMEOUT"]);
}

#[tokio::test]
async fn an_interceptor_that_hangs_before_a_dispatch_is_cut_off_and_the_one_around_it_hears_of_it() {
    struct Stuck;
    impl EventInterceptor for Stuck {
        async fn before_dispatch(&self, _: &Delivery) -> HandlerResult {
            std::future::pending().await
        }
    }
    let seen = Log::default();
    let mut interceptors = Interceptors::default();
    interceptors.add(Noting("a", Arc::clone(&seen)));
    interceptors.add(Stuck);
    let sink = around(&interceptors, Sink(|_| Ok(())));
    let mut receipts = Receipts::new(2);
    let batch = batch(2);
    let cut = tokio::time::timeout(Duration::from_millis(20), sink.dispatch_batch(&batch, &mut receipts));
    cut.await.unwrap_err();
    while lines(&seen).len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(lines(&seen), ["a before 1", "a after 1 OUTBOX_TIMEOUT"]);
}

#[tokio::test]
async fn an_interceptor_that_hangs_after_a_dispatch_does_not_cost_what_has_arrived() {
    struct Slow;
    impl EventInterceptor for Slow {
        async fn after_dispatch(&self, _: &Delivery, _: &Result<(), DispatchError>) -> HandlerResult {
            std::future::pending().await
        }
    }
    let mut interceptors = Interceptors::default();
    interceptors.add(Slow);
    let sink = around(&interceptors, Sink(|_| Ok(())));
    let mut receipts = Receipts::new(1);
    let batch = batch(1);
    let cut = tokio::time::timeout(Duration::from_millis(20), sink.dispatch_batch(&batch, &mut receipts));
    cut.await.unwrap_err();
    assert!(matches!(receipts.take()[..], [(0, Ok(()))]));
}
