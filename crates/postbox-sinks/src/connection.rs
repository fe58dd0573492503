//! [`Shared`]: one connection for all dispatches of a sink, made at the first of them and again when it is lost.
//! [`Attempts`]: for sinks that keep several.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use postbox_core::DispatchError;

/// A connection, or a cheap handle of one.
pub(crate) trait Link: Clone {
    /// Whether it is of no use any more.
    fn is_lost(&self) -> bool;
}

/// The connection of a sink.
pub(crate) struct Shared<L> {
    link: Mutex<Option<L>>,
    attempts: Attempts,
}

impl<L: Link> Shared<L> {
    pub(crate) fn new() -> Self {
        Self { link: Mutex::new(None), attempts: Attempts::default() }
    }

    /// The connection, made if there is none.
    pub(crate) async fn get(
        &self,
        connect: impl AsyncFnOnce() -> Result<L, DispatchError>,
    ) -> Result<L, DispatchError> {
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let attempt = async || {
            // Another may have made it while this one waited.
            if let Some(link) = self.up() {
                return Ok(link);
            }
            let link = connect().await?;
            *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
            Ok(link)
        };
        self.attempts.join(attempt).await
    }

    fn up(&self) -> Option<L> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().filter(|link| !link.is_lost()).cloned()
    }
}

/// Whatever a client shows of itself is nothing to show.
impl<L> fmt::Debug for Shared<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// Attempts to connect, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Why the last one failed.
    failed: tokio::sync::Mutex<Option<DispatchError>>,
    ended: AtomicU64,
}

impl Attempts {
    /// Waits for its turn and tries. Whoever waited while another tried in vain takes that one's answer: many dispatches at
    /// once would else wait for many timeouts, one after another.
    pub(crate) async fn join<T>(
        &self,
        attempt: impl AsyncFnOnce() -> Result<T, DispatchError>,
    ) -> Result<T, DispatchError> {
        let seen = self.ended.load(Ordering::Acquire);
        let mut failed = self.failed.lock().await;
        if let Some(error) = &*failed
            && self.ended.load(Ordering::Acquire) != seen
        {
            return Err(error.clone());
        }
        let outcome = attempt().await;
        self.ended.fetch_add(1, Ordering::Release);
        *failed = outcome.as_ref().err().cloned();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Wire(Arc<AtomicBool>);

    impl Link for Wire {
        fn is_lost(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn it_is_made_once_and_again_when_it_is_lost() {
        let shared = Shared::<Wire>::new();
        let mut made = 0;
        for _ in 0..3 {
            shared
                .get(async || {
                    made += 1;
                    Ok(Wire::default())
                })
                .await
                .unwrap();
        }
        assert_eq!(made, 1);
        let wire = shared.get(async || unreachable!("it is there")).await.unwrap();
        wire.0.store(true, Ordering::Relaxed);
        shared
            .get(async || {
                made += 1;
                Ok(Wire::default())
            })
            .await
            .unwrap();
        assert_eq!(made, 2);
    }

    #[tokio::test]
    async fn who_waited_takes_the_answer_of_the_one_who_tried() {
        let shared = Arc::new(Shared::<Wire>::new());
        let tried = Arc::new(AtomicU64::new(0));
        let attempts = (0..8).map(|_| {
            let (shared, tried) = (Arc::clone(&shared), Arc::clone(&tried));
            tokio::spawn(async move {
                let connect = async || {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    tried.fetch_add(1, Ordering::Relaxed);
                    Err(DispatchError::unavailable("nobody listens"))
                };
                shared.get(connect).await.is_err()
            })
        });
        for attempt in attempts.collect::<Vec<_>>() {
            assert!(attempt.await.unwrap());
        }
        assert_eq!(tried.load(Ordering::Relaxed), 1);
        // The next one tries for itself.
        shared.get(async || Ok(Wire::default())).await.unwrap();
    }
}
