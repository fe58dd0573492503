//! Whether a command printed what the page shows.
//!
//! Ids, times, durations and process ids differ from run to run and are not compared, nor is the width of blanks. `…`
//! stands for any text; a line that holds nothing else, for any number of lines. Where a block says `any-numbers`, no
//! number is compared.

/// Whether the lines on the page are those that were printed.
pub(crate) fn same(page: &[String], printed: &[String], any_numbers: bool) -> bool {
    let plain = |lines: &[String]| lines.iter().map(|line| masked(line, any_numbers)).collect::<Vec<_>>();
    lines_match(&plain(page), &plain(printed))
}

fn lines_match(page: &[String], printed: &[String]) -> bool {
    match page.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others)),
    }
}

fn line_matches(page: &str, printed: &str) -> bool {
    let mut parts = page.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let Some(last) = page.rsplit_once('…').map(|(_, last)| last) else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    printed.len() >= first.len() + last.len() && printed.ends_with(last)
}

/// The line without what differs from run to run.
fn masked(line: &str, any_numbers: bool) -> String {
    let words: Vec<String> = line.split_whitespace().map(|word| masked_word(word, any_numbers)).collect();
    // From one second to the next, or within one.
    words.join(" ").replace("T–T", "T")
}

fn masked_word(word: &str, any_numbers: bool) -> String {
    let mut masked = String::new();
    let mut rest = word;
    while let Some(letter) = rest.chars().next() {
        let mut before = masked.chars().rev();
        let before = (before.next(), before.next());
        let number = rest.bytes().take_while(u8::is_ascii_digit).count();
        let after = &rest[number..];
        if let Some(after) = uuid(rest) {
            masked.push('U');
            rest = after;
        } else if number == 0 || before.0.is_some_and(char::is_alphanumeric) {
            masked.push(letter);
            rest = &rest[letter.len_utf8()..];
        } else if let Some(after) = moment(rest, number) {
            masked.push('T');
            rest = after;
        } else if let Some(after) = unit(after) {
            masked.push('D');
            rest = after;
        } else {
            // A colon with a name in front is that of a process: `host:4711`.
            let process = before.0 == Some(':') && before.1.is_some_and(char::is_alphanumeric);
            masked.push_str(if process || any_numbers { "N" } else { &rest[..number] });
            rest = if any_numbers { after_thousands(after) } else { after };
        }
    }
    masked
}

/// What follows the groups of three digits by which a number goes on: `091` in `1,091`.
fn after_thousands(mut text: &str) -> &str {
    while let Some((group, rest)) = text.strip_prefix(',').and_then(|digits| digits.split_at_checked(3))
        && group.bytes().all(|byte| byte.is_ascii_digit())
        && !rest.starts_with(|next: char| next.is_ascii_digit())
    {
        text = rest;
    }
    text
}

/// What follows a time, such as `12:15`, or a date, perhaps with its time, that begins with so many digits.
fn moment(text: &str, digits: usize) -> Option<&str> {
    let at = |place: usize| text.as_bytes().get(place).copied();
    let time = digits == 2 && at(2) == Some(b':') && at(3).is_some_and(|byte| byte.is_ascii_digit());
    let date = digits == 4 && (at(4), at(7)) == (Some(b'-'), Some(b'-'));
    let end = text.find(|letter: char| !letter.is_ascii_digit() && !":-.TZ".contains(letter));
    (time || date).then(|| &text[end.unwrap_or(text.len())..])
}

/// What follows the unit of a duration.
fn unit(text: &str) -> Option<&str> {
    let ends = |text: &str| !text.starts_with(char::is_alphanumeric);
    ["ms", "s", "m", "h", "d"].iter().find_map(|unit| text.strip_prefix(unit).filter(|end| ends(end)))
}

/// What follows a UUID at the start of the text.
fn uuid(text: &str) -> Option<&str> {
    let (id, rest) = text.split_at_checked(36)?;
    let shape = id.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    shape.then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::{masked, same};

    #[test]
    fn what_differs_from_run_to_run_is_not_compared() {
        for (line, plain) in [
            ("leader shop-1:31703 (epoch 1)  oldest 2s", "leader shop-1:N (epoch 1) oldest D"),
            ("01a1df22-795d-7440-8637-ad0286f114e5,", "U,"),
            ("at 2026-11-15T12:15:40.893461Z after 501ms", "at T after D"),
            ("2026-11-15 12:15:40.89+00 | 12:01–12:09", "T T+00 | T"),
            ("#1  c0ffee  398  HTTP 410", "#1 c0ffee 398 HTTP 410"),
            (r#"1.5 3m4 {"n":7}"#, r#"1.5 3m4 {"n":7}"#),
        ] {
            assert_eq!(masked(line, false), plain);
        }
        assert_eq!(masked("written 450, 2s", true), "written N, D");
        assert_eq!(masked("58 1,091 20,000,000, 1,2 3,4567", true), "N N N, N,N N,N");
    }

    #[test]
    fn an_ellipsis_is_anything() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        for (page, printed, alike) in [
            ("a … c", "a b c", true),
            ("a…", "a", true),
            ("a … c", "a b d", false),
            ("ab…ba", "aba", false),
            ("a\n…\nz", "a\nb\nc\nz", true),
            ("a\n…", "a", true),
            ("a", "a\nb", false),
            ("a\nb", "a", false),
        ] {
            assert_eq!(same(&lines(page), &lines(printed), false), alike, "{page:?} {printed:?}");
        }
    }
}
