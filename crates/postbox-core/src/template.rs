//! [`Template`]: where at a sink an event goes, such as `events.{topic}`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::code::Code;
use crate::dispatcher::Meta;

/// The name of a subject, topic, stream or queue with placeholders for values of the event.
///
/// The placeholders: `{topic}`, `{tenant_id}`, `{aggregate_type}`, `{aggregate_id}`, `{event_id}`, `{routing_key}`,
/// `{key}` (the message key: routing key, else aggregate id, else event id) and `{table}`. A brace itself is written
/// twice: `{{` and `}}`.
///
/// ```
/// use postbox_core::Template;
/// use postbox_core::testing::delivery;
///
/// let event = delivery("org.order.placed.v1", "{}");
/// assert_eq!("events.{topic}".parse::<Template>()?.render(&event.meta)?, "events.org.order.placed.v1");
/// let missing = "{aggregate_id}".parse::<Template>()?.render(&event.meta).unwrap_err();
/// assert!(missing.to_string().contains("aggregate_id"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Box<[Part]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Value(Field),
}

/// A value that a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Topic,
    TenantId,
    AggregateType,
    AggregateId,
    EventId,
    RoutingKey,
    Key,
    Table,
}

const FIELDS: [(&str, Field); 8] = [
    ("topic", Field::Topic),
    ("tenant_id", Field::TenantId),
    ("aggregate_type", Field::AggregateType),
    ("aggregate_id", Field::AggregateId),
    ("event_id", Field::EventId),
    ("routing_key", Field::RoutingKey),
    ("key", Field::Key),
    ("table", Field::Table),
];

/// Longer names are refused by every broker.
const LONGEST: usize = 1024;

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: destination {text:?}: {problem}", Code::RouteInvalid)]
pub struct TemplateError {
    text: String,
    problem: String,
}

impl TemplateError {
    /// What is wrong, without the text itself.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// An event lacks a value that the template of its destination needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the destination {template:?} needs {field}, which this event does not have")]
pub struct MissingValue {
    template: Box<str>,
    field: &'static str,
}

impl Template {
    /// The destination of an event.
    ///
    /// # Errors
    /// When the event has no value for a placeholder, or an empty one.
    pub fn render<'a>(&'a self, meta: &'a Meta) -> Result<Cow<'a, str>, MissingValue> {
        match &*self.parts {
            [Part::Text(text)] => Ok(Cow::Borrowed(text)),
            [Part::Value(field)] => self.value(*field, meta),
            parts => {
                let mut out = String::with_capacity(self.text.len() + 32);
                for part in parts {
                    match part {
                        Part::Text(text) => out.push_str(text),
                        Part::Value(field) => out.push_str(&self.value(*field, meta)?),
                    }
                }
                Ok(Cow::Owned(out))
            }
        }
    }

    /// The same with each value changed by `escape`, so that it means nothing but itself in the text around it.
    ///
    /// # Errors
    /// When the event has no value for a placeholder, or an empty one.
    pub fn render_with(&self, meta: &Meta, escape: impl Fn(&str) -> String) -> Result<String, MissingValue> {
        let mut out = String::with_capacity(self.text.len() + 32);
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Value(field) => out.push_str(&escape(&self.value(*field, meta)?)),
            }
        }
        Ok(out)
    }

    /// Whether every event has the same destination.
    pub fn is_fixed(&self) -> bool {
        matches!(&*self.parts, [Part::Text(_)])
    }

    /// The template as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn value<'a>(&self, field: Field, meta: &'a Meta) -> Result<Cow<'a, str>, MissingValue> {
        let aggregate = meta.aggregate.as_ref();
        let value = match field {
            Field::Topic => Some(Cow::Borrowed(meta.topic.as_str())),
            Field::TenantId => Some(Cow::Owned(meta.tenant_id.to_string())),
            Field::AggregateType => aggregate.map(|aggregate| Cow::Borrowed(aggregate.kind.as_str())),
            Field::AggregateId => aggregate.map(|aggregate| Cow::Borrowed(aggregate.id.as_str())),
            Field::EventId => Some(Cow::Owned(meta.event_id.to_string())),
            Field::RoutingKey => meta.routing_key.as_deref().map(Cow::Borrowed),
            Field::Key => Some(Cow::Owned(meta.message_key())),
            Field::Table => Some(Cow::Borrowed(&*meta.table)),
        };
        value.filter(|value| !value.is_empty()).ok_or_else(|| MissingValue {
            template: self.text.clone(),
            field: FIELDS.iter().find(|(_, known)| *known == field).map_or("", |(name, _)| name),
        })
    }
}

impl Default for Template {
    /// `{topic}`.
    fn default() -> Self {
        Self { text: "{topic}".into(), parts: [Part::Value(Field::Topic)].into() }
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem: String| TemplateError { text: text.chars().take(128).collect(), problem };
        if text.is_empty() {
            return Err(fail("it is empty".into()));
        }
        if text.len() > LONGEST {
            return Err(fail(format!("it is longer than {LONGEST} bytes")));
        }
        if text.chars().any(char::is_control) {
            return Err(fail("it holds a control character".into()));
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(fail("it has a } without a {; a brace itself is written twice".into()));
            }
            let Some((name, after)) = rest.split_once('}') else {
                return Err(fail("it has a { without a }; a brace itself is written twice".into()));
            };
            let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) else {
                let known: Vec<String> = FIELDS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                return Err(fail(format!("{{{name}}} is not known; there are {}", known.join(", "))));
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain).into()));
            }
            parts.push(Part::Value(*field));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain.into()));
        }
        Ok(Self { text: text.into(), parts: parts.into() })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{AggregateKey, TenantId};
    use crate::testing::delivery;
    use proptest::prelude::*;

    fn rendered(template: &str) -> String {
        let mut event = delivery("org.order.placed.v1", "{}");
        event.meta.tenant_id = TenantId::NIL;
        event.meta.aggregate = Some(AggregateKey::new("order", "o-1"));
        template.parse::<Template>().unwrap().render(&event.meta).unwrap().into_owned()
    }

    #[test]
    fn every_placeholder_has_its_value() {
        for (template, expected) in [
            ("{topic}", "org.order.placed.v1"),
            ("events", "events"),
            ("events.{topic}", "events.org.order.placed.v1"),
            ("{table}/{aggregate_type}/{aggregate_id}/{key}", "test_outbox/order/o-1/o-1"),
            ("t-{tenant_id}.x", "t-00000000-0000-0000-0000-000000000000.x"),
            ("{{{topic}}}", "{org.order.placed.v1}"),
            ("a{{b}}c", "a{b}c"),
            ("ü.{topic}", "ü.org.order.placed.v1"),
        ] {
            assert_eq!(rendered(template), expected, "{template}");
        }
        assert!("events".parse::<Template>().unwrap().is_fixed());
        assert!(!Template::default().is_fixed());
    }

    #[test]
    fn values_can_be_escaped_and_the_text_stays() {
        let mut event = delivery("org.order.placed.v1", "{}");
        event.meta.aggregate = Some(AggregateKey::new("order", "a/b"));
        let template: Template = "x/{{{aggregate_id}}}/{topic}".parse().unwrap();
        let rendered = template.render_with(&event.meta, |value| value.replace('/', "%2F")).unwrap();
        assert_eq!(rendered, "x/{a%2Fb}/org.order.placed.v1");
    }

    #[test]
    fn what_is_no_template_is_refused_with_a_reason() {
        for (template, reason) in [
            ("", "it is empty"),
            ("a\nb", "control character"),
            ("{topic", "a { without a }"),
            ("topic}", "a } without a {"),
            ("{}", "{} is not known; there are {topic}, {tenant_id}"),
            ("{Topic}", "{Topic} is not known"),
        ] {
            let error = template.parse::<Template>().unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_ROUTE_INVALID: ") && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_value_that_is_missing_is_named() {
        let event = delivery("a.b", "{}");
        for field in ["aggregate_type", "aggregate_id", "routing_key"] {
            let template: Template = format!("x.{{{field}}}").parse().unwrap();
            let error = template.render(&event.meta).unwrap_err().to_string();
            assert!(error.contains(&format!("needs {field}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_keeps_the_text(text in "[a-c{}.é]{0,24}") {
            if let Ok(template) = text.parse::<Template>() {
                prop_assert_eq!(template.to_string(), text);
            }
        }
    }
}
