//! The Rust of the book, compiled and run as documentation tests: `cargo test -p postbox-book`. What is to be run in a
//! shell is run by the test `book` of `postbox-cli`.

macro_rules! pages {
    ($($name:ident: $file:literal $(with $feature:literal)?,)*) => {$(
        #[cfg(doctest)]
        $(#[cfg(feature = $feature)])?
        #[doc = include_str!($file)]
        mod $name {}
    )*};
}

pages! {
    drivers: "book/drivers.md",
    databases: "book/databases.md",
    embedding: "book/embedding.md",
    exactly_once: "book/exactly-once.md" with "consumers",
    hot_path: "book/hot-path.md",
    idempotency: "book/idempotency.md",
    in_process: "book/in-process.md",
    inbox: "book/inbox.md",
    ordering: "book/ordering.md",
    own_sink: "book/sinks/own.md",
    tenants: "book/tenants.md",
    routing: "book/routing.md",
    rust: "book/rust.md",
    testing: "book/testing.md",
}
