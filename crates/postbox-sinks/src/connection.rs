//! [`Shared`]: one connection for all dispatches of a sink, made at the first of them and again when it is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use postbox_core::DispatchError;
use tokio::sync::Mutex;

/// A connection, or a cheap handle of one.
pub(crate) trait Link: Clone {
    /// Whether it is of no use any more.
    fn is_lost(&self) -> bool;
}

/// The connection of a sink.
#[derive(Debug)]
pub(crate) struct Shared<L> {
    state: Mutex<State<L>>,
    /// How many attempts to connect have ended.
    attempts: AtomicU64,
}

#[derive(Debug)]
enum State<L> {
    None,
    Up(L),
    /// The last attempt failed.
    Failed(DispatchError),
}

impl<L: Link> Shared<L> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::None), attempts: AtomicU64::new(0) }
    }

    /// The connection, made if there is none. Whoever waited while another tried in vain takes that one's answer: many
    /// dispatches at once would else wait for many timeouts, one after another.
    pub(crate) async fn get(
        &self,
        connect: impl AsyncFnOnce() -> Result<L, DispatchError>,
    ) -> Result<L, DispatchError> {
        let seen = self.attempts.load(Ordering::Acquire);
        let mut state = self.state.lock().await;
        match &*state {
            State::Up(link) if !link.is_lost() => return Ok(link.clone()),
            State::Failed(error) if self.attempts.load(Ordering::Acquire) != seen => {
                return Err(error.clone());
            }
            _ => {}
        }
        let outcome = connect().await;
        self.attempts.fetch_add(1, Ordering::Release);
        *state = match &outcome {
            Ok(link) => State::Up(link.clone()),
            Err(error) => State::Failed(error.clone()),
        };
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
