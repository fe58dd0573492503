//! A source that is watched, and that can fail on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postbox_consumers::{DeadLetter, Envelope, Incoming, Source, SourceError};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Acknowledgements are begun and never done: the moment between commit and acknowledgement lasts.
    NeverAcknowledges,
    /// The broker is not told that a message is still worked on.
    NeverRenews,
    /// Burials are begun and never done.
    NeverBuries,
    /// Nor is anything given back: the broker takes in nothing at all. The source reads one message ahead.
    NeverHears,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Probe(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicUsize,
    acknowledged: AtomicUsize,
    burials: AtomicUsize,
    burials_failed: AtomicUsize,
}

impl Probe {
    /// How many messages were handed out.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::SeqCst)
    }

    /// How many acknowledgements were begun.
    pub(crate) fn acknowledged(&self) -> usize {
        self.0.acknowledged.load(Ordering::SeqCst)
    }

    /// How many burials were begun.
    pub(crate) fn burials(&self) -> usize {
        self.0.burials.load(Ordering::SeqCst)
    }

    pub(crate) fn burials_failed(&self) -> usize {
        self.0.burials_failed.load(Ordering::SeqCst)
    }
}

pub(crate) struct Probed<S> {
    source: S,
    fault: Fault,
    probe: Probe,
}

impl<S> Probed<S> {
    pub(crate) fn around(source: S, fault: Fault) -> (Self, Probe) {
        let probe = Probe::default();
        (Self { source, fault, probe: probe.clone() }, probe)
    }
}

impl<S: Source> Source for Probed<S> {
    type Incoming = ProbedIncoming<S::Incoming>;

    async fn open(&mut self, at_once: usize) -> Result<(), SourceError> {
        self.source.open(at_once).await
    }

    async fn next(&mut self) -> Result<Option<Self::Incoming>, SourceError> {
        let next = self.source.next().await?;
        self.probe.0.taken.fetch_add(usize::from(next.is_some()), Ordering::SeqCst);
        let (fault, probe) = (self.fault, self.probe.clone());
        Ok(next.map(|incoming| ProbedIncoming { incoming, fault, probe }))
    }

    async fn halt(&mut self) {
        self.source.halt().await;
    }

    async fn finish(&mut self) {
        self.source.finish().await;
    }

    fn read_ahead(&self) -> usize {
        self.source.read_ahead() + usize::from(self.fault == Fault::NeverHears)
    }
}

pub(crate) struct ProbedIncoming<I> {
    incoming: I,
    fault: Fault,
    probe: Probe,
}

impl<I: Incoming> Incoming for ProbedIncoming<I> {
    fn envelope(&mut self) -> Envelope {
        self.incoming.envelope()
    }

    fn lane(&self) -> Option<String> {
        self.incoming.lane()
    }

    async fn acknowledge(&mut self) -> Result<(), SourceError> {
        self.probe.0.acknowledged.fetch_add(1, Ordering::SeqCst);
        if self.fault == Fault::NeverAcknowledges {
            std::future::pending::<()>().await;
        }
        self.incoming.acknowledge().await
    }

    async fn give_back(&mut self) -> Result<(), SourceError> {
        if self.fault == Fault::NeverHears {
            std::future::pending::<()>().await;
        }
        self.incoming.give_back().await
    }

    fn renew_every(&self) -> Option<Duration> {
        self.incoming.renew_every().filter(|_| self.fault != Fault::NeverRenews)
    }

    async fn renew(&self) -> Result<(), SourceError> {
        self.incoming.renew().await
    }

    fn has_dead_letters(&self) -> bool {
        self.incoming.has_dead_letters()
    }

    async fn bury(&self, letter: &DeadLetter<'_>) -> Result<(), SourceError> {
        self.probe.0.burials.fetch_add(1, Ordering::SeqCst);
        if matches!(self.fault, Fault::NeverBuries | Fault::NeverHears) {
            std::future::pending::<()>().await;
        }
        let buried = self.incoming.bury(letter).await;
        if buried.is_err() {
            self.probe.0.burials_failed.fetch_add(1, Ordering::SeqCst);
        }
        buried
    }
}
