//! [`Signer`]: signatures as [Standard Webhooks](https://www.standardwebhooks.com) has them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::hmac;

/// What every secret begins with.
const PREFIX: &str = "whsec_";
/// How long the standard wants a key to be, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// One signing key. It never shows itself.
#[derive(Clone)]
pub(super) struct Secret(hmac::Key);

impl Secret {
    /// Reads `whsec_` and the key in base64.
    ///
    /// # Errors
    /// In words that hold nothing of the secret.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const HOW: &str = "make one with: echo whsec_$(openssl rand -base64 32)";
        let Some(encoded) = text.trim().strip_prefix(PREFIX) else {
            return Err(format!("a secret begins with {PREFIX}; {HOW}"));
        };
        let Ok(key) = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded)) else {
            return Err(format!("what follows {PREFIX} is not base64; {HOW}"));
        };
        if !LENGTHS.contains(&key.len()) {
            let (least, most) = LENGTHS.into_inner();
            return Err(format!("a secret has from {least} to {most} bytes, not {}; {HOW}", key.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Signs with every key: while keys are changed a receiver may know the old one or the new one.
#[derive(Debug, Clone, Default)]
pub(super) struct Signer(Vec<Secret>);

impl Signer {
    pub(super) fn new(secrets: Vec<Secret>) -> Self {
        Self(secrets)
    }

    /// The value of `webhook-signature`, or nothing where there is no key.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
        let mut value = String::new();
        for Secret(key) in &self.0 {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            value.push_str(if value.is_empty() { "v1," } else { " v1," });
            STANDARD.encode_string(context.sign(), &mut value);
        }
        (!value.is_empty()).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the reference libraries of Standard Webhooks test themselves with.
    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_published_example_is_signed_as_published() {
        let signer = Signer::new(vec![Secret::parse(KEY).unwrap()]);
        assert_eq!(signer.sign(ID, 1_614_265_330, BODY).as_deref(), Some(SIGNATURE));
    }

    #[test]
    fn each_key_signs_in_its_order() {
        let other = format!("whsec_{}", STANDARD.encode([7; 32]));
        let keys = |texts: &[&str]| Signer::new(texts.iter().map(|t| Secret::parse(t).unwrap()).collect());
        let alone = keys(&[&other]).sign(ID, 1_614_265_330, BODY).unwrap();
        let both = keys(&[&other, KEY]).sign(ID, 1_614_265_330, BODY).unwrap();
        assert_eq!(both, format!("{alone} {SIGNATURE}"));
        assert_eq!(Signer::default().sign(ID, 1, BODY), None);
    }

    #[test]
    fn hazard_49_a_bad_secret_is_refused_and_not_shown() {
        for (text, problem) in [
            ("hunter2hunter2", "begins with whsec_"),
            ("whsec_hunter2!", "not base64"),
            ("whsec_aHVudGVyMg==", "from 24 to 64 bytes, not 7"),
            ("", "begins with whsec_"),
        ] {
            let error = Secret::parse(text).unwrap_err();
            assert!(
                error.contains(problem) && !error.contains("hunter2") && !error.contains("aHVud"),
                "{error}"
            );
        }
        assert_eq!(format!("{:?}", Secret::parse(&format!(" {KEY}\n")).unwrap()), "Secret(***)");
    }
}
