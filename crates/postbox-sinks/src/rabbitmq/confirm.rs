//! [`Confirms`]: which event a confirmation is good for.
//!
//! The broker sends a message that it cannot route back before it confirms it. The client hands such a message to whichever
//! confirmation it handles next, and where one answer confirms several messages, that may be another one's. So what a
//! confirmation says by itself is not the whole of it: an event has arrived when it is confirmed *and* its message cannot be
//! among those that came back.

use std::collections::BTreeMap;

/// A confirmation as the client gave it.
#[derive(Debug)]
pub(super) struct Landed {
    /// The event.
    pub(super) index: usize,
    /// Whether the broker took it.
    pub(super) taken: bool,
    /// A message that came back, of this event or another: its id and the broker's words.
    pub(super) back: Option<(String, String)>,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrived,
    Refused,
    Returned(String),
}

/// Gathers confirmations until they are sure.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// The broker's words about what came back, by message id.
    back: BTreeMap<String, String>,
    /// Confirmed, but its message may still come back with a later confirmation.
    unsure: Vec<(usize, bool)>,
}

impl Confirms {
    /// Takes a group of confirmations: all that the client has, once it has finished with the answer that the first of
    /// them came by. `id` gives the message id of an event. What is sure now goes to `settle`.
    pub(super) fn take(
        &mut self,
        group: Vec<Landed>,
        id: impl Fn(usize) -> String,
        mut settle: impl FnMut(usize, Fate),
    ) {
        let mut sure = Vec::new();
        let mut later = Vec::new();
        let mut nothing_left = false;
        for Landed { index, taken, back } in group {
            match back {
                // Nothing was waiting to be handed out: if its own came back, somebody in this group or before has it.
                None => {
                    nothing_left = true;
                    sure.push((index, taken));
                }
                Some((message, words)) => {
                    self.back.insert(message, words);
                    later.push((index, taken));
                }
            }
        }
        if nothing_left {
            sure.append(&mut self.unsure);
        }
        for (index, taken) in sure {
            settle(index, self.fate(&id(index), taken));
        }
        self.unsure.append(&mut later);
        // Whose own came back by now needs no further proof.
        let mut unsure = std::mem::take(&mut self.unsure);
        unsure.retain(|(index, taken)| {
            let known = self.back.contains_key(&id(*index));
            if known {
                settle(*index, self.fate(&id(*index), *taken));
            }
            !known
        });
        self.unsure = unsure;
    }

    /// All are confirmed: so whatever came back has been handed out.
    pub(super) fn finish(&mut self, id: impl Fn(usize) -> String, mut settle: impl FnMut(usize, Fate)) {
        for (index, taken) in std::mem::take(&mut self.unsure) {
            settle(index, self.fate(&id(index), taken));
        }
    }

    fn fate(&mut self, id: &str, taken: bool) -> Fate {
        match self.back.remove(id) {
            Some(words) => Fate::Returned(words),
            None if taken => Fate::Arrived,
            None => Fate::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fate::{Arrived, Refused, Returned};

    fn landed(index: usize, back: Option<usize>) -> Landed {
        Landed { index, taken: true, back: back.map(|index| (index.to_string(), "312".to_owned())) }
    }

    fn take(confirms: &mut Confirms, group: Vec<Landed>) -> Vec<(usize, Fate)> {
        let mut settled = Vec::new();
        confirms.take(group, |index| index.to_string(), |index, fate| settled.push((index, fate)));
        settled.sort_by_key(|(index, _)| *index);
        settled
    }

    fn back() -> Fate {
        Returned("312".to_owned())
    }

    #[test]
    fn what_came_back_is_found_wherever_it_was_handed_out() {
        let mut confirms = Confirms::default();
        // One answer for 0, 1 and 2: the message of 1 was handed to 0.
        let settled = take(&mut confirms, vec![landed(1, None), landed(2, None), landed(0, Some(1))]);
        assert_eq!(settled, [(1, back()), (2, Arrived)]);
        // 0 itself is sure when nothing waits any more.
        assert_eq!(take(&mut confirms, vec![landed(3, None)]), [(0, Arrived), (3, Arrived)]);
        // Two that came back, crosswise.
        let settled = take(&mut confirms, vec![landed(5, Some(4)), landed(4, Some(5))]);
        assert_eq!(settled, [(4, back()), (5, back())]);
    }

    #[test]
    fn nobody_is_sure_while_messages_may_wait() {
        let mut confirms = Confirms::default();
        assert_eq!(take(&mut confirms, vec![landed(0, Some(7))]), []);
        assert_eq!(take(&mut confirms, vec![landed(7, Some(0))]), [(0, back()), (7, back())]);
        // A group in which something was handed out after nothing was left.
        assert_eq!(take(&mut confirms, vec![landed(1, None), landed(2, Some(9))]), [(1, Arrived)]);
        assert_eq!(take(&mut confirms, vec![landed(9, Some(2))]), [(2, back()), (9, back())]);
    }

    #[test]
    fn the_end_settles_the_rest() {
        let mut confirms = Confirms::default();
        let no = Landed { taken: false, ..landed(2, Some(3)) };
        assert_eq!(take(&mut confirms, vec![landed(1, Some(0)), no]), []);
        let mut settled = Vec::new();
        confirms.finish(|index| index.to_string(), |index, fate| settled.push((index, fate)));
        assert_eq!(settled, [(1, Arrived), (2, Refused)]);
    }
}
