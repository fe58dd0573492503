//! `#[derive(Event)]` for Postbox.
