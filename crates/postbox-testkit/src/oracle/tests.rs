//! Each rule must be seen to fail: an oracle that always agrees proves nothing.

use super::{Oracle, read_jsonl};
use uuid::Uuid;

fn ids<const N: usize>() -> [Uuid; N] {
    std::array::from_fn(|_| Uuid::now_v7())
}

fn fault(oracle: &Oracle, max_duplicates: usize) -> String {
    oracle.verdict(max_duplicates).expect_err("the oracle should have objected")
}

#[test]
fn a_clean_run_is_counted() {
    let oracle = Oracle::new().ordered();
    let [a, b, rolled_back, unknown_arrived, unknown_gone, dead] = ids();
    for id in [a, b, dead] {
        oracle.committed(id);
    }
    oracle.rolled_back(rolled_back);
    oracle.unknown(unknown_arrived);
    oracle.unknown(unknown_gone);
    oracle.delivered_in(a, "order-1", 1);
    oracle.delivered_in(b, "order-1", 2);
    oracle.delivered_in(a, "order-1", 1);
    oracle.delivered(unknown_arrived);
    oracle.dead(dead);
    oracle.expect_dead([dead]);
    let report = oracle.verdict(1).unwrap();
    assert_eq!((report.committed, report.rolled_back, report.unknown), (3, 1, 2));
    assert_eq!((report.delivered, report.duplicates, report.dead), (3, 1, 1));
}

#[test]
fn a_loss_is_caught_and_named() {
    let oracle = Oracle::new();
    let [id] = ids();
    oracle.committed(id);
    let error = fault(&oracle, 0);
    assert!(error.contains("lost") && error.contains(&id.to_string()), "{error}");
}

#[test]
fn a_phantom_is_caught() {
    let oracle = Oracle::new();
    let [id] = ids();
    oracle.rolled_back(id);
    oracle.delivered(id);
    assert!(fault(&oracle, 0).contains("although rolled back"));
}

#[test]
fn an_invention_is_caught() {
    let oracle = Oracle::new();
    let [id] = ids();
    oracle.delivered(id);
    let error = fault(&oracle, 0);
    assert!(error.contains("invented") && !error.contains("rolled back"), "{error}");
}

#[test]
fn too_many_duplicates_are_caught() {
    let oracle = Oracle::new();
    let [id] = ids();
    oracle.committed(id);
    for _ in 0..3 {
        oracle.delivered(id);
    }
    assert!(fault(&oracle, 1).contains("2 duplicates"));
    assert_eq!(oracle.verdict(2).unwrap().duplicates, 2);
}

#[test]
fn an_inversion_is_caught_only_where_order_is_promised() {
    let [a, b, other] = ids();
    let tell = |oracle: &Oracle| {
        for id in [a, b, other] {
            oracle.committed(id);
        }
        oracle.delivered_in(b, "order-1", 2);
        oracle.delivered_in(other, "order-2", 1);
        oracle.delivered_in(a, "order-1", 1);
    };
    let strict = Oracle::new().ordered();
    tell(&strict);
    assert!(fault(&strict, 0).contains(r#"("order-1", 2, 1)"#));
    let lax = Oracle::new();
    tell(&lax);
    lax.verdict(0).unwrap();
}

#[test]
fn a_repeat_is_not_an_inversion() {
    let oracle = Oracle::new().ordered();
    let [a, b] = ids();
    for (id, sequence) in [(a, 1), (b, 2), (a, 1)] {
        oracle.committed(id);
        oracle.delivered_in(id, "order-1", sequence);
    }
    oracle.verdict(1).unwrap();
}

#[test]
fn wrong_deaths_are_caught_both_ways() {
    let oracle = Oracle::new();
    let [died, should_have] = ids();
    for id in [died, should_have] {
        oracle.committed(id);
    }
    oracle.dead(died);
    oracle.delivered(should_have);
    oracle.verdict(0).unwrap();
    oracle.expect_dead([should_have]);
    let error = fault(&oracle, 0);
    assert!(error.contains("not expected to be") && error.contains("but is not"), "{error}");
}

#[test]
fn a_contradicting_journal_is_caught() {
    let oracle = Oracle::new();
    let [id] = ids();
    oracle.committed(id);
    oracle.rolled_back(id);
    oracle.dead(id);
    assert!(fault(&oracle, 0).contains("contradicts itself"));
}

#[test]
fn only_the_first_offenders_are_listed() {
    let oracle = Oracle::new();
    for id in ids::<20>() {
        oracle.committed(id);
    }
    let error = fault(&oracle, 0);
    assert!(error.contains("(20)") && error.contains('…') && error.matches('-').count() == 5 * 4, "{error}");
}

#[test]
fn a_torn_last_line_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    assert!(read_jsonl(&path).is_empty());
    std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a\":").unwrap();
    let values = read_jsonl(&path);
    assert_eq!(values.len(), 2);
    assert_eq!(values[1]["a"], 2);
}
