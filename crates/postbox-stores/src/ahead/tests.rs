//! What is known ahead, without a table.

use super::*;
use crate::left_out::LeftOut;
use crate::seen::{number, strand};

const NOW: i64 = 1_000;

/// A row as the table tells it: its sequence, when it is available, lock (0 none, 1 run out, 2 held), dead, topic, aggregate.
fn seen(sequence: i64, at: i64, lock: u8, dead: u8, topic: &str, aggregate: &str) -> Seen {
    let bound = aggregate != "-";
    let row = Row {
        sequence,
        available_at: at,
        attempts: 0,
        expired: lock == 1,
        bytes: 10,
        lane: Lane { topic: number(topic), done: 0 },
        strand: strand(bound.then(|| number(aggregate)), sequence),
        bound,
    };
    Seen { row, locked: lock == 2, dead: dead != 0, done: Vec::new() }
}

fn waits(sequence: i64, aggregate: &str) -> Seen {
    seen(sequence, 0, 0, 0, "AA", aggregate)
}

fn ahead(rows: impl IntoIterator<Item = Seen>) -> Ahead {
    let mut ahead = Ahead::new(OnDead::Block);
    ahead.take_in(rows.into_iter(), NOW);
    ahead
}

/// A claim that leaves this topic out.
fn without(topic: &str) -> LeftOut {
    LeftOut { topics: HashSet::from([number(topic)]), spent: Vec::new() }
}

fn wanted(now: i64, limit: usize, left_out: &LeftOut) -> Wanted<'_> {
    Wanted { now, limit, max_bytes: usize::MAX, max_attempts: 5, left_out }
}

fn choose_at(ahead: &mut Ahead, now: i64, limit: usize, left_out: &LeftOut) -> Vec<i64> {
    let wanted = wanted(now, limit, left_out);
    let mut chosen = Vec::new();
    ahead.wake(wanted);
    ahead.choose(wanted, &mut chosen);
    chosen.iter().map(|row| row.sequence).collect()
}

fn choose(ahead: &mut Ahead, limit: usize) -> Vec<i64> {
    choose_at(ahead, NOW, limit, &LeftOut::default())
}

#[test]
fn a_strand_is_claimed_from_its_first_row_on_and_not_again_until_that_is_settled() {
    let mut ahead = ahead([waits(1, "a"), waits(2, "a"), waits(3, "-"), waits(4, "b"), waits(5, "a")]);
    assert_eq!(choose(&mut ahead, 2), [1, 2]);
    assert_eq!(choose(&mut ahead, 9), [3, 4], "the rest of a waits for 1 and 2");
    ahead.settled(1, Fate::Delivered, NOW);
    assert!(choose(&mut ahead, 9).is_empty());
    ahead.settled(2, Fate::Delivered, NOW);
    assert_eq!(choose(&mut ahead, 9), [5]);
}

#[test]
fn what_comes_back_is_first_again_and_waits_for_its_time() {
    let mut ahead = ahead([waits(1, "a"), waits(2, "a"), waits(3, "a")]);
    assert_eq!(choose(&mut ahead, 2), [1, 2]);
    ahead.settled(2, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    ahead.settled(1, Fate::Back { attempts: 1, until: Some(NOW + 50), done: Box::default() }, NOW);
    assert!(choose(&mut ahead, 9).is_empty());
    assert_eq!(choose_at(&mut ahead, NOW + 50, 9, &LeftOut::default()), [1, 2, 3]);
}

#[test]
fn nothing_passes_what_cannot_be_claimed() {
    for stop in [
        seen(2, 0, 2, 0, "AA", "a"),
        seen(2, 0, 1, 0, "AA", "a"),
        seen(2, 0, 0, 1, "AA", "a"),
        seen(2, NOW + 1, 0, 0, "AA", "a"),
        seen(2, 0, 0, 0, "BB", "a"),
    ] {
        let mut first = ahead([stop.clone(), waits(3, "a")]);
        assert!(choose_at(&mut first, NOW, 9, &without("BB")).is_empty(), "{stop:?}");
        let mut second = ahead([waits(1, "a"), stop.clone(), waits(3, "a")]);
        assert_eq!(choose_at(&mut second, NOW, 9, &without("BB")), [1], "{stop:?}");
        second.settled(1, Fate::Delivered, NOW);
        assert!(choose_at(&mut second, NOW, 9, &without("BB")).is_empty(), "{stop:?}");
    }
    let mut skips = Ahead::new(OnDead::Skip);
    skips.take_in([seen(2, 0, 0, 1, "AA", "a"), waits(3, "a")].into_iter(), NOW);
    assert_eq!(choose(&mut skips, 9), [3]);
}

#[test]
fn what_is_another_relays_closes_the_strand_also_for_what_comes_back_later() {
    let mut ahead = ahead([waits(1, "a"), waits(2, "a"), waits(3, "a")]);
    assert_eq!(choose(&mut ahead, 9), [1, 2, 3]);
    ahead.settled(1, Fate::Lost, NOW);
    ahead.restart();
    // The other relay has the first. The second and third, claimed here, are given back now.
    ahead.take_in([seen(1, 0, 2, 0, "AA", "a"), seen(2, 0, 2, 0, "AA", "a"), waits(4, "a")].into_iter(), NOW);
    ahead.settled(2, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    ahead.settled(3, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    assert!(choose(&mut ahead, 9).is_empty());
}

#[test]
fn suspects_come_one_by_one_and_in_order() {
    let expired = |sequence| seen(sequence, 0, 1, 0, "AA", "a");
    let mut ahead = ahead([expired(1), expired(2), waits(3, "a")]);
    let none = LeftOut::default();
    for sequence in [1, 2] {
        assert!(ahead.has_suspects(|_, _| true) && choose(&mut ahead, 9).is_empty());
        assert_eq!(ahead.choose_suspect(&none).map(|row| row.sequence), Some(sequence));
        assert!(!ahead.has_suspects(|_, _| true) && ahead.choose_suspect(&none).is_none());
        ahead.settled(sequence, Fate::Delivered, NOW);
    }
    assert_eq!(choose(&mut ahead, 9), [3]);
}

#[test]
fn a_topic_that_is_left_out_is_parked_and_probed() {
    let mut ahead = ahead([seen(1, 0, 0, 0, "BB", "a"), waits(2, "a"), waits(3, "b")]);
    assert_eq!(choose_at(&mut ahead, NOW, 9, &without("BB")), [3]);
    let (topics, down) = (HashSet::from([number("BB")]), without("BB"));
    assert_eq!(ahead.choose_probe(&topics, wanted(NOW, 1, &down)).map(|row| row.sequence), Some(1));
    assert!(ahead.choose_probe(&topics, wanted(NOW, 1, &down)).is_none());
    ahead.settled(1, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    assert!(choose_at(&mut ahead, NOW, 9, &without("BB")).is_empty());
    assert_eq!(choose(&mut ahead, 9), [1, 2], "the sink is back");
}

/// Of a route to several sinks, one of which is down: what only that one lacks waits, and what another lacks does not.
#[test]
fn rows_that_only_sinks_lack_which_are_down_are_parked_and_probed() {
    let a: Arc<str> = Arc::from("a");
    let mut half = waits(1, "a");
    half.done = vec![Arc::clone(&a)];
    let mut ahead = ahead([half, waits(2, "a"), waits(3, "b")]);
    // b is down: rows that a has confirmed are for nobody.
    let without_b = LeftOut { topics: HashSet::new(), spent: vec![(number("AA"), vec![Arc::clone(&a)])] };
    assert_eq!(choose_at(&mut ahead, NOW, 9, &without_b), [3]);
    let done = Box::from([Arc::clone(&a)]);
    ahead.settled(3, Fate::Back { attempts: 0, until: None, done }, NOW);
    assert!(choose_at(&mut ahead, NOW, 9, &without_b).is_empty(), "now a has it, too");
    // A probe of a is for neither, a probe of b for both.
    let topics = HashSet::from([number("AA")]);
    assert!(ahead.choose_probe(&topics, wanted(NOW, 1, &without_b)).is_none());
    let without_a = LeftOut { topics: HashSet::new(), spent: vec![(number("AA"), vec![Arc::from("b")])] };
    assert!(ahead.choose_probe(&topics, wanted(NOW, 1, &without_a)).is_some());
    let mut chosen = choose(&mut ahead, 9);
    chosen.sort_unstable();
    assert!(chosen == [1, 2] || chosen == [3], "the rest, since b is back: {chosen:?}");
}

#[test]
fn one_that_has_used_up_its_attempts_is_chosen_alone() {
    let mut tired = waits(2, "a");
    tired.row.attempts = 5;
    let mut ahead = ahead([waits(1, "a"), tired, waits(3, "a")]);
    assert_eq!(choose(&mut ahead, 9), [1]);
    ahead.settled(1, Fate::Delivered, NOW);
    assert_eq!(choose(&mut ahead, 9), [2]);
    ahead.settled(2, Fate::Dead, NOW);
    assert!(choose(&mut ahead, 9).is_empty(), "it blocks");
}

#[test]
fn a_long_strand_shares_with_others_and_has_all_when_it_is_alone() {
    let long = (1..=200).map(|n| waits(n, "long"));
    let mut both = ahead(long.clone().chain((201..=400).map(|n| waits(n, "-"))));
    let chosen = choose(&mut both, 100);
    assert_eq!(chosen.len(), 100);
    assert_eq!(chosen.iter().filter(|sequence| **sequence <= 200).count(), 50);
    assert_eq!(choose(&mut ahead(long), 100).len(), 100);
}

#[test]
fn memory_is_bounded_and_what_is_cut_is_looked_for_again() {
    let many = i64::try_from(MOST_ROWS).unwrap() + 1;
    let mut ahead = ahead((1..=many).map(|n| waits(n, "long")));
    assert_eq!(ahead.rows, MOST_OF_ONE);
    ahead.take_in([waits(many + 1, "long"), waits(many + 2, "other")].into_iter(), NOW);
    let mut taken = 0;
    loop {
        let chosen = choose(&mut ahead, 100);
        if chosen.is_empty() {
            break;
        }
        taken += chosen.len();
        for sequence in chosen {
            ahead.settled(sequence, Fate::Delivered, NOW);
        }
    }
    assert_eq!(taken, MOST_OF_ONE + 1, "what is behind the cut is not passed off as the next");
    assert!(ahead.hungry, "there is more of it");
    let scheduled = (1..=many).map(|n| seen(n, NOW + 1, 0, 0, "AA", "-"));
    let mut asleep = Ahead::new(OnDead::Block);
    asleep.take_in(scheduled, NOW);
    assert_eq!((asleep.rows, asleep.asleep.len()), (0, 0));
}

#[test]
fn what_comes_back_before_it_is_read_again_passes_nobody() {
    let mut ahead = ahead([waits(1, "a"), waits(2, "a"), waits(3, "b")]);
    assert_eq!(choose(&mut ahead, 9), [1, 2, 3]);
    ahead.restart();
    // The first was another relay's in between: it waits again, and nobody has said so here.
    ahead.settled(2, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    ahead.settled(3, Fate::Back { attempts: 0, until: None, done: Box::default() }, NOW);
    ahead.take_in([waits(1, "a"), waits(2, "a"), waits(3, "b")].into_iter(), NOW);
    assert_eq!(choose(&mut ahead, 9), [1, 2, 3]);
}
