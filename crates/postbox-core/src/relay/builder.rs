//! [`RelayBuilder`]: what a relay is made of, checked before it starts.

use std::sync::Arc;

use super::Relay;
use super::after_death::AfterDeath;
use super::engine::{Engine, Refused};
use super::error::RelayError;
use super::lane::Lane;
use super::settings::Settings;
use crate::dispatcher::{BoxDispatcher, Dispatcher};
use crate::hot::HotPath;
use crate::interceptor::{EventInterceptor, Interceptors};
use crate::route::Routes;
use crate::store::Store;
use crate::telemetry::{DEFAULT_TOPIC_LABELS, Telemetry};

/// Builds a [`Relay`]: where events go, and how.
///
/// ```
/// # use std::time::Duration;
/// # use postbox_core::{Dispatcher, EventBus, Relay, RelayError, Store};
/// # fn build(store: impl Store, kafka: impl Dispatcher, bus: EventBus) -> Result<(), RelayError> {
/// let relay = Relay::builder(store)
///     .route("shop.order.**", bus) // the first route that matches wins
///     .route("**", kafka)
///     .set(|settings| settings.dispatch_timeout = Duration::from_secs(10))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RelayBuilder<S> {
    store: S,
    plan: Plan,
}

/// What a relay is made of, but for its store.
#[derive(Debug)]
struct Plan {
    settings: Settings,
    sinks: Vec<(String, BoxDispatcher)>,
    routes: Vec<RouteTo>,
    interceptors: Interceptors,
    prefix: String,
    topic_labels: usize,
    database: Option<String>,
    refused: Refused,
    hot: Option<HotPath>,
    dead_letters: Option<(String, BoxDispatcher)>,
    /// A destination was given before any route.
    stray_destination: bool,
}

/// A route as it was asked for.
#[derive(Debug)]
struct RouteTo {
    pattern: String,
    target: Target,
    destination: Option<String>,
}

/// Where a route leads.
#[derive(Debug)]
enum Target {
    Lane(usize),
    Named(Vec<String>),
}

impl RelayBuilder<()> {
    /// Without a store yet: `on` adds it.
    pub(crate) fn unbound() -> Self {
        Self::new(())
    }

    /// The same on a store.
    pub(crate) fn on<S: Store>(self, store: S) -> RelayBuilder<S> {
        RelayBuilder { store, plan: self.plan }
    }

    /// Whether dead events go anywhere.
    pub(crate) fn has_dead_letters(&self) -> bool {
        self.plan.dead_letters.is_some()
    }

    /// The settings as they are by now.
    pub(crate) fn current(&self) -> &Settings {
        &self.plan.settings
    }
}

impl<S> RelayBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        let plan = Plan {
            settings: Settings::default(),
            sinks: Vec::new(),
            routes: Vec::new(),
            interceptors: Interceptors::default(),
            prefix: "outbox".into(),
            topic_labels: DEFAULT_TOPIC_LABELS,
            database: None,
            refused: Refused::Ends,
            hot: None,
            dead_letters: None,
            stray_destination: false,
        };
        Self { store, plan }
    }

    /// Sends topics that match to a dispatcher of their own. The first matching route wins.
    pub fn route(mut self, pattern: &str, dispatcher: impl Dispatcher) -> Self {
        let lane = self.plan.sinks.len();
        self.plan.sinks.push((format!("sink-{lane}"), BoxDispatcher::new(dispatcher)));
        self.add_route(pattern, Target::Lane(lane))
    }

    /// Names a dispatcher that several routes can lead to.
    pub fn sink(mut self, name: impl Into<String>, dispatcher: impl Dispatcher) -> Self {
        self.plan.sinks.push((name.into(), BoxDispatcher::new(dispatcher)));
        self
    }

    /// Sends topics that match to a named sink. The first matching route wins.
    pub fn route_to(self, pattern: &str, sink: impl Into<String>) -> Self {
        self.route_to_all(pattern, [sink])
    }

    /// Sends topics that match to each of several named sinks (fan-out). An event is published when all of them have
    /// confirmed; when some fail, those that have confirmed are remembered by their names and not sent to again.
    ///
    /// ```
    /// # use postbox_core::{Dispatcher, Relay, RelayError, Store};
    /// # fn build(store: impl Store, kafka: impl Dispatcher, audit: impl Dispatcher) -> Result<(), RelayError> {
    /// let relay = Relay::builder(store)
    ///     .sink("kafka", kafka)
    ///     .sink("audit", audit)
    ///     .route_to_all("org.**", ["kafka", "audit"])
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn route_to_all<N: Into<String>>(self, pattern: &str, sinks: impl IntoIterator<Item = N>) -> Self {
        let names = sinks.into_iter().map(Into::into).collect();
        self.add_route(pattern, Target::Named(names))
    }

    /// The same with sinks that no other route leads to. They are remembered by the names given here: a name is not to be
    /// given to another sink later.
    pub fn fan_out<N: Into<String>, D: Dispatcher>(
        mut self,
        pattern: &str,
        sinks: impl IntoIterator<Item = (N, D)>,
    ) -> Self {
        let mut names = Vec::new();
        for (name, dispatcher) in sinks {
            let name = name.into();
            names.push(name.clone());
            self.plan.sinks.push((name, BoxDispatcher::new(dispatcher)));
        }
        self.route_to_all(pattern, names)
    }

    fn add_route(mut self, pattern: &str, target: Target) -> Self {
        self.plan.routes.push(RouteTo { pattern: pattern.to_owned(), target, destination: None });
        self
    }

    /// Gives the route that was added last a [`Template`](crate::Template): where at its sinks the events go, such as `events.{topic}`. It
    /// wins over what the sinks themselves say. An event that lacks a value for it is dead at once.
    ///
    /// ```
    /// # use postbox_core::{Dispatcher, Relay, RelayError, Store};
    /// # fn build(store: impl Store, broker: impl Dispatcher) -> Result<(), RelayError> {
    /// let relay = Relay::builder(store)
    ///     .sink("broker", broker)
    ///     .route_to("org.order.**", "broker").destination("orders.{aggregate_id}")
    ///     .route_to("**", "broker")
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn destination(mut self, template: impl Into<String>) -> Self {
        match self.plan.routes.last_mut() {
            Some(route) => route.destination = Some(template.into()),
            None => self.plan.stray_destination = true,
        }
        self
    }

    /// Delivers dead events to this sink, also those that died before it was named here, each once it has died: with the
    /// headers `postbox-dead-reason`, `postbox-dead-attempts`, `postbox-dead-at` and `postbox-dead-table`. They stay in the
    /// table. Interceptors have no part in it.
    pub fn dead_letters(mut self, name: impl Into<String>, dispatcher: impl Dispatcher) -> Self {
        self.plan.dead_letters = Some((name.into(), BoxDispatcher::new(dispatcher)));
        self
    }

    /// Sends everything to one dispatcher.
    pub fn dispatcher(self, dispatcher: impl Dispatcher) -> Self {
        self.route("**", dispatcher)
    }

    /// Also handles what outboxes of this process put on this path, right after its commit.
    pub fn hot(mut self, path: &HotPath) -> Self {
        self.plan.hot = Some(path.clone());
        self
    }

    /// Looks at every event before and after its dispatch, whatever its destination. Several are nested: the first one
    /// added is the outermost.
    pub fn interceptor(mut self, interceptor: impl EventInterceptor) -> Self {
        self.plan.interceptors.add(interceptor);
        self
    }

    /// Replaces the settings.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.plan.settings = settings;
        self
    }

    /// Changes single settings.
    pub fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.plan.settings);
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.plan.prefix = prefix.into();
        self
    }

    /// Topics beyond this number share the label `other`.
    pub fn topic_labels(mut self, most: usize) -> Self {
        self.plan.topic_labels = most;
        self
    }

    /// The name of the database, where a process works on several: a label of its metrics, and part of what it logs and of
    /// its [health](crate::RelayHealth).
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.plan.database = Some(name.into());
        self
    }

    /// Waits at the start also for what it would refuse: a table that is missing, a grant, a file. Its health says what it is,
    /// and it starts as soon as that is mended. For a process that has other things to do than this.
    pub fn patient(mut self) -> Self {
        self.plan.refused = Refused::Waits;
        self
    }
}

impl<S: Store> RelayBuilder<S> {
    /// Checks everything and makes the relay.
    ///
    /// # Errors
    /// When a setting cannot work, a pattern is malformed, a route leads nowhere, there is no route, or a dispatcher is
    /// not put together right (two handlers where one is to be the only one).
    pub fn build(self) -> Result<Relay<S>, RelayError> {
        self.plan.on(self.store)
    }
}

impl Plan {
    fn on<S: Store>(self, store: S) -> Result<Relay<S>, RelayError> {
        self.settings.check()?;
        if self.routes.is_empty() {
            return Err(RelayError::Settings("there is no route: add `.route(\"**\", dispatcher)`".into()));
        }
        if self.stray_destination {
            let problem = "a destination belongs to a route: put it after one";
            return Err(RelayError::Settings(problem.into()));
        }
        for (at, (name, sink)) in self.sinks.iter().enumerate() {
            if self.sinks[..at].iter().any(|(other, _)| other == name) {
                return Err(RelayError::DuplicateSink { name: name.clone() });
            }
            if name.is_empty() || name.contains(char::is_control) {
                let problem = format!("{name:?} cannot be the name of a sink: use letters, digits, - and _");
                return Err(RelayError::Settings(problem));
            }
            sink.check().map_err(RelayError::Dispatcher)?;
        }
        if let Some((_, sink)) = &self.dead_letters {
            sink.check().map_err(RelayError::Dispatcher)?;
        }
        let mut routes = Routes::default();
        for RouteTo { pattern, target, destination } in self.routes {
            let lanes = lanes_of(&pattern, target, &self.sinks)?;
            let destination = destination.map(|text| text.parse()).transpose()?;
            routes.push(pattern.parse()?, lanes, destination);
        }
        let settings = Arc::new(self.settings);
        let database = self.database.as_deref();
        let telemetry = Telemetry::in_database(&self.prefix, database, store.table(), self.topic_labels);
        let attach = |path: HotPath| {
            path.attach(store.table(), settings.lock_ttl, &telemetry).ok_or_else(|| {
                RelayError::Settings("the hot path leads to another relay already: make a new one".into())
            })
        };
        let hot = self.hot.map(attach).transpose()?;
        let lane = |(name, sink)| Lane::new(name, self.interceptors.around(sink), &settings, &telemetry);
        let lanes = self.sinks.into_iter().map(lane).collect();
        let fan_out = routes.widest() > 1;
        // Without interceptors: what made an event die must not keep it from the dead-letter route as well.
        let mut engine = Engine::new(store.clone(), Arc::clone(&settings), routes, lanes, telemetry, hot);
        let dead = self.dead_letters;
        let after_death = AfterDeath::new(store, &settings, &engine.telemetry, &engine.health, dead);
        engine.refused = self.refused;
        engine.needs = after_death.needs(fan_out);
        engine.after_death = Some(after_death);
        Ok(Relay { engine, closed: false })
    }
}

/// The lanes that a route leads to, each once.
fn lanes_of(
    pattern: &str,
    target: Target,
    sinks: &[(String, BoxDispatcher)],
) -> Result<Vec<usize>, RelayError> {
    let pattern = || pattern.to_owned();
    let names = match target {
        Target::Lane(lane) => return Ok(vec![lane]),
        Target::Named(names) => names,
    };
    if names.is_empty() {
        return Err(RelayError::Settings(format!("the route {:?} leads to no sink: name one", pattern())));
    }
    let mut lanes = Vec::with_capacity(names.len());
    for name in names {
        let Some(lane) = sinks.iter().position(|(known, _)| *known == name) else {
            return Err(RelayError::UnknownSink { pattern: pattern(), name });
        };
        if lanes.contains(&lane) {
            return Err(RelayError::RepeatedSink { pattern: pattern(), name });
        }
        lanes.push(lane);
    }
    Ok(lanes)
}
