//! [`AnySink`]: the sink that a URL and its options mean.

use std::fmt;
use std::str::FromStr;

use postbox_core::{Code, Delivery, DispatchError, Dispatcher, Receipts};

use crate::file::FileSink;
use crate::options::{Options, Reader};
use crate::shown::shown;
use crate::stdout::{NullSink, StdoutSink};

/// A sink that a cargo feature brings, whether this build has it or not.
struct Known {
    name: &'static str,
    feature: &'static str,
    built: bool,
    /// Its schemes, the usual one first, and their ports.
    schemes: &'static [(&'static str, u16)],
}

/// Makes [`AnySink`] of the list of sinks: each a variant, shown and dispatched to by its own type.
macro_rules! any_sink {
    (
        $($always:ident($always_sink:ty) = $always_about:literal,)*
        $([$feature:literal] $variant:ident($sink:ty), $name:literal, $schemes:expr => $about:literal,)*
    ) => {
        /// The sinks that a cargo feature brings.
        const KNOWN: &[Known] = &[
            $(Known { name: $name, feature: $feature, built: cfg!(feature = $feature), schemes: &$schemes },)*
        ];

        /// A sink chosen at run time.
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub enum AnySink {
            $(#[doc = $always_about] $always($always_sink),)*
            $(#[cfg(feature = $feature)] #[doc = $about] $variant($sink),)*
        }

        impl AnySink {
            fn of(known: &Known, url: &str, options: Options) -> Result<Self, SinkError> {
                match known.feature {
                    $(#[cfg(feature = $feature)] $feature => <$sink>::new(url, options).map(Self::$variant),)*
                    feature => {
                        drop(options);
                        let (name, others) = (known.name, in_this_build());
                        let how = format!("cargo build --features {feature}");
                        Err(SinkError::new(url, format!("this build has no {name} sink: {how}; {others}")))
                    }
                }
            }
        }

        impl fmt::Display for AnySink {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$always(sink) => sink.fmt(f),)*
                    $(#[cfg(feature = $feature)] Self::$variant(sink) => sink.fmt(f),)*
                }
            }
        }

        impl Dispatcher for AnySink {
            async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
                match self {
                    $(Self::$always(sink) => sink.dispatch(delivery).await,)*
                    $(#[cfg(feature = $feature)] Self::$variant(sink) => sink.dispatch(delivery).await,)*
                }
            }

            async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
                match self {
                    $(Self::$always(sink) => sink.dispatch_batch(batch, receipts).await,)*
                    $(#[cfg(feature = $feature)] Self::$variant(sink) => sink.dispatch_batch(batch, receipts).await,)*
                }
            }

            fn batch_limit(&self) -> usize {
                match self {
                    $(Self::$always(sink) => sink.batch_limit(),)*
                    $(#[cfg(feature = $feature)] Self::$variant(sink) => sink.batch_limit(),)*
                }
            }
        }
    };
}

// The one list of sinks: feature, type, name, and schemes with the ports of URLs that name none.
any_sink! {
    File(FileSink) = "JSON lines in a file.",
    Stdout(StdoutSink) = "JSON lines on standard output.",
    Null(NullSink) = "Nothing: every event is discarded.",
    ["kafka"] Kafka(crate::kafka::KafkaSink), "Kafka", [("kafka", 9092), ("kafka+ssl", 9092)] => "Topics of Kafka.",
    ["nats"] Nats(crate::nats::NatsSink), "NATS", [("nats", 4222), ("nats+tls", 4222), ("tls", 4222)] => "NATS JetStream.",
    ["rabbitmq"] Rabbit(crate::rabbitmq::RabbitSink), "RabbitMQ", [("amqp", 5672), ("amqps", 5671)] => "RabbitMQ.",
    ["redis"] Redis(crate::redis::RedisSink), "Redis", [("redis", 6379), ("rediss", 6379)] => "Redis Streams.",
    ["pulsar"] Pulsar(crate::pulsar::PulsarSink), "Pulsar", [("pulsar", 6650), ("pulsar+ssl", 6651)] => "Topics of Pulsar.",
    ["http"] Http(crate::http::HttpSink), "webhook", [("https", 443), ("http", 80)] => "A request for each event.",
}

/// The port that a URL of this scheme means when it names none; none if no sink has the scheme.
pub fn default_port(scheme: &str) -> Option<u16> {
    KNOWN.iter().flat_map(|known| known.schemes).find(|(known, _)| *known == scheme).map(|(_, port)| *port)
}

/// Whether URLs of this scheme are those of files or brokers.
pub(crate) fn leads_to_no_webhook(scheme: &str) -> bool {
    let mut others = KNOWN.iter().filter(|known| known.feature != "http").flat_map(|known| known.schemes);
    scheme.eq_ignore_ascii_case("file") || others.any(|(other, _)| other.eq_ignore_ascii_case(scheme))
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
            other => {
                match KNOWN.iter().find(|known| known.schemes.iter().any(|(scheme, _)| *scheme == other)) {
                    Some(known) => Self::of(known, url, options),
                    None => fail(format!("the scheme is not known; {}", in_this_build())),
                }
            }
        }
    }
}

/// The sinks that there are, in a sentence.
fn in_this_build() -> String {
    let built = KNOWN.iter().filter(|known| known.built).map(|known| format!("{}://", known.schemes[0].0));
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
            for (scheme, _) in known.schemes {
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
    fn each_scheme_has_one_port_and_belongs_to_one_sink() {
        let mut schemes: Vec<&str> =
            KNOWN.iter().flat_map(|known| known.schemes).map(|(scheme, _)| *scheme).collect();
        assert!(schemes.iter().all(|scheme| default_port(scheme).is_some()));
        let all = schemes.len();
        schemes.sort_unstable();
        schemes.dedup();
        assert_eq!(schemes.len(), all);
        // As the book has it, encrypted or not.
        assert_eq!(["kafka", "kafka+ssl"].map(default_port), [Some(9092); 2]);
        assert_eq!(["amqp", "amqps", "file"].map(default_port), [Some(5672), Some(5671), None]);
    }

    /// On its own page, which has the name of its feature, or on that of all sinks.
    #[test]
    fn the_book_has_every_option() {
        let page = |name: &str| {
            let path = format!("{}/../../docs/book/{name}.md", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let chapter = page("sinks");
        for known in KNOWN.iter().filter(|known| known.built) {
            let own = page(&format!("sinks/{}", known.feature));
            let url = format!("{}://host", known.schemes[0].0);
            let text = AnySink::new(&url, Options::new().set("no_such", "1")).unwrap_err().to_string();
            let names = text.split("; there is ").nth(1).unwrap_or_else(|| panic!("no options in {text}"));
            for name in names.split(", ") {
                let cell = format!("`{name}`");
                assert!(own.contains(&cell) || chapter.contains(&cell), "{url}: {name} is not in the book");
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
}
