//! [`Queue`]: what waits for its dispatch in one lane. Events of this process (hot) and claimed ones (cold) are drawn
//! 2 : 1, so that neither holds up the other.

use std::collections::VecDeque;

use super::lane::Item;
use crate::event::TenantId;
use crate::hash::RowMap;

/// So many hot events are drawn before a cold one has its turn.
const HOT_TURNS: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Queue {
    hot: Line,
    cold: Line,
    /// Hot events drawn since the last cold one.
    turns: u8,
    /// Hot events have to wait: a suspect is to be alone.
    pub(super) hold_hot: bool,
}

impl Queue {
    /// One from which tenants draw in turn.
    pub(super) fn by_turns() -> Self {
        Self { hot: Line::Turns(Turns::default()), cold: Line::Turns(Turns::default()), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.hot.len() + self.cold.len()
    }

    pub(super) fn push_back(&mut self, item: Item) {
        self.side(item.hot).push_back(item);
    }

    pub(super) fn push_front(&mut self, item: Item) {
        self.side(item.hot).push_front(item);
    }

    fn side(&mut self, hot: bool) -> &mut Line {
        if hot { &mut self.hot } else { &mut self.cold }
    }

    /// Whether the next one is hot.
    fn next_is_hot(&self, may: impl Fn(TenantId) -> bool) -> bool {
        !self.hold_hot
            && self.hot.front(&may).is_some()
            && (self.turns < HOT_TURNS || self.cold.front(&may).is_none())
    }

    /// What will be drawn next. Where tenants take turns, it is one of a tenant that may.
    pub(super) fn front(&self, may: impl Fn(TenantId) -> bool) -> Option<&Item> {
        if self.next_is_hot(&may) { self.hot.front(&may) } else { self.cold.front(&may) }
    }

    /// Draws the next.
    pub(super) fn pop_front(&mut self, may: impl Fn(TenantId) -> bool) -> Option<Item> {
        if self.next_is_hot(&may) {
            self.turns = self.turns.saturating_add(1);
            return self.hot.pop_front(&may);
        }
        let item = self.cold.pop_front(&may)?;
        self.turns = 0;
        Some(item)
    }

    /// Takes out those that are claimed.
    pub(super) fn drain_cold(&mut self) -> Vec<Item> {
        self.cold.drain()
    }

    /// Takes out those that are this process's own.
    pub(super) fn drain_hot(&mut self) -> Vec<Item> {
        self.hot.drain()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Item) -> bool) {
        self.hot.retain(&keep);
        self.cold.retain(&keep);
    }
}

/// Those who wait.
#[derive(Debug)]
enum Line {
    /// As they came.
    Single(VecDeque<Item>),
    /// Each tenant's as they came, and the tenants in turn.
    Turns(Turns),
}

/// What waits for each tenant. Nothing is ever empty in it.
#[derive(Debug, Default)]
struct Turns {
    lines: RowMap<TenantId, VecDeque<Item>>,
    /// Whose turn it is.
    order: VecDeque<TenantId>,
    /// How many there are: asked for each time that one comes or goes.
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self::Single(VecDeque::new())
    }
}

impl Line {
    fn len(&self) -> usize {
        match self {
            Self::Single(line) => line.len(),
            Self::Turns(turns) => turns.len,
        }
    }

    fn push_back(&mut self, item: Item) {
        match self {
            Self::Single(line) => line.push_back(item),
            Self::Turns(turns) => turns.line_of(&item).push_back(item),
        }
    }

    fn push_front(&mut self, item: Item) {
        match self {
            Self::Single(line) => line.push_front(item),
            Self::Turns(turns) => turns.line_of(&item).push_front(item),
        }
    }

    fn front(&self, may: impl Fn(TenantId) -> bool) -> Option<&Item> {
        match self {
            Self::Single(line) => line.front(),
            Self::Turns(turns) => turns.lines.get(turns.order.iter().find(|tenant| may(**tenant))?)?.front(),
        }
    }

    fn pop_front(&mut self, may: impl Fn(TenantId) -> bool) -> Option<Item> {
        match self {
            Self::Single(line) => line.pop_front(),
            Self::Turns(turns) => turns.pop_front(may),
        }
    }

    fn drain(&mut self) -> Vec<Item> {
        match self {
            Self::Single(line) => line.drain(..).collect(),
            Self::Turns(turns) => std::mem::take(turns).lines.into_values().flatten().collect(),
        }
    }

    fn retain(&mut self, keep: impl Fn(&Item) -> bool) {
        match self {
            Self::Single(line) => line.retain(keep),
            Self::Turns(Turns { lines, order, len }) => {
                lines.retain(|_, line| {
                    line.retain(&keep);
                    !line.is_empty()
                });
                order.retain(|tenant| lines.contains_key(tenant));
                *len = lines.values().map(VecDeque::len).sum();
            }
        }
    }
}

impl Turns {
    /// The line of its tenant, for something to be put into.
    fn line_of(&mut self, item: &Item) -> &mut VecDeque<Item> {
        let tenant = item.delivery.meta.tenant_id;
        self.len += 1;
        self.lines.entry(tenant).or_insert_with(|| {
            self.order.push_back(tenant);
            VecDeque::new()
        })
    }

    fn pop_front(&mut self, may: impl Fn(TenantId) -> bool) -> Option<Item> {
        let turn = self.order.iter().position(|tenant| may(*tenant))?;
        let tenant = self.order.remove(turn)?;
        let line = self.lines.get_mut(&tenant)?;
        let item = line.pop_front()?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::{Queue, TenantId};
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
        std::iter::from_fn(|| queue.pop_front(|_| true)).map(letter).collect()
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
        while let Some(next) = queue.front(|_| true).map(|item| item.hot) {
            assert_eq!(queue.pop_front(|_| true).map(|item| item.hot), Some(next));
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

    fn of_tenants(numbers: &[u128]) -> Queue {
        let mut queue = Queue::by_turns();
        for number in numbers {
            let mut item = item(false);
            item.delivery.meta.tenant_id = tenant(*number);
            queue.push_back(item);
        }
        queue
    }

    fn tenant(number: u128) -> TenantId {
        TenantId(uuid::Uuid::from_u128(number))
    }

    fn drawn_tenants(queue: &mut Queue, may: impl Fn(TenantId) -> bool) -> Vec<u128> {
        let number = |item: Item| item.delivery.meta.tenant_id.0.as_u128();
        std::iter::from_fn(|| queue.pop_front(&may)).map(number).collect()
    }

    #[test]
    fn tenants_take_turns() {
        let mut queue = of_tenants(&[1, 1, 1, 1, 2, 2, 3]);
        assert_eq!(queue.len(), 7);
        assert_eq!(drawn_tenants(&mut queue, |_| true), [1, 2, 3, 1, 2, 1, 1]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_tenant_that_may_not_is_passed_by() {
        let mut queue = of_tenants(&[1, 1, 2, 2]);
        assert_eq!(
            queue.front(|one| one != tenant(1)).map(|item| item.delivery.meta.tenant_id),
            Some(tenant(2))
        );
        assert_eq!(drawn_tenants(&mut queue, |one| one != tenant(1)), [2, 2]);
        assert_eq!(queue.len(), 2);
        assert!(queue.front(|_| false).is_none() && queue.pop_front(|_| false).is_none());
        queue.retain(|item| item.delivery.meta.tenant_id != tenant(1));
        assert_eq!((queue.len(), drawn_tenants(&mut queue, |_| true)), (0, vec![]));
    }
}
