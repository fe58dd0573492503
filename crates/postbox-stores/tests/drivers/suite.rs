//! What is promised of a driver's transactions. Each driver does the steps of a transaction; what became of them is seen through
//! the stores, which work with sqlx.

use std::time::Duration;

use postbox_core::browse::Browse as _;
use postbox_core::{
    Code, ConsumerName, Delivery, EnqueueError, Enqueued, EventId, Inspect as _, MessageId, Outbox, Payload,
    Receipt, Record, RecordError, Relay, RelayHandle, Seen, Settings, Topic,
};
use postbox_testkit::eventually;
use postbox_testkit::suite::script::Scripted;

use crate::database::Database;

pub(crate) const TOPIC: Topic = Topic::from_static("org.thing.happened.v1");
static STOCK: ConsumerName = ConsumerName::from_static("stock");
const SOON: Duration = Duration::from_secs(12);

/// Something that is done in a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    EnqueueAll(Vec<Record>),
    Enqueue(Box<Record>),
    RecordAll(Vec<MessageId>),
    Record(MessageId),
    /// A statement; its error is ignored.
    Sql(&'static str),
}

fn enqueue(record: Record) -> Step {
    Step::Enqueue(Box::new(record))
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub(crate) enum Done {
    Receipts(Vec<Receipt>),
    Seen(Vec<Seen>),
    Refused(Option<Code>, String),
    Sql,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    RollBack,
}

/// A driver with a connection.
pub(crate) trait Driver: Sized {
    async fn connect(url: &str) -> Self;
    async fn transaction(&mut self, outbox: &Outbox, steps: Vec<Step>, end: End) -> Vec<Done>;
}

/// Does the steps in a transaction, which is an expression: the same code for each type of one.
macro_rules! steps {
    ($outbox:expr, $steps:expr, $tx:expr, $sql:ident => $run:expr) => {{
        let mut done = Vec::new();
        for step in $steps {
            done.push(match step {
                $crate::suite::Step::Enqueue(record) => {
                    $crate::suite::written($outbox.enqueue($tx, *record).await.map(|receipt| vec![receipt]))
                }
                $crate::suite::Step::EnqueueAll(records) => {
                    $crate::suite::written($outbox.enqueue_all($tx, records).await)
                }
                $crate::suite::Step::Record(message) => $crate::suite::recorded(
                    $outbox.inbox().record($tx, $crate::suite::stock(), message).await.map(|seen| vec![seen]),
                ),
                $crate::suite::Step::RecordAll(messages) => $crate::suite::recorded(
                    $outbox.inbox().record_all($tx, $crate::suite::stock(), &messages).await,
                ),
                $crate::suite::Step::Sql($sql) => {
                    let _ = $run.await;
                    $crate::suite::Done::Sql
                }
            });
        }
        done
    }};
}
pub(crate) use steps;

pub(crate) fn stock() -> &'static ConsumerName {
    &STOCK
}

pub(crate) fn written<E: std::error::Error>(result: Result<Vec<Receipt>, EnqueueError<E>>) -> Done {
    result.map_or_else(
        |error| {
            let code = matches!(error, EnqueueError::NoTransaction).then_some(Code::NoTransaction);
            Done::Refused(code, words(&error))
        },
        Done::Receipts,
    )
}

pub(crate) fn recorded<E: std::error::Error>(result: Result<Vec<Seen>, RecordError<E>>) -> Done {
    result.map_or_else(|error| Done::Refused(Some(error.code()), words(&error)), Done::Seen)
}

/// An error with all its causes.
fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Makes the tests of a driver on a database.
macro_rules! driver_suite {
    ($driver:ty, $database:expr; $($promise:ident)*) => {$(
        #[tokio::test]
        async fn $promise() {
            let database = $database.await;
            $crate::suite::$promise::<$driver>(&database).await;
        }
    )*};
    ($driver:ty, $database:expr) => {
        $crate::suite::driver_suite!($driver, $database;
            an_event_exists_only_if_its_transaction_committed
            every_field_arrives
            many_events_get_their_receipts_in_order
            a_message_is_first_once
            what_is_missing_is_named
            an_ignored_error_is_told
            a_sleeping_relay_hears_of_a_commit
        );
    };
}
pub(crate) use driver_suite;

pub(crate) fn event(n: usize) -> Record {
    Record::builder(TOPIC).json(&serde_json::json!({ "n": n })).build().unwrap()
}

/// One with all that an event can carry.
fn full(n: usize, payload: &Payload) -> Record {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
    let record = Record::builder(TOPIC);
    let record = match payload {
        Payload::Json(json) => record.raw_json(json.as_str()),
        Payload::Bytes { bytes, content_type } => record.bytes(bytes.to_vec(), content_type),
    };
    record
        .tenant_name("acme")
        .aggregate("thing", n)
        .header("k", "Zoë 😀")
        .occurred_at(at)
        .schema("s", 3)
        .routing_key("key")
        .metadata(&serde_json::json!({"m": 1}))
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b".into()))
        .build()
        .unwrap()
}

fn sequences(done: &Done) -> Vec<i64> {
    let Done::Receipts(receipts) = done else { panic!("{done:?}") };
    receipts.iter().filter_map(Receipt::sequence).collect()
}

pub(crate) async fn rows(database: &Database) -> u64 {
    database.admin().counts().await.unwrap().pending
}

fn relay(database: &Database, sink: &Scripted) -> RelayHandle {
    let settings = Settings { poll_interval: Duration::from_mins(10), ..Settings::default() };
    Relay::builder(database.store()).dispatcher(sink.clone()).settings(settings).build().unwrap().spawn()
}

/// All that is there, as it arrives.
async fn delivered(database: &Database, count: usize) -> Vec<Delivery> {
    let sink = Scripted::ok();
    let relay = relay(database, &sink);
    eventually("all to arrive", SOON, async || sink.arrived().len() >= count).await;
    relay.shutdown().await.unwrap();
    sink.seen()
}

pub(crate) async fn an_event_exists_only_if_its_transaction_committed<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let first = event(1);
    let both = || vec![enqueue(first.clone()), Step::EnqueueAll(vec![event(2), event(3)])];
    let done = driver.transaction(&outbox, both(), End::RollBack).await;
    assert_eq!(sequences(&done[0]).len() + sequences(&done[1]).len(), 3, "{done:?}");
    assert_eq!(rows(database).await, 0);
    let done = driver.transaction(&outbox, both(), End::Commit).await;
    assert_eq!(rows(database).await, 3);
    // A repeated id writes nothing, and answers with the first one's sequence; within its transaction too.
    let again = vec![enqueue(first.clone()), Step::EnqueueAll(vec![first.clone(), event(4), first.clone()])];
    let sequence = sequences(&done[0])[0];
    let done = driver.transaction(&outbox, again, End::Commit).await;
    let Done::Receipts(receipts) = &done[0] else { panic!("{done:?}") };
    assert_eq!(receipts[0].enqueued, Enqueued::Duplicate(sequence));
    let Done::Receipts(receipts) = &done[1] else { panic!("{done:?}") };
    assert_eq!(receipts[0].enqueued, Enqueued::Duplicate(sequence));
    assert!(matches!(receipts[1].enqueued, Enqueued::Written(_)), "{receipts:?}");
    assert_eq!(receipts[2].enqueued, Enqueued::Duplicate(sequence));
    assert_eq!(rows(database).await, 4);
}

pub(crate) async fn every_field_arrives<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let json = event(0).payload.clone();
    let bytes =
        Payload::Bytes { bytes: vec![0, 159, 146, 150].into(), content_type: "application/x-test".into() };
    let later = || Record::builder(TOPIC).json(&1).delay(Duration::from_hours(1)).build().unwrap();
    let one = [full(1, &json), full(2, &bytes), event(3)];
    let many = [full(4, &json), full(5, &bytes), event(6)];
    let mut steps: Vec<Step> = one.iter().cloned().map(enqueue).collect();
    steps.push(Step::EnqueueAll(many.to_vec()));
    // Neither is due.
    let at = time::OffsetDateTime::now_utc() + Duration::from_hours(2);
    let on_time = Record::builder(TOPIC).json(&2).available_at(at).build().unwrap();
    steps.extend([enqueue(later()), Step::EnqueueAll(vec![later(), on_time.clone()])]);
    let done = driver.transaction(&outbox, steps, End::Commit).await;
    assert!(done.iter().all(|done| !sequences(done).is_empty()), "{done:?}");

    let arrived = delivered(database, 6).await;
    for record in one.iter().chain(&many) {
        let delivery = arrived.iter().find(|delivery| delivery.meta.event_id == record.event_id);
        let delivery = delivery.unwrap_or_else(|| panic!("{record:?} did not arrive"));
        let meta = &delivery.meta;
        assert_eq!(decoded(&delivery.payload), decoded(&record.payload));
        assert_eq!((meta.tenant_id, &meta.topic), (record.tenant_id, &record.topic));
        assert_eq!((&meta.aggregate, &meta.headers), (&record.aggregate, &record.headers));
        assert_eq!(
            (meta.schema_id.as_deref(), meta.schema_version),
            (record.schema_id.as_deref(), record.schema_version)
        );
        assert_eq!(meta.routing_key.as_deref(), record.routing_key.as_deref());
        assert_eq!(meta.metadata.is_some(), record.metadata.is_some());
        assert_eq!((&meta.traceparent, &meta.tracestate), (&record.traceparent, &record.tracestate));
        assert!((meta.occurred_at - record.occurred_at).abs() < time::Duration::microseconds(1), "{meta:?}");
    }
    assert_eq!(arrived.len(), 6, "what is not due waits");
    let waiting = database.admin().show(on_time.event_id, false).await.unwrap().unwrap();
    assert!((waiting.summary.available_at - at).abs() < time::Duration::microseconds(1), "{waiting:?}");
}

fn decoded(payload: &Payload) -> (Option<serde_json::Value>, Option<(Vec<u8>, String)>) {
    match payload {
        Payload::Json(json) => (Some(json.decode().unwrap()), None),
        Payload::Bytes { bytes, content_type } => (None, Some((bytes.to_vec(), content_type.clone()))),
    }
}

/// Across chunks, and of several aggregates, whose locks are taken in order where a table has such.
pub(crate) async fn many_events_get_their_receipts_in_order<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let of = |n: usize| {
        let record = Record::builder(TOPIC).json(&n).aggregate("thing", n % 7);
        record.build().unwrap()
    };
    let mut records: Vec<Record> = (0..1_234).map(of).collect();
    records.push(records[7].clone());
    let done = driver.transaction(&outbox, vec![Step::EnqueueAll(records.clone())], End::Commit).await;
    let Done::Receipts(receipts) = &done[0] else { panic!("{done:?}") };
    let ids =
        |receipts: &[Receipt]| receipts.iter().map(|receipt| receipt.event_id).collect::<Vec<EventId>>();
    assert_eq!(ids(receipts), records.iter().map(|record| record.event_id).collect::<Vec<_>>());
    let sequences = sequences(&done[0]);
    assert!(sequences[..1_234].windows(2).all(|pair| pair[0] < pair[1]), "in the order of the call");
    assert_eq!(receipts[1_234].enqueued, Enqueued::Duplicate(sequences[7]));
    assert_eq!(rows(database).await, 1_234);
    // Neither way keeps a statement prepared that the other one needs.
    let unprepared = outbox.unprepared();
    let step = vec![Step::EnqueueAll(vec![event(1), event(2)]), enqueue(event(3))];
    let done = driver.transaction(&unprepared, step, End::Commit).await;
    assert!(done.iter().all(|done| matches!(done, Done::Receipts(_))), "{done:?}");
}

pub(crate) async fn a_message_is_first_once<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let id = |text: &str| MessageId::new(text).unwrap();
    let one = || vec![Step::Record(id("Zoë-1"))];
    let first = |done: Vec<Done>| assert_eq!(done, [Done::Seen(vec![Seen::First])]);
    first(driver.transaction(&outbox, one(), End::RollBack).await);
    first(driver.transaction(&outbox, one(), End::Commit).await);
    let done = driver.transaction(&outbox, one(), End::Commit).await;
    assert_eq!(done, [Done::Seen(vec![Seen::Before])]);
    let many = ["b", "Zoë-1", "a", "b", "c"].map(id).to_vec();
    let done = driver.transaction(&outbox, vec![Step::RecordAll(many)], End::Commit).await;
    let seen = [Seen::First, Seen::Before, Seen::First, Seen::Before, Seen::First];
    assert_eq!(done, [Done::Seen(seen.to_vec())]);
    // Effect, memory and the next event are one commit.
    let with_event = vec![Step::Record(id("d")), enqueue(event(1))];
    driver.transaction(&outbox, with_event.clone(), End::RollBack).await;
    assert_eq!(rows(database).await, 0);
    let done = driver.transaction(&outbox, with_event, End::Commit).await;
    assert_eq!(done[0], Done::Seen(vec![Seen::First]));
    assert_eq!(rows(database).await, 1);
    // More than one statement can hold.
    let all: Vec<MessageId> = (0..1_500).map(|n| id(&format!("m-{n}"))).collect();
    let done = driver.transaction(&outbox, vec![Step::RecordAll(all.clone())], End::Commit).await;
    assert_eq!(done, [Done::Seen(vec![Seen::First; 1_500])]);
    let done = driver.transaction(&outbox, vec![Step::RecordAll(all)], End::Commit).await;
    assert_eq!(done, [Done::Seen(vec![Seen::Before; 1_500])]);
}

pub(crate) async fn what_is_missing_is_named<D: Driver>(database: &Database) {
    let mut driver = D::connect(&database.url).await;
    let outbox = Outbox::new("other_outbox".parse().unwrap());
    let step = vec![Step::Record(MessageId::new("m").unwrap())];
    let done = driver.transaction(&outbox, step, End::RollBack).await;
    let Done::Refused(code, text) = &done[0] else { panic!("{done:?}") };
    assert_eq!(*code, Some(Code::InboxMissing), "{text}");
    assert!(text.contains("postbox migrate up --inbox --table other_outbox"), "{text}");
    let done = driver.transaction(&outbox, vec![enqueue(event(1))], End::RollBack).await;
    let Done::Refused(_, text) = &done[0] else { panic!("{done:?}") };
    assert!(text.contains("other_outbox"), "the driver's own words: {text}");
}

/// Where a transaction cannot go on after an error, whoever ignored it hears of it.
pub(crate) async fn an_ignored_error_is_told<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let wrong = Step::Sql("SELECT * FROM no_such_table");
    let record = Step::Record(MessageId::new("m").unwrap());
    let steps = vec![wrong, enqueue(event(1)), Step::EnqueueAll(vec![event(2), event(3)]), record];
    let done = driver.transaction(&outbox, steps, End::RollBack).await;
    if !database.aborts() {
        assert!(matches!(&done[1..], [Done::Receipts(_), Done::Receipts(_), Done::Seen(_)]), "{done:?}");
        return;
    }
    for done in &done[1..3] {
        let Done::Refused(_, text) = done else { panic!("{done:?}") };
        assert!(text.contains("current transaction is aborted"), "{text}");
    }
    assert!(matches!(&done[3], Done::Refused(Some(Code::TransactionAborted), _)), "{done:?}");
    // The connection is as good as before.
    let done = driver.transaction(&outbox, vec![enqueue(event(4))], End::Commit).await;
    assert!(matches!(&done[0], Done::Receipts(_)), "{done:?}");
}

/// For drivers whose type does not tell whether a transaction is open.
pub(crate) async fn without_a_transaction<F: Future<Output = Vec<Done>>>(
    database: &Database,
    run: impl FnOnce(Outbox, Vec<Step>) -> F,
) {
    let message = MessageId::new("m").unwrap();
    let steps = vec![
        enqueue(event(1)),
        Step::EnqueueAll(vec![event(2), event(3)]),
        Step::Record(message.clone()),
        Step::RecordAll(vec![message]),
    ];
    for done in run(database.outbox(), steps).await {
        let Done::Refused(code, text) = &done else { panic!("{done:?}") };
        assert_eq!(*code, Some(Code::NoTransaction));
        assert!(text.starts_with("OUTBOX_NO_TX: ") && text.ends_with("and none is open"), "{text}");
    }
    assert_eq!(rows(database).await, 0);
}

/// A relay that looks by itself every ten minutes has it at once.
pub(crate) async fn a_sleeping_relay_hears_of_a_commit<D: Driver>(database: &Database) {
    let (outbox, mut driver) = (database.outbox(), D::connect(&database.url).await);
    let sink = Scripted::ok();
    let relay = relay(database, &sink);
    for n in 1..=3 {
        eventually("the relay to sleep", SOON, async || database.relay_sleeps()).await;
        let step = match n {
            2 => Step::EnqueueAll(vec![event(n)]),
            _ => enqueue(event(n)),
        };
        driver.transaction(&outbox, vec![step], End::Commit).await;
        eventually("the event to arrive", SOON, async || sink.arrived().len() == n).await;
    }
    relay.shutdown().await.unwrap();
}
