//! [`AnySink`]: the sink that a URL means.

use std::fmt;
use std::str::FromStr;

use postbox_core::redact::mask_credentials;
use postbox_core::{Code, Delivery, DispatchError, Dispatcher, Receipts};

use crate::file::FileSink;
use crate::stdout::{NullSink, StdoutSink};

/// A sink chosen at run time.
#[derive(Debug, Clone)]
pub enum AnySink {
    /// JSON lines in a file.
    File(FileSink),
    /// JSON lines on standard output.
    Stdout(StdoutSink),
    /// Nothing: every event is discarded.
    Null(NullSink),
}

/// Why a text does not name a sink. It shows no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: sink {shown:?}: {problem}; this build has file:<path>, stdout: and null:", Code::SinkInvalid)]
pub struct SinkUrlError {
    shown: String,
    problem: String,
}

/// The sinks that Postbox knows but that this build does not have, by their schemes.
const ABSENT: [(&str, &[&str]); 6] = [
    ("Kafka", &["kafka"]),
    ("NATS", &["nats", "nats+tls"]),
    ("RabbitMQ", &["amqp", "amqps"]),
    ("Redis", &["redis", "rediss"]),
    ("Pulsar", &["pulsar", "pulsar+ssl"]),
    ("webhook", &["http", "https"]),
];

impl AnySink {
    /// The sink that a URL means: `file:out.jsonl`, `file:/var/lib/x.jsonl`, `file:///var/lib/x.jsonl`, `stdout:` or
    /// `null:`. Paths are taken as they are, without `%20` and the like.
    ///
    /// ```
    /// use postbox_sinks::AnySink;
    ///
    /// assert!(matches!(AnySink::from_url("file:out.jsonl")?, AnySink::File(_)));
    /// let error = AnySink::from_url("nats://app:secret@broker").unwrap_err().to_string();
    /// assert!(error.contains("this build has no NATS sink") && !error.contains("secret"));
    /// # Ok::<(), postbox_sinks::SinkUrlError>(())
    /// ```
    ///
    /// # Errors
    /// When the scheme is unknown or not in this build, or what follows it cannot be used.
    pub fn from_url(url: &str) -> Result<Self, SinkUrlError> {
        let fail = |problem: String| Err(SinkUrlError { shown: shown(url), problem });
        let Some((scheme, rest)) = url.split_once(':') else {
            return fail(match url {
                "" => "it is empty".to_owned(),
                "stdout" | "null" => format!("it lacks a colon: write {url}:"),
                _ => "it has no scheme; for a file write file:<path>".to_owned(),
            });
        };
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "file" => match file_path(rest) {
                Ok(path) => Ok(Self::File(FileSink::open(path))),
                Err(problem) => fail(problem.to_owned()),
            },
            "stdout" | "null" if !matches!(rest, "" | "//") => fail(format!("nothing may follow {scheme}:")),
            "stdout" => Ok(Self::Stdout(StdoutSink::new())),
            "null" => Ok(Self::Null(NullSink)),
            other => match ABSENT.iter().find(|(_, schemes)| schemes.contains(&other)) {
                Some((name, _)) => fail(format!("this build has no {name} sink")),
                None => fail("the scheme is not known".to_owned()),
            },
        }
    }
}

fn file_path(rest: &str) -> Result<&str, &'static str> {
    let path = match rest.strip_prefix("//") {
        Some(authority) => {
            let path = authority.strip_prefix("localhost").unwrap_or(authority);
            if !path.is_empty() && !path.starts_with('/') {
                return Err("a host cannot be given: write file:<path> or file:///<absolute path>");
            }
            path
        }
        None => rest,
    };
    match path {
        "" => Err("the path is empty"),
        _ if path.ends_with('/') => Err("the path names a directory"),
        _ if path.chars().any(char::is_control) => Err("the path holds a control character"),
        _ => Ok(path),
    }
}

/// The URL as it may be shown: short, and without what could be a password.
fn shown(url: &str) -> String {
    const LONGEST: usize = 120;
    let masked = match url.rfind('@') {
        // Mistyped: where the credentials begin cannot be known.
        Some(at) if !url.contains("://") => format!("***{}", &url[at..]),
        _ => mask_credentials(url),
    };
    match masked.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

impl SinkUrlError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::SinkInvalid
    }
}

impl FromStr for AnySink {
    type Err = SinkUrlError;
    fn from_str(url: &str) -> Result<Self, SinkUrlError> {
        Self::from_url(url)
    }
}

impl fmt::Display for AnySink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(sink) => write!(f, "file:{}", sink.path().display()),
            Self::Stdout(_) => f.write_str("stdout:"),
            Self::Null(_) => f.write_str("null:"),
        }
    }
}

impl Dispatcher for AnySink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        match self {
            Self::File(sink) => sink.dispatch(delivery).await,
            Self::Stdout(sink) => sink.dispatch(delivery).await,
            Self::Null(sink) => sink.dispatch(delivery).await,
        }
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        match self {
            Self::File(sink) => sink.dispatch_batch(batch, receipts).await,
            Self::Stdout(sink) => sink.dispatch_batch(batch, receipts).await,
            Self::Null(sink) => sink.dispatch_batch(batch, receipts).await,
        }
    }

    fn batch_limit(&self) -> usize {
        match self {
            Self::File(sink) => sink.batch_limit(),
            Self::Stdout(sink) => sink.batch_limit(),
            Self::Null(sink) => sink.batch_limit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_this_build() {
        for (url, means) in [
            ("file:out.jsonl", "file:out.jsonl"),
            ("file:a b%20c?.jsonl", "file:a b%20c?.jsonl"),
            ("file:/abs/x", "file:/abs/x"),
            ("FILE:///abs/x", "file:/abs/x"),
            ("file://localhost/abs/x", "file:/abs/x"),
            ("stdout:", "stdout:"),
            ("stdout://", "stdout:"),
            ("null:", "null:"),
        ] {
            assert_eq!(AnySink::from_url(url).unwrap().to_string(), means, "{url}");
        }
        assert_eq!("null:".parse::<AnySink>().unwrap().batch_limit(), 10_000);
    }

    #[test]
    fn everything_else_is_refused_with_a_reason() {
        for (url, reason) in [
            ("", "it is empty"),
            ("out.jsonl", "for a file write file:<path>"),
            ("stdout", "write stdout:"),
            ("stdout:x", "nothing may follow stdout:"),
            ("null:/dev/null", "nothing may follow null:"),
            ("file:", "the path is empty"),
            ("file://", "the path is empty"),
            ("file:///", "names a directory"),
            ("file:logs/", "names a directory"),
            ("file:a\nb", "control character"),
            ("file://out.jsonl", "a host cannot be given"),
            ("file://localhostile/x", "a host cannot be given"),
            ("ftp://host/x", "the scheme is not known"),
            ("kafka://broker:9092/events", "this build has no Kafka sink"),
            ("nats://broker", "this build has no NATS sink"),
            ("amqps://broker", "this build has no RabbitMQ sink"),
            ("redis://broker", "this build has no Redis sink"),
            ("pulsar://broker", "this build has no Pulsar sink"),
            ("https://example.com/hook", "this build has no webhook sink"),
        ] {
            let error = AnySink::from_url(url).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(reason), "{url}: {text}");
            assert!(text.starts_with("OUTBOX_SINK_INVALID: sink "), "{text}");
            assert!(text.ends_with("this build has file:<path>, stdout: and null:"), "{text}");
            assert_eq!(error.code(), Code::SinkInvalid);
        }
    }

    #[test]
    fn hazard_49_no_credentials_and_no_control_characters_in_messages() {
        for url in [
            "amqp://app:hunter2@broker/vhost",
            "amqp:app:hunter2@broker",
            "app:hunter2@broker",
            "redis://broker?password=hunter2",
            "kafka//app:hunter2@broker",
        ] {
            let text = AnySink::from_url(url).unwrap_err().to_string();
            assert!(!text.contains("hunter2"), "{text}");
        }
        let text = AnySink::from_url(&format!("x\n:{}", "y".repeat(5000))).unwrap_err().to_string();
        assert!(text.len() < 400 && !text.contains('\n'), "{text}");
    }
}
