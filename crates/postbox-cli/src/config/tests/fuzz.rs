//! Whatever is in the file or in a variable: a configuration, or errors that say what is wrong with it.

use postbox_testkit::Fuzz;

use super::Start;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

fn answer(start: &Start) -> String {
    match start.load() {
        Ok(config) => format!("ok {}", config.warnings.len()),
        Err(errors) => {
            let texts = errors.0.iter().map(|error| format!("{}{error}", error.code.as_str()));
            texts.flat_map(|text| text.chars().rev().take(30).collect::<Vec<_>>()).take(90).collect()
        }
    }
}

#[test]
fn fuzz_files() {
    let words = [
        "[relay]",
        "[[database]]",
        "[[route]]",
        "[tables.",
        "= ",
        "\"",
        "\"\"\"",
        "'",
        "sink",
        "lock_ttl",
        "ms",
        "# ",
    ];
    Fuzz::new(PACKAGE, "files").words(&words).run(|input| answer(&Start::default().file(input)));
}

#[test]
fn fuzz_variables() {
    let names = [
        "DATABASE_URL",
        "OUTBOX_DIRECT_URL",
        "OUTBOX_SINK",
        "OUTBOX_LISTEN",
        "OUTBOX_RELAY_TABLES",
        "OUTBOX_RELAY_LOCK_TTL",
        "OUTBOX_RELAY_BATCH_SIZE",
        "OUTBOX_RELAY_SINGLE_ACTIVE",
    ];
    let words = ["postgres://", "mysql://", "sqlite:", "@", "?", "file:", "ms", "1h", "true", ",", "::"];
    Fuzz::new(PACKAGE, "variables").words(&words).run(|input| {
        // A variable of the environment has no zero bytes, whatever else it has.
        let text = String::from_utf8_lossy(input).replace('\0', "");
        let mut start = Start::default();
        for (name, value) in names.iter().zip(text.split('\n')) {
            start = start.env(name, value);
        }
        answer(&start)
    });
}
