//! A page of the book as a sequence of things to do.
//!
//! Fenced blocks are run in the order of the page, all of them in one shell:
//!
//! - `sh`: commands, all of which must succeed.
//! - `console`: `$ command`, goes on with `> `, and under it what the command prints; see `compare.rs`. A command may fail
//!   only if the next one is `echo $?`.
//! - `sql`: by psql. `python`: by python3.
//! - `rust` is compiled and run by the crate in `docs/`; `text`, `toml`, `json` are to be read.
//!
//! Comments direct, where a reader needs nothing: `<!-- run: COMMAND -->` runs a command, `<!-- file: NAME -->` writes the
//! next block to a file, `<!-- needs: COMMAND -->` runs the next block only where the command succeeds, and
//! `<!-- not run: REASON -->` does not run it.

use std::path::Path;

/// Something to do, and the line of the page where it stands.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) line: usize,
    /// A command that tells whether this can be done here.
    pub(crate) needs: Option<String>,
    pub(crate) act: Act,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Act {
    Shell(String),
    Sql(String),
    Python(String),
    File { name: String, text: String },
    Console { exchanges: Vec<Exchange>, any_numbers: bool },
}

/// A command and what the page says that it prints.
#[derive(Debug, PartialEq)]
pub(crate) struct Exchange {
    /// The line of the first line that it prints.
    pub(crate) line: usize,
    pub(crate) command: String,
    pub(crate) prints: Vec<String>,
}

/// Reads a page.
pub(crate) fn steps(page: &Path) -> Vec<Step> {
    let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    parse(&text).unwrap_or_else(|(line, wrong)| panic!("{}:{line}: {wrong}", page.display()))
}

/// A line, and what is wrong there.
type Wrong = (usize, String);

fn parse(text: &str) -> Result<Vec<Step>, Wrong> {
    let mut steps = Vec::new();
    let (mut file, mut needs, mut not_run) = (None, None, false);
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    while let Some((line, text)) = lines.next() {
        if let Some(command) = directive(text, "run") {
            steps.push(Step { line, needs: None, act: Act::Shell(command) });
        } else if let Some(name) = directive(text, "file") {
            file = Some(name);
        } else if let Some(command) = directive(text, "needs") {
            needs = Some(command);
        } else if directive(text, "not run").is_some() {
            not_run = true;
        } else if let Some(info) = text.strip_prefix("```") {
            let inner: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|l| *l != "```").collect();
            if std::mem::take(&mut not_run) {
                continue;
            }
            let act = act(line, info, &inner, file.take())?;
            steps.extend(act.map(|act| Step { line, needs: needs.take(), act }));
        } else if text.trim_start().starts_with("```") {
            return Err((line, "a block that is set in is not run: begin it at the margin".to_owned()));
        }
    }
    Ok(steps)
}

fn directive(line: &str, name: &str) -> Option<String> {
    let text = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    Some(text.strip_prefix(name)?.strip_prefix(": ")?.to_owned())
}

fn act(line: usize, info: &str, inner: &[&str], file: Option<String>) -> Result<Option<Act>, Wrong> {
    let mut words = info.split(',');
    let (language, flags) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
    let text = || inner.join("\n") + "\n";
    if let Some(name) = file {
        return Ok(Some(Act::File { name, text: text() }));
    }
    Ok(match language {
        "sh" => Some(Act::Shell(text())),
        "sql" => Some(Act::Sql(text())),
        "python" => Some(Act::Python(text())),
        "console" => Some(Act::Console {
            exchanges: exchanges(line, inner)?,
            any_numbers: flags.contains(&"any-numbers"),
        }),
        "rust" | "text" | "toml" | "json" => None,
        other => return Err((line, format!("{other:?} cannot be run: say that it is not run, and why"))),
    })
}

fn exchanges(block: usize, inner: &[&str]) -> Result<Vec<Exchange>, Wrong> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for (at, text) in inner.iter().enumerate() {
        let line = block + 1 + at;
        match (exchanges.last_mut(), text.strip_prefix("$ ")) {
            (_, Some(command)) => {
                exchanges.push(Exchange { line: line + 1, command: command.to_owned(), prints: Vec::new() });
            }
            (None, None) => return Err((line, "a transcript begins with `$ `".to_owned())),
            (Some(last), None) => match text.strip_prefix("> ").filter(|_| last.prints.is_empty()) {
                Some(more) => {
                    last.command = format!("{}\n{more}", last.command);
                    last.line = line + 1;
                }
                None => last.prints.push((*text).to_owned()),
            },
        }
    }
    Ok(exchanges)
}

#[cfg(test)]
mod tests {
    use super::{Act, parse};

    #[test]
    fn pages_are_taken_apart() {
        let page = "# A page\n<!-- run: true -->\n```console,any-numbers\n$ cat <<E\n> 1\n> E\n1\n$ false\n```\n\
                    <!-- file: a.toml -->\n```toml\nb = 1\n```\n<!-- not run: no Go -->\n\
                    ```go\nx\n```\n<!-- needs: python3 -V -->\n\
                    ```python\nprint()\n```\n";
        let steps = parse(page).unwrap();
        let lines: Vec<usize> = steps.iter().map(|step| step.line).collect();
        assert_eq!(lines, [2, 3, 11, 19]);
        let Act::Console { exchanges, any_numbers: true } = &steps[1].act else { panic!("{steps:?}") };
        assert_eq!((exchanges[0].line, exchanges[0].command.as_str()), (7, "cat <<E\n1\nE"));
        assert_eq!((exchanges[0].prints.len(), exchanges[1].prints.len()), (1, 0));
        assert_eq!(steps[2].act, Act::File { name: "a.toml".to_owned(), text: "b = 1\n".to_owned() });
        assert_eq!(steps[3].needs.as_deref(), Some("python3 -V"));
        for wrong in ["```go\n```", "```console\nno prompt\n```", "- a\n  ```sh\n  ```"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
