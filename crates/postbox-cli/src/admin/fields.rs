//! What a request says, in its query or its body: both are read in one way, and what nobody asked for is an error.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::http::{StatusCode, Uri};
use postbox_core::{Code, DeadFilter, EventFilter, EventId, TenantId};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::answer::Refusal;
use crate::cmd::given::{MOMENT, moment_of, plain};
use crate::config::{self, parse_delay};

/// So many events can be named at once.
const MOST_EVENTS: usize = 1000;

/// A larger body is none of ours.
pub(super) const BODY_BYTES: usize = 64 * 1024;

/// Nor is one that takes longer to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// What a filter of dead events has.
pub(super) const DEAD_FILTER: [&str; 8] =
    ["topic", "aggregate_type", "aggregate_id", "tenant", "older_than", "since", "error", "cause"];

/// The values of a request, by name.
#[derive(Debug, Default)]
pub(super) struct Fields(BTreeMap<String, Vec<Value>>);

fn wrong(name: &str, expected: &str) -> Refusal {
    Refusal::request(format!("{name} cannot be used: {expected}"))
}

impl Fields {
    /// Those of a query, which has these names only.
    pub(super) fn of_query(uri: &Uri, known: &[&[&str]]) -> Result<Self, Refusal> {
        let pairs: Query<Vec<(String, String)>> = Query::try_from_uri(uri)
            .map_err(|_| Refusal::request("the query cannot be read: it is not encoded as forms are"))?;
        let mut fields: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (name, value) in pairs.0 {
            // An empty field of a form is one that was left out.
            let items = fields.entry(name).or_default();
            if !value.is_empty() {
                items.push(Value::from(value));
            }
        }
        Self(fields).only(known)
    }

    /// Those of a body: one JSON object.
    pub(super) async fn of_body(body: Body, known: &[&[&str]]) -> Result<Self, Refusal> {
        Self::of_body_within(BODY_TIME, body, known).await
    }

    async fn of_body_within(limit: Duration, body: Body, known: &[&[&str]]) -> Result<Self, Refusal> {
        let read = tokio::time::timeout(limit, axum::body::to_bytes(body, BODY_BYTES)).await;
        let read = read.map_err(|_| {
            let message = format!("the body did not arrive within {limit:?}");
            Refusal::new(StatusCode::REQUEST_TIMEOUT, Code::AdminRequest, message)
                .next("send all of it at once")
        })?;
        let bytes = read.map_err(|_| {
            let message = format!("the body is larger than {BODY_BYTES} bytes, or broke off");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, Code::AdminRequest, message)
        })?;
        let Ok(Value::Object(map)) = serde_json::from_slice(&bytes) else {
            return Err(Refusal::request("the body is not a JSON object; {} says nothing"));
        };
        let items = |value: Value| match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items,
            other => vec![other],
        };
        Self(map.into_iter().map(|(name, value)| (name, items(value))).collect()).only(known)
    }

    fn only(self, known: &[&[&str]]) -> Result<Self, Refusal> {
        let unknown = self.0.keys().find(|name| !known.iter().any(|names| names.contains(&name.as_str())));
        match unknown {
            Some(name) => {
                let name: String = name.chars().take(100).collect();
                let known = known.concat().join(", ");
                Err(Refusal::request(format!("there is no {name:?} here")).next(if known.is_empty() {
                    "leave it out".to_owned()
                } else {
                    format!("it takes {known}")
                }))
            }
            None => Ok(self),
        }
    }

    fn one(&self, name: &str) -> Result<Option<&Value>, Refusal> {
        match self.0.get(name).map(Vec::as_slice) {
            None | Some([]) => Ok(None),
            Some([one]) => Ok(Some(one)),
            Some(_) => Err(wrong(name, "it is there more than once")),
        }
    }

    /// A text that a database can be asked for.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Refusal> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| wrong(name, "give a text"))?;
        plain(text).map(|text| Some(text.to_owned())).map_err(|why| wrong(name, &why))
    }

    /// A text to look for. An empty one would stand for everything: what says nothing is left out.
    fn sought(&self, name: &str) -> Result<Option<String>, Refusal> {
        match self.text(name)? {
            Some(text) if text.is_empty() => Err(wrong(name, "it is empty: leave it out")),
            text => Ok(text),
        }
    }

    /// A switch, off unless it is given.
    pub(super) fn on(&self, name: &str) -> Result<bool, Refusal> {
        match self.one(name)? {
            None | Some(Value::Bool(false)) => Ok(false),
            Some(Value::Bool(true)) => Ok(true),
            Some(Value::String(text)) if text == "true" || text == "1" => Ok(true),
            Some(Value::String(text)) if text == "false" || text == "0" => Ok(false),
            Some(_) => Err(wrong(name, "give true or false")),
        }
    }

    /// A whole number within bounds.
    pub(super) fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        let digits =
            |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let number = value.as_u64().or_else(|| value.as_str().and_then(digits));
        let number = number.filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| wrong(name, &format!("give a whole number from {least} to {most}")))
    }

    /// How many rows of a list.
    pub(super) fn limit(&self, most: u32) -> Result<u32, Refusal> {
        let limit = self.number("limit", 1, most.into())?;
        Ok(limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(50.min(most)))
    }

    /// So many per second.
    pub(super) fn rate(&self) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.one("rate")? else { return Ok(None) };
        let rate = value.as_f64().filter(|rate| (0.01..=1_000_000.0).contains(rate));
        rate.map(Some)
            .ok_or_else(|| wrong("rate", "give a number of events per second, from 0.01 to 1000000"))
    }

    /// A place in a list by sequence or number.
    pub(super) fn cursor(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| wrong(name, "give what `next` of the page before says"))
    }

    fn delay(&self, name: &str) -> Result<Option<Duration>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        parse_delay(&text).map(Some).map_err(|_| wrong(name, "give an age such as 30m or 2h"))
    }

    /// A moment: how long ago, or a time.
    pub(super) fn moment(&self, name: &str, now: OffsetDateTime) -> Result<Option<OffsetDateTime>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        moment_of(&text, now).map(Some).ok_or_else(|| wrong(name, MOMENT))
    }

    fn tenant(&self) -> Result<Option<TenantId>, Refusal> {
        Ok(self.sought("tenant")?.as_deref().map(config::tenant))
    }

    /// Which events.
    pub(super) fn event_filter(&self, now: OffsetDateTime) -> Result<EventFilter, Refusal> {
        let status = self.sought("status")?;
        let status = status.map(|given| {
            given.parse().map_err(|_| wrong("status", "it is none of new, publishing, failed, sent, dead"))
        });
        Ok(EventFilter {
            topic: self.sought("topic")?,
            tenant_id: self.tenant()?,
            aggregate_type: self.sought("aggregate_type")?,
            aggregate_id: self.sought("aggregate_id")?,
            status: status.transpose()?,
            error: self.sought("error")?,
            since: self.moment("since", now)?,
        })
    }

    /// Which dead events, apart from their cause.
    pub(super) fn dead_filter(&self) -> Result<DeadFilter, Refusal> {
        let (aggregate_type, aggregate_id) = (self.sought("aggregate_type")?, self.sought("aggregate_id")?);
        // Commands name an aggregate by both: the line that is shown with a change must not be about more than the change.
        if aggregate_id.is_some() && aggregate_type.is_none() {
            return Err(wrong("aggregate_id", "give aggregate_type with it"));
        }
        Ok(DeadFilter {
            topic: self.sought("topic")?,
            aggregate_type,
            aggregate_id,
            tenant_id: self.tenant()?,
            older_than: self.delay("older_than")?,
            newer_than: self.delay("since")?,
            error: self.sought("error")?,
            cause: None,
        })
    }

    /// Events by their ids.
    pub(super) fn event_ids(&self, name: &str) -> Result<Vec<EventId>, Refusal> {
        let given = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        if given.len() > MOST_EVENTS {
            return Err(wrong(name, &format!("name at most {MOST_EVENTS} events")));
        }
        let mut ids: Vec<EventId> = Vec::new();
        for value in given {
            let id = value.as_str().and_then(|text| Uuid::try_parse(text).ok());
            let id = EventId(id.ok_or_else(|| wrong(name, "give UUIDs"))?);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }
}

/// An event's id in a path.
pub(super) fn event_id(text: &str) -> Result<EventId, Refusal> {
    Uuid::try_parse(text).map(EventId).map_err(|_| Refusal::request("the event id is not a UUID"))
}

#[cfg(test)]
mod tests {
    use super::{DEAD_FILTER, Fields};
    use axum::body::{Body, Bytes};
    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;
    use futures_util::{StreamExt as _, stream};
    use std::convert::Infallible;
    use std::time::Duration;

    #[tokio::test]
    async fn a_body_that_does_not_end_is_not_waited_for() {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"a\""))]);
        let body = Body::from_stream(begun.chain(stream::pending()));
        let read = Fields::of_body_within(Duration::from_millis(20), body, &[&["a"]]).await;
        assert_eq!(read.unwrap_err().into_response().status(), StatusCode::REQUEST_TIMEOUT);
        let whole = Fields::of_body(Body::from("{\"a\": 1}"), &[&["a"]]).await.unwrap();
        assert_eq!(whole.number("a", 1, 1).unwrap(), Some(1));
    }

    fn query(text: &str) -> Fields {
        Fields::of_query(&format!("/x?{text}").parse().unwrap(), &[&["a", "limit", "event_id"]]).unwrap()
    }

    #[test]
    fn what_is_unknown_doubled_or_hostile_is_refused() {
        let uri = "/x?b=1".parse().unwrap();
        assert!(Fields::of_query(&uri, &[&["a"]]).is_err());
        assert!(query("a=1&a=2").text("a").is_err());
        assert!(query("a=%00").text("a").is_err());
        assert!(query("a=%1b").text("a").is_err());
        assert_eq!(query("a=").text("a").unwrap(), None, "an empty field of a form");
        assert_eq!(query("a=b%20c").text("a").unwrap().as_deref(), Some("b c"));
        for wrong in ["0", "501", "-1", "x", "1.5", "99999999999999999999"] {
            assert!(query(&format!("limit={wrong}")).limit(500).is_err(), "{wrong}");
        }
        assert_eq!(query("").limit(500).unwrap(), 50);
        assert!(query("event_id=x").event_ids("event_id").is_err());
    }

    #[tokio::test]
    async fn an_empty_text_does_not_stand_for_everything() {
        for name in ["topic", "aggregate_type", "tenant", "error"] {
            let body = serde_json::json!({ name: "" }).to_string();
            let fields = Fields::of_body(body.into(), &[&DEAD_FILTER]).await.unwrap();
            assert!(fields.dead_filter().is_err(), "{name}");
            assert!(fields.event_filter(time::OffsetDateTime::UNIX_EPOCH).is_err(), "{name}");
        }
        // Nobody has to give a reason for a pause, and a page sends what was typed.
        let fields = Fields::of_body(r#"{"reason":""}"#.into(), &[&["reason"]]).await.unwrap();
        assert_eq!(fields.text("reason").unwrap().as_deref(), Some(""));
    }
}
