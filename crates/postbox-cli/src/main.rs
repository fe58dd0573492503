//! The program `postbox`: see `postbox --help`.

mod admin;
mod ask;
mod assemble;
mod cli;
mod cmd;
mod config;
mod control;
mod database;
#[cfg(test)]
mod docs;
mod http;
mod late;
mod logs;
mod render;
mod report;
mod say;
mod serve;

/// Events come and go by the batch, in many small pieces, on all threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run(std::env::args_os())
}
