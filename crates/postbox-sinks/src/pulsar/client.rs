//! The connection to Pulsar, and a producer for each topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pulsar::{Error, Producer, Pulsar, TokioExecutor};
use tokio::runtime::Handle;

use super::config::Config;

/// The most producers that are kept; the one that was used longest ago makes room.
const PRODUCERS: usize = 1000;

/// A producer, which one event at a time is handed to.
pub(super) type TopicProducer = Arc<tokio::sync::Mutex<Producer<TokioExecutor>>>;

/// Made at the first delivery, and again when it is broken.
pub(super) struct Client {
    config: Arc<Config>,
    state: Mutex<State>,
    /// Held while a connection or a producer is made: one at a time.
    making: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    pulsar: Option<Pulsar<TokioExecutor>>,
    producers: BTreeMap<String, Kept>,
    /// How many connections were made: the hosts take turns.
    turns: usize,
    /// Rises with each use of a producer.
    uses: u64,
    runtime: Option<Handle>,
}

struct Kept {
    producer: TopicProducer,
    used: u64,
}

impl Client {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self { config, state: Mutex::default(), making: tokio::sync::Mutex::default() }
    }

    /// The producer of a topic.
    pub(super) async fn producer(self: &Arc<Self>, topic: &str) -> Result<TopicProducer, Error> {
        if let Some(producer) = self.kept(topic) {
            return Ok(producer);
        }
        // A task of its own: the library does not stand it when the making of a connection is dropped half-way.
        let (this, topic) = (Arc::clone(self), topic.to_owned());
        match tokio::spawn(async move { this.make(&topic).await }).await {
            Ok(made) => made,
            Err(stopped) => Err(Error::Custom(stopped.to_string())),
        }
    }

    fn kept(&self, topic: &str) -> Option<TopicProducer> {
        let mut state = self.state();
        state.uses += 1;
        let uses = state.uses;
        let kept = state.producers.get_mut(topic)?;
        kept.used = uses;
        Some(Arc::clone(&kept.producer))
    }

    async fn make(&self, topic: &str) -> Result<TopicProducer, Error> {
        let _turn = self.making.lock().await;
        if let Some(producer) = self.kept(topic) {
            return Ok(producer);
        }
        let pulsar = self.connected().await?;
        let builder = pulsar.producer().with_topic(topic).with_options(self.config.producer());
        let made = Box::pin(builder.build()).await?;
        let producer = Arc::new(tokio::sync::Mutex::new(made));
        let mut state = self.state();
        let used = state.uses;
        state.producers.insert(topic.to_owned(), Kept { producer: Arc::clone(&producer), used });
        let oldest = state.producers.iter().min_by_key(|(_, kept)| kept.used).map(|(topic, _)| topic.clone());
        if let Some(oldest) = oldest.filter(|_| state.producers.len() > PRODUCERS) {
            state.producers.remove(&oldest);
        }
        Ok(producer)
    }

    async fn connected(&self) -> Result<Pulsar<TokioExecutor>, Error> {
        let turn = {
            let mut state = self.state();
            if let Some(pulsar) = &state.pulsar {
                return Ok(pulsar.clone());
            }
            state.runtime = Some(Handle::current());
            state.turns += 1;
            state.turns - 1
        };
        let pulsar = self.config.client(turn).build().await?;
        self.state().pulsar = Some(pulsar.clone());
        Ok(pulsar)
    }

    /// Gives up a producer that does not work; the next event of its topic has another.
    pub(super) fn forget(&self, topic: &str, broken: &TopicProducer) {
        let mut state = self.state();
        if state.producers.get(topic).is_some_and(|kept| Arc::ptr_eq(&kept.producer, broken)) {
            state.producers.remove(topic);
        }
    }

    /// Gives up the connection, with all producers on it.
    pub(super) fn disconnect(&self) {
        let mut state = self.state();
        state.pulsar = None;
        state.producers.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    /// Producers say goodbye by a task, wherever they are dropped.
    fn drop(&mut self) {
        let mut state = self.state();
        if let Some(runtime) = state.runtime.take() {
            let _inside = runtime.enter();
            state.producers.clear();
            state.pulsar = None;
        }
    }
}
