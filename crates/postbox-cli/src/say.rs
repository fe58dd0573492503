//! What a command has found: results on standard output, as text or JSON.

use std::io::{self, Write as _};

use postbox_core::Code;
use serde_json::Value;

use crate::report::{Failure, Problem};

/// Writes a result to standard output.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    said(text).map(drop)
}

/// Writes a result to standard output; answers whether anybody is there to read on.
///
/// Not `println!`, which panics when the reader has had enough (`postbox status | head -1`); that is no failure.
pub(crate) fn said(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let next = "give it an output that can be written to";
            Err(Problem::system("cannot write to standard output", &error, next).into())
        }
        written => Ok(written.is_ok()),
    }
}

/// Writes a result as JSON to standard output.
pub(crate) fn say_json(value: &Value) -> Result<(), Failure> {
    say(&value.to_string())
}

/// Writes a result as JSON that keeps numbers as they were written; answers as [`said`].
pub(crate) fn say_as_json(value: &impl serde::Serialize) -> Result<bool, Failure> {
    let text = serde_json::to_string(value);
    said(
        &text
            .map_err(|error| Problem::new(Code::DatabaseError, format!("the result is no JSON: {error}")))?,
    )
}
