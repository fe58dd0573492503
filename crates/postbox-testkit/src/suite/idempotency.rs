//! What is promised of calls by idempotency key: one runs, the others hear of it, and nobody who was fenced off has an effect.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::{Cleaner, SweepCount, SweepRequest};
use postbox_core::idempotency::{
    Begun, Call, Fingerprint, FinishError, IdempotencyStore, StoredResponse, Ticket,
};
use postbox_core::{Outbox, OutboxTransaction};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{PATIENCE, events};
use crate::eventually;

/// A table of calls under test, empty at the start, beside an empty outbox and a table of effects.
pub trait CallsSubject: Sync {
    /// The store.
    type Calls: IdempotencyStore + SweepCount;

    /// The store, as a service has it.
    fn calls(&self) -> Self::Calls;
    /// The store, as its cleaner has it.
    fn sweep(&self) -> Self::Calls {
        self.calls()
    }
    /// The module's outbox.
    fn outbox(&self) -> Outbox;
    /// Whether two transactions can have written at the same time.
    fn writers_overlap(&self) -> bool;
    /// Makes the lease of a call run out, as if its owner had died long ago.
    fn expire(&self, call: &Call) -> impl Future<Output = ()> + Send;
    /// Makes a call older by so much.
    fn make_older(&self, call: &Call, by: Duration) -> impl Future<Output = ()> + Send;
    /// Writes one effect.
    fn effect(&self, tx: &mut Open<Self>) -> impl Future<Output = ()> + Send;
    /// How many effects and events there are.
    fn books(&self) -> impl Future<Output = (i64, i64)> + Send;
}

/// A transaction in which a call can be finished.
pub type Open<S> = OutboxTransaction<<<S as CallsSubject>::Calls as IdempotencyStore>::Driver>;

const LEASE: Duration = Duration::from_mins(1);
const RACERS: usize = 16;

/// A call by this key.
pub fn call(key: &str) -> Arc<Call> {
    with_content(key, 1)
}

fn with_content(key: &str, content: u8) -> Arc<Call> {
    Arc::new(Call::new("acme", "POST /orders", key, Fingerprint::new([content; 32])).expect("a call"))
}

fn answer(body: &str) -> StoredResponse {
    StoredResponse::new(201)
        .header("content-type", "text/plain")
        .header("x-odd", b"\xe9 : \"".to_vec())
        .body(body)
}

async fn begin<C: IdempotencyStore>(calls: &C, call: &Arc<Call>) -> Begun {
    calls.begin(call, LEASE).await.expect("an answer")
}

async fn run<C: IdempotencyStore>(calls: &C, call: &Arc<Call>) -> Ticket {
    match begin(calls, call).await {
        Begun::Run(ticket) => ticket,
        other => panic!("the call is to run, not {other:?}"),
    }
}

/// Who asked the time and then waited for another's write sees a lease that begins a moment later.
const MOMENT: Duration = Duration::from_secs(5);

fn is_busy(begun: &Begun) -> bool {
    matches!(begun, Begun::Busy { remaining } if !remaining.is_zero() && *remaining <= LEASE + MOMENT)
}

/// All at once; the ticket of the one who runs, and what the others heard.
async fn race<C: IdempotencyStore>(calls: &C, call: &Arc<Call>) -> (Vec<Ticket>, Vec<Begun>) {
    let barrier = Arc::new(Barrier::new(RACERS));
    let mut racers = JoinSet::new();
    for _ in 0..RACERS {
        let (calls, call, barrier) = (calls.clone(), Arc::clone(call), Arc::clone(&barrier));
        racers.spawn(async move {
            barrier.wait().await;
            begin(&calls, &call).await
        });
    }
    let (mut tickets, mut others) = (Vec::new(), Vec::new());
    for begun in racers.join_all().await {
        match begun {
            Begun::Run(ticket) => tickets.push(ticket),
            other => others.push(other),
        }
    }
    (tickets, others)
}

/// Of those who come at once one runs, the others are told how long to wait at most (hazard 46).
pub async fn of_16_racers_one_runs<S: CallsSubject>(subject: &S) {
    let calls = subject.calls();
    let (tickets, others) = race(&calls, &call("race")).await;
    assert_eq!(tickets.len(), 1, "{others:?}");
    assert!(!tickets[0].is_taken_over() && others.iter().all(is_busy), "{others:?}");
    assert!(calls.finish(&tickets[0], &answer("once")).await.unwrap());
    let (tickets, others) = race(&calls, &call("race")).await;
    assert!(
        tickets.is_empty() && others.iter().all(|begun| *begun == Begun::Replay(answer("once"))),
        "{others:?}"
    );
}

/// Status, headers and body come back as they were; what was not kept is known to be missing.
pub async fn a_repeat_gets_the_answer<S: CallsSubject>(subject: &S) {
    let calls = subject.calls();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for (key, answer) in [
        ("text", answer("hello")),
        ("bytes", StoredResponse::new(200).body(bytes)),
        ("empty", StoredResponse::new(204).body("")),
        ("large", StoredResponse::new(200).header("location", "/orders/7")),
    ] {
        let ticket = run(&calls, &call(key)).await;
        assert!(calls.finish(&ticket, &answer).await.unwrap());
        assert_eq!(begin(&calls, &call(key)).await, Begun::Replay(answer), "{key}");
    }
}

/// A key is used once for each content, in each scope.
pub async fn another_content_is_a_mismatch<S: CallsSubject>(subject: &S) {
    let calls = subject.calls();
    let ticket = run(&calls, &with_content("k", 1)).await;
    assert_eq!(begin(&calls, &with_content("k", 2)).await, Begun::Mismatch, "while it runs");
    assert!(calls.finish(&ticket, &answer("done")).await.unwrap());
    assert_eq!(begin(&calls, &with_content("k", 2)).await, Begun::Mismatch, "when it is done");
    for (principal, route) in [("other", "POST /orders"), ("acme", "PATCH /orders"), ("", "POST /orders")] {
        let other = Call::new(principal, route, "k", Fingerprint::new([2; 32])).expect("a call");
        run(&calls, &Arc::new(other)).await;
    }
    assert_eq!(begin(&calls, &with_content("k", 1)).await, Begun::Replay(answer("done")));
}

/// One of many takes a call over whose owner has died; that one can do nothing to it any more (hazard 46).
pub async fn after_a_crash_one_of_16_takes_over_and_the_old_one_is_fenced<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("crash"));
    let old = run(&calls, &call).await;
    subject.expire(&call).await;
    let (tickets, others) = race(&calls, &call).await;
    assert_eq!(tickets.len(), 1, "{others:?}");
    let new = &tickets[0];
    assert!(new.is_taken_over() && new.token() != old.token() && others.iter().all(is_busy), "{others:?}");
    assert!(!calls.extend(&old, LEASE).await.unwrap());
    assert!(!calls.finish(&old, &answer("old")).await.unwrap());
    assert!(!calls.abandon(&old).await.unwrap());
    assert!(is_busy(&begin(&calls, &call).await), "it is the new one's");
    assert!(calls.finish(new, &answer("new")).await.unwrap());
    assert!(!calls.finish(&old, &answer("old")).await.unwrap());
    assert_eq!(begin(&calls, &call).await, Begun::Replay(answer("new")));
}

/// Who renews its lease keeps its call.
pub async fn an_extended_lease_is_not_taken_over<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("long"));
    let ticket = run(&calls, &call).await;
    subject.expire(&call).await;
    assert!(calls.extend(&ticket, LEASE).await.unwrap(), "nobody has it yet");
    assert!(is_busy(&begin(&calls, &call).await));
    assert!(calls.finish(&ticket, &answer("long")).await.unwrap());
    assert!(!calls.extend(&ticket, LEASE).await.unwrap(), "there is nothing left to renew");
}

/// What was given up runs again; what is done stays done.
pub async fn an_abandoned_call_runs_again<S: CallsSubject>(subject: &S) {
    let (calls, first) = (subject.calls(), call("again"));
    let ticket = run(&calls, &first).await;
    assert!(calls.abandon(&ticket).await.unwrap());
    assert!(!calls.abandon(&ticket).await.unwrap() && !calls.finish(&ticket, &answer("late")).await.unwrap());
    let ticket = run(&calls, &with_content("again", 2)).await;
    assert!(!ticket.is_taken_over(), "it is a new call, also with another content");
    assert!(calls.finish(&ticket, &answer("first")).await.unwrap());
    assert!(calls.finish(&ticket, &answer("second")).await.unwrap(), "the reply to the first was lost");
    assert!(!calls.abandon(&ticket).await.unwrap());
    assert_eq!(begin(&calls, &with_content("again", 2)).await, Begun::Replay(answer("first")));
}

/// Runs a call with an effect and an event in one transaction, up to its COMMIT.
async fn act<S: CallsSubject>(subject: &S, ticket: &Ticket, body: &str) -> Result<Open<S>, Open<S>> {
    let mut tx = subject.calls().transaction().await.expect("a transaction");
    subject.effect(&mut tx).await;
    subject.outbox().enqueue_all(&mut tx, events(1)).await.expect("an event");
    match ticket.finish_in(&mut tx, &answer(body)).await {
        Ok(()) => Ok(tx),
        Err(FinishError::Lost) => Err(tx),
        Err(FinishError::Database(error)) => panic!("{error}"),
    }
}

/// Effect, event and answer are there together, or none is.
pub async fn effect_event_and_answer_commit_together<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("one commit"));
    let ticket = run(&calls, &call).await;
    act(subject, &ticket, "rolled back").await.expect("its own").rollback().await.unwrap();
    assert_eq!(subject.books().await, (0, 0));
    assert!(is_busy(&begin(&calls, &call).await), "it is not done");
    act(subject, &ticket, "committed").await.expect("its own").commit().await.unwrap();
    assert_eq!(subject.books().await, (1, 1));
    assert_eq!(begin(&calls, &call).await, Begun::Replay(answer("committed")));
}

/// Who was fenced off while its transaction was open commits nothing of it.
pub async fn a_transaction_that_was_fenced_off_has_no_effect<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("fenced"));
    let old = run(&calls, &call).await;
    let mut slow = None;
    if subject.writers_overlap() {
        let mut tx = calls.transaction().await.unwrap();
        subject.effect(&mut tx).await;
        slow = Some(tx);
    }
    subject.expire(&call).await;
    let new = run(&calls, &call).await;
    act(subject, &new, "new").await.expect("its own").commit().await.unwrap();
    if let Some(mut tx) = slow {
        assert!(old.finish_in(&mut tx, &answer("old")).await.unwrap_err().is_lost());
        tx.rollback().await.unwrap();
    }
    act(subject, &old, "old").await.expect_err("fenced off").rollback().await.unwrap();
    assert_eq!(subject.books().await, (1, 1));
    assert_eq!(begin(&calls, &call).await, Begun::Replay(answer("new")));
}

/// Who would take over waits for a commit that is under way, and then finds the answer.
pub async fn a_commit_under_way_is_waited_for<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("slow commit"));
    let ticket = run(&calls, &call).await;
    subject.expire(&call).await;
    let tx = act(subject, &ticket, "in time").await.expect("its own");
    let other = tokio::spawn({
        let (calls, call) = (calls.clone(), Arc::clone(&call));
        async move { begin(&calls, &call).await }
    });
    // Whether the other one has got as far as to wait or not: the outcome is the same.
    tokio::task::yield_now().await;
    tx.commit().await.unwrap();
    assert_eq!(other.await.unwrap(), Begun::Replay(answer("in time")));
    assert_eq!(subject.books().await, (1, 1));
}

/// Many who want the same, the first of whom dies in the middle: the effect happens once, and all hear of it.
pub async fn of_16_racers_with_a_crash_in_the_middle_the_effect_happens_once<S: CallsSubject>(subject: &S) {
    let (calls, call) = (subject.calls(), call("orders"));
    let crashed = run(&calls, &call).await;
    // It has written everything but its COMMIT.
    drop(act(subject, &crashed, "never").await.expect("its own"));
    let racers = (0..RACERS).map(|racer| {
        let (calls, call) = (&calls, &call);
        async move {
            eventually("the answer", PATIENCE, async || match begin(calls, call).await {
                Begun::Replay(answer) => Some(answer),
                Begun::Busy { .. } => None,
                Begun::Run(ticket) => {
                    assert!(ticket.is_taken_over());
                    let tx = act(subject, &ticket, &format!("by {racer}")).await.expect("its own");
                    tx.commit().await.unwrap();
                    None
                }
                Begun::Mismatch => panic!("it is the same call"),
            })
            .await
        }
    });
    assert!(is_busy(&begin(&calls, &call).await), "the dead one's lease still lasts");
    subject.expire(&call).await;
    let answers = join_all(racers).await;
    assert!(answers.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
    assert_eq!(subject.books().await, (1, 1));
    act(subject, &crashed, "late").await.expect_err("fenced off").rollback().await.unwrap();
}

/// All of them at the same time, in one task.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

/// Calls are forgotten after their retention, in batches, but never one that runs.
pub async fn the_cleaner_forgets_old_calls_and_none_that_runs<S: CallsSubject>(subject: &S) {
    let (calls, day) = (subject.calls(), Duration::from_hours(24));
    for key in ["old 1", "old 2", "old 3", "young"] {
        let ticket = run(&calls, &call(key)).await;
        assert!(calls.finish(&ticket, &answer(key)).await.unwrap());
    }
    for key in ["crashed", "running"] {
        run(&calls, &call(key)).await;
    }
    for key in ["old 1", "old 2", "old 3", "crashed", "running"] {
        subject.make_older(&call(key), day + Duration::from_mins(1)).await;
    }
    subject.expire(&call("crashed")).await;
    let request = SweepRequest {
        retention: day,
        dead_retention: None,
        batch: 2,
        max_attempts: 25,
        dead_letters: false,
    };
    let sweep = subject.sweep();
    assert_eq!(sweep.due(&request).await.unwrap().published, 4);
    let cleaner = Cleaner::new(sweep).retention(day).batch(2);
    assert_eq!(cleaner.run_once().await.unwrap(), 4);
    assert_eq!(cleaner.run_once().await.unwrap(), 0);
    assert!(is_busy(&begin(&calls, &call("running")).await));
    assert_eq!(begin(&calls, &call("young")).await, Begun::Replay(answer("young")));
    for key in ["old 1", "old 2", "old 3", "crashed"] {
        assert!(!run(&calls, &call(key)).await.is_taken_over(), "{key} is forgotten");
    }
}
