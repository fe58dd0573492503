//! Lists in statements. There are no arrays here, and a statement for each length would have to be prepared by itself: so a
//! list is as long as the next power of two, and its last entry stands there several times.

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{Encode, MySql, Type};

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
