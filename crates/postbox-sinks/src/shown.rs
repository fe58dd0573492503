//! URLs of sinks as errors may show them.

use postbox_core::redact::{is_secret_name, mask_credentials};

use crate::url::leads_to_no_webhook;

/// The URL as it may be shown: short, and without what could be a password.
pub(crate) fn shown(url: &str) -> String {
    const LONGEST: usize = 120;
    let masked = match url.rfind('@') {
        // Mistyped: where the credentials begin cannot be known.
        Some(at) if !url.contains("://") => mask_path(mask_query(&format!("***{}", &url[at..]))),
        _ => mask_path(mask_credentials(&mask_query(url))),
    };
    match masked.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

/// A URL without its path, which often is all the secret that a webhook has; and what is mistyped may be meant to be one.
fn mask_path(url: String) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", &url));
    if leads_to_no_webhook(scheme) {
        return url;
    }
    // With one slash or none: mistyped, too.
    let begin = url.len() - rest.trim_start_matches('/').len();
    let (start, rest) = url.split_at(begin);
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let path = rest[host..].find(['?', '#']).map_or(rest.len(), |end| host + end);
    if path - host <= 1 { url } else { format!("{start}{}/***{}", &rest[..host], &rest[path..]) }
}

/// A URL without the values of those parameters that may be secrets, also of those behind a `#`, where a webhook has its options.
fn mask_query(url: &str) -> String {
    let Some(at) = url.find(['?', '#']) else { return url.to_owned() };
    let (before, query) = url.split_at(at + 1);
    let parameters = query.split('&').map(|parameter| {
        let mut shown = String::with_capacity(parameter.len());
        for piece in parameter.split_inclusive(['?', '#']) {
            match piece.split_once('=') {
                Some((name, _)) if is_secret_name(name) => {
                    // What follows may belong to it.
                    shown.extend([name, "=***"]);
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
    use super::shown;
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
            ("https://hooks.example/?v=1", "https://hooks.example/?v=1"),
            ("https://hooks.example", "https://hooks.example"),
            ("pulsar://broker/tenant/space/topic", "pulsar://broker/tenant/space/topic"),
            ("file:///var/lib/", "file:///var/lib/"),
            ("file:out/events.jsonl", "file:out/events.jsonl"),
            ("https:/hooks.example/XXXX", "https:/hooks.example/***"),
            ("htps:hooks.example/XXXX?v=1", "htps:hooks.example/***?v=1"),
            ("hooks.example/services/XXXX", "hooks.example/***"),
            ("hooks.example:8443/services/XXXX", "hooks.example:8443/***"),
            ("app@hooks.example/services/XXXX", "***@hooks.example/***"),
        ] {
            assert_eq!(shown(url), masked);
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
