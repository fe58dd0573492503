//! What figures have to be read with: which database it was, and whether it keeps what it confirms.

use std::fmt;
use std::time::Instant;

use postbox_core::StoreError;
use postbox_stores::{postgres, sqlite};
use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _, SqlitePool};

use super::figures::span;
use crate::render::printable;

/// How often a statement that does nothing is sent to see how far the server is.
const TRIPS: usize = 31;

/// Where it was measured.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    product: &'static str,
    version: String,
    place: String,
    /// Settings by name, as the database says them.
    settings: Vec<(&'static str, String)>,
    round_trip_us: Option<u64>,
    pub(super) cores: u64,
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

impl Facts {
    pub(super) async fn of_postgres(
        connection: &mut PgConnection,
        place: String,
    ) -> Result<Self, StoreError> {
        let row = sqlx::query(
            "SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('fsync'),
                    current_setting('synchronous_commit')",
        );
        let row = row.persistent(false).fetch_one(&mut *connection).await.map_err(postgres::classify)?;
        let text = |column: usize| row.try_get::<String, _>(column).map_err(postgres::classify);
        let settings = vec![("fsync", text(1)?), ("synchronous_commit", text(2)?)];
        let mut trips = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let sent = Instant::now();
            sqlx::query("SELECT 1").execute(&mut *connection).await.map_err(postgres::classify)?;
            trips.push(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        trips.sort_unstable();
        let round_trip_us = trips.get(TRIPS / 2).copied();
        Ok(Self { product: "PostgreSQL", version: text(0)?, place, settings, round_trip_us, cores: cores() })
    }

    pub(super) async fn of_sqlite(pool: &SqlitePool, place: String) -> Result<Self, StoreError> {
        let version: String =
            sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await.map_err(sqlite::classify)?;
        let mode: String =
            sqlx::query_scalar("PRAGMA journal_mode").fetch_one(pool).await.map_err(sqlite::classify)?;
        let level: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(pool).await.map_err(sqlite::classify)?;
        let level = match level {
            0 => "off",
            1 => "normal",
            2 => "full",
            _ => "extra",
        };
        let settings = vec![("synchronous", level.to_owned()), ("journal_mode", mode)];
        Ok(Self { product: "SQLite", version, place, settings, round_trip_us: None, cores: cores() })
    }

    /// Settings that let a database confirm what a loss of power would undo.
    pub(super) fn warnings(&self) -> Vec<String> {
        let unsafe_ones = self.settings.iter().filter(|(name, value)| match *name {
            "fsync" | "synchronous_commit" => value == "off",
            "synchronous" => matches!(value.as_str(), "off" | "normal"),
            _ => false,
        });
        let warning = |(name, value): &(&str, String)| {
            format!(
                "{name} is {value}: commits do not wait for the disk, so figures are better than those of a server that loses nothing"
            )
        };
        unsafe_ones.map(warning).collect()
    }

    pub(super) fn to_json(&self) -> Value {
        let settings: serde_json::Map<String, Value> = self
            .settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())))
            .collect();
        json!({
            "product": self.product, "version": self.version, "place": self.place, "settings": settings,
            "round_trip_us": self.round_trip_us,
        })
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, printable(&self.version))?;
        for (name, value) in &self.settings {
            write!(f, " · {name} {}", printable(value))?;
        }
        match self.round_trip_us {
            Some(micros) => write!(f, " · round trip {}", span(micros)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Facts;

    #[test]
    fn what_makes_commits_cheap_is_said() {
        let facts = |settings: &[(&'static str, &str)]| Facts {
            product: "PostgreSQL",
            version: "15.1".to_owned(),
            place: "db/app".to_owned(),
            settings: settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            round_trip_us: Some(80),
            cores: 2,
        };
        let good = facts(&[("fsync", "on"), ("synchronous_commit", "on")]);
        assert_eq!(
            good.to_string(),
            "PostgreSQL 15.1 · fsync on · synchronous_commit on · round trip 0.08 ms"
        );
        assert!(good.warnings().is_empty());
        assert_eq!(facts(&[("fsync", "off"), ("synchronous_commit", "off")]).warnings().len(), 2);
        assert_eq!(facts(&[("synchronous", "full"), ("journal_mode", "wal")]).warnings().len(), 0);
    }
}
