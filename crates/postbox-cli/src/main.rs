//! See the crate description.
#[allow(dead_code, unused_imports, reason = "the commands that use it are not written yet")]
mod config;

fn main() {}
