//! [`Queue`]: what waits for its dispatch in one lane. Events of this process (hot) and claimed ones (cold) are drawn
//! 2 : 1, so that neither holds up the other.

use std::collections::VecDeque;

use super::lane::Item;

/// So many hot events are drawn before a cold one has its turn.
const HOT_TURNS: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Queue {
    hot: VecDeque<Item>,
    cold: VecDeque<Item>,
    /// Hot events drawn since the last cold one.
    turns: u8,
    /// Hot events have to wait: a suspect is to be alone.
    pub(super) hold_hot: bool,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.hot.len() + self.cold.len()
    }

    pub(super) fn push_back(&mut self, item: Item) {
        self.side(item.hot).push_back(item);
    }

    pub(super) fn push_front(&mut self, item: Item) {
        self.side(item.hot).push_front(item);
    }

    fn side(&mut self, hot: bool) -> &mut VecDeque<Item> {
        if hot { &mut self.hot } else { &mut self.cold }
    }

    /// Whether the next one is hot.
    fn next_is_hot(&self) -> bool {
        !self.hold_hot && !self.hot.is_empty() && (self.cold.is_empty() || self.turns < HOT_TURNS)
    }

    /// What will be drawn next.
    pub(super) fn front(&self) -> Option<&Item> {
        if self.next_is_hot() { self.hot.front() } else { self.cold.front() }
    }

    /// Draws the next.
    pub(super) fn pop_front(&mut self) -> Option<Item> {
        if self.next_is_hot() {
            self.turns = self.turns.saturating_add(1);
            return self.hot.pop_front();
        }
        self.turns = 0;
        self.cold.pop_front()
    }

    /// Takes out those that are claimed.
    pub(super) fn drain_cold(&mut self) -> Vec<Item> {
        self.cold.drain(..).collect()
    }

    /// Takes out those that are this process's own.
    pub(super) fn drain_hot(&mut self) -> Vec<Item> {
        self.hot.drain(..).collect()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Item) -> bool) {
        self.hot.retain(&keep);
        self.cold.retain(&keep);
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;
    use crate::relay::lane::Item;
    use crate::relay::lane::tests::item;

    fn of(hot: usize, cold: usize) -> Queue {
        let mut queue = Queue::default();
        (0..cold).for_each(|_| queue.push_back(item(false)));
        (0..hot).for_each(|_| queue.push_back(item(true)));
        queue
    }

    fn drawn(queue: &mut Queue) -> String {
        let letter = |item: Item| if item.hot { 'h' } else { 'c' };
        std::iter::from_fn(|| queue.pop_front()).map(letter).collect()
    }

    #[test]
    fn two_hot_ones_then_a_cold_one() {
        assert_eq!(drawn(&mut of(5, 3)), "hhchhchc");
        assert_eq!(drawn(&mut of(3, 0)), "hhh");
        assert_eq!(drawn(&mut of(0, 2)), "cc");
        assert_eq!(drawn(&mut of(2, 9)), "hhccccccccc");
    }

    #[test]
    fn what_is_seen_next_is_what_is_drawn() {
        let mut queue = of(4, 4);
        while let Some(next) = queue.front().map(|item| item.hot) {
            assert_eq!(queue.pop_front().map(|item| item.hot), Some(next));
        }
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn hot_ones_can_be_held_back() {
        let mut queue = of(3, 1);
        queue.hold_hot = true;
        assert_eq!((drawn(&mut queue).as_str(), queue.len()), ("c", 3));
        queue.hold_hot = false;
        assert_eq!(drawn(&mut queue), "hhh");
    }
}
