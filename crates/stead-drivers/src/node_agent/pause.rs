//! How long to wait before something that failed is tried again: longer each time, never the same for two agents.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait.
const SHORTEST: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// When something may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    /// Waits after a failure, at least as long as somebody asks for; returns how long.
    pub(super) fn fail(&mut self, asked: Option<Duration>) -> Duration {
        let wait = length(self.failures, random()).max(asked.unwrap_or_default());
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + wait);
        wait
    }

    /// Goes on at once: it worked.
    pub(super) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Waits a moment, although nothing failed.
    pub(super) fn rest(&mut self) {
        self.until = Some(Instant::now() + SHORTEST);
    }

    /// Returns when it may be tried, if not now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

/// Returns the wait after so many failures: between half and all of a bound that doubles.
fn length(failures: u32, random: u8) -> Duration {
    let bound = SHORTEST.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST);
    bound / 2 + (bound / 2).mul_f64(f64::from(random) / f64::from(u8::MAX))
}

fn random() -> u8 {
    let mut byte = [0];
    // Without randomness agents only come together.
    getrandom::fill(&mut byte).ok();
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_half_a_minute_and_differ() {
        assert_eq!(length(0, 0), SHORTEST / 2);
        assert_eq!(length(0, 255), SHORTEST);
        assert_eq!(length(20, 255), LONGEST);
        assert_eq!(length(u32::MAX, 0), LONGEST / 2);
        assert!(length(3, 1) < length(3, 200));
    }

    #[test]
    fn a_success_starts_over_and_a_server_may_ask_for_more() {
        let mut pause = Pause::default();
        let now = Instant::now();
        assert_eq!(pause.until(now), None);
        assert_eq!(pause.fail(Some(Duration::from_secs(60))), Duration::from_secs(60));
        assert!(pause.until(now).is_some());
        pause.succeed();
        assert_eq!(pause.until(now), None);
        assert!(pause.fail(None) <= SHORTEST);
    }
}
