//! What must not compile, and what the compiler then says to somebody who is new to Postbox.
//!
//! The texts are those of the Rust version in `Cargo.toml`. After a change that is meant:
//! `TRYBUILD=overwrite cargo test -p postbox --test compile_fail`, then read the difference.
#![cfg(feature = "derive")]

#[test]
fn mistakes_do_not_compile_and_say_why() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
