//! Signatures as [Standard Webhooks](https://www.standardwebhooks.com) has them, checked.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::hmac;

/// What every secret begins with.
const PREFIX: &str = "whsec_";
/// How long the standard wants a key to be, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that a webhook cannot be checked with. It shows nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret of webhooks is whsec_ and from 24 to 64 bytes in base64: make one with `echo whsec_$(openssl rand -base64 32)`"
)]
pub struct WebhookError(());

/// Keys, of which a signature has to know one. They never show themselves.
#[derive(Clone)]
pub(super) struct Keys(Vec<hmac::Key>);

impl Keys {
    pub(super) fn parse(secrets: &[&str]) -> Result<Self, WebhookError> {
        let key = |text: &&str| {
            let encoded = text.trim().strip_prefix(PREFIX)?;
            let key = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded)).ok()?;
            LENGTHS.contains(&key.len()).then(|| hmac::Key::new(hmac::HMAC_SHA256, &key))
        };
        let keys: Option<Vec<hmac::Key>> = secrets.iter().map(key).collect();
        keys.filter(|keys| !keys.is_empty()).map(Self).ok_or(WebhookError(()))
    }

    /// Whether one of these signatures is of one of our keys, and the time is about now.
    ///
    /// # Errors
    /// In words, for the sender.
    pub(super) fn check(
        &self,
        signed: &Signed<'_>,
        body: &[u8],
        now: i64,
        tolerance: Duration,
    ) -> Result<(), &'static str> {
        let at: i64 = signed.timestamp.parse().map_err(|_| "webhook-timestamp is no number")?;
        if now.abs_diff(at) > tolerance.as_secs() {
            return Err("webhook-timestamp is too far from now");
        }
        let mut message = format!("{}.{}.", signed.id, signed.timestamp).into_bytes();
        message.extend_from_slice(body);
        let signatures = signed.signature.split(' ').filter_map(|part| part.strip_prefix("v1,"));
        let signatures = signatures.filter_map(|encoded| STANDARD.decode(encoded).ok());
        // Compared in constant time.
        let known = |tag: Vec<u8>| self.0.iter().any(|key| hmac::verify(key, &message, &tag).is_ok());
        if signatures.into_iter().any(known) {
            Ok(())
        } else {
            Err("no webhook-signature is of a key that is known here")
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

/// The headers that a signature covers, beside the body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) id: &'a str,
    pub(super) timestamp: &'a str,
    pub(super) signature: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the reference libraries of Standard Webhooks test themselves with.
    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const AT: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNED: Signed<'static> = Signed {
        id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp: "1614265330",
        signature: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    };
    const FIVE: Duration = Duration::from_mins(5);

    #[test]
    fn the_published_example_is_known_and_no_other() {
        let other = format!("whsec_{}", STANDARD.encode([7; 32]));
        let keys = Keys::parse(&[&other, KEY]).unwrap();
        keys.check(&SIGNED, BODY, AT + 299, FIVE).unwrap();
        let both = format!("v1,AAAA v2,x {}", SIGNED.signature);
        keys.check(&Signed { signature: &both, ..SIGNED }, BODY, AT, FIVE).unwrap();
        for (signed, body, at, keys) in [
            (SIGNED, BODY, AT + 301, &keys),
            (SIGNED, BODY, AT - 301, &keys),
            (SIGNED, &b"{}"[..], AT, &keys),
            (Signed { id: "msg_2", ..SIGNED }, BODY, AT, &keys),
            (Signed { timestamp: "1614265331", ..SIGNED }, BODY, AT, &keys),
            (Signed { timestamp: "now", ..SIGNED }, BODY, AT, &keys),
            (Signed { signature: "", ..SIGNED }, BODY, AT, &keys),
            (SIGNED, BODY, AT, &Keys::parse(&[&other]).unwrap()),
        ] {
            assert!(keys.check(&signed, body, at, FIVE).is_err(), "{signed:?} {at}");
        }
    }

    #[test]
    fn hazard_49_a_bad_secret_is_refused_and_not_shown() {
        for wrong in ["hunter2", "whsec_hunter2!", "whsec_aHVudGVyMg==", ""] {
            let error = Keys::parse(&[KEY, wrong]).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains("aHVud"), "{error}");
        }
        assert!(Keys::parse(&[]).is_err());
        assert_eq!(format!("{:?}", Keys::parse(&[KEY]).unwrap()), "Keys(1)");
    }
}
