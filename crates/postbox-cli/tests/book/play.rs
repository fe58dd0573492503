//! A page, played: its blocks in one shell, in a folder and on a database of its own.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postbox_testkit::server::postgres::find_binaries;
use postbox_testkit::{PgServer, skipped};

use crate::compare::same;
use crate::page::{Act, Exchange, Step};

/// The name of the database in what a page shows.
const DATABASE: &str = "shop";

/// Longer than any page takes; the shell and what it started are ended then.
const SECONDS: &str = "300";

/// Between what one command printed, how it ended, and the next.
const START: char = '\u{1e}';
const END: char = '\u{1f}';

/// A Python that has psycopg: Debian's package belongs to Debian's own, which need not be the first on the path.
const PYTHON: &str =
    "/usr/bin/python3 -c 'import psycopg' 2>/dev/null && python3() { /usr/bin/python3 \"$@\"; }\n";

/// What a command printed and how it ended.
struct Played {
    printed: Vec<String>,
    code: i32,
}

/// Plays a page; answers what differs from it. With `POSTBOX_BLESS` the page is made to show what was printed.
pub(crate) fn play(page: &Path, steps: &[Step]) -> Vec<String> {
    let steps: Vec<&Step> = steps.iter().filter(|step| can_be_played(step)).collect();
    let (ended_well, printed) = run(&script_of(&steps));
    if !ended_well {
        let last = printed.rsplit(START).next().unwrap_or_default();
        return vec![format!("{}: the shell ended in the block at line {last}", page.display())];
    }
    let mut played = printed.split(START).skip(1).filter_map(played);
    let mut wrong = Vec::new();
    let mut corrections = Vec::new();
    for step in steps {
        let Act::Console { exchanges, any_numbers } = &step.act else { continue };
        for (at, exchange) in exchanges.iter().enumerate() {
            let played = played.next().expect("one for each command");
            let next_looks = exchanges.get(at + 1).is_some_and(|next| next.command == "echo $?");
            if played.code != 0 && !next_looks {
                wrong.push(told(page, exchange, &format!("ended with {}", played.code), &played.printed));
            } else if !same(&exchange.prints, &played.printed, *any_numbers) {
                wrong.push(told(page, exchange, "printed", &played.printed));
                corrections.push((exchange, played.printed));
            }
        }
    }
    if std::env::var_os("POSTBOX_BLESS").is_some() {
        correct(page, &corrections);
    }
    wrong
}

/// Runs a script in a folder and on a database of its own; answers whether it ended well, and all that was printed.
fn run(script: &str) -> (bool, String) {
    let db = PgServer::shared().database();
    let folder = tempfile::tempdir().unwrap();
    let [file, transcript] = [".script", ".transcript"].map(|name| folder.path().join(name));
    fs::write(&file, script).unwrap();
    // A file, not a pipe: what the script leaves running would hold a pipe open.
    let out = File::create(&transcript).unwrap();
    let mut path = vec![Path::new(env!("CARGO_BIN_EXE_postbox")).parent().unwrap().to_owned()];
    path.extend(find_binaries().ok());
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let status = Command::new("timeout")
        .args(["--kill-after", "5", SECONDS, "bash"])
        .arg(&file)
        .current_dir(folder.path())
        // Nobody's settings and nobody's language.
        .env_clear()
        .envs(["HOME", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("PATH", std::env::join_paths(path).unwrap())
        .envs([("DATABASE_URL", db.url.as_str()), ("USER", "ops"), ("HOSTNAME", "shop-1")])
        .envs([("PSQLRC", "/dev/null"), ("LC_ALL", "C.UTF-8")])
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .status()
        .unwrap();
    let printed = String::from_utf8_lossy(&fs::read(&transcript).unwrap()).replace(&db.name, DATABASE);
    (status.success(), printed)
}

fn told(page: &Path, exchange: &Exchange, what: &str, printed: &[String]) -> String {
    let Exchange { line, command, prints } = exchange;
    format!(
        "{}:{line}: $ {command}\n{what}\n{}\nwhere the page has\n{}\n",
        page.display(),
        printed.join("\n"),
        prints.join("\n")
    )
}

/// Whether this machine has what the step needs; says so where it has not.
fn can_be_played(step: &Step) -> bool {
    let Some(needs) = &step.needs else { return true };
    let has = Command::new("bash").args(["-c", &format!("{PYTHON}{needs}")]).output();
    let has = has.is_ok_and(|done| done.status.success());
    if !has {
        skipped(format!("the book: this machine does not have `{needs}`"));
    }
    has
}

fn script_of(steps: &[&Step]) -> String {
    // Whatever the page left running ends with it.
    let mut script = format!("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\ncode=0\n{PYTHON}");
    for Step { line, act, .. } in steps {
        if let Act::Console { exchanges, .. } = act {
            for Exchange { line, command, .. } in exchanges {
                // `echo $?` shall see how the last command of the page ended, not the last of this script.
                let _ = write!(
                    script,
                    "printf '\\036%s\\n' {line}; (exit $code)\n{command}\ncode=$?; printf '\\037%s\\n' $code\n"
                );
            }
            continue;
        }
        let command = match act {
            Act::Shell(text) => text.clone(),
            Act::Sql(text) => here("psql -q -v ON_ERROR_STOP=1 \"$DATABASE_URL\"", text),
            Act::Python(text) => here("python3 -", text),
            Act::File { name, text } => here(&format!("cat > {name}"), text),
            Act::Console { .. } => String::new(),
        };
        let _ = write!(script, "printf '\\036%s\\n' {line}; set -e\n{command}\nset +e; code=0\n");
    }
    script
}

fn here(command: &str, input: &str) -> String {
    format!("{command} <<'END OF BLOCK'\n{input}END OF BLOCK\n")
}

/// What stands between two starts, if it is of a transcript.
fn played(part: &str) -> Option<Played> {
    let (text, code) = part.split_once(END)?;
    let (_line, printed) = text.split_once('\n')?;
    let printed = printed.lines().map(|line| line.trim_end().to_owned()).collect();
    Some(Played { printed, code: code.trim().parse().ok()? })
}

/// Puts what was printed in the place of what the page shows, from its end to its start so that lines stay where they are.
fn correct(page: &Path, corrections: &[(&Exchange, Vec<String>)]) {
    let text = fs::read_to_string(page).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (exchange, printed) in corrections.iter().rev() {
        let from = exchange.line - 1;
        lines.splice(from..from + exchange.prints.len(), printed.iter().cloned());
    }
    fs::write(page, lines.join("\n") + "\n").unwrap();
}

/// The folder of the book's pages.
pub(crate) fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book")
}
