//! Statements that are put together for the moment: what people ask for differs, and parameters have no numbers here.

use sqlx::AssertSqlSafe;
use time::PrimitiveDateTime;
use uuid::Uuid;

use super::list_of::Bound;

/// A parameter.
#[derive(Debug, Clone)]
pub(super) enum Arg {
    Text(String),
    Id(Uuid),
    Time(PrimitiveDateTime),
    Number(i64),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Uuid> for Arg {
    fn from(id: Uuid) -> Self {
        Self::Id(id)
    }
}

impl From<PrimitiveDateTime> for Arg {
    fn from(time: PrimitiveDateTime) -> Self {
        Self::Time(time)
    }
}

impl From<i64> for Arg {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A part of a statement, with its parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct Clause {
    pub(super) sql: String,
    pub(super) args: Vec<Arg>,
}

impl Clause {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), args: Vec::new() }
    }

    /// The same with one more parameter.
    #[must_use]
    pub(super) fn with(mut self, arg: impl Into<Arg>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds text and its parameters.
    pub(super) fn push(&mut self, sql: &str, args: impl IntoIterator<Item = Arg>) {
        self.sql.push_str(sql);
        self.args.extend(args);
    }

    /// Adds another part.
    pub(super) fn append(&mut self, other: &Self) {
        self.push(&other.sql, other.args.iter().cloned());
    }

    /// Adds a condition, if there is something to compare with.
    pub(super) fn and(&mut self, condition: &str, value: Option<impl Into<Arg>>) {
        if let Some(value) = value {
            self.push(&format!(" AND {condition}"), [value.into()]);
        }
    }

    /// The statement, not kept prepared: it has many forms, each used rarely.
    pub(super) fn query(&self) -> Bound<'static> {
        self.args.iter().cloned().fold(
            sqlx::query(AssertSqlSafe(self.sql.clone())).persistent(false),
            |query, arg| match arg {
                Arg::Text(text) => query.bind(text),
                Arg::Id(id) => query.bind(id),
                Arg::Time(time) => query.bind(time),
                Arg::Number(number) => query.bind(number),
            },
        )
    }
}

/// `column IN (…)` for some values; for none, nothing is in it.
pub(super) fn among<T: Copy + Into<Arg>>(column: &str, values: &[T]) -> Clause {
    if values.is_empty() {
        return Clause::new("FALSE");
    }
    let mut clause = Clause::new(format!("{column} IN ({})", vec!["?"; values.len()].join(", ")));
    clause.args.extend(values.iter().map(|value| (*value).into()));
    clause
}
