//! Statements that are put together for the moment: what people ask for differs, and parameters have no numbers here.
//!
//! There are no arrays either, and a statement for each length would have to be prepared by itself: so a list is as long as the next
//! power of two, and its last entry stands there several times.

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Encode, MySql, Type};
use time::PrimitiveDateTime;
use uuid::Uuid;

/// The place for a list in a statement.
const PLACE: &str = "<in>";

/// A statement with its parameters.
pub(super) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

/// The statement for a list of so many.
pub(super) fn with_list(sql: &str, count: usize) -> String {
    debug_assert!(sql.contains(PLACE), "no list in: {sql}");
    let places = vec!["?"; count.max(1).next_power_of_two()].join(", ");
    sql.replace(PLACE, &places)
}

/// Binds the list that [`with_list`] has made places for.
pub(super) fn bind_list<'q, T>(query: Bound<'q>, list: &[T]) -> Bound<'q>
where
    T: Copy + Encode<'q, MySql> + Type<MySql> + Send + 'q,
{
    padded(list).copied().fold(query, Query::bind)
}

/// What goes to those places.
pub(super) fn padded<T>(list: &[T]) -> impl Iterator<Item = &T> {
    let places = list.len().max(1).next_power_of_two();
    list.iter().chain(std::iter::repeat_n(list.last(), places - list.len()).flatten())
}

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

#[cfg(test)]
mod tests {
    use super::with_list;

    #[test]
    fn lists_have_few_lengths() {
        for (count, places) in [(1, 1), (2, 2), (3, 4), (500, 512)] {
            assert_eq!(with_list("IN (<in>)", count).matches('?').count(), places);
        }
    }
}
