//! Migrations as text for other tools.

use std::fmt::Write as _;

/// What kind of file to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Plain SQL: psql, Atlas, Flyway, sqlx.
    #[default]
    Sql,
    /// Goose, up and down in one file.
    Goose,
}

/// Plain SQL.
pub(crate) fn join(statements: &[String]) -> String {
    statements.iter().fold(String::new(), |mut out, statement| {
        let _ = writeln!(out, "{};\n", statement.trim_end());
        out
    })
}

/// Both directions in one file for Goose.
pub(crate) fn goose(up: &[String], down: &[String]) -> String {
    let mut out = String::new();
    for (direction, statements) in [("Up", up), ("Down", down)] {
        let _ = writeln!(out, "-- +goose {direction}");
        for statement in statements {
            let statement = statement.trim_end();
            let _ = if statement.contains("$postbox$") {
                writeln!(out, "-- +goose StatementBegin\n{statement};\n-- +goose StatementEnd\n")
            } else {
                writeln!(out, "{statement};\n")
            };
        }
    }
    out
}
