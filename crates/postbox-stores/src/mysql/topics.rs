//! Which rows a look leaves out, or is for: a condition that is put together for the moment, since there are no arrays here.
//! Mostly there is nothing to leave out, and the statement is the usual one.

use postbox_core::Topic;
use postbox_core::store::Spent;

use super::clause::Bound;

/// A condition with its parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Condition {
    sql: Vec<String>,
    texts: Vec<String>,
}

/// The place for it in a statement.
const PLACE: &str = "<topics>";

impl Condition {
    /// All topics but these, and of others no row that only sinks lack which are down or busy.
    pub(super) fn without(topics: &[Topic], spent: &[Spent]) -> Self {
        let mut condition = Self::default();
        condition.list("NOT IN", topics);
        condition.remaining(spent);
        condition
    }

    /// These topics alone, with the same exception.
    pub(super) fn only(topics: &[Topic], spent: &[Spent]) -> Self {
        let mut condition = Self::default();
        condition.list("IN", topics);
        condition.remaining(spent);
        condition
    }

    fn list(&mut self, how: &str, topics: &[Topic]) {
        if topics.is_empty() {
            return;
        }
        // Few lengths, as with lists of numbers.
        let places = topics.len().next_power_of_two();
        self.sql.push(format!("topic {how} ({})", vec!["?"; places].join(", ")));
        let last = topics[topics.len() - 1].as_str();
        let padded = topics.iter().map(Topic::as_str).chain(std::iter::repeat(last)).take(places);
        self.texts.extend(padded.map(str::to_owned));
    }

    /// No rows of a topic that all of these sinks have confirmed.
    pub(super) fn remaining(&mut self, spent: &[Spent]) {
        for Spent { topic, sinks } in spent {
            self.sql.push(
                "(sinks_done IS NULL OR topic <> ? OR NOT IF(JSON_VALID(sinks_done), JSON_CONTAINS(sinks_done, ?), FALSE))".to_owned(),
            );
            let sinks: Vec<&str> = sinks.iter().map(|sink| &**sink).collect();
            self.texts.extend([topic.as_str().to_owned(), serde_json::json!(sinks).to_string()]);
        }
    }

    /// And none of these topics.
    pub(super) fn leave_out(&mut self, topics: &[Topic]) {
        self.list("NOT IN", topics);
    }

    /// The statement with it.
    pub(super) fn fill(&self, sql: &str) -> String {
        debug_assert!(sql.contains(PLACE), "no place for topics in: {sql}");
        let condition = if self.sql.is_empty() { "TRUE".to_owned() } else { self.sql.join(" AND ") };
        sql.replace(PLACE, &condition)
    }

    /// Its parameters.
    pub(super) fn bind<'q>(&self, query: Bound<'q>) -> Bound<'q> {
        self.texts.iter().cloned().fold(query, Bound::bind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_bound_in_the_order_of_its_places() {
        let topic = |name: &str| name.parse::<Topic>().unwrap();
        let (a, b, c) = (topic("a.b.c.v1"), topic("a.b.d.v1"), topic("a.b.e.v1"));
        assert_eq!(Condition::without(&[], &[]).fill("<topics>"), "TRUE");
        let spent = Spent { topic: a.clone(), sinks: vec!["x".into(), "y".into()] };
        let condition = Condition::without(&[a.clone(), b, c.clone()], &[spent]);
        let sql = condition.fill("<topics>");
        assert!(sql.starts_with("topic NOT IN (?, ?, ?, ?) AND (sinks_done IS NULL OR topic <> ?"), "{sql}");
        assert_eq!(sql.matches('?').count(), condition.texts.len());
        assert_eq!(condition.texts[3..], [c.as_str(), a.as_str(), r#"["x","y"]"#]);
    }
}
