//! How long to wait before the next attempt.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stead_model::plan::{Backoff, Jitter};

/// Returns the delay after failed attempt `attempt` (from 1).
///
/// With full jitter the delay is a function of `seed` (run id, task, host) and the attempt, so that
/// a replay of the decision gives the same one.
pub fn delay(backoff: &Backoff, attempt: u32, seed: &[&str]) -> Duration {
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = backoff.initial.as_secs_f64() * backoff.factor.powi(exponent);
    let limit = backoff.max.as_secs_f64();
    let full = Duration::try_from_secs_f64(grown.min(limit)).unwrap_or(backoff.max);
    match backoff.jitter {
        Jitter::None => full,
        Jitter::Full => full.mul_f64(fraction(attempt, seed)),
    }
}

/// Returns a number from 0 to 1 that depends on nothing but its arguments.
fn fraction(attempt: u32, seed: &[&str]) -> f64 {
    let mut hash = Sha256::new();
    for text in seed {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    hash.update(attempt.to_be_bytes());
    let digest = hash.finalize();
    let mut first = [0; 4];
    first.copy_from_slice(&digest[..4]);
    f64::from(u32::from_be_bytes(first)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(initial: u64, max: u64) -> Backoff {
        Backoff {
            initial: Duration::from_millis(initial),
            max: Duration::from_millis(max),
            factor: 2.0,
            jitter: Jitter::None,
        }
    }

    /// Case 9: delays 100 ms/10 s and 100/300 ms.
    #[test]
    fn delays_double_up_to_the_maximum() {
        let millis = |backoff: &Backoff| -> Vec<u128> {
            (1..=4).map(|attempt| delay(backoff, attempt, &[]).as_millis()).collect()
        };
        assert_eq!(millis(&backoff(100, 10_000)), [100, 200, 400, 800]);
        assert_eq!(millis(&backoff(100, 300)), [100, 200, 300, 300]);
        assert_eq!(millis(&Backoff::EXPONENTIAL), [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(millis(&Backoff::NONE), [0, 0, 0, 0]);
        assert_eq!(delay(&backoff(100, 10_000), 1_000, &[]), Duration::from_secs(10));
    }

    #[test]
    fn full_jitter_is_repeatable_and_within_bounds() {
        let jittered = Backoff { jitter: Jitter::Full, ..backoff(1_000, 1_000) };
        let mut seen = std::collections::BTreeSet::new();
        for attempt in 1..100 {
            let one = delay(&jittered, attempt, &["run", "task", "host"]);
            assert_eq!(one, delay(&jittered, attempt, &["run", "task", "host"]));
            assert!(one <= Duration::from_secs(1));
            seen.insert(one);
        }
        assert!(seen.len() > 50);
    }
}
