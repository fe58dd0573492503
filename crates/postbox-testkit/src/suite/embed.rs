//! What is promised of a handle: with it all of it runs in a service of one's own.

use std::time::Duration;

use postbox_core::{
    Code, EventId, History, HotPath, Inspect as _, OnDead, Order, Outbox, PostboxBuilder, PostboxPool,
    RecordBuilder,
};

use super::script::Scripted;
use super::{PATIENCE, Subject, TOPIC, enqueue, event, events, quick};
use crate::eventually;

/// A subject on whose pool a handle can run.
pub trait EmbedSubject: Subject {
    /// The pool.
    type Pool: PostboxPool<Self::Driver>;
    /// A handle on the table that delivers to this; it is not started.
    fn postbox(&self, sink: &Scripted) -> PostboxBuilder<Self::Driver, Self::Pool>;
}

async fn write<S: EmbedSubject>(subject: &S, outbox: &Outbox, event: RecordBuilder) -> EventId {
    let mut tx = subject.open(outbox).await;
    let receipt = outbox.enqueue(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    receipt.event_id
}

/// Relay, hot path and cleaner; the table is left to the next.
pub async fn everything_runs_until_the_shutdown<S: EmbedSubject>(subject: &S) {
    let sink = Scripted::ok();
    let postbox = subject.postbox(&sink).settings(quick()).hot(HotPath::new());
    let postbox = postbox.retention(Duration::ZERO).clean_every(Duration::from_millis(20));
    let postbox = postbox.start().await.unwrap();
    let id = write(subject, &postbox.outbox(), event(TOPIC, 1)).await;
    eventually("the event", PATIENCE, async || sink.arrived() == [id]).await;
    eventually("the cleaner", PATIENCE, async || subject.rows().await == 0).await;
    assert_eq!(postbox.health().problem(), None);
    postbox.shutdown().await.unwrap();
    assert_eq!(subject.admin().relay().await.unwrap().leader, None);
}

/// With order, everything goes the way over the table, also where the hot path is asked for.
pub async fn order_is_kept_where_it_is_asked_for<S: EmbedSubject>(subject: &S) {
    let sink = Scripted::ok();
    let postbox = subject.postbox(&sink).settings(quick()).hot(HotPath::new());
    let postbox = postbox.order(Order::Aggregate(OnDead::Block)).start().await.unwrap();
    let (outbox, mut written) = (postbox.outbox(), Vec::new());
    for n in 0..50 {
        written.push(write(subject, &outbox, event(TOPIC, n).aggregate("thing", 7)).await);
    }
    eventually("all events", PATIENCE, async || sink.arrived().len() == 50).await;
    assert_eq!(sink.arrived(), written);
    postbox.shutdown().await.unwrap();
}

/// An application that chooses a history gets it, or hears why not before anything runs.
pub async fn an_application_chooses_its_history<S: EmbedSubject>(subject: &S) {
    let start = async |history: History, sink: &Scripted| {
        subject.postbox(sink).settings(quick()).history(history).start().await
    };
    let refused = start(History::Move, &Scripted::ok()).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::HistoryMissing, "{refused}");
    assert!(refused.to_string().contains("--history move"), "{refused}");
    subject.make_history().await;
    for history in [History::Move, History::None] {
        let sink = Scripted::ok();
        let postbox = start(history, &sink).await.unwrap();
        let id = enqueue(subject, events(1)).await[0];
        eventually("the event to leave the table", PATIENCE, async || subject.row(id).await.is_none()).await;
        assert_eq!(subject.moved(id).await.is_some(), history == History::Move);
        assert_eq!(sink.arrived(), [id]);
        postbox.shutdown().await.unwrap();
    }
}
