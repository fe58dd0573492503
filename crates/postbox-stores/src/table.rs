//! The only place where SQL text is put together: names of tables go into statements here and nowhere else.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};

/// Fills the `{{name}}` places of a statement. Values are quoted names or fixed fragments of SQL, never user text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Template(Vec<(&'static str, String)>);

impl Template {
    /// The names that every statement about a table needs: the table and the system tables beside it.
    pub(crate) fn of(table: &TableName, quote: char) -> Self {
        Self::default()
            .with("table", table.quoted(quote))
            .with("relay", table.quoted_sibling("postbox_relay", quote))
            .with("audit", table.quoted_sibling("postbox_audit", quote))
            .with("window", table.quoted_sibling("postbox_window", quote))
            .with("idempotency", table.quoted_sibling(&table.idempotency(), quote))
            .with("history", table.quoted_sibling(&format!("{}_history", table.table()), quote))
            .with("inbox", table.quoted_sibling(&table.inbox(), quote))
    }

    /// The same with one more place filled.
    #[must_use]
    pub(crate) fn with(mut self, place: &'static str, text: impl Into<String>) -> Self {
        self.0.push((place, text.into()));
        self
    }

    /// The same with the places of another, filled after its own.
    #[must_use]
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// The statement.
    pub(crate) fn fill(&self, sql: &str) -> String {
        let mut out = sql.to_owned();
        for (place, text) in &self.0 {
            out = out.replace(&format!("{{{{{place}}}}}"), text);
        }
        debug_assert!(!out.contains("{{"), "a place was left empty in: {out}");
        out
    }
}

/// The error for a table that is not there; it names the most similar of those that are.
pub(crate) fn missing(table: &TableName, others: Vec<String>) -> StoreError {
    let distance = |other: &String| edit_distance(table.table(), other.rsplit('.').next().unwrap_or(other));
    let similar = others.into_iter().filter(|other| distance(other) <= 3).min_by_key(distance);
    let hint = similar.map(|other| format!(". Did you mean {other}?")).unwrap_or_default();
    StoreError::new(Code::TableMissing, StoreErrorKind::Refused, format!("{table} does not exist{hint}"))
}

/// An error for people who have no program at hand that would tell them the next step.
pub(crate) fn with_next_step(error: StoreError, table: &TableName) -> StoreError {
    if error.code() != Code::TableMissing {
        return error;
    }
    let then = if error.message().ends_with('?') { " Else" } else { ":" };
    let message = format!(
        "{}{then} make it with `postbox migrate up --table {table}`, or with `migrate::up` from your own code",
        error.message()
    );
    StoreError::new(error.code(), error.kind(), message).caused_by(error)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            let best = cost.min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::Template;

    #[test]
    fn places_are_filled_with_quoted_names() {
        let table = "public.org_outbox".parse().unwrap();
        let sql = Template::of(&table, '"').fill("SELECT 1 FROM {{table}}, {{relay}}");
        assert_eq!(sql, r#"SELECT 1 FROM "public"."org_outbox", "public"."postbox_relay""#);
    }
}
