//! What kind of server it is, and whether it has what is needed.

use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::MySqlConnection;

use super::error::within;
use super::link::OPERATION_LIMIT;

/// A server, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) kind: Kind,
    version: (u32, u32, u32),
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    MariaDb,
    MySql,
    TiDb,
}

impl Server {
    /// Asks the server; one that cannot be worked with is an error that says why.
    pub(super) async fn expect(connection: &mut MySqlConnection) -> Result<Self, StoreError> {
        let version = sqlx::query_scalar::<_, String>("SELECT VERSION()").fetch_one(connection);
        let server = Self::read(&within(OPERATION_LIMIT, version).await?);
        server.check()?;
        Ok(server)
    }

    fn read(text: &str) -> Self {
        let lower = text.to_lowercase();
        let kind = match () {
            () if lower.contains("tidb") => Kind::TiDb,
            () if lower.contains("mariadb") => Kind::MariaDb,
            () => Kind::MySql,
        };
        // MariaDB once put this in front, for replicas of MySQL that know no version 10.
        let mut numbers = lower.trim_start_matches("5.5.5-").split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        let version = (next(), next(), next());
        Self { kind, version }
    }

    /// Locks that are passed by, defaults that are worked out, checks, and JSON as a table.
    fn check(&self) -> Result<(), StoreError> {
        let (least, why) = match self.kind {
            Kind::MariaDb => ((10, 6, 0), "use MariaDB 10.6 or later"),
            Kind::MySql => ((8, 0, 16), "use MySQL 8.0.16 or later"),
            Kind::TiDb => {
                let message = "TiDB cannot be used: it has neither SKIP LOCKED nor JSON_TABLE, which claims and settles need";
                return Err(StoreError::new(Code::DatabaseVersion, StoreErrorKind::Refused, message));
            }
        };
        if self.version >= least {
            return Ok(());
        }
        let message = format!("{self} is too old: {why}");
        Err(StoreError::new(Code::DatabaseVersion, StoreErrorKind::Refused, message))
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.kind {
            Kind::MariaDb => "MariaDB",
            Kind::MySql => "MySQL",
            Kind::TiDb => "TiDB",
        };
        let (major, minor, patch) = self.version;
        write!(f, "{name} {major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_what_they_say_and_old_ones_refused() {
        for (text, shown) in [
            ("10.11.6-MariaDB-0+deb12u1", "MariaDB 10.11.6"),
            ("5.5.5-10.6.0-MariaDB", "MariaDB 10.6.0"),
            ("11.4.2-MariaDB-log", "MariaDB 11.4.2"),
            ("8.0.16", "MySQL 8.0.16"),
            ("8.4.0-commercial", "MySQL 8.4.0"),
        ] {
            let server = Server::read(text);
            assert_eq!(server.to_string(), shown);
            server.check().unwrap();
        }
        for (text, why) in [
            ("10.5.27-MariaDB", "MariaDB 10.5.27 is too old: use MariaDB 10.6"),
            ("5.7.44-log", "MySQL 5.7.44 is too old: use MySQL 8.0.16"),
            ("8.0.11-TiDB-v8.5.0", "SKIP LOCKED"),
            ("what", "MySQL 0.0.0 is too old"),
        ] {
            let error = Server::read(text).check().unwrap_err();
            assert_eq!(error.code(), Code::DatabaseVersion);
            assert!(error.message().contains(why), "{error}");
        }
    }
}
