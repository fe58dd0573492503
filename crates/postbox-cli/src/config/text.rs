//! Text for people: values without their secrets, and the name that was probably meant.

use postbox_core::redact::is_secret_name;
use postbox_sinks::mask_sink;

use super::kind::scheme;

/// Schemes whose user is a name; elsewhere (NATS, webhooks) it may be a token or an API key.
const NAMED_USERS: [&str; 4] = ["postgres", "postgresql", "mysql", "mariadb"];

/// How many characters of a value an error repeats.
const SHOWN_CHARS: usize = 80;

const MASK: &str = "***";

/// A value that must not reach logs: `Debug` and `Display` show it masked.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Wraps `value`.
    pub(crate) fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for whoever connects with it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", mask(&self.0))
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&mask(&self.0))
    }
}

/// What was given as a sink, a URL or a name from `[sinks]`: `Debug` and `Display` show it masked.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct GivenSink(String);

impl GivenSink {
    /// Wraps `given`.
    pub(crate) fn new(given: impl Into<String>) -> Self {
        Self(given.into())
    }

    /// The text itself, for whoever makes a sink of it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for GivenSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", mask_sink(&self.0))
    }
}

impl std::fmt::Display for GivenSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&mask_sink(&self.0))
    }
}

/// A value that nobody may see, whatever it looks like.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(String);

impl Hidden {
    /// Wraps `value`.
    pub(crate) fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for whoever compares with it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(MASK)
    }
}

/// `value` with what may be a credential replaced by `***`.
///
/// Rather masks too much than too little: people forget to escape `@`, `/`, `?` and `#` in passwords, so all that stands
/// before the last `@` counts as credentials, whatever a URL parser would say.
pub(crate) fn mask(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return mask_without_authority(value) };
    if ["http", "https"].iter().any(|web| scheme.eq_ignore_ascii_case(web)) {
        // Wherever it stands, it may be that of a webhook.
        return mask_sink(value);
    }
    let masked_query = mask_query(rest);
    if let Some((credentials, host)) = masked_query.rsplit_once('@') {
        let user = credentials.split(':').next().filter(|_| NAMED_USERS.contains(&scheme));
        return match user.filter(|user| !user.is_empty() && !user.contains(['/', '?', '#', '@', '='])) {
            Some(user) if credentials.contains(':') => format!("{scheme}://{user}:{MASK}@{host}"),
            Some(user) => format!("{scheme}://{user}@{host}"),
            None => format!("{scheme}://{MASK}@{host}"),
        };
    }
    // An `@` that was masked with a parameter may as well have ended credentials with a `?` in them.
    if rest.contains('@') { format!("{scheme}://{MASK}") } else { format!("{scheme}://{masked_query}") }
}

/// Values such as `file:out.jsonl`, `user:password@host` or `host=db password=x`.
fn mask_without_authority(value: &str) -> String {
    if scheme(value).is_none() && value.contains('=') && is_secret_name(value) {
        return MASK.to_owned();
    }
    let masked_query = mask_query(value);
    match masked_query.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}"),
        None if value.contains('@') => MASK.to_owned(),
        None => masked_query,
    }
}

/// Masks the values of secret-looking parameters after the first `?` or `#`.
fn mask_query(rest: &str) -> String {
    let Some(start) = rest.find(['?', '#']) else { return rest.to_owned() };
    let (before, parameters) = rest.split_at(start);
    let masked = parameters.split_inclusive(['?', '#', '&']).map(|parameter| {
        let end = parameter.strip_suffix(['?', '#', '&']).map_or("", |kept| &parameter[kept.len()..]);
        match parameter.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}={MASK}{end}"),
            _ => parameter.to_owned(),
        }
    });
    format!("{before}{}", masked.collect::<String>())
}

/// `value` as an error shows it: in quotes, masked, control characters escaped, cut when long.
pub(crate) fn shown(value: &str) -> String {
    quoted(&mask(value))
}

/// What was given as a sink, as an error shows it.
pub(crate) fn shown_sink(given: &str) -> String {
    quoted(&mask_sink(given))
}

fn quoted(masked: &str) -> String {
    let mut text = String::from('"');
    for (at, c) in masked.chars().enumerate() {
        if at == SHOWN_CHARS {
            text.push('…');
            break;
        }
        text.extend(c.escape_debug());
    }
    text.push('"');
    text
}

/// The candidate that `given` was probably meant to be: a few slips of the finger away, if any.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_ascii_lowercase();
    let length = given.chars().count();
    // Nobody mistypes a name into something three times as long; hostile keys are not worth the work.
    if length == 0 || length > 100 {
        return None;
    }
    let most = (length / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (distance(&given, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits from `a` to `b`: insert, delete, replace, or swap two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_survives_masking() {
        for password in [
            "Zq9",
            "Zq9@Zq9",
            "Zq9/Zq9",
            "Zq9?Zq9",
            "Zq9#Zq9",
            "Zq9:Zq9",
            "Zq9?password=Zq9",
            "1/Zq9",
            "Zq9 Zq9",
            "Zq9=&Zq9",
            "%5aZq9",
        ] {
            for url in [
                format!("postgres://app:{password}@db/app"),
                format!("postgres://:{password}@db/app"),
                format!("kafka://app:{password}@one,two:9092/topic?acks=all"),
                format!("nats://{password}@db"),
                format!("postgres:app:{password}@db"),
                format!("app:{password}@db"),
                format!("host=db user=app password={password}"),
                format!("https://app:{password}@a/?email=b@c"),
            ] {
                let masked = mask(&url);
                assert!(!masked.contains("Zq9"), "{url} → {masked}");
            }
        }
        for value in ["Zq9", "Zq9@Zq9", "Zq9/Zq9", "Zq9:Zq9"] {
            for url in [
                format!("postgres://db/app?sslpassword={value}&sslmode=require"),
                format!("https://a/x#secret={value}&allow_http=true"),
                format!("https://a/x?a=1#bearer_token={value}"),
                format!("https://a/hook?API_KEY={value}"),
                format!("file:out.jsonl?token={value}"),
            ] {
                let masked = mask(&url);
                assert!(!masked.contains("Zq9"), "{url} → {masked}");
            }
        }
    }

    #[test]
    fn masking_keeps_what_helps() {
        for (url, masked) in [
            (
                "postgres://app:s3cret@db:5432/app?sslmode=require",
                "postgres://app:***@db:5432/app?sslmode=require",
            ),
            ("postgres://app@db/app", "postgres://app@db/app"),
            ("postgres://db/app", "postgres://db/app"),
            ("nats://tok3n@broker", "nats://***@broker"),
            ("https://sk_live:@api.example/x", "https://***@api.example/***"),
            ("https://hooks.example/a?token=x&v=1", "https://hooks.example/***?***"),
            ("HTTPS://hooks.example/services/s3cret", "HTTPS://hooks.example/***"),
            ("https://hooks.example/#secret=s3cret&v=1", "https://hooks.example/#secret=***&v=1"),
            ("stdout:", "stdout:"),
            ("file:out.jsonl", "file:out.jsonl"),
            ("public.org_outbox", "public.org_outbox"),
            ("", ""),
        ] {
            assert_eq!(mask(url), masked);
        }
        let secret = Secret::new("postgres://app:s3cret@db/app");
        assert!(!format!("{secret:?} {secret}").contains("s3cret"));
        assert_eq!(secret.reveal(), "postgres://app:s3cret@db/app");
    }

    #[test]
    fn shown_values_are_short_and_on_one_line() {
        assert_eq!(shown("a\n\u{1b}[31m\"b"), "\"a\\n\\u{1b}[31m\\\"b\"");
        assert!(shown(&"é".repeat(10_000)).chars().count() < 90);
    }

    #[test]
    fn nearest_finds_slips_and_nothing_far() {
        let names = ["relay.batch_size", "relay.lock_ttl", "cleaner.interval"];
        assert_eq!(nearest("relay.batchsize", names), Some("relay.batch_size"));
        assert_eq!(nearest("relay.bacth-size", names), Some("relay.batch_size"));
        assert_eq!(nearest("RELAY.LOCK_TTL", names), Some("relay.lock_ttl"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
