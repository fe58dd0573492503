//! [`AnySink`]: the sink that a URL and its options mean.

use std::fmt;
use std::str::FromStr;

use postbox_core::redact::{is_secret_name, mask_credentials};
use postbox_core::{Code, Delivery, DispatchError, Dispatcher, Receipts};

use crate::file::FileSink;
use crate::options::{Options, Reader};
use crate::stdout::{NullSink, StdoutSink};

/// A sink that Postbox knows, whether this build has it or not.
struct Known {
    name: &'static str,
    /// The cargo feature that brings it.
    feature: &'static str,
    /// Whether it is in this build.
    built: bool,
    /// Its schemes, the usual one first.
    schemes: &'static [&'static str],
}

/// The sinks that a cargo feature brings.
const KNOWN: [Known; 6] = [
    Known {
        name: "Kafka",
        feature: "kafka",
        built: cfg!(feature = "kafka"),
        schemes: &["kafka", "kafka+ssl"],
    },
    Known {
        name: "NATS",
        feature: "nats",
        built: cfg!(feature = "nats"),
        schemes: &["nats", "nats+tls", "tls"],
    },
    Known {
        name: "RabbitMQ",
        feature: "rabbitmq",
        built: cfg!(feature = "rabbitmq"),
        schemes: &["amqp", "amqps"],
    },
    Known { name: "Redis", feature: "redis", built: cfg!(feature = "redis"), schemes: &["redis", "rediss"] },
    Known {
        name: "Pulsar",
        feature: "pulsar",
        built: cfg!(feature = "pulsar"),
        schemes: &["pulsar", "pulsar+ssl"],
    },
    Known { name: "webhook", feature: "http", built: cfg!(feature = "http"), schemes: &["https", "http"] },
];

/// Makes [`AnySink`] of a list of sinks: each a variant, shown and dispatched to by its own type.
macro_rules! any_sink {
    ($($(#[$gate:meta])* $variant:ident($sink:ty) = $about:literal,)*) => {
        /// A sink chosen at run time.
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub enum AnySink {
            $($(#[$gate])* #[doc = $about] $variant($sink),)*
        }

        impl fmt::Display for AnySink {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($(#[$gate])* Self::$variant(sink) => sink.fmt(f),)*
                }
            }
        }

        impl Dispatcher for AnySink {
            async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
                match self {
                    $($(#[$gate])* Self::$variant(sink) => sink.dispatch(delivery).await,)*
                }
            }

            async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
                match self {
                    $($(#[$gate])* Self::$variant(sink) => sink.dispatch_batch(batch, receipts).await,)*
                }
            }

            fn batch_limit(&self) -> usize {
                match self {
                    $($(#[$gate])* Self::$variant(sink) => sink.batch_limit(),)*
                }
            }
        }
    };
}

any_sink! {
    File(FileSink) = "JSON lines in a file.",
    #[cfg(feature = "kafka")]
    Kafka(crate::kafka::KafkaSink) = "Topics of Kafka.",
    #[cfg(feature = "pulsar")]
    Pulsar(crate::pulsar::PulsarSink) = "Topics of Pulsar.",
    Stdout(StdoutSink) = "JSON lines on standard output.",
    Null(NullSink) = "Nothing: every event is discarded.",
    #[cfg(feature = "nats")]
    Nats(crate::nats::NatsSink) = "NATS JetStream.",
    #[cfg(feature = "rabbitmq")]
    Rabbit(crate::rabbitmq::RabbitSink) = "RabbitMQ.",
    #[cfg(feature = "redis")]
    Redis(crate::redis::RedisSink) = "Redis Streams.",
    #[cfg(feature = "http")]
    Http(crate::http::HttpSink) = "A request for each event.",
}

/// Why a text or its options do not make a sink. It shows no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: sink {shown:?}: {problem}", Code::SinkInvalid)]
pub struct SinkError {
    shown: String,
    problem: String,
}

impl SinkError {
    /// What is wrong with the sink of this URL; the problem must hold no secret.
    pub fn new(url: &str, problem: impl Into<String>) -> Self {
        Self { shown: shown(url), problem: problem.into() }
    }

    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::SinkInvalid
    }
}

impl AnySink {
    /// The sink that a URL means, without further options; see [`AnySink::new`].
    ///
    /// # Errors
    /// As [`AnySink::new`].
    pub fn from_url(url: &str) -> Result<Self, SinkError> {
        Self::new(url, Options::new())
    }

    /// The sink that a URL and its options mean: `file:out.jsonl`, `file:/var/lib/x.jsonl`, `file:///var/lib/x.jsonl`,
    /// `stdout:`, `null:`, or the URL of a broker that this build has. Options can also stand in a broker's URL as its
    /// query. Paths of files are taken as they are, without `%20` and the like.
    ///
    /// Nothing is connected yet: an outage at the start is an outage like any other.
    ///
    /// ```
    /// use postbox_sinks::{AnySink, Options};
    ///
    /// assert!(matches!(AnySink::from_url("file:out.jsonl")?, AnySink::File(_)));
    /// let error = AnySink::new("file:out.jsonl", Options::new().set("colour", "red")).unwrap_err().to_string();
    /// assert!(error.contains("it has no option colour"));
    /// # Ok::<(), postbox_sinks::SinkError>(())
    /// ```
    ///
    /// # Errors
    /// When the scheme is unknown or not in this build, or what follows it or an option cannot be used.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let fail = |problem: String| Err(SinkError::new(url, problem));
        let Some((scheme, rest)) = url.split_once(':') else {
            return fail(match url {
                "" => format!("it is empty; {}", in_this_build()),
                "stdout" | "null" => format!("it lacks a colon: write {url}:"),
                _ => format!("it has no scheme; for a file write file:<path>; {}", in_this_build()),
            });
        };
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "file" => match file_path(rest) {
                Ok(path) => Reader::new(url, options).finish().map(|()| Self::File(FileSink::open(path))),
                Err(problem) => fail(problem.to_owned()),
            },
            "stdout" | "null" if !matches!(rest, "" | "//") => fail(format!("nothing may follow {scheme}:")),
            "stdout" => Reader::new(url, options).finish().map(|()| Self::Stdout(StdoutSink::new())),
            "null" => Reader::new(url, options).finish().map(|()| Self::Null(NullSink)),
            #[cfg(feature = "kafka")]
            "kafka" | "kafka+ssl" => crate::kafka::KafkaSink::new(url, options).map(Self::Kafka),
            #[cfg(feature = "pulsar")]
            "pulsar" | "pulsar+ssl" => crate::pulsar::PulsarSink::new(url, options).map(Self::Pulsar),
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" | "tls" => crate::nats::NatsSink::new(url, options).map(Self::Nats),
            #[cfg(feature = "rabbitmq")]
            "amqp" | "amqps" => crate::rabbitmq::RabbitSink::new(url, options).map(Self::Rabbit),
            #[cfg(feature = "redis")]
            "redis" | "rediss" => crate::redis::RedisSink::new(url, options).map(Self::Redis),
            #[cfg(feature = "http")]
            "https" | "http" => crate::http::HttpSink::new(url, options).map(Self::Http),
            other => match KNOWN.iter().find(|known| known.schemes.contains(&other)) {
                Some(Known { name, feature, .. }) => fail(format!(
                    "this build has no {name} sink: cargo build --features {feature}; {}",
                    in_this_build()
                )),
                None => fail(format!("the scheme is not known; {}", in_this_build())),
            },
        }
    }
}

/// The sinks that there are, in a sentence.
fn in_this_build() -> String {
    let built = KNOWN.iter().filter(|known| known.built).map(|known| format!("{}://", known.schemes[0]));
    let mut all: Vec<String> = built.collect();
    all.extend(["file:<path>", "stdout:"].map(str::to_owned));
    format!("this build has {} and null:", all.join(", "))
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
        _ => mask_credentials(&mask_query(url)),
    };
    match masked.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

/// A URL without the values of those parameters that may be secrets.
fn mask_query(url: &str) -> String {
    let Some((before, query)) = url.split_once('?') else { return url.to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    });
    format!("{before}?{}", parameters.collect::<Vec<_>>().join("&"))
}

impl FromStr for AnySink {
    type Err = SinkError;
    fn from_str(url: &str) -> Result<Self, SinkError> {
        Self::from_url(url)
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
        ] {
            let error = AnySink::from_url(url).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(reason), "{url}: {text}");
            assert!(text.starts_with("OUTBOX_SINK_INVALID: sink "), "{text}");
            assert_eq!(error.code(), Code::SinkInvalid);
        }
        let text = AnySink::from_url("ftp://host/x").unwrap_err().to_string();
        assert!(text.ends_with("file:<path>, stdout: and null:"), "{text}");
    }

    #[test]
    fn a_sink_that_is_not_built_says_how_it_is() {
        for known in KNOWN.iter().filter(|known| !known.built) {
            for scheme in known.schemes {
                let text = AnySink::from_url(&format!("{scheme}://broker/x")).unwrap_err().to_string();
                let reason = format!(
                    "this build has no {} sink: cargo build --features {};",
                    known.name, known.feature
                );
                assert!(text.contains(&reason), "{text}");
            }
        }
    }

    #[test]
    fn options_that_a_sink_does_not_have_are_refused() {
        for url in ["file:x", "stdout:", "null:"] {
            let text = AnySink::new(url, Options::new().set("password", "hunter2")).unwrap_err().to_string();
            assert!(text.contains("it has no option password; it takes none"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn hazard_49_no_credentials_and_no_control_characters_in_messages() {
        for url in [
            "amqb://app:hunter2@broker/vhost",
            "amqb:app:hunter2@broker",
            "app:hunter2@broker",
            "redys://broker?password=hunter2",
            "redys://broker?x=1&api_key=hunter2",
            "kafka//app:hunter2@broker",
        ] {
            let text = AnySink::from_url(url).unwrap_err().to_string();
            assert!(!text.contains("hunter2"), "{text}");
        }
        let text = AnySink::from_url(&format!("x\n:{}", "y".repeat(5000))).unwrap_err().to_string();
        assert!(text.len() < 500 && !text.contains('\n'), "{text}");
    }
}
