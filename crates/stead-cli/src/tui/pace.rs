//! When something that changes by itself is asked for again.

use stead_model::time::Timestamp;

/// After this long an answer is not waited for any more.
const MOST_PATIENCE_MILLIS: u64 = 120_000;

/// When something is asked for: again after a while, and not while an answer is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    every_millis: u64,
    /// When was asked what has no answer yet.
    asked: Option<Timestamp>,
    /// When the last answer came.
    answered: Option<Timestamp>,
}

impl Pace {
    /// Returns the pace of something that is asked for this long after the last answer.
    pub(crate) const fn every(millis: u64) -> Self {
        Self { every_millis: millis, asked: None, answered: None }
    }

    /// Whether it is time to ask.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        match (self.asked, self.answered) {
            (Some(asked), _) => now.millis_since(asked) >= MOST_PATIENCE_MILLIS,
            (None, Some(answered)) => now.millis_since(answered) >= self.every_millis,
            (None, None) => true,
        }
    }

    /// Notes that it was asked.
    pub(crate) fn ask(&mut self, now: Timestamp) {
        self.asked = Some(now);
    }

    /// Notes that an answer came.
    pub(crate) fn answer(&mut self, now: Timestamp) {
        (self.asked, self.answered) = (None, Some(now));
    }

    /// Returns for how many seconds an answer has been waited for, if that is long.
    pub(crate) fn waiting_seconds(&self, now: Timestamp) -> Option<u64> {
        let seconds = now.millis_since(self.asked?) / 1_000;
        (seconds >= 2).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_twice_at_a_time() {
        let at = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let mut pace = Pace::every(3_000);
        assert!(pace.is_due(at(0)));
        pace.ask(at(0));
        assert!(!pace.is_due(at(60_000)), "an answer is on its way");
        assert_eq!((pace.waiting_seconds(at(1_000)), pace.waiting_seconds(at(5_000))), (None, Some(5)));
        pace.answer(at(60_000));
        assert!(!pace.is_due(at(62_000)) && pace.is_due(at(63_000)));
        pace.ask(at(63_000));
        assert!(pace.is_due(at(200_000)), "an answer that never comes does not end it");
    }
}
