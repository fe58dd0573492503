//! The built example, twice in one folder: once without its second database, once with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use postbox_testkit::Program;

const LONG: Duration = Duration::from_mins(1);

fn run(folder: &std::path::Path) -> String {
    let mut program =
        Program::spawn(env!("CARGO_BIN_EXE_several-databases"), &[folder.to_str().unwrap()], &[]);
    assert!(program.wait(LONG).success(), "{}\n{}", program.stdout(), program.stderr());
    program.stdout()
}

#[test]
fn every_order_becomes_one_invoice_also_where_billing_was_away() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(folder.path());
    let place = |text: &str| first.find(text).unwrap_or_else(|| panic!("no {text:?} in {first}"));
    let order = [
        "5 orders placed",
        "in billing cannot work: ",
        "billing is there",
        "invoice for order 1",
        "5 orders, 5 invoices",
    ];
    assert!(order.map(place).is_sorted(), "{first}");
    let second = run(folder.path());
    assert!(second.contains("10 orders, 10 invoices") && !second.contains("not ready"), "{second}");
    assert!(second.contains("invoice for order 10") && !second.contains("invoice for order 5\n"), "{second}");
}
