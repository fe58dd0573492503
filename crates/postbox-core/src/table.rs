//! [`TableName`]: the only way in which a table's name gets into SQL.

use std::fmt;
use std::str::FromStr;

use crate::code::Code;

/// The name of an outbox table, `[schema.]table`, parsed and therefore safe to quote.
///
/// Each part has the form `[a-z_][a-z0-9_]{0,41}`, so that every name derived from it (indexes, constraints, views)
/// stays within the limits of all databases.
///
/// ```
/// use postbox_core::TableName;
///
/// let table: TableName = "public.org_outbox".parse()?;
/// assert_eq!(table.quoted('"'), "\"public\".\"org_outbox\"");
/// assert!("org_outbox; drop table users".parse::<TableName>().is_err());
/// # Ok::<(), postbox_core::TableNameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

/// Why a text is not a table name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {shown:?}: {problem}", Code::TableNameInvalid)]
pub struct TableNameError {
    shown: String,
    problem: &'static str,
}

const PART_LIMIT: usize = 42;

impl TableName {
    /// The schema, where one was given.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The table's own name, without schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The name for SQL, each part in the given quotes.
    pub fn quoted(&self, quote: char) -> String {
        self.quoted_sibling(&self.table, quote)
    }

    /// Another name in the same schema (an index, a view, a system table), for SQL.
    pub fn quoted_sibling(&self, name: &str, quote: char) -> String {
        match &self.schema {
            Some(schema) => format!("{quote}{schema}{quote}.{quote}{name}{quote}"),
            None => format!("{quote}{name}{quote}"),
        }
    }

    /// The name of its module's inbox, without schema: `<module>_inbox` of `<module>_outbox`.
    pub fn inbox(&self) -> String {
        inbox_beside(&self.table)
    }

    /// The name of its module's table of calls by idempotency key, without schema: `<module>_idempotency` of `<module>_outbox`.
    pub fn idempotency(&self) -> String {
        format!("{}_idempotency", self.table.strip_suffix("_outbox").unwrap_or(&self.table))
    }

    /// The name with a schema in any case: its own, or the given default.
    #[must_use]
    pub fn or_schema(self, default: &str) -> Self {
        Self { schema: self.schema.or_else(|| Some(default.to_owned())), table: self.table }
    }
}

/// The inbox of the module whose outbox has this name, with or without schema.
pub(crate) fn inbox_beside(table: &str) -> String {
    format!("{}_inbox", table.strip_suffix("_outbox").unwrap_or(table))
}

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem| {
            Err(TableNameError {
                shown: text.chars().take(64).collect::<String>().escape_debug().to_string(),
                problem,
            })
        };
        let mut parts = text.split('.');
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        if parts.next().is_some() {
            return fail("it has more than two parts");
        }
        for part in [Some(first), second].into_iter().flatten() {
            if part.is_empty() {
                return fail("it is empty, or a part of it is");
            }
            if part.len() > PART_LIMIT {
                return fail("a part of it is longer than 42 characters");
            }
            let good =
                |(i, b): (usize, u8)| b == b'_' || b.is_ascii_lowercase() || (i > 0 && b.is_ascii_digit());
            if !part.bytes().enumerate().all(good) {
                return fail(
                    "only lower case letters, digits and underscores may occur, and no digit in front",
                );
            }
        }
        Ok(match second {
            Some(table) => Self { schema: Some(first.to_owned()), table: table.to_owned() },
            None => Self { schema: None, table: first.to_owned() },
        })
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

impl TableNameError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::TableNameInvalid
    }
}

#[cfg(test)]
mod tests {
    use super::TableName;
    use proptest::prelude::*;

    #[test]
    fn hazard_47_hostile_names_are_refused() {
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "Org",
            "1a",
            "a-b",
            "a b",
            "a\"b",
            "a;drop table b",
            "a'b",
            "a\0b",
            "ä",
            "pg_catalog.\"x\"",
            "a\nb",
            &"a".repeat(43),
        ] {
            let error = bad.parse::<TableName>().unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_TABLE_NAME_INVALID"), "{error}");
            assert!(!error.contains('\n') && !error.contains('\0'));
        }
        assert!("a".repeat(42).parse::<TableName>().is_ok());
    }

    #[test]
    fn the_tables_of_a_module_have_its_name() {
        let beside = |name: &str| name.parse::<TableName>().unwrap().idempotency();
        assert_eq!(
            (beside("public.org_outbox"), beside("events")),
            ("org_idempotency".into(), "events_idempotency".into())
        );
        // With the longest end that an index or a constraint of it has, it fits into what PostgreSQL allows.
        assert!(beside(&"a".repeat(42)).len() + "_by_time".len() <= 63);
    }

    proptest! {
        #[test]
        fn what_parses_is_what_is_shown(text in "\\PC{0,60}") {
            if let Ok(name) = text.parse::<TableName>() {
                prop_assert_eq!(name.to_string(), text);
                prop_assert!(!name.table().contains('"'));
            }
        }
    }
}
