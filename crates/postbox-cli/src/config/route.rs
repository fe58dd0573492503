//! Sinks by name, and which topics go to which of them.

use postbox_core::{Code, Template, TemplateError};
use postbox_sinks::Options;
use postbox_sinks::url::default_port;

use super::error::{ConfigError, Origin};
use super::file::{FileLayer, FileSink};
use super::kind::scheme;
use super::text::{GivenSink, nearest, shown, shown_sink};

/// The pattern that takes every topic.
const EVERYTHING: &str = "**";

/// A sink to build once, whatever the number of routes to it.
#[derive(Debug, Clone)]
pub(crate) struct Sink {
    /// Its name in `[sinks]`, or one made from its URL's scheme; unique, and the label of its metrics.
    pub(crate) name: String,
    /// Its URL.
    pub(crate) url: GivenSink,
    /// What else was said of it; checked when it is built.
    pub(crate) options: Options,
    /// Where it was given.
    pub(crate) origin: Origin,
}

/// Topics and the sinks that they go to; the first route that takes a topic wins.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The pattern, as it was written.
    pub(crate) topic: String,
    /// The names of its sinks, each once; with several, each gets every event.
    pub(crate) sinks: Vec<String>,
    /// Where at its sinks they go, if it says so.
    pub(crate) destination: Option<Template>,
    /// Where it was given.
    pub(crate) origin: Origin,
}

/// What the configuration says about where events go.
#[derive(Debug, Default)]
pub(super) struct Routing {
    pub(super) sinks: Vec<Sink>,
    pub(super) routes: Vec<Route>,
    /// The sink for dead events.
    pub(super) dead_letter: Option<String>,
}

/// The sinks and routes of the file, the one that `sink` adds for all other topics, and the one for dead events.
pub(super) fn resolve(
    file: Option<&FileLayer>,
    sink: Option<(&GivenSink, &Origin)>,
    dead_letter: Option<(&GivenSink, &Origin)>,
    errors: &mut Vec<ConfigError>,
) -> Routing {
    let mut table = SinkTable::default();
    let mut routes = Vec::new();
    if let Some(file) = file {
        let origin = |line: usize| Origin::File { path: file.path.clone(), line };
        for sink in &file.sinks {
            table.declare(sink, origin(sink.line), errors);
        }
        for route in &file.routes {
            let origin = origin(route.line);
            check_pattern(&route.topic, &origin, errors);
            let destination = destination_of(route.destination.as_deref(), &origin, errors);
            if let Some(sinks) = table.names_of(&route.sinks, &origin, errors) {
                routes.push(Route { topic: route.topic.clone(), sinks, destination, origin });
            }
        }
    }
    if let Some((sink, origin)) = sink
        && let Some(name) = table.name_of("sink", sink.reveal(), origin, errors)
    {
        let (topic, sinks) = (EVERYTHING.to_owned(), vec![name]);
        routes.push(Route { topic, sinks, destination: None, origin: origin.clone() });
    }
    let dead_letter =
        dead_letter.and_then(|(sink, origin)| table.name_of("dead_letter", sink.reveal(), origin, errors));
    Routing { sinks: table.sinks, routes, dead_letter }
}

/// What works but hardly as meant.
pub(super) fn warnings(Routing { sinks, routes, dead_letter }: &Routing) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(last) = routes.iter().position(|route| route.topic == EVERYTHING) {
        for route in &routes[last + 1..] {
            warnings.push(format!(
                "the route {} (from {}) is never reached: the route ** (from {}) takes every topic before it",
                shown(&route.topic),
                route.origin,
                routes[last].origin
            ));
        }
    }
    for route in routes.iter().filter(|route| route.destination.is_some()) {
        for sink in sinks.iter().filter(|sink| route.sinks.contains(&sink.name) && is_one_place(sink)) {
            warnings.push(format!(
                "the route {} (from {}) has a destination, which the sink {} ignores: {} is one place",
                shown(&route.topic),
                route.origin,
                sink.name,
                sink.url
            ));
        }
    }
    for sink in sinks {
        let used = routes.iter().flat_map(|route| &route.sinks).chain(dead_letter);
        if !used.into_iter().any(|name| *name == sink.name) {
            warnings.push(format!("the sink {} (from {}) has no route", sink.name, sink.origin));
        }
    }
    warnings
}

/// Whether everything that goes to a sink goes to the same place.
fn is_one_place(sink: &Sink) -> bool {
    matches!(scheme(sink.url.reveal()), Some("file" | "stdout" | "null"))
}

#[derive(Default)]
struct SinkTable {
    sinks: Vec<Sink>,
    /// Names that were refused; routes to them are not errors of their own.
    refused: Vec<String>,
}

impl SinkTable {
    fn declare(&mut self, sink: &FileSink, origin: Origin, errors: &mut Vec<ConfigError>) {
        let FileSink { name, url, options, .. } = sink;
        let named = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !named {
            let cause = format!("{} cannot be the name of a sink", shown_sink(name));
            let next = "use letters, digits, - and _, at most 64";
            errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
        }
        let url_refused = !is_url(url);
        if url_refused {
            // What is no name may be a URL in its place.
            let setting = if named { format!("sinks.{name}.url") } else { "the sink's url".to_owned() };
            errors.push(not_a_url(&setting, url, &origin));
        }
        if named && !url_refused {
            let (name, url, options) = (name.clone(), GivenSink::new(url), options.clone());
            self.sinks.push(Sink { name, url, options, origin });
        } else {
            self.refused.push(name.clone());
        }
    }

    /// The names of a route's sinks. Several must have names of their own: what has arrived where is remembered by them, and
    /// a name that is made from a URL may be another sink's tomorrow.
    fn names_of(
        &mut self,
        given: &[String],
        origin: &Origin,
        errors: &mut Vec<ConfigError>,
    ) -> Option<Vec<String>> {
        let mut refuse = |cause: String, next: &str| {
            errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
            None
        };
        if given.is_empty() || given.iter().any(String::is_empty) {
            let next = "name a sink of [sinks], or give a URL such as stdout:";
            return refuse("the route has an empty sink".to_owned(), next);
        }
        if let [only] = given {
            return self.name_of("route.sink", only, origin, errors).map(|name| vec![name]);
        }
        if let Some(url) = given.iter().find(|given| given.contains(':')) {
            let cause = format!(
                "route.sinks = {} is a URL: what has arrived is remembered by the sinks' names",
                shown_sink(url)
            );
            return refuse(cause, "declare it, [sinks.NAME] and then url = \"…\", and put its name here");
        }
        if let Some((_, twice)) = given.iter().enumerate().find(|(at, name)| given[..*at].contains(name)) {
            return refuse(format!("the route names the sink {} twice", shown_sink(twice)), "name it once");
        }
        let names: Vec<Option<String>> =
            given.iter().map(|name| self.name_of("route.sinks", name, origin, errors)).collect();
        names.into_iter().collect()
    }

    /// The name of the sink that `given` means, a URL becoming a sink of its own.
    fn name_of(
        &mut self,
        setting: &str,
        given: &str,
        origin: &Origin,
        errors: &mut Vec<ConfigError>,
    ) -> Option<String> {
        if given.contains(':') {
            if !is_url(given) {
                errors.push(not_a_url(setting, given, origin));
                return None;
            }
            return Some(self.inline(given, origin));
        }
        if self.sinks.iter().any(|sink| sink.name == given) {
            return Some(given.to_owned());
        }
        if !self.refused.iter().any(|name| name == given) {
            let guess = nearest(given, self.sinks.iter().map(|sink| sink.name.as_str()));
            let guess = guess.map(|name| format!(". Did you mean {name}?")).unwrap_or_default();
            let cause = format!("{setting} = {} is not in [sinks]{guess}", shown_sink(given));
            let next = "name a sink of [sinks], or give a URL such as stdout: or file:out.jsonl";
            errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
        }
        None
    }

    fn inline(&mut self, url: &str, origin: &Origin) -> String {
        if let Some(sink) = self.sinks.iter().find(|sink| sink.url.reveal() == url && sink.options.is_empty())
        {
            return sink.name.clone();
        }
        // A scheme that no sink has may be the first half of credentials.
        let base = scheme(url).map(str::to_ascii_lowercase).filter(|scheme| is_scheme(scheme));
        let base = base.unwrap_or_else(|| "sink".to_owned());
        let mut name = base.clone();
        let mut number = 1;
        while self.sinks.iter().any(|sink| sink.name == name) {
            number += 1;
            name = format!("{base}-{number}");
        }
        let (url, options) = (GivenSink::new(url), Options::new());
        self.sinks.push(Sink { name: name.clone(), url, options, origin: origin.clone() });
        name
    }
}

/// Whether there are sinks with this scheme.
fn is_scheme(scheme: &str) -> bool {
    matches!(scheme, "file" | "stdout" | "null") || default_port(scheme).is_some()
}

fn is_url(text: &str) -> bool {
    scheme(text).is_some() && !text.contains(char::is_control)
}

fn not_a_url(setting: &str, given: &str, origin: &Origin) -> ConfigError {
    let cause = format!("{setting} = {} is not a URL", shown_sink(given));
    let next = "give a URL such as stdout: or file:out.jsonl";
    ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next)
}

fn destination_of(given: Option<&str>, origin: &Origin, errors: &mut Vec<ConfigError>) -> Option<Template> {
    let given = given?;
    match given.parse() {
        Ok(template) => Some(template),
        Err(error) => {
            let error: TemplateError = error;
            let cause = format!("route.destination = {} is no template: {}", shown(given), error.problem());
            let next = "write a template such as events.{topic}";
            errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
            None
        }
    }
}

fn check_pattern(topic: &str, origin: &Origin, errors: &mut Vec<ConfigError>) {
    if topic.is_empty() || topic.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let cause = format!("route.topic = {} is not a topic pattern", shown(topic));
        let next = "write a pattern such as org.**, org.*.created.* or **";
        errors.push(ConfigError::new(Code::ConfigInvalid, Some(origin.clone()), cause, next));
    }
}
