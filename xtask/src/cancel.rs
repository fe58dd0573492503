//! Public async functions say under `# Cancel safety` what dropping them does.

use std::fs;

use crate::links::files;
use crate::run::root;

/// The crates that are looked at.
const CRATES: [&str; 5] =
    ["postbox-core", "postbox-consumers", "postbox-sinks", "postbox-stores", "postbox-web"];

/// Refuses those that do not. What is `pub` is public: the lint `unreachable_pub` sees to that.
pub(crate) fn run() -> Result<(), String> {
    let mut silent = Vec::new();
    for name in CRATES {
        for file in files(&root().join("crates").join(name).join("src"), "rs", true)? {
            let wrong = |error: std::io::Error| format!("{}: {error}", file.display());
            let lines = silent_lines(&fs::read_to_string(&file).map_err(wrong)?);
            silent.extend(lines.into_iter().map(|line| format!("{}:{line}", file.display())));
        }
    }
    let told = silent.join("\n       ");
    if silent.is_empty() { Ok(()) } else { Err(format!("no `# Cancel safety` at\n       {told}")) }
}

/// Where such functions begin in a formatted source file. What a trait says is said of all its functions.
fn silent_lines(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let ends = |line: &str| line.ends_with(['{', '}', ';']) && !line.trim_start().starts_with("//");
    // What stands above an item is about it, up to the end of another.
    let above = |at: usize| lines[..at].iter().rev().take_while(|line| !line.is_empty() && !ends(line));
    let says = |at: usize| above(at).any(|line| line.trim_start().starts_with("/// # Cancel safety"));
    let mut trait_says = None;
    let mut silent = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("pub trait ") {
            trait_says = Some(says(at));
        } else if *line == "}" {
            trait_says = None;
        }
        let public = line.trim_start().starts_with("pub ") || trait_says.is_some();
        let function = public && line.contains("fn ") && !line.trim_start().starts_with("//");
        let last = lines[at..].iter().position(|line| ends(line)).map_or(lines.len(), |more| at + more + 1);
        let head = lines[at..last].join(" ");
        if function && (line.contains("async fn ") || head.contains("-> impl Future")) {
            silent.extend((trait_says != Some(true) && !says(at)).then_some(at + 1));
        }
    }
    silent
}

#[test]
fn what_says_nothing_is_found() {
    let text = "/// # Cancel safety\n/// Safe;\npub trait A {\n    fn a() -> impl Future;\n}\n\n/// Nothing.\npub trait B {\n    fn b(\n    ) \
                -> impl Future;\n    fn c();\n}\n\n/// # Cancel safety\n#[must_use]\npub async fn d() {}\n\npub async fn e() {}\nasync fn f() {}\n";
    assert_eq!(silent_lines(text), [9, 18]);
    run().unwrap();
}
