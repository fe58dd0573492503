//! Where Postbox keeps events: one folder per database, the same file names in each.

#[cfg(all(feature = "postgres", feature = "sqlite"))]
pub mod any;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod audit;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod cursor;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod headers;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod inbox;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod plan;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod print;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod table;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod tenants;
