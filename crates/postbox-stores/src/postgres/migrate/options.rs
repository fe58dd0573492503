//! What a migration makes beyond what every table has.

/// What [`up_with`](super::up_with) is asked for. What a table has already it keeps, whether it is asked for again or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UpOptions {
    /// What the table needs for delivery in order.
    pub ordered: Ordered,
}

impl UpOptions {
    /// The same with what delivery in order needs.
    #[must_use]
    pub fn ordered(mut self, ordered: Ordered) -> Self {
        self.ordered = ordered;
        self
    }
}

/// What a table has for delivery in order; each has what the one before it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ordered {
    /// Nothing, or what it has already.
    #[default]
    AsItIs,
    /// The indexes by aggregate. Writers must see to it that one aggregate's transactions commit in the order in which they
    /// drew their numbers, by a lock of their own.
    Index,
    /// Also the trigger that does this for them: one aggregate's writers wait for each other.
    Writers,
}
