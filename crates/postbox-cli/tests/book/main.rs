//! The book tells the truth: what it says to run is run, and prints what the book shows. See `page.rs`.
//!
//! `POSTBOX_BLESS=1 cargo test -p postbox-cli --test book` writes what was printed into the pages.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod compare;
mod page;
mod play;

use play::{pages, play};

macro_rules! tests {
    ($($name:ident: $file:literal $(with $feature:literal)?,)*) => {
        $(#[test]
        $(#[cfg(feature = $feature)])?
        fn $name() {
            let page = pages().join($file);
            let wrong = play(&page, &page::steps(&page));
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        })*

        const PLAYED: &[&str] = &[$($file),*];
    };
}

tests! {
    readme: "../../README.md",
    five_minutes: "five-minutes.md",
    any_language: "any-language.md",
    inbox: "inbox.md",
    failures: "failures.md",
    production: "production.md",
    monitoring: "monitoring.md",
    runbooks: "runbooks.md",
    admin_api: "admin-api.md",
    databases: "databases.md",
    routing: "routing.md",
    history: "history.md",
    idempotency: "idempotency.md",
    tenants: "tenants.md",
    measure: "measure.md",
    migrating: "migrating.md",
    webhooks: "sinks/http.md" with "http",
}

#[test]
fn no_page_is_left_out() {
    let summary = std::fs::read_to_string(pages().join("SUMMARY.md")).unwrap();
    let rust = std::fs::read_to_string(pages().join("../lib.rs")).unwrap();
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    for (file, _) in links {
        let path = pages().join(file);
        let steps = page::steps(&path);
        assert!(steps.is_empty() || PLAYED.contains(&file), "{file} has blocks to run and no test here");
        let has_rust = std::fs::read_to_string(path).unwrap().contains("\n```rust");
        assert!(
            !has_rust || rust.contains(&format!("\"book/{file}\"")),
            "{file} has Rust and is not in docs/lib.rs"
        );
    }
}
