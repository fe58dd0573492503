//! Every order of events, with and without each rule.

use postbox_model::{ARRIVES, CHARGED, EXCLUSIVE, FENCED, Mutant, NO_LOSS, ORDER, Relays, SOLO, Strategy};
use stateright::{Checker, HasDiscoveries, Model as _};

/// All states there are: nothing broken may be among them.
fn holds(model: Relays) {
    let shape = format!("{:?}, {} relays, ordered: {}", model.strategy, model.relays, model.ordered);
    let checker = model.checker().spawn_bfs().join();
    println!("{shape}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// As many states as it takes to break a promise, and the shortest way there.
fn breaks(model: Relays, promise: &'static str) {
    let (strategy, mutant) = (model.strategy, model.mutant);
    let found = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let way = checker.discovery(promise);
    let way = way.unwrap_or_else(|| panic!("{mutant:?} breaks nothing of: {promise}")).into_actions();
    println!("{strategy:?}, {mutant:?}: it does not hold that {promise}: {way:?}");
}

#[test]
fn leases_keep_their_promises() {
    holds(Relays::new(Strategy::Lease));
}

#[test]
fn an_owner_keeps_its_promises() {
    holds(Relays::new(Strategy::Owner));
}

#[test]
fn so_they_do_without_order() {
    for strategy in Strategy::ALL {
        holds(Relays { ordered: false, ..Relays::new(strategy) });
    }
}

#[test]
fn so_do_three_relays() {
    for strategy in Strategy::ALL {
        holds(Relays { relays: 3, failures: 0, ..Relays::new(strategy) });
    }
}

#[test]
fn a_settle_without_a_fence_is_caught() {
    breaks(Relays::new(Strategy::Lease).without(Mutant::NoFence), FENCED);
    breaks(Relays::new(Strategy::Lease).without(Mutant::NoFence), EXCLUSIVE);
    breaks(Relays::new(Strategy::Owner).without(Mutant::NoFence), FENCED);
}

#[test]
fn a_fence_that_asks_before_it_settles_is_caught() {
    breaks(Relays::new(Strategy::Owner).without(Mutant::FenceAsksFirst), FENCED);
}

#[test]
fn a_settle_before_the_dispatch_is_caught() {
    for strategy in Strategy::ALL {
        breaks(Relays::new(strategy).without(Mutant::SettleFirst), NO_LOSS);
    }
}

#[test]
fn an_owner_without_a_journal_is_caught() {
    breaks(Relays::new(Strategy::Owner).without(Mutant::NoJournal), CHARGED);
}

#[test]
fn suspects_in_company_are_caught() {
    for strategy in Strategy::ALL {
        breaks(Relays::new(strategy).without(Mutant::SuspectsInCompany), SOLO);
    }
}

#[test]
fn rows_that_overtake_are_caught() {
    for strategy in Strategy::ALL {
        for mutant in [Mutant::NoPredecessor, Mutant::FailureHoldsNobody, Mutant::WritersInAnyOrder] {
            breaks(Relays::new(strategy).without(mutant), ORDER);
        }
    }
    breaks(Relays::new(Strategy::Lease).without(Mutant::LossHoldsNobody), ORDER);
}

/// A way that ends before everything has arrived is found as well.
#[test]
fn a_table_without_relays_is_caught() {
    breaks(Relays { relays: 0, ..Relays::new(Strategy::Lease) }, ARRIVES);
}
