//! The rules of topics, so that a mistake is shown at the text itself.
//!
//! `postbox_core::Topic::from_static` checks the same in the generated code; a test below keeps the two in step.

const LIMIT: usize = 128;
const FORM: &str =
    "a topic has the form <module>.<aggregate>.<event>.vN, such as \"org.organization.created.v1\"";

/// What is wrong with a topic, as a sentence for somebody who meets topics for the first time.
pub(crate) fn problem(text: &str) -> Option<String> {
    let allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '-');
    let segments: Vec<&str> = text.split('.').collect();
    let last = segments.last().copied().unwrap_or_default();
    let what = if text.is_empty() {
        "this topic is empty".to_owned()
    } else if text.len() >= LIMIT {
        format!("this topic has {} bytes, and must have fewer than {LIMIT}", text.len())
    } else if let Some(c) = text.chars().find(|c| !allowed(*c)) {
        let hint =
            if c.is_ascii_uppercase() { "write it in lower case" } else { "use a-z, 0-9, `.` and `-`" };
        format!("a topic cannot hold {c:?}: {hint}")
    } else if segments.contains(&"") {
        "this topic has a dot too many: nothing may be empty between dots".to_owned()
    } else if !is_version(last) {
        format!("the last part of a topic is its version, such as `v1`, and not `{last}`")
    } else if segments.len() < 4 {
        format!("this topic has {} parts and needs at least 4", segments.len())
    } else {
        return None;
    };
    Some(format!("{what}; {FORM}"))
}

fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|number| {
        matches!(number.len(), 1..=8)
            && !number.starts_with('0')
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::problem;
    use postbox_core::Topic;
    use proptest::prelude::*;

    #[test]
    fn says_what_is_wrong() {
        for (topic, says) in [
            ("", "is empty"),
            ("Org.organization.created.v1", "'O': write it in lower case"),
            ("org.organisation created.v1", "' ': use a-z"),
            ("org..created.v1", "a dot too many"),
            ("org.organization.created", "and not `created`"),
            ("org.organization.created.v0", "and not `v0`"),
            ("org.created.v1", "has 3 parts and needs at least 4"),
        ] {
            let problem = problem(topic).unwrap();
            assert!(problem.contains(says) && problem.contains("org.organization.created.v1"), "{problem}");
        }
        assert!(problem(&format!("a.b.{}.v1", "c".repeat(121))).unwrap().contains("has 128 bytes"));
        assert_eq!(problem("org.organization.created.v1"), None);
    }

    fn agree(text: &str) -> Result<(), TestCaseError> {
        prop_assert_eq!(problem(text).is_none(), Topic::parse(text).is_ok(), "{}", text);
        Ok(())
    }

    proptest! {
        #[test]
        fn agrees_with_the_engine_on_any_text(text in "\\PC{0,140}") {
            agree(&text)?;
        }

        #[test]
        fn agrees_with_the_engine_on_what_is_nearly_a_topic(
            head in "[a-zA.-]{0,6}(\\.[a-z0-9-]{0,40}){0,4}", version in "\\.?v?[0-9]{0,9}[.x]?"
        ) {
            agree(&format!("{head}{version}"))?;
        }

        #[test]
        fn agrees_with_the_engine_on_versions_and_lengths(c in "[a-z]{100,125}", version in "v[0-9]{0,12}x?") {
            agree(&format!("a.b.c.{version}"))?;
            agree(&format!("a.b.{c}.v1"))?;
        }
    }
}
