//! The layer `postbox.toml`: finding it, reading it, and refusing what it cannot hold.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::{DeArray, DeTable, DeValue};

use postbox_core::Code;
use postbox_sinks::Options;

use super::database::KEYS;
use super::error::{ConfigError, Origin};
use super::kind::Shape;
use super::settings::{SETTINGS, Setting};
use super::text::{nearest, shown, shown_sink};

mod value;

use value::{items, option};

/// The file that is read when none is named.
pub(crate) const DEFAULT_FILE: &str = "postbox.toml";

/// Nobody writes a larger configuration by hand; `/dev/zero` has one.
const MOST_BYTES: u64 = 1_024 * 1_024;

/// Tables of the file that are not settings.
const SINKS: &str = "sinks";
const ROUTE: &str = "route";
const DATABASE: &str = "database";
const DATABASE_SHAPE: &str =
    "an array of tables: [[database]] and then name = \"…\", url = \"…\", tables = [\"…\"]";

/// What the file says.
#[derive(Default)]
pub(super) struct FileLayer {
    /// The file, as it was named.
    pub(super) path: PathBuf,
    /// The settings by path, with their lines; the error of one written in the wrong shape follows its name.
    pub(super) values: BTreeMap<&'static str, FileValue>,
    /// `[sinks.NAME]`, in the order of their lines.
    pub(super) sinks: Vec<FileSink>,
    /// `[[route]]`, in order.
    pub(super) routes: Vec<FileRoute>,
    /// `[[database]]`, in order.
    pub(super) databases: Vec<FileDatabase>,
}

/// A value and its line; the error of one written in the wrong shape follows its name.
pub(super) type FileValue = (Result<Vec<String>, String>, usize);

/// A `[[database]]`.
#[derive(Default)]
pub(super) struct FileDatabase {
    /// Its name, if it has one.
    pub(super) name: Option<String>,
    /// What it says of itself, by key.
    pub(super) values: BTreeMap<&'static str, FileValue>,
    /// Its line.
    pub(super) line: usize,
}

/// A `[sinks.NAME]`.
pub(super) struct FileSink {
    /// Its name.
    pub(super) name: String,
    /// Its URL.
    pub(super) url: String,
    /// All else that is said of it, for the sink to check.
    pub(super) options: Options,
    /// Its line.
    pub(super) line: usize,
}

/// A `[[route]]`.
pub(super) struct FileRoute {
    /// The topics that it takes.
    pub(super) topic: String,
    /// Where they go: names or URLs.
    pub(super) sinks: Vec<String>,
    /// Where at its sinks they go, if it says so.
    pub(super) destination: Option<String>,
    /// Its line.
    pub(super) line: usize,
}

/// Reads the file that was named, else `postbox.toml` in `dir` if there is one.
pub(super) fn read(
    dir: &Path,
    named: Option<(&Path, Origin)>,
    errors: &mut Vec<ConfigError>,
) -> Option<FileLayer> {
    let (path, origin) = match named {
        Some((path, origin)) => (dir.join(path), Some(origin)),
        None => (dir.join(DEFAULT_FILE), None),
    };
    let text = match text_of(&path) {
        Ok(text) => text,
        Err(error) if origin.is_none() && error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            let cause = format!("cannot read the configuration file {}", path.display());
            let next = match (error.kind(), &origin) {
                (io::ErrorKind::InvalidData, _) => "save it as UTF-8",
                (io::ErrorKind::FileTooLarge, _) => "name a configuration: that is something else",
                (_, Some(_)) => "name a file that exists and that this user may read",
                (_, None) => "make it readable, or name another with --config",
            };
            let error = ConfigError {
                source: Some(error),
                ..ConfigError::new(Code::ConfigFile, origin, cause, next)
            };
            errors.push(error);
            return None;
        }
    };
    Some(Reader { path, text: &text, errors }.layer())
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 1MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = line_at(error.as_bytes(), error.utf8_error().valid_up_to());
        io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8 in line {line}"))
    })
}

/// The line, from 1, of a byte's place.
fn line_at(text: &[u8], offset: usize) -> usize {
    text.split(|b| *b == b'\n')
        .scan(0, |end, line| {
            *end += line.len() + 1;
            Some(*end)
        })
        .take_while(|end| *end <= offset)
        .count()
        + 1
}

struct Reader<'a> {
    path: PathBuf,
    text: &'a str,
    errors: &'a mut Vec<ConfigError>,
}

impl Reader<'_> {
    fn layer(mut self) -> FileLayer {
        let mut layer = FileLayer { path: self.path.clone(), ..FileLayer::default() };
        let (document, syntax_errors) = DeTable::parse_recoverable(self.text);
        // What the parser made up to go on is not worth checking.
        if !syntax_errors.is_empty() {
            for error in syntax_errors {
                let line = self.line(error.span().map_or(0, |span| span.start));
                let cause = format!("this is not TOML: {}", error.message().replace('\n', " "));
                self.error(
                    Code::ConfigFile,
                    line,
                    cause,
                    "correct the line; the format is described at https://toml.io",
                );
            }
            return layer;
        }
        for (key, value) in document.into_inner() {
            let line = self.line(key.span().start);
            let key = key.into_inner();
            let is_section = !key.is_empty() && SETTINGS.iter().any(|setting| setting.section() == key);
            match (key.as_ref(), value.into_inner()) {
                (SINKS, DeValue::Table(table)) => self.sinks(table, &mut layer),
                (ROUTE, DeValue::Array(array)) => self.routes(array, line, &mut layer),
                (DATABASE, DeValue::Array(array)) => self.databases(array, line, &mut layer),
                (_, DeValue::Table(table)) if is_section => {
                    for (inner, value) in table {
                        let line = self.line(inner.span().start);
                        self.value(&format!("{key}.{}", inner.get_ref()), value.get_ref(), line, &mut layer);
                    }
                }
                (SINKS, _) => self.misshapen(line, "sinks", "tables: [sinks.NAME] and then url = \"…\""),
                (ROUTE, _) => {
                    self.misshapen(
                        line,
                        "route",
                        "an array of tables: [[route]] and then topic = \"…\", sink = \"…\"",
                    );
                }
                (DATABASE, _) => self.misshapen(line, DATABASE, DATABASE_SHAPE),
                _ if is_section => {
                    self.misshapen(line, &key, &format!("a table: [{key}] and then its settings"));
                }
                (_, value) => self.value(&key, &value, line, &mut layer),
            }
        }
        layer.sinks.sort_by_key(|sink| sink.line);
        layer
    }

    fn value(&mut self, path: &str, value: &DeValue<'_>, line: usize, layer: &mut FileLayer) {
        match Setting::find(path) {
            Some(setting) => {
                layer.values.insert(setting.path, (items(setting.shape, value), line));
            }
            None => self.unknown(path, line),
        }
    }

    fn sinks(&mut self, table: DeTable<'_>, layer: &mut FileLayer) {
        for (name, value) in table {
            let line = self.line(name.span().start);
            let path = format!("{SINKS}.{}", name.get_ref());
            let DeValue::Table(sink) = value.into_inner() else {
                self.misshapen(line, &path, "a table with url = \"…\"");
                continue;
            };
            let (mut url, mut options) = (None, Options::new());
            for (key, value) in sink {
                let line = self.line(key.span().start);
                match (key.get_ref().as_ref(), value.into_inner()) {
                    ("url", DeValue::String(text)) => {
                        if text.trim().is_empty() {
                            let cause = format!("{} is empty", label(&format!("{path}.url")));
                            let next = "give a URL, such as file:out.jsonl, or take the sink out";
                            self.error(Code::ConfigInvalid, line, cause, next);
                        }
                        url = Some(text.trim().to_owned());
                    }
                    ("url", _) => {
                        self.misshapen(line, &format!("{path}.url"), "a string");
                        url = Some(String::new());
                    }
                    (name, value) => match option(&value) {
                        Some(value) => drop(options.insert(name, value)),
                        None => self.misshapen(line, &format!("{path}.{name}"), "a string"),
                    },
                }
            }
            match url {
                Some(url) if url.is_empty() => {}
                Some(url) => {
                    let name = name.into_inner().into_owned();
                    layer.sinks.push(FileSink { name, url, options, line });
                }
                None => {
                    let next = "give it one, such as url = \"file:out.jsonl\"";
                    self.error(Code::ConfigInvalid, line, format!("{} has no url", label(&path)), next);
                }
            }
        }
    }

    fn routes(&mut self, array: DeArray<'_>, line: usize, layer: &mut FileLayer) {
        for value in array {
            // An array's own span is its first header's; the keys inside tell the routes apart.
            let start = value.span().start;
            let DeValue::Table(route) = value.into_inner() else {
                self.misshapen(line, ROUTE, "tables with topic and sink");
                continue;
            };
            let line = self.line(start);
            self.route(route, line, layer);
        }
    }

    fn route(&mut self, route: DeTable<'_>, line: usize, layer: &mut FileLayer) {
        let (mut topic, mut sinks, mut destination, before) = (None, None, None, self.errors.len());
        for (key, value) in route {
            let line = self.line(key.span().start);
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("topic", DeValue::String(text)) => topic = Some(text.trim().to_owned()),
                ("sink" | "sinks", _) if sinks.is_some() => {
                    self.error(
                        Code::ConfigInvalid,
                        line,
                        "the route has both sink and sinks",
                        "keep one of the two",
                    );
                }
                ("sink", DeValue::String(text)) => sinks = Some(vec![text.trim().to_owned()]),
                ("sinks", value) => match items(Shape::List, value) {
                    Ok(names) => sinks = Some(names),
                    Err(_) => self.misshapen(line, "route.sinks", "an array of strings"),
                },
                ("destination", DeValue::String(text)) => destination = Some(text.trim().to_owned()),
                (name @ ("topic" | "sink" | "destination"), _) => {
                    self.misshapen(line, &format!("{ROUTE}.{name}"), "a string");
                }
                (other, _) => self.unknown_in(ROUTE, other, &["topic", "sink", "sinks", "destination"], line),
            }
        }
        match (topic, sinks) {
            (Some(topic), Some(sinks)) => layer.routes.push(FileRoute { topic, sinks, destination, line }),
            _ if self.errors.len() > before => {}
            (topic, _) => {
                let missing = if topic.is_none() { "topic" } else { "sink" };
                let next = "write both, such as topic = \"org.**\" and sink = \"stdout:\"";
                self.error(Code::ConfigInvalid, line, format!("the route has no {missing}"), next);
            }
        }
    }

    fn databases(&mut self, array: DeArray<'_>, line: usize, layer: &mut FileLayer) {
        for value in array {
            let start = value.span().start;
            let DeValue::Table(table) = value.into_inner() else {
                self.misshapen(line, DATABASE, DATABASE_SHAPE);
                continue;
            };
            let mut database = FileDatabase { line: self.line(start), ..FileDatabase::default() };
            for (key, value) in table {
                let line = self.line(key.span().start);
                let key = key.get_ref().as_ref();
                match (KEYS.into_iter().find(|known| *known == key), value.get_ref()) {
                    (Some("name"), DeValue::String(name)) => database.name = Some(name.trim().to_owned()),
                    (Some("name"), _) => self.misshapen(line, "database.name", "a string"),
                    (Some(key), value) => {
                        let shape = if key.ends_with("tables") { Shape::List } else { Shape::Text };
                        database.values.insert(key, (items(shape, value), line));
                    }
                    (None, _) => self.unknown_in(DATABASE, key, &KEYS, line),
                }
            }
            layer.databases.push(database);
        }
    }

    fn unknown(&mut self, path: &str, line: usize) {
        let paths = SETTINGS.iter().map(|setting| setting.path);
        let last = path.rsplit('.').next().unwrap_or(path);
        // The right name in the wrong section comes first, then slips of the finger.
        let elsewhere = paths.clone().find(|known| known.rsplit('.').next() == Some(last));
        let sections = SETTINGS.iter().map(Setting::section).filter(|section| !section.is_empty());
        let guess = nearest(path, paths.chain(sections).chain([SINKS, ROUTE, DATABASE])).or(elsewhere);
        self.unknown_key(path, guess, line);
    }

    fn unknown_in(&mut self, table: &str, key: &str, known: &[&str], line: usize) {
        let guess = nearest(key, known.iter().copied());
        self.unknown_key(&format!("{table}.{key}"), guess, line);
    }

    fn unknown_key(&mut self, path: &str, guess: Option<&str>, line: usize) {
        let known = match guess {
            Some(guess) => format!("Did you mean {guess}?"),
            None => "There is no such setting.".to_owned(),
        };
        let next = "correct or remove it; `postbox config show` lists every setting";
        self.error(Code::ConfigUnknownKey, line, format!("unknown key {}. {known}", label(path)), next);
    }

    fn misshapen(&mut self, line: usize, path: &str, expected: &str) {
        let path = label(path);
        self.error(
            Code::ConfigInvalid,
            line,
            format!("{path} has the wrong type"),
            format!("write {path} as {expected}"),
        );
    }

    fn error(&mut self, code: Code, line: usize, cause: impl Into<String>, next: impl Into<String>) {
        let origin = Origin::File { path: self.path.clone(), line };
        self.errors.push(ConfigError::new(code, Some(origin), cause, next));
    }

    fn line(&self, offset: usize) -> usize {
        line_at(self.text.as_bytes(), offset)
    }
}

/// A key's path as an error shows it: plain where it is plain, else quoted and cut like a value.
fn label(path: &str) -> String {
    let plain = !path.is_empty()
        && path.len() <= 80
        && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match path {
        _ if plain => path.to_owned(),
        // A URL may stand where a sink's name should.
        _ if path.starts_with(SINKS) => shown_sink(path),
        _ => shown(path),
    }
}
