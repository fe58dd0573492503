//! Where Postbox keeps events: one folder per database, the same file names in each.

#[cfg(feature = "postgres")]
mod cursor;
#[cfg(feature = "postgres")]
mod headers;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "postgres")]
mod print;
pub mod table;
