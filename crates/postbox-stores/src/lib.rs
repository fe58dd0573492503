//! Where Postbox keeps events: one folder per database, the same file names in each.

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod ahead;
#[cfg(all(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub mod any;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod audit;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod browse;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod builder;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod cause;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod clock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod clock_difference;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod cursor;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod cursors;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod diagnose;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod error;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod gate;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod headers;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod history;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod idempotency;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod inbox;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod keys;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod left_out;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod letters;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod ordered;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod owned;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod plan;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod print;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod ranges;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod ring;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod row;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod schema;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod seen;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod sequenced;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod shown;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod strategy;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod table;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub mod tx;
