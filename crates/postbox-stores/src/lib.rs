//! Where Postbox keeps events: one folder per database, the same file names in each.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod audit;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod cursor;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod headers;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod print;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod table;
