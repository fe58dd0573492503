//! What dead events died of, where the database has no regular expressions to tell.

use postbox_core::DeadFilter;

/// An error without what differs from event to event: UUIDs and numbers.
pub(crate) fn cause_of(error: &str) -> String {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let is_uuid = |bytes: &[u8]| {
        let right = |(place, byte): (usize, &u8)| {
            if HYPHENS.contains(&place) { *byte == b'-' } else { byte.is_ascii_hexdigit() }
        };
        bytes.len() == 36 && bytes.iter().enumerate().all(right)
    };
    let mut cause = String::with_capacity(error.len());
    let mut rest = error;
    while let Some(first) = rest.chars().next() {
        let bytes = rest.as_bytes();
        let skip = if bytes.get(..36).is_some_and(is_uuid) {
            36
        } else {
            bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
        };
        if skip > 0 {
            cause.push('#');
            rest = &rest[skip..];
        } else {
            cause.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    cause
}

/// Whether an error is of the cause that is asked for.
pub(crate) fn has_cause(filter: &DeadFilter, error: Option<&str>) -> bool {
    filter.cause.as_ref().is_none_or(|cause| *cause == cause_of(error.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::cause_of;

    #[test]
    fn a_cause_is_an_error_without_numbers_and_ids() {
        for (error, cause) in [
            ("", ""),
            ("HTTP 503 after 12ms", "HTTP # after #ms"),
            ("order 0190b0c0-0000-7000-8000-00000000000F is gone", "order # is gone"),
            ("ax0190b0c0-0000-7000-8000-000000000001", "ax#"),
            ("Zoë 1ü2", "Zoë #ü#"),
            ("0190b0c0-0000", "#b#c#-#"),
        ] {
            assert_eq!(cause_of(error), cause);
        }
    }
}
