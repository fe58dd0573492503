//! `postbox explain CODE`.

use postbox_core::Code;
use serde_json::{Value, json};

use crate::config::{nearest, shown};
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_json};

/// Says what a code means and what to do about it; without one, lists them all.
pub(crate) fn run(wanted: Option<&str>, as_json: bool) -> Result<Exit, Failure> {
    let Some(wanted) = wanted else { return list(as_json) };
    let Some(code) = find(wanted) else {
        let names = Code::ALL.iter().map(|code| code.as_str());
        let short = names.clone().filter_map(|name| name.strip_prefix("OUTBOX_"));
        let guess = nearest(wanted.trim(), names.chain(short));
        let guess = guess.map(|guess| format!(". Did you mean {guess}?")).unwrap_or_default();
        let message = format!("there is no code {}{guess}", shown(wanted));
        return Err(Problem::new(Code::ConfigInvalid, message)
            .next("postbox explain lists all codes")
            .into());
    };
    if as_json {
        say_json(&to_json(code))?;
    } else {
        say(&format!("{code}\n  {}\n  next: {}", code.meaning(), code.next_step()))?;
    }
    Ok(Exit::Done)
}

/// The code, in whatever case and also without what all codes start with.
fn find(wanted: &str) -> Option<Code> {
    let wanted = wanted.trim().to_ascii_uppercase();
    let is = |code: &&Code| code.as_str() == wanted || code.as_str().strip_prefix("OUTBOX_") == Some(&wanted);
    Code::ALL.iter().find(is).copied()
}

fn list(as_json: bool) -> Result<Exit, Failure> {
    if as_json {
        let codes: Vec<Value> = Code::ALL.iter().map(|code| to_json(*code)).collect();
        say_json(&json!({ "codes": codes }))?;
    } else {
        let width = Code::ALL.iter().map(|code| code.as_str().len()).max().unwrap_or_default();
        let lines = Code::ALL.iter().map(|code| format!("{:<width$}  {}", code.as_str(), code.meaning()));
        say(&lines.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Exit::Done)
}

fn to_json(code: Code) -> Value {
    json!({ "code": code.as_str(), "meaning": code.meaning(), "next": code.next_step() })
}

#[cfg(test)]
mod tests {
    use super::{Code, find};

    #[test]
    fn codes_are_found_as_people_write_them() {
        for code in Code::ALL {
            assert_eq!(find(code.as_str()), Some(*code));
        }
        assert_eq!(find("table_missing"), Some(Code::TableMissing));
        assert_eq!(find(" outbox_table_missing "), Some(Code::TableMissing));
        assert_eq!(find("NOPE"), None);
    }
}
