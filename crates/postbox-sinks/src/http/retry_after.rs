//! [`retry_after`]: how long a receiver asks us to wait.

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

/// A receiver that asks for more is asked again after this: a wrong clock must not put events off for years.
pub(super) const LONGEST: Duration = Duration::from_hours(1);

/// The one form of a date that HTTP lets anybody send (the two others have been obsolete since 1999).
const HTTP_DATE: &[BorrowedFormatItem<'static>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// The time in `Retry-After`, in seconds or as a date, at most [`LONGEST`]. Nothing when there is none, when it cannot
/// be read, or when it is over: then the usual backoff is better than at once.
pub(super) fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        // More digits than fit are very long, too.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        // By the receiver's own clock, where it tells it.
        let date = headers.get(DATE).and_then(|value| http_date(value.to_str().ok()?));
        (http_date(text)? - date.unwrap_or(now)).try_into().ok()?
    };
    (!wait.is_zero()).then(|| wait.min(LONGEST))
}

fn http_date(text: &str) -> Option<OffsetDateTime> {
    PrimitiveDateTime::parse(text.trim(), HTTP_DATE).ok().map(PrimitiveDateTime::assume_utc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn seconds_and_dates_within_reason() {
        let now = datetime!(2026-10-21 07:28:00 UTC);
        for (text, date, seconds) in [
            ("120", None, Some(120)),
            (" 7 ", None, Some(7)),
            ("0", None, None),
            ("-5", None, None),
            ("1.5", None, None),
            ("", None, None),
            ("soon", None, None),
            ("86400", None, Some(3600)),
            ("99999999999999999999999999", None, Some(3600)),
            ("Wed, 21 Oct 2026 07:28:30 GMT", None, Some(30)),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None, None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", None, None),
            ("Wed, 21 Oct 2099 07:28:00 GMT", None, Some(3600)),
            // Their clock is an hour ahead of ours: they mean five seconds.
            ("Wed, 21 Oct 2026 08:28:05 GMT", Some("Wed, 21 Oct 2026 08:28:00 GMT"), Some(5)),
            ("Wed, 21 Oct 2026 07:28:30 GMT", Some("yesterday"), Some(30)),
            ("Wednesday, 21-Oct-26 07:28:30 GMT", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            if let Some(date) = date {
                headers.insert(DATE, date.parse().unwrap());
            }
            assert_eq!(retry_after(&headers, now).map(|wait| wait.as_secs()), seconds, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
