//! A storm: writers, relays, a database and a receiver that all fail at random, and an oracle that judges what became of each event.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `POSTBOX_STORM_SEED` | the seed, which each run prints; without it, one by chance |
//! | `POSTBOX_STORM_SECONDS` | how long it lasts; without it, 30 |
//!
//! `cargo xtask faults` runs it together with the other faults, `cargo xtask faults --soak` for half an hour.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod director;
mod receiver;
mod scene;
mod size;
mod writers;

use std::time::Duration;

use director::Director;
use fastrand::Rng;
use scene::{Claiming, Scene};

/// A storm of at least this length is also judged by what it left: memory and size settle only after a while.
const SOAK: Duration = Duration::from_mins(10);

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

fn storm(claiming: Claiming) {
    let seed = variable("POSTBOX_STORM_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let lasts = Duration::from_secs(variable("POSTBOX_STORM_SECONDS").unwrap_or(30));
    let mut rng = Rng::with_seed(seed);
    // What is deleted or moved leaves a table that is hardly alive: only one that keeps can be compared with its size.
    let history = if lasts < SOAK { ["keep", "move", "none"][rng.usize(..3)] } else { "keep" };
    println!("storm: {claiming:?}, history {history}, {lasts:?}, POSTBOX_STORM_SEED={seed}");

    let scene = Scene::new(claiming, history);
    let mut director = Director::new(&scene, rng.fork());
    let notes = std::thread::scope(|scope| {
        let writers = writers::start(scope, &scene, &mut rng);
        let notes = director.play(lasts);
        writers.stop();
        notes
    });
    println!("{notes}");
    director.all_live();
    scene.everything_settled();
    director.end();
    println!("seed {seed}: {:?}", scene.verdict(notes.most_duplicates()));
    if lasts >= SOAK {
        notes.memory.judge();
        size::judge(&scene.db);
    }
}

#[test]
fn a_storm_over_an_owner_and_those_in_reserve() {
    storm(Claiming::Owner);
}

#[test]
fn a_storm_over_relays_that_share_a_table() {
    storm(Claiming::Shared);
}
