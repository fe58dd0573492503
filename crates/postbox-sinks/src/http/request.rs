//! The request of an event: URL, headers, body, signature.

use postbox_core::Delivery;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Request};
use time::OffsetDateTime;

use super::config::Config;
use super::error::causes;
use super::headers::{PREFIX, add_own, name, value};
use crate::encode::{Binding, is_standard};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The message key, which brokers have a place for and HTTP has not.
const KEY: HeaderName = HeaderName::from_static("postbox-message-key");
/// What HTTP has a header for anyway.
const ELSEWHERE: &str = "content_type";
const CLOUDEVENTS: &str = Binding::HTTP.prefix;
/// Standard headers that are a standard of HTTP, too, and go as they are.
const AS_IS: [&str; 2] = ["traceparent", "tracestate"];

impl Config {
    /// Makes the request of an event that is sent now.
    ///
    /// # Errors
    /// In words, when the event does not make a URL.
    pub(super) fn request(
        &self,
        client: &Client,
        delivery: &Delivery,
        now: OffsetDateTime,
    ) -> Result<Request, String> {
        let url = self.target.of(delivery)?;
        let message = self.encoding.message(delivery);
        let body = message.payload.into_owned();
        let mut headers = self.headers.clone();
        self.sign(&delivery.meta.event_id.to_string(), now.unix_timestamp(), &body, &mut headers);
        headers.extend(value(message.content_type).map(|value| (CONTENT_TYPE, value)));
        if body.is_empty() {
            // The client would leave it out, and some receivers answer 411 then.
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        headers.extend(value(&message.key).map(|key| (KEY, key)));
        let (own, standard): (Vec<_>, Vec<_>) =
            message.headers.iter().partition(|(header, _)| self.is_own(header));
        for (header, text) in standard.into_iter().filter(|(header, _)| header != ELSEWHERE) {
            add_standard(&mut headers, header, text);
        }
        // They give way to what is there.
        for (header, text) in own {
            add_own(&mut headers, header, text);
        }
        client.request(self.method.clone(), url).headers(headers).body(body).build().map_err(|e| causes(&e))
    }

    /// Whether a header is the event's own. Those that begin as CloudEvents' do are gone where there are such.
    fn is_own(&self, header: &str) -> bool {
        let cloudevents = self.encoding.is_cloudevents() && header.starts_with(CLOUDEVENTS);
        !cloudevents && !is_standard(header)
    }

    fn sign(&self, id: &str, timestamp: i64, body: &[u8], headers: &mut HeaderMap) {
        headers.extend(HeaderValue::from_str(id).ok().map(|id| (WEBHOOK_ID, id)));
        headers.insert(WEBHOOK_TIMESTAMP, timestamp.into());
        let signature = self.signer.sign(id, timestamp, body);
        headers.extend(
            signature
                .and_then(|text| HeaderValue::from_str(&text).ok())
                .map(|value| (WEBHOOK_SIGNATURE, value)),
        );
    }
}

fn add_standard(headers: &mut HeaderMap, header: &str, text: &str) {
    let (key, text) = if AS_IS.contains(&header) || header.starts_with(CLOUDEVENTS) {
        // Already as their standards want them. What is no header after all is left out: it was never a trace.
        (name(header), HeaderValue::from_str(text).ok())
    } else {
        (name(&format!("{PREFIX}{header}")), value(text))
    };
    headers.extend(key.zip(text));
}
