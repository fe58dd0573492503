//! The project's own commands, run as `cargo xtask …`; see `HELP`.

mod bench;
mod book;
mod brokers;
mod browser;
mod cancel;
mod check;
mod faults;
mod figures;
mod fuzz;
mod install;
mod jars;
mod links;
mod metadata;
mod mutants;
mod peers;
mod run;
mod services;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
The project's own commands.

    cargo xtask test [-- ARGS]       run all tests on a private PostgreSQL and private brokers, installed first where
                                     there are none; ARGS go to `cargo test`
    cargo xtask services             start the private servers, print their URLs, run until Ctrl-C
    cargo xtask bench NAME [ARGS]    build for release and run one benchmark on a private PostgreSQL that syncs,
                                     or with --sqlite on a file; `bench peers` installs what it compares with first,
                                     `bench sinks` and `bench outage --brokers` the brokers
    cargo xtask bench all [WORD…]    nearly all figures of the book in one run, on a machine that does nothing else: an hour; or those
                                     whose line has a WORD
    cargo xtask faults [NAME…]       make things fail, scenario by scenario, and print a table; --times N repeats it from other
                                     seeds, --seed N says the first of them, --soak MINUTES is one long storm
    cargo xtask mutants [NAME…]      leave out one rule at a time in a copy of the sources: some test must notice; minutes
    cargo xtask fuzz-api [-- ARGS]   requests that nobody would think of to the admin API, on a file and on PostgreSQL: none
                                     may end in a 5xx; installs schemathesis into the target folder; ARGS go to it
    cargo xtask check                format, lints, docs, the book, each feature alone, licenses and sources
    cargo xtask book                 build the book into target/book and check its links
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [] | ["-h" | "--help" | "help", ..] | [_, "-h" | "--help"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test"] => test::run(&[]),
        ["test", "--", extra @ ..] => test::run(extra),
        ["services"] => services::run(),
        ["bench", "all", words @ ..] => figures::run(words),
        ["bench", name, rest @ ..] if !name.starts_with('-') => bench::run(name, rest),
        ["fuzz-api"] => fuzz::run(&[]),
        ["fuzz-api", "--", extra @ ..] => fuzz::run(extra),
        ["faults", rest @ ..] => faults::run(rest),
        ["mutants", rest @ ..] => mutants::run(rest),
        ["check"] => check::run(),
        ["book"] => book::run().map(|start| println!("{}", start.display())),
        other => Err(format!("not understood: {}\n\n{HELP}", other.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
