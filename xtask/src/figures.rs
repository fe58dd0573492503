//! `cargo xtask bench all`: nearly every figure of the book's page on benchmarks, one after another on one machine in one run.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{bench, install, metadata};

/// What is measured, as it would be typed after `cargo xtask bench`.
const ALL: &[&str] = &[
    "drain --history keep 200000 3",
    "drain --history move 200000 3",
    "drain --history none 200000 3",
    "drain --pooler --history keep 200000 3",
    "drain --pooler --history move 200000 3",
    "drain --pooler --history none 200000 3",
    "drain --lease 200000 3",
    "order 200000 3",
    "order --lease 200000 3",
    "order --pooler 200000 3",
    "hang 200000 3",
    "enqueue 5 3",
    "latency 50 3 20",
    "latency 500 3 20",
    "growth 200000 3",
    "sustain 60 --history none",
    "sustain 60 --history move",
    "databases 500000 3",
    "share 20000 3",
    "idempotency 2000 5",
    "idempotency --mysql 2000 5",
    "drain --sqlite 200000 3",
    "drain --mysql --history keep 100000 3",
    "drain --mysql --history move 100000 3",
    "drain --mysql --history none 100000 3",
    "drain --mysql --lease 100000 3",
    "sinks 200000 3",
    "outage --brokers 500000 3 1000000",
    "peers 200000 3 --svg docs/book/img/peers.svg",
];

/// Runs those whose line contains one of these words, or all; what they print is also kept in the target folder.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let chosen: Vec<&str> = ALL.iter().copied().filter(|line| is_wanted(line, words)).collect();
    if chosen.is_empty() {
        return Err(format!("nothing to measure has one of these words: {}", words.join(" ")));
    }
    install::test_needs(true)?;
    // Once, with all that any of them needs: another set of features would be another build.
    install::fetch_beside(true, false, || bench::build(true))?;
    let path = metadata::read()?.target.join("figures.txt");
    let mut kept = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut failed = Vec::new();
    for (number, line) in chosen.iter().enumerate() {
        let began = Instant::now();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let title = format!("==> {} of {}: {line} (load {})", number + 1, chosen.len(), load.trim());
        note(&mut kept, &title)?;
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let args: Vec<&str> = words.collect();
        let ended = bench::measure(name, &args, &mut |command| watch(command, &mut kept));
        let seconds = began.elapsed().as_secs();
        if let Err(error) = &ended {
            failed.push(*line);
            note(&mut kept, &format!("FAILED: {error}"))?;
        }
        note(&mut kept, &format!("<== {line}: {seconds} s"))?;
    }
    eprintln!("all of it is in {}", path.display());
    if failed.is_empty() { Ok(()) } else { Err(format!("these failed: {}", failed.join("; "))) }
}

fn is_wanted(line: &str, words: &[&str]) -> bool {
    words.is_empty() || line.split(' ').any(|part| words.contains(&part))
}

/// Runs a benchmark; each of its lines is shown and kept.
fn watch(command: &mut Command, kept: &mut File) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(said)?;
    let output = child.stdout.take().ok_or("it has no output")?;
    for line in BufReader::new(output).lines() {
        note(kept, &line.map_err(said)?)?;
    }
    let status = child.wait().map_err(said)?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn note(kept: &mut File, line: &str) -> Result<(), String> {
    println!("{line}");
    writeln!(kept, "{line}").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{ALL, is_wanted};

    #[test]
    fn some_can_be_chosen_by_their_words() {
        let chosen = |words: &[&str]| ALL.iter().filter(|line| is_wanted(line, words)).count();
        assert_eq!(chosen(&[]), ALL.len());
        assert_eq!(chosen(&["latency"]), 2);
        assert_eq!(chosen(&["latency", "peers"]), 3);
        assert_eq!(chosen(&["nothing"]), 0);
    }
}
