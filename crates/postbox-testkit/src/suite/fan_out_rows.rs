//! What a row remembers of several sinks, and what claims make of it.

use std::sync::Arc;

use postbox_core::store::{ClaimMode, ClaimRequest, Claimed, Settlement, Spent, Verdict};
use postbox_core::{Code, Relay, Store};

use super::fan_out::{BARE, done, start};
use super::script::Scripted;
use super::{Subject, TOPIC, claim, enqueue, events, published, quick, request, settle_all};
use crate::skipped;

/// It goes back; these sinks have confirmed it.
fn released(row: &Claimed, sinks: &[&str]) -> Settlement {
    let sinks_done = sinks.iter().map(|name| Arc::from(*name)).collect();
    let verdict = Verdict::Release { after: None, reason: None };
    Settlement { sinks_done, ..Settlement::new(row.lease.clone(), verdict) }
}

/// Names in the row mean what the route names today.
pub async fn sinks_that_are_gone_or_new_are_treated_as_such<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(2)).await;
    let store = subject.store(false);
    let rows = claim(&store, 10).await.rows;
    // Added in two steps, one of them twice.
    store.settle(&[released(&rows[0], &["b", "gone"]), released(&rows[1], &["gone"])]).await.unwrap();
    // By a relay that has not read on behind them.
    let store = subject.store(false);
    let rows = claim(&store, 10).await.rows;
    assert_eq!(
        (&rows[0].sinks_done[..], &rows[1].sinks_done[..]),
        (&["b".into(), "gone".into()][..], &["gone".into()][..])
    );
    assert_eq!(rows[0].lease.attempts, 1, "the attempt was given back");
    store.settle(&[released(&rows[0], &["a", "b"]), released(&rows[1], &["a", "gone"])]).await.unwrap();
    let mut names = done(subject, ids[0]).await;
    names.sort();
    assert_eq!(names, ["a", "b", "gone"]);
    // One is complete, the other lacks a sink.
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let relay = start(subject, a.clone(), b.clone(), quick());
    for id in &ids {
        published(subject, *id).await;
    }
    relay.shutdown().await.unwrap();
    assert_eq!((a.seen().len(), b.arrived()), (0, vec![ids[1]]));
}

/// What claims and probes leave out.
pub async fn claims_leave_out_what_only_others_lack<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    for single_active in [false, true] {
        let ids = enqueue(subject, events(3)).await;
        let store = subject.store(single_active);
        let rows = claim(&store, 10).await.rows;
        let confirmed = [&[][..], &["a"], &["b", "a", "c"]];
        let back: Vec<_> = rows.iter().zip(confirmed).map(|(row, names)| released(row, names)).collect();
        store.settle(&back).await.unwrap();
        let spent = |sinks: &[&str]| -> Arc<[Spent]> {
            Arc::from([Spent { topic: TOPIC, sinks: sinks.iter().map(|name| Arc::from(*name)).collect() }])
        };
        store.close().await;
        // By a relay that has not read on behind any row yet.
        let claimed = async |mode: ClaimMode, sinks: &[&str]| {
            let store = subject.store(single_active);
            let request = ClaimRequest { spent: spent(sinks), ..request(mode, 10) };
            let claim = store.claim(request).await.unwrap();
            let back = settle_all(&claim, &Verdict::Release { after: None, reason: None });
            store.settle(&back).await.unwrap();
            store.close().await;
            claim.rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>()
        };
        assert_eq!(claimed(ClaimMode::Waiting, &["a"]).await, [ids[0]]);
        assert_eq!(claimed(ClaimMode::Waiting, &["a", "b"]).await, [ids[0], ids[1]]);
        assert_eq!(claimed(ClaimMode::Waiting, &["a", "d"]).await, ids);
        assert_eq!(claimed(ClaimMode::Probe(Arc::from([TOPIC])), &["b"]).await, [ids[0], ids[1]]);
        let store = subject.store(single_active);
        let rest = claim(&store, 10).await;
        store.settle(&settle_all(&rest, &Verdict::Delivered)).await.unwrap();
        store.close().await;
    }
}

/// Where there is no column to remember it, it is refused, with the next step.
pub async fn a_bare_table_refuses_fan_out<S: Subject>(subject: &S) {
    if subject.features().full {
        return skipped("this table can remember which sinks have confirmed");
    }
    let relay = Relay::builder(subject.store(true)).sink("a", Scripted::ok()).sink("b", Scripted::ok());
    let error = relay.route_to_all("**", ["a", "b"]).build().unwrap().run().await.unwrap_err();
    assert_eq!(error.code(), Code::ColumnMissing);
    assert!(error.to_string().contains("sinks_done") && error.to_string().contains("migrate up"), "{error}");
}
