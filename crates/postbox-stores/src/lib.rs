//! Where Postbox keeps events: one folder per database, the same file names in each.

#[cfg(feature = "postgres")]
pub mod postgres;
pub mod table;
