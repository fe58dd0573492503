//! [`Backoff`]: how long an event waits for its next attempt.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::settings::LONGEST;

/// The default's first wait, and its longest.
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_mins(1);

/// A source of random numbers in `0.0..1.0`.
type Random = Arc<dyn Fn() -> f64 + Send + Sync>;

/// How long to wait before the next attempt, by the number of attempts made.
///
/// ```
/// use std::time::Duration;
/// use postbox_core::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_secs(2), Duration::from_mins(5));
/// // The third wait doubles twice, times 0.5 to 1.5.
/// assert!((4..=12).contains(&backoff.after(3).as_secs()));
/// assert_eq!(Backoff::fixed(Duration::from_secs(7)).after(25), Duration::from_secs(7));
/// ```
#[derive(Clone)]
pub struct Backoff {
    shape: Shape,
    random: Random,
}

#[derive(Clone)]
enum Shape {
    /// `min(base · 2^(n-1), cap)` plus up to so much.
    Additive {
        base: Duration,
        cap: Duration,
        jitter: Duration,
    },
    /// `min(base · 2^(n-1), cap)` times 0.5 to 1.5.
    Factor {
        base: Duration,
        cap: Duration,
    },
    Fixed(Duration),
    Custom(Arc<dyn Fn(i32) -> Duration + Send + Sync>),
}

impl Default for Backoff {
    /// `min(1s · 2^(attempts-1), 60s)` plus 0 to 200 ms.
    fn default() -> Self {
        Self::of(Shape::Additive { base: BASE, cap: CAP, jitter: Duration::from_millis(200) })
    }
}

impl Backoff {
    fn of(shape: Shape) -> Self {
        Self { shape, random: Arc::new(fastrand::f64) }
    }

    /// Doubles from `base` to `cap`, each wait multiplied by a random factor of 0.5 to 1.5.
    pub fn exponential(base: Duration, cap: Duration) -> Self {
        Self::of(Shape::Factor { base, cap })
    }

    /// Always the same.
    pub fn fixed(wait: Duration) -> Self {
        Self::of(Shape::Fixed(wait))
    }

    /// Whatever the function says for the number of attempts made; what the default would wait, should it panic.
    pub fn custom(wait: impl Fn(i32) -> Duration + Send + Sync + 'static) -> Self {
        Self::of(Shape::Custom(Arc::new(wait)))
    }

    /// The same with another source of randomness.
    #[must_use]
    pub fn with_random(mut self, random: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.random = Arc::new(random);
        self
    }

    /// The wait after so many attempts; a year at the most.
    pub fn after(&self, attempts: i32) -> Duration {
        // What a user's own function does wrong must not end the relay.
        let wait = catch_unwind(AssertUnwindSafe(|| self.wait(attempts)));
        wait.unwrap_or_else(|_| doubled(BASE, CAP, attempts)).min(LONGEST)
    }

    fn wait(&self, attempts: i32) -> Duration {
        match &self.shape {
            Shape::Additive { base, cap, jitter } => {
                doubled(*base, *cap, attempts) + jitter.mul_f64((self.random)().clamp(0.0, 1.0))
            }
            Shape::Factor { base, cap } => {
                doubled(*base, *cap, attempts).mul_f64(0.5 + (self.random)().clamp(0.0, 1.0))
            }
            Shape::Fixed(wait) => *wait,
            Shape::Custom(wait) => wait(attempts),
        }
    }
}

fn doubled(base: Duration, cap: Duration, attempts: i32) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(0).min(31);
    base.saturating_mul(1 << doublings).min(cap).min(LONGEST)
}

/// A row has no count of its tries as a dead letter. Waiting as long as it has been dead doubles the wait each time, which is
/// what the backoff does by its count.
pub(super) fn tries(dead_for: Duration) -> i32 {
    let doublings = dead_for.as_secs().max(1).ilog2();
    i32::try_from(doublings).unwrap_or(i32::MAX).saturating_add(1)
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::Additive { base, cap, jitter } => write!(f, "Backoff({base:?}..{cap:?} + {jitter:?})"),
            Shape::Factor { base, cap } => write!(f, "Backoff({base:?}..{cap:?} × 0.5..1.5)"),
            Shape::Fixed(wait) => write!(f, "Backoff({wait:?})"),
            Shape::Custom(_) => f.write_str("Backoff(custom)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_default_is_the_contract_s() {
        let backoff = Backoff::default().with_random(|| 0.5);
        let waits: Vec<_> = (1..=8).map(|n| backoff.after(n).as_millis()).collect();
        assert_eq!(waits, [1100, 2100, 4100, 8100, 16_100, 32_100, 60_100, 60_100]);
    }

    #[test]
    fn presets_are_as_documented() {
        let backoff = Backoff::exponential(ms(200), ms(60_000)).with_random(|| 0.0);
        assert_eq!(backoff.after(1), ms(100));
        assert_eq!(backoff.with_random(|| 1.0).after(2), ms(600));
        assert_eq!(Backoff::fixed(ms(7)).after(9), ms(7));
        assert_eq!(Backoff::custom(|n| ms(u64::try_from(n).unwrap())).after(3), ms(3));
    }

    /// What waits for ever is added to a time all the same: by a circuit to that of a clock, by a settle to that of a database.
    #[test]
    fn no_wait_is_longer_than_a_year() {
        let (first, ever) = (Backoff::exponential(Duration::MAX, Duration::MAX), Duration::MAX);
        for backoff in [first, Backoff::fixed(ever), Backoff::custom(move |_| ever)] {
            assert_eq!(backoff.with_random(|| 1.0).after(1), LONGEST);
        }
    }

    #[test]
    fn a_function_that_panics_waits_as_the_default_does() {
        let backoff = Backoff::custom(|attempts| panic!("at {attempts} attempts, on purpose"));
        assert_eq!(backoff.after(3), ms(4000));
    }

    #[test]
    fn the_longer_it_is_dead_the_longer_it_waits() {
        for (dead_for, number) in [(0, 1), (1, 1), (2, 2), (5, 3), (64, 7), (86_400, 17)] {
            assert_eq!(tries(Duration::from_secs(dead_for)), number, "{dead_for}");
        }
    }

    proptest! {
        #[test]
        fn waits_stay_within_their_bounds(attempts in any::<i32>(), random in 0.0f64..1.0) {
            let wait = Backoff::default().with_random(move || random).after(attempts);
            prop_assert!(wait >= ms(1000) && wait <= ms(60_200));
            let wait = Backoff::exponential(ms(200), ms(60_000)).with_random(move || random).after(attempts);
            prop_assert!(wait >= ms(100) && wait <= ms(90_000));
        }
    }
}
