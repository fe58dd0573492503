//! Routes: a topic pattern leads to a dispatcher; the first match wins.

use std::fmt;
use std::str::FromStr;

use crate::code::Code;
use crate::dispatcher::Delivery;
use crate::template::{MissingValue, Template};
use crate::topic::Topic;

/// A pattern over topics: segments by dots, `*` for one segment, `**` for any number of them (also none).
///
/// ```
/// use postbox_core::{Pattern, Topic};
///
/// let pattern: Pattern = "org.*.created.*".parse()?;
/// assert!(pattern.matches(&Topic::from_static("org.organization.created.v1")));
/// assert!("**".parse::<Pattern>()?.matches(&Topic::lenient("anything")?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Exact(String),
    One,
    Any,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: pattern {text:?}: {problem}", Code::RouteInvalid)]
pub struct PatternError {
    text: String,
    problem: &'static str,
}

impl Pattern {
    /// Whether the topic matches.
    pub fn matches(&self, topic: &Topic) -> bool {
        if let [Segment::Any] = self.0[..] {
            return true;
        }
        let segments: Vec<&str> = topic.as_str().split('.').collect();
        matches(&self.0, &segments)
    }
}

/// Greedy with one way back to the last `**`, so that no pattern takes exponential time.
fn matches(pattern: &[Segment], topic: &[&str]) -> bool {
    let (mut p, mut t, mut back) = (0, 0, None);
    while t < topic.len() {
        match pattern.get(p) {
            Some(Segment::Any) => {
                back = Some((p, t));
                p += 1;
            }
            Some(Segment::One) => (p, t) = (p + 1, t + 1),
            Some(Segment::Exact(text)) if text == topic[t] => (p, t) = (p + 1, t + 1),
            _ => match back {
                Some((any, at)) => {
                    back = Some((any, at + 1));
                    (p, t) = (any + 1, at + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|segment| *segment == Segment::Any)
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem| Err(PatternError { text: text.chars().take(128).collect(), problem });
        if text.is_empty() {
            return fail("it is empty");
        }
        if text.len() > 255 {
            return fail("it is longer than 255 bytes");
        }
        let mut segments = Vec::new();
        for segment in text.split('.') {
            segments.push(match segment {
                "" => return fail("it has an empty segment"),
                "*" => Segment::One,
                "**" => Segment::Any,
                _ if segment.contains('*') => return fail("a star stands for a whole segment"),
                _ if segment.chars().any(char::is_control) => return fail("it holds a control character"),
                _ => Segment::Exact(segment.to_owned()),
            });
        }
        Ok(Self(segments))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            f.write_str(match segment {
                Segment::Exact(text) => text,
                Segment::One => "*",
                Segment::Any => "**",
            })?;
        }
        Ok(())
    }
}

/// Which lanes (by number) take which topics; each route leads to one at least.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    list: Vec<Route>,
    /// Whether any of them has a destination: most have none, and then nothing has to be looked for.
    addressed: bool,
}

#[derive(Debug)]
struct Route {
    pattern: Pattern,
    lanes: Vec<usize>,
    destination: Option<Template>,
}

impl Routes {
    pub(crate) fn push(&mut self, pattern: Pattern, lanes: Vec<usize>, destination: Option<Template>) {
        self.addressed |= destination.is_some();
        self.list.push(Route { pattern, lanes, destination });
    }

    fn of(&self, topic: &Topic) -> Option<&Route> {
        self.list.iter().find(|route| route.pattern.matches(topic))
    }

    pub(crate) fn lanes_of(&self, topic: &Topic) -> Option<&[usize]> {
        self.of(topic).map(|route| route.lanes.as_slice())
    }

    /// The most sinks that one event goes to.
    pub(crate) fn widest(&self) -> usize {
        self.list.iter().map(|route| route.lanes.len()).max().unwrap_or(1)
    }

    /// Gives an event the destination that its route has for it.
    pub(crate) fn address(&self, delivery: &mut Delivery) -> Result<(), MissingValue> {
        if self.addressed
            && let Some(template) = self.of(&delivery.meta.topic).and_then(|route| route.destination.as_ref())
        {
            delivery.destination = Some(template.render(&delivery.meta)?.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::delivery;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_as_documented() {
        for (pattern, topic, expected) in [
            ("org.*.created.*", "org.organization.created.v1", true),
            ("org.*.created.*", "org.a.b.created.v1", false),
            ("org.**", "org.organization.created.v1", true),
            ("org.**", "org", true),
            ("**", "x", true),
            ("**.v1", "a.b.c.v1", true),
            ("**.v1", "a.b.c.v2", false),
            ("a.**.c.**.e", "a.c.b.c.x.e", true),
            ("a.**.c.**.e", "a.b.e", false),
            ("a.b", "a.b.c", false),
            ("*", "a.b", false),
        ] {
            let matched = pattern.parse::<Pattern>().unwrap().matches(&Topic::lenient(topic).unwrap());
            assert_eq!(matched, expected, "{pattern} on {topic}");
        }
        for bad in ["", "a..b", "a*.b", "***", "a.\n"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_match_wins() {
        let mut routes = Routes::default();
        routes.push("org.**".parse().unwrap(), vec![1, 2], None);
        routes.push("**".parse().unwrap(), vec![0], None);
        assert_eq!(routes.lanes_of(&Topic::lenient("org.x").unwrap()), Some(&[1, 2][..]));
        assert_eq!(routes.lanes_of(&Topic::lenient("crm.x").unwrap()), Some(&[0][..]));
        assert_eq!(routes.widest(), 2);
    }

    #[test]
    fn a_route_gives_its_destination() {
        let mut routes = Routes::default();
        routes.push("org.**".parse().unwrap(), vec![0], Some("events.{aggregate_id}".parse().unwrap()));
        routes.push("**".parse().unwrap(), vec![0], None);
        let mut event = delivery("org.x", "1");
        assert!(routes.address(&mut event).unwrap_err().to_string().contains("aggregate_id"));
        event.meta.aggregate = Some(crate::event::AggregateKey::new("x", "7"));
        routes.address(&mut event).unwrap();
        assert_eq!(event.destination.as_deref(), Some("events.7"));
        let mut other = delivery("crm.x", "1");
        routes.address(&mut other).unwrap();
        assert_eq!(other.destination, None);
    }

    proptest! {
        #[test]
        fn parsing_and_matching_never_panic(pattern in "[a-c.*]{0,24}", topic in "[a-c.]{1,24}") {
            if let (Ok(pattern), Ok(topic)) = (pattern.parse::<Pattern>(), Topic::lenient(topic)) {
                let _ = pattern.matches(&topic);
                prop_assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern);
            }
        }
    }
}
