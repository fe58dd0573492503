//! URLs of sinks as they may be shown.

use postbox_core::redact::{is_secret_name, mask_credentials};

use crate::url::leads_to_no_webhook;

const MASK: &str = "***";

/// What ends a host. Many take a backslash for a slash.
const ENDS: [char; 4] = ['/', '\\', '?', '#'];

/// The URL as errors show it: masked and short.
pub(crate) fn shown(url: &str) -> String {
    const LONGEST: usize = 120;
    let masked = mask_sink(url);
    match masked.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

/// What was given as a sink, without what may be a secret of it.
///
/// Of a webhook's URL, and of whatever may be meant to be one, only scheme, host and port are left, and those options behind the
/// `#` that are not called like secrets: its path or query is often all the secret that a webhook has. Of a file's or a
/// broker's, credentials and what is called like a secret are hidden. The name of a sink stays as it is.
///
/// Rather masks too much than too little: people forget to escape `@`, `/`, `?` and `#` in passwords.
pub fn mask_sink(given: &str) -> String {
    let (scheme, rest) = split_scheme(given);
    if leads_to_no_webhook(scheme.trim_end_matches(':')) {
        mask_place(scheme, rest)
    } else {
        mask_webhook(scheme, rest)
    }
}

/// A URL's scheme with its colon, if it has one, and the rest.
fn split_scheme(url: &str) -> (&str, &str) {
    let end = url.find(':').filter(|end| {
        let scheme = &url[..*end];
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    url.split_at(end.map_or(0, |end| end + 1))
}

/// The two slashes before a host, and the rest. One is a slip where a scheme stands before it, and else begins a path.
fn split_slashes<'a>(scheme: &str, rest: &'a str) -> (&'a str, &'a str) {
    match rest.bytes().take(2).take_while(|byte| matches!(byte, b'/' | b'\\')).count() {
        1 if scheme.is_empty() => ("", rest),
        slashes => rest.split_at(slashes),
    }
}

/// The URL of a file or a broker.
fn mask_place(scheme: &str, rest: &str) -> String {
    let (slashes, rest) = split_slashes(scheme, rest);
    let masked = mask_query(rest);
    // An `@` that was masked with a parameter may as well have ended credentials with a `?` in them.
    if masked.matches('@').count() < rest.matches('@').count() {
        return format!("{scheme}{slashes}{MASK}");
    }
    let shown = masked.rsplit_once('@').map_or(masked.clone(), |(_, host)| format!("{MASK}@{host}"));
    mask_credentials(&format!("{scheme}{slashes}{shown}"))
}

/// The URL of a webhook, or what may be meant to be one.
fn mask_webhook(scheme: &str, rest: &str) -> String {
    if scheme.is_empty() && is_assignment(rest) {
        return MASK.to_owned();
    }
    let (slashes, rest) = split_slashes(scheme, rest);
    // Else what stands before a colon and credentials may be the first of them.
    let is_scheme =
        slashes.len() == 2 || ["http:", "https:"].iter().any(|web| scheme.eq_ignore_ascii_case(web));
    let start = if is_scheme || !rest.contains('@') { format!("{scheme}{slashes}") } else { String::new() };
    let (authority, rest) = rest.split_at(rest.find(ENDS).unwrap_or(rest.len()));
    if rest.contains('@') {
        // What looks like the host may be the beginning of a password.
        return format!("{start}{MASK}");
    }
    let mut shown = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{start}{MASK}@{host}"),
        None => format!("{start}{authority}"),
    };
    let (rest, options) = rest.split_once('#').map_or((rest, None), |(rest, options)| (rest, Some(options)));
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    shown.push_str(if path.len() > 1 { "/***" } else { path });
    if let Some(query) = query {
        shown.push_str(if query.is_empty() { "?" } else { "?***" });
    }
    if let Some(options) = options {
        shown.push('#');
        shown.push_str(&options.split('&').map(mask_option).collect::<Vec<_>>().join("&"));
    }
    shown
}

/// Whether it is something like `host=db password=x`.
fn is_assignment(text: &str) -> bool {
    text.find(['=', '/', '?', '#']).is_some_and(|at| text[at..].starts_with('=')) && is_secret_name(text)
}

/// An option behind a `#`, which may as well be the rest of a secret with a `#` in it.
fn mask_option(option: &str) -> String {
    let named = option.split_once('=').filter(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    });
    match named {
        Some((name, value)) if is_secret_name(name) || value.contains(['?', '#']) => format!("{name}={MASK}"),
        Some(_) => option.to_owned(),
        None if option.is_empty() => String::new(),
        None => MASK.to_owned(),
    }
}

/// The URL of a file or a broker without the values of those parameters that may be secrets.
fn mask_query(url: &str) -> String {
    let Some(at) = url.find(['?', '#']) else { return url.to_owned() };
    let (before, query) = url.split_at(at + 1);
    let parameters = query.split('&').map(|parameter| {
        let mut shown = String::with_capacity(parameter.len());
        for piece in parameter.split_inclusive(['?', '#']) {
            match piece.split_once('=') {
                Some((name, _)) if is_secret_name(name) => {
                    // What follows may belong to it.
                    shown.extend([name, "=", MASK]);
                    break;
                }
                _ => shown.push_str(piece),
            }
        }
        shown
    });
    format!("{before}{}", parameters.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::{mask_sink, shown};
    use crate::AnySink;

    /// A build without webhooks is told their URLs, too.
    #[test]
    fn no_path_of_a_webhook_is_shown() {
        for (url, masked) in [
            (
                "https://hooks.example/services/T0/B0/XXXX#secrets=x&timeout=1s",
                "https://hooks.example/***#secrets=***&timeout=1s",
            ),
            ("HTTP://hooks.example/XXXX", "HTTP://hooks.example/***"),
            ("https://hooks.example/?v=1", "https://hooks.example/?***"),
            ("https://f.azurewebsites.example/api/in?code=XXXX", "https://f.azurewebsites.example/***?***"),
            ("https://hooks.example/in?a=1#timeout=1s&b#c", "https://hooks.example/***?***#timeout=1s&***"),
            ("https://hooks.example?", "https://hooks.example?"),
            ("https:\\\\hooks.example\\XXXX", "https:\\\\hooks.example/***"),
            // The host is missing, and what would be it is a path.
            ("https:///XXXX", "https:///***"),
            ("/XXXX", "/***"),
            ("//hooks.example/XXXX", "//hooks.example/***"),
            ("https://hooks.example", "https://hooks.example"),
            ("pulsar://broker/tenant/space/topic", "pulsar://broker/tenant/space/topic"),
            ("file:///var/lib/", "file:///var/lib/"),
            ("file:out/events.jsonl", "file:out/events.jsonl"),
            ("https:/hooks.example/XXXX", "https:/hooks.example/***"),
            ("htps:hooks.example/XXXX?v=1", "htps:hooks.example/***?***"),
            ("htps://hooks.example/services/XXXX", "htps://hooks.example/***"),
            ("hooks.example/services/XXXX", "hooks.example/***"),
            // Only what has no slash before its colon has a scheme.
            ("api.telegram.example/bot123:XXXX/sendMessage", "api.telegram.example/***"),
            ("https//api.telegram.example/bot123:XXXX/x", "https/***"),
            ("hooks.example/services/XXXX?next=https://a", "hooks.example/***?***"),
            ("hooks.example?next=https://XXXX", "hooks.example?***"),
            ("hooks.example:8443/services/XXXX", "hooks.example:8443/***"),
            ("app@hooks.example/services/XXXX", "***@hooks.example/***"),
            ("XXXX:@hooks.example/in", "***@hooks.example/***"),
            ("https:XXXX:@hooks.example/in", "https:***@hooks.example/***"),
            // Whether the host is before the slash or behind the @ cannot be known.
            ("https://app:XX/XX@hooks.example/in", "https://***"),
            ("https://hooks.example/in?to=a@b&code=XXXX", "https://***"),
        ] {
            assert_eq!(shown(url), masked);
        }
    }

    #[test]
    fn what_helps_is_shown() {
        for url in
            ["", "audit", "audit-2_b", "out.jsonl", "stdout", "stdout:", "null:", "file:a b%20c?.jsonl"]
        {
            assert_eq!(mask_sink(url), url);
        }
        for (url, masked) in [
            ("kafka://app:XXXX@one,two:9092/topic?acks=all", "kafka://***@one,two:9092/topic?acks=all"),
            ("amqps://app:XX/XX@broker/vhost", "amqps://***@broker/vhost"),
            ("NATS://XXXX@broker", "NATS://***@broker"),
            ("redis://cache/0?password=XX#XX&x=1", "redis://cache/0?password=***&x=1"),
            ("redis:app@cache:6379", "redis:***@cache:6379"),
            ("pulsar://broker/a?token=XX@XX", "pulsar://***"),
            ("kafka://app:XX@XX?token=XX@broker", "kafka://***"),
            ("host=db password=XX/XX@XX", "***"),
        ] {
            assert_eq!(mask_sink(url), masked);
        }
    }

    #[test]
    fn hazard_49_no_credentials_and_no_control_characters_in_messages() {
        for url in [
            "amqb://app:hunter2@broker/vhost",
            "amqb:app:hunter2@broker",
            "app:hunter2@broker",
            "redys://broker?password=hunter2",
            "redys://broker?x=1&api_key=hunter2",
            "redys://broker?password=hun#hunter2&x=1",
            "htps://receiver/in?x=1#secrets=hunter2,hunter2&timeout=1s",
            "htps://receiver/in#bearer_token_file=x&secrets=hunter2",
            "kafka//app:hunter2@broker",
            "kafka//app@broker?password=hunter2",
            "redis:app@cache:6379?password=hunter2",
            "nats:me@broker?token=hunter2@x",
            "htps://receiver/services/hunter2",
            "htps://app:hun/hunter2@receiver/hunter2?x=1#secrets=hunter2",
        ] {
            let text = AnySink::from_url(url).unwrap_err().to_string();
            assert!(!text.contains("hunter2"), "{text}");
        }
        let text = AnySink::from_url(&format!("x\n:{}", "y".repeat(5000))).unwrap_err().to_string();
        assert!(text.len() < 500 && !text.contains('\n'), "{text}");
    }
}
