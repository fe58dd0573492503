//! From the first try of a message to its end: acknowledged, or given back.

use std::time::Duration;

use futures_util::future::Either;
use postbox_core::inbox::InboxDriver;
use postbox_core::redact::chain;
use postbox_core::{DispatchError, DispatchErrorKind, Seen};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at, sleep};

use crate::consumer::Consumer;
use crate::message::{Envelope, Message};
use crate::run::LONGEST_HALT;
use crate::source::{DeadLetter, Incoming, SourceError};

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its effect happened now.
    First,
    /// Its effect had happened before.
    Before,
    /// It is at the dead letters.
    Dead,
    /// It comes again.
    GivenBack,
}

impl<D: InboxDriver> Consumer<D> {
    /// Works on a message until it is settled, or until `stop` and the try that is under way then, if that has an end.
    pub(crate) async fn work<I: Incoming>(&self, mut incoming: I, mut stop: watch::Receiver<bool>) -> Ending {
        let envelope = incoming.envelope();
        // What is longer than a handler may be waits for a database that does not answer, or a broker that is blocked: without an end.
        let hung = stopped_for(self.timeout.saturating_add(LONGEST_HALT), stop.clone());
        let ending = tokio::select! {
            biased;
            ending = self.settle(&incoming, envelope, &mut stop) => ending,
            () = keep(&incoming, self) => Ending::GivenBack,
            () = hung => {
                tracing::warn!(consumer = %self.name, "a message has no end after a stop, and is given back");
                Ending::GivenBack
            }
        };
        self.tell(&mut incoming, ending, stop).await;
        ending
    }

    /// Tells the broker what became of a message. One that takes nothing in just now does not hold up a stop: what it was not told comes
    /// again, and the inbox knows it then.
    pub(crate) async fn tell<I: Incoming>(
        &self,
        incoming: &mut I,
        ending: Ending,
        stop: watch::Receiver<bool>,
    ) {
        let (what, telling) = match ending {
            Ending::First | Ending::Before | Ending::Dead => {
                ("acknowledged", Either::Left(incoming.acknowledge()))
            }
            Ending::GivenBack => ("given back", Either::Right(incoming.give_back())),
        };
        let error = tokio::select! {
            biased;
            told = telling => told.err().map(|error| chain(&error)),
            () = stopped_for(LONGEST_HALT, stop) => Some(format!("no answer of the broker within {LONGEST_HALT:?}")),
        };
        if let Some(error) = error {
            tracing::warn!(consumer = %self.name, error, "a message could not be {what}");
        }
    }

    async fn settle<I: Incoming>(
        &self,
        incoming: &I,
        envelope: Envelope,
        stop: &mut watch::Receiver<bool>,
    ) -> Ending {
        let id = match self.identify.of(&envelope) {
            Ok(id) => id,
            Err(unknown) => return self.bury(incoming, &envelope, 0, &unknown.into(), stop).await,
        };
        let mut message = Message { id, tries: 0, envelope };
        let mut outages = 0;
        loop {
            let error = match self.attempt(&message).await {
                Ok(Seen::First) => return Ending::First,
                Ok(Seen::Before) => return Ending::Before,
                Err(error) => error,
            };
            let wait = match error.kind() {
                DispatchErrorKind::Reject => {
                    return self.bury(incoming, &message, message.tries + 1, &error, stop).await;
                }
                DispatchErrorKind::Unavailable => {
                    outages += 1;
                    self.backoff.after(outages)
                }
                DispatchErrorKind::Retry(after) => {
                    message.tries += 1;
                    if message.tries >= self.tries && incoming.has_dead_letters() {
                        return self.bury(incoming, &message, message.tries, &error, stop).await;
                    }
                    let tries = i32::try_from(message.tries).unwrap_or(i32::MAX);
                    after.unwrap_or_else(|| self.backoff.after(tries))
                }
            };
            self.complain(&message, &error, "a message failed, and is tried again");
            if stopped_within(wait, stop).await {
                return Ending::GivenBack;
            }
        }
    }

    /// Puts a message to the dead letters, as often as it takes: until it is there it is not acknowledged. Where its connection is gone it never
    /// would be, and would keep its place from others: it comes again by the next one.
    async fn bury<I: Incoming>(
        &self,
        incoming: &I,
        envelope: &Envelope,
        tries: u32,
        error: &DispatchError,
        stop: &mut watch::Receiver<bool>,
    ) -> Ending {
        let letter = DeadLetter::new(envelope, &self.name, tries, &chain(error));
        let (consumer, source) = (&self.name, envelope.position.as_deref().unwrap_or(&envelope.source));
        let mut attempts = 0;
        loop {
            let refused = if incoming.has_dead_letters() {
                incoming.bury(&letter).await.err()
            } else {
                Some(SourceError::of("the source has no place for dead letters"))
            };
            let Some(refused) = refused else {
                tracing::error!(%consumer, source, tries, %error, "a message is a dead letter");
                return Ending::Dead;
            };
            let (lost, refused, wait) = (refused.is_lost(), chain(&refused), self.backoff.after(attempts));
            tracing::error!(%consumer, source, tries, %error, refused, "a message failed, and is no dead letter yet");
            attempts = attempts.saturating_add(1);
            if lost || stopped_within(wait, stop).await {
                return Ending::GivenBack;
            }
        }
    }

    fn complain(&self, message: &Message, error: &DispatchError, what: &str) {
        let (consumer, source, id) = (&self.name, &message.source, message.id());
        tracing::warn!(%consumer, source, message_id = %id, tries = message.tries, %error, "{what}");
    }
}

/// Tells the broker that a message is still worked on, for as long as it is. Does not come back.
async fn keep<I: Incoming, D: InboxDriver>(incoming: &I, consumer: &Consumer<D>) {
    let Some(every) = incoming.renew_every() else {
        return std::future::pending().await;
    };
    let every = every.max(Duration::from_millis(1));
    let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = incoming.renew().await {
            // It may be delivered again meanwhile; who gets it waits for our transaction.
            tracing::warn!(consumer = %consumer.name, error = chain(&error), "a message could not be kept");
        }
    }
}

/// Comes back when the consumer is to stop and so long has passed since.
async fn stopped_for(time: Duration, mut stop: watch::Receiver<bool>) {
    // Without a sender nobody waits for the end of it any more.
    let _ = stop.wait_for(|stop| *stop).await;
    sleep(time).await;
}

/// Waits; true if the consumer is to stop, at once then.
async fn stopped_within(wait: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        biased;
        // Without a sender nobody waits for the end of it any more.
        _ = stop.wait_for(|stop| *stop) => true,
        () = sleep(wait) => false,
    }
}
