//! How the program ends, and what it says of what went wrong: errors on standard error, all in one form.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use postbox_core::redact::Summary;
use postbox_core::{Code, EnqueueError, EventError, RelayError, StoreError, TableName};
use serde_json::{Value, json};

use crate::config::{ConfigError, ConfigErrors};

/// The longest message: a database may quote whole statements.
const MESSAGE_BYTES: usize = 4096;

/// How the program ends, for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// It was tried and failed.
    Failed,
    /// What was asked for cannot be tried: command line, configuration, or the event itself.
    Usage,
    /// It was looked for problems, and there are some.
    Problems,
    /// As a plugin of Nagios ends, which has numbers of its own.
    Plugin(Plugin),
}

/// What a plugin of Nagios says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Plugin {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

impl Plugin {
    /// The word that its line starts with.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Problems => 3,
            Exit::Plugin(says) => says as u8,
        })
    }
}

/// Everything that went wrong.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration cannot be used.
    Config(ConfigErrors),
    /// Something else.
    Problems(Vec<Problem>),
}

/// One thing that went wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The stable code; none for what the operating system refuses.
    code: Option<Code>,
    message: String,
    next: String,
    exit: Exit,
}

impl Problem {
    /// A problem with the code's own next step, and the exit that goes with the code.
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        // Errors carry their code in front when they stand alone; here it has a place of its own.
        let message = message.strip_prefix(&format!("{code}: ")).unwrap_or(&message);
        let message = Summary::new(message, MESSAGE_BYTES).as_str().to_owned();
        Self { code: Some(code), message, next: code.next_step().to_owned(), exit: exit_of(code) }
    }

    /// Something that the operating system refuses.
    pub(crate) fn system(what: &str, error: &io::Error, next: &str) -> Self {
        Self { code: None, message: format!("{what}: {error}"), next: next.to_owned(), exit: Exit::Failed }
    }

    /// The same with a better next step.
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = next.into();
        self
    }

    /// The same with what was done before it.
    pub(crate) fn after(mut self, what: &str) -> Self {
        self.message = format!("{} ({what})", self.message);
        self
    }

    /// The same with another exit than the code's.
    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// A database's or a relay's error about a table, with a command to go on with where there is one.
    pub(crate) fn about(table: &TableName, error: &StoreError) -> Self {
        let problem = Self::new(error.code(), error.message());
        match error.code() {
            Code::TableMissing if error.message().contains("[3F000]") => {
                let schema = table.schema().unwrap_or("public");
                problem.next(format!("create the schema first: CREATE SCHEMA {schema}"))
            }
            Code::TableNameInvalid if error.message().starts_with("SQLite has no schema") => {
                problem.next(format!("--table {}", table.table()))
            }
            Code::TableMissing | Code::ColumnMissing => {
                problem.next(format!("postbox migrate up --table {table}"))
            }
            Code::HistoryMissing => {
                // The message says the same to who has no program at hand.
                let what = error.message().split(": run `").next().unwrap_or_default();
                Self::new(error.code(), what).next(format!(
                    "postbox migrate up --history move --table {table}, or set history to keep or none"
                ))
            }
            Code::InboxMissing => {
                let what = error.message().split(": make it with `").next().unwrap_or_default();
                Self::new(error.code(), what).next(format!("postbox migrate up --inbox --table {table}"))
            }
            Code::NotEmpty => problem.next(format!(
                "let the relay deliver them first, or lose them: postbox migrate down --table {table} --discard-unpublished"
            )),
            Code::DatabasePermission => problem.next(format!(
                "grant what is missing; on PostgreSQL postbox migrate print --table {table} --grants \
                 writer=<role>,relay=<role>,viewer=<role> shows what each needs"
            )),
            _ => problem,
        }
    }

    /// An error of the relay of a table.
    pub(crate) fn of_relay(table: &TableName, error: &RelayError) -> Self {
        match error {
            RelayError::Store(error) => Self::about(table, error),
            other => Self::new(other.code(), other),
        }
    }

    /// An event that was not enqueued.
    pub(crate) fn of_enqueue(table: &TableName, error: EnqueueError<StoreError>) -> Self {
        match error {
            EnqueueError::Event(error) => Self::of_event(&error),
            EnqueueError::Database(error) => Self::about(table, &error),
            other => Self::new(Code::DatabaseError, other),
        }
    }

    /// An event that is none.
    pub(crate) fn of_event(error: &EventError) -> Self {
        Self::new(error.code(), error)
    }

    /// What went wrong, and what to do next.
    pub(crate) fn parts(self) -> (String, String) {
        (self.message, self.next)
    }

    fn to_json(&self) -> Value {
        json!({ "code": self.code.map(Code::as_str), "cause": self.message, "next": self.next, "origin": null })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(
                f,
                "error[{code}]: {}\n  next: {}      more: postbox explain {code}",
                self.message, self.next
            ),
            None => write!(f, "error: {}\n  next: {}", self.message, self.next),
        }
    }
}

/// What a caller can mend by asking differently, or cannot mend by asking again.
fn exit_of(code: Code) -> Exit {
    use Code::{
        ConfigFile, ConfigInvalid, ConfigMissing, ConfigUnknownKey, ConfigUnsupported, DatabaseUrl,
        FieldInvalid, HeadersInvalid, NoTables, PayloadInvalid, PayloadTooLarge, RouteInvalid, SinkInvalid,
        TableNameInvalid, TopicInvalid,
    };
    match code {
        ConfigFile | ConfigInvalid | ConfigMissing | ConfigUnknownKey | ConfigUnsupported | DatabaseUrl
        | FieldInvalid | HeadersInvalid | NoTables | PayloadInvalid | PayloadTooLarge | RouteInvalid
        | SinkInvalid | TableNameInvalid | TopicInvalid => Exit::Usage,
        _ => Exit::Failed,
    }
}

impl Failure {
    /// How the program ends for it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Usage,
            Self::Problems(problems) => {
                problems.iter().map(|problem| problem.exit).min().unwrap_or(Exit::Failed)
            }
        }
    }

    /// This, and something else that went wrong after it.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Problems(mut problems), Self::Problems(others)) => {
                problems.extend(others);
                Self::Problems(problems)
            }
            (first, _) => first,
        }
    }

    /// The same of one of several steps, each of which stays done: with what was done before it, if anything was.
    pub(crate) fn after(self, what: Option<String>) -> Self {
        match (self, what) {
            (Self::Problems(problems), Some(what)) => {
                Self::Problems(problems.into_iter().map(|problem| problem.after(&what)).collect())
            }
            (failure, _) => failure,
        }
    }

    /// The same about one of several databases: what went wrong names it, and so does the command to go on with.
    pub(crate) fn of_database(self, name: Option<&str>) -> Self {
        let (Some(name), Self::Problems(problems)) = (name, &self) else { return self };
        // What is wrong with the command line is wrong with all of them.
        let about = |problem: &Problem| {
            problem.exit != Exit::Usage && !problem.message.starts_with(&format!("{name}: "))
        };
        let named = problems.iter().map(|problem| Problem {
            code: problem.code,
            message: if about(problem) {
                format!("{name}: {}", problem.message)
            } else {
                problem.message.clone()
            },
            next: in_database(&problem.next, Some(name)),
            exit: problem.exit,
        });
        Self::Problems(named.collect())
    }

    /// Each thing that went wrong; a configuration that cannot be used has none, since nothing has run.
    pub(crate) fn problems(self) -> Vec<Problem> {
        match self {
            Self::Config(_) => Vec::new(),
            Self::Problems(problems) => problems,
        }
    }

    /// The first of all that went wrong: what, and what to do next.
    pub(crate) fn first(&self) -> (String, String) {
        let first = &self.to_json()["errors"][0];
        let text = |name: &str| first[name].as_str().unwrap_or_default().to_owned();
        (text("cause"), text("next"))
    }

    /// The code of the first, if it has one.
    pub(crate) fn code(&self) -> Option<Code> {
        self.each().into_iter().next().and_then(|(code, ..)| code)
    }

    /// All that went wrong: its code, what, and what to do next.
    pub(crate) fn each(&self) -> Vec<(Option<Code>, String, String)> {
        match self {
            Self::Config(errors) => {
                let each = errors.0.iter();
                each.map(|error| (Some(error.code), error.to_line(), error.next.clone())).collect()
            }
            Self::Problems(problems) => {
                let each = problems.iter();
                each.map(|problem| (problem.code, problem.message.clone(), problem.next.clone())).collect()
            }
        }
    }

    /// Prints it to standard error.
    pub(crate) fn print(&self, as_json: bool) {
        let text = if as_json { self.to_json().to_string() } else { self.to_string() };
        // Nobody is left to tell when this fails.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Config(errors) => errors.to_json(),
            Self::Problems(problems) => {
                json!({ "errors": problems.iter().map(Problem::to_json).collect::<Vec<_>>() })
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => errors.fmt(f),
            Self::Problems(problems) => {
                let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        Self::new(error.code, error.to_line()).next(error.next)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problems(vec![problem])
    }
}

/// A command to go on with, for one of several databases.
pub(crate) fn in_database(command: &str, name: Option<&str>) -> String {
    match name {
        Some(name) if !command.contains("--database ") => {
            command.replace(" --table ", &format!(" --database {name} --table "))
        }
        _ => command.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Exit, Failure, Problem};

    #[test]
    fn errors_have_the_form_of_the_contract() {
        let problem = Problem::new(Code::TableMissing, "OUTBOX_TABLE_MISSING: public.a does not exist");
        let failure = Failure::from(problem.next("postbox migrate up --table public.a"));
        assert_eq!(
            failure.to_string(),
            "error[OUTBOX_TABLE_MISSING]: public.a does not exist\n  next: postbox migrate up --table public.a      \
             more: postbox explain OUTBOX_TABLE_MISSING"
        );
        assert_eq!(failure.exit(), Exit::Failed);
        assert_eq!(failure.to_json()["errors"][0]["code"], "OUTBOX_TABLE_MISSING");
    }

    #[test]
    fn messages_cannot_move_the_cursor_or_show_a_password() {
        let text = Problem::new(Code::DatabaseError, "\u{1b}[31m postgres://app:Zq9@db/x\nerror: forged")
            .to_string();
        assert!(!text.contains('\u{1b}') && !text.contains("Zq9"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn what_was_asked_wrongly_is_not_what_failed() {
        let several =
            |codes: [Code; 2]| Failure::Problems(codes.map(|code| Problem::new(code, "x")).into()).exit();
        assert_eq!(several([Code::SinkInvalid, Code::TopicInvalid]), Exit::Usage);
        assert_eq!(several([Code::SinkInvalid, Code::TableMissing]), Exit::Failed);
    }
}
