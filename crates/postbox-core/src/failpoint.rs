//! Failpoints: places where a test can make the process die, hang or fail (feature `failpoints`).
//!
//! `POSTBOX_FAILPOINTS=settle.before=abort` aborts at the first settle; `dispatch.before=abort@a.b.c.v1` only for
//! that topic; `claim.after=hang` waits for ever. Several are separated by `;`. Off in every release.

/// Does what the environment says for this place; `detail` narrows it (a topic, a table).
#[cfg(feature = "failpoints")]
pub(crate) async fn hit(place: &str, detail: &str) {
    use std::sync::OnceLock;
    static RULES: OnceLock<Vec<(String, String, Option<String>)>> = OnceLock::new();

    let rules = RULES.get_or_init(|| {
        let text = std::env::var("POSTBOX_FAILPOINTS").unwrap_or_default();
        let rule = |rule: &str| {
            let (place, action) = rule.split_once('=')?;
            let (action, only) =
                action.split_once('@').map_or((action, None), |(a, o)| (a, Some(o.to_owned())));
            Some((place.trim().to_owned(), action.to_owned(), only))
        };
        text.split(';').filter_map(rule).collect()
    });
    for (_, action, only) in rules.iter().filter(|(p, ..)| p == place) {
        if only.as_ref().is_some_and(|only| only != detail) {
            continue;
        }
        match action.as_str() {
            "abort" => std::process::abort(),
            "hang" => std::future::pending().await,
            "panic" => panic!("failpoint {place}"),
            "block" => std::thread::sleep(std::time::Duration::from_hours(1)),
            _ => {}
        }
    }
}

/// Nothing, in every release.
#[cfg(not(feature = "failpoints"))]
#[inline]
#[allow(clippy::unused_async, reason = "the same signature as with the feature")]
pub(crate) async fn hit(_: &str, _: &str) {}
