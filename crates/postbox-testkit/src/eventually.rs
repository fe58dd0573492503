//! Waiting for something to become true, with a limit and a name.
//!
//! Prefer a signal where there is one ([`Program::wait_for_line`](crate::Program::wait_for_line), a channel). This is
//! for state that only can be asked for, such as the rows of a table.

use std::time::{Duration, Instant};

/// How long between two looks: short against any limit, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(10);

/// What a look can answer: `bool`, or an `Option` of what was found.
pub trait Answer {
    /// What is handed over when the wait ends.
    type Found;

    /// The finding, or none to look again.
    fn found(self) -> Option<Self::Found>;
}

impl Answer for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Answer for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Looks every 10 ms until the answer is `true` or `Some`; panics with `what` when `limit` has passed.
///
/// A look that itself hangs counts against the limit.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// let mut looks = 0;
/// let found = postbox_testkit::eventually("the third look", Duration::from_secs(5), async || {
///     looks += 1;
///     (looks == 3).then_some(looks)
/// });
/// assert_eq!(found.await, 3);
/// # });
/// ```
///
/// # Cancel safety
///
/// May be dropped at any time; the look under way is dropped with it.
pub async fn eventually<A: Answer>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> A,
) -> A::Found {
    let search = async {
        loop {
            if let Some(found) = look().await.found() {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let found = tokio::time::timeout(limit, search).await.ok();
    found.unwrap_or_else(|| panic!("waited {limit:?} in vain for {what}"))
}

/// [`eventually`] for tests without a runtime; blocks the thread.
#[track_caller]
pub fn eventually_blocking<A: Answer>(what: &str, limit: Duration, mut look: impl FnMut() -> A) -> A::Found {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}");
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::{eventually, eventually_blocking};
    use std::time::Duration;

    #[tokio::test]
    async fn ends_when_true() {
        let mut looks = 0;
        eventually("two looks", Duration::from_secs(5), async || {
            looks += 1;
            looks == 2
        })
        .await;
        assert_eq!(looks, 2);
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for the moon")]
    async fn names_what_never_came_even_when_a_look_hangs() {
        eventually("the moon", Duration::from_millis(30), async || std::future::pending::<bool>().await)
            .await;
    }

    #[test]
    fn hands_over_what_it_found() {
        let mut looks = 0;
        let found = eventually_blocking("a number", Duration::from_secs(5), || {
            looks += 1;
            (looks > 2).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    #[should_panic(expected = "in vain for the sun")]
    fn blocking_names_it_too() {
        eventually_blocking("the sun", Duration::from_millis(30), || false);
    }
}
