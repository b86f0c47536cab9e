//! When triggers of submitted plans fire, and whether a run begins. Pure: what time it is comes in.

use stead_model::plan::{CatchUp, Overlap};
use stead_model::time::Timestamp;

use crate::cron::{Cron, Zone, next_fire};

/// A time that is later than this was missed: nobody was there to fire it.
const LATE_MICROS: i64 = 60 * 1_000_000;

/// How far is looked back for the last of the times that were missed, in seconds: mostly the first will do.
const BACK: [i64; 5] = [3600, 86_400, 32 * 86_400, 400 * 86_400, i64::MAX / 2_000_000];

/// What a schedule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time that fires now, if one does.
    pub fire: Option<Timestamp>,
    /// Everything up to here has been looked at.
    pub seen: Timestamp,
}

/// Returns what a schedule does at `now` that was looked at last at `after`.
///
/// Of several times that have passed the last one counts. One that nobody was there for fires only if `catch_up` says so.
pub fn due(cron: &Cron, zone: &Zone, after: Timestamp, now: Timestamp, catch_up: CatchUp) -> Due {
    let last = last_fire(cron, zone, after, now);
    let is_late = |fire: &Timestamp| now.as_micros().saturating_sub(fire.as_micros()) > LATE_MICROS;
    let fire = last.filter(|fire| match catch_up {
        CatchUp::None => !is_late(fire),
        CatchUp::One => true,
    });
    Due { fire, seen: after.max(now) }
}

/// Returns the last time after `after` and up to `now` at which a schedule fires.
fn last_fire(cron: &Cron, zone: &Zone, after: Timestamp, now: Timestamp) -> Option<Timestamp> {
    for back in BACK {
        let from = now.as_micros().saturating_sub(back.saturating_mul(1_000_000));
        let mut from = Timestamp::from_micros(from.max(after.as_micros()));
        let mut last = None;
        while let Some(fire) = next_fire(cron, zone, from).filter(|fire| *fire <= now) {
            last = Some(fire);
            from = fire;
        }
        if last.is_some() || from == after {
            return last;
        }
    }
    None
}

/// What becomes of a trigger that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its run begins.
    Start,
    /// Its run begins when those before it have ended.
    Wait,
    /// There is no run: the last one goes on, or was begun too short a time ago.
    Drop,
}

/// Returns what becomes of a trigger that fires `since` the last one that began a run, with so many runs that go on.
pub fn admit(
    overlap: Overlap,
    going_on: usize,
    min_interval: Option<core::time::Duration>,
    since: Option<core::time::Duration>,
) -> Admission {
    if let (Some(least), Some(since)) = (min_interval, since)
        && since < least
    {
        return Admission::Drop;
    }
    match (overlap, going_on) {
        (Overlap::Parallel, _) | (Overlap::Queue | Overlap::Skip, 0) => Admission::Start,
        (Overlap::Queue, _) => Admission::Wait,
        (Overlap::Skip, _) => Admission::Drop,
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn fired(cron: &str, after: &str, now: &str, catch_up: CatchUp) -> Option<String> {
        let (cron, zone) = (Cron::parse(cron).unwrap(), Zone::parse("UTC").unwrap());
        due(&cron, &zone, at(after), at(now), catch_up).fire.map(|fire| fire.to_string())
    }

    #[test]
    fn what_was_missed_is_made_up_for_once_if_that_is_wanted() {
        let time = |text: &str| Some(text.to_owned());
        let (before, noon) = ("2026-01-01T11:59:30Z", "2026-01-01T12:00:00.000000Z");
        assert_eq!(fired("0 12 * * *", before, "2026-01-01T11:59:59Z", CatchUp::One), None);
        assert_eq!(fired("0 12 * * *", before, "2026-01-01T12:00:00Z", CatchUp::None), time(noon));
        assert_eq!(fired("0 12 * * *", before, "2026-01-01T12:00:59Z", CatchUp::None), time(noon));
        assert_eq!(fired("0 12 * * *", before, "2026-01-01T12:05:00Z", CatchUp::None), None);
        assert_eq!(fired("0 12 * * *", before, "2026-01-01T12:05:00Z", CatchUp::One), time(noon));
        // A year of minutes: only the last counts.
        let late = fired("* * * * *", "2025-01-01T00:00:00Z", "2026-01-01T12:00:30Z", CatchUp::One);
        assert_eq!(late, time(noon));
        assert_eq!(
            fired("0 0 29 2 *", "2020-03-01T00:00:00Z", "2026-01-01T00:00:00Z", CatchUp::One),
            time("2024-02-29T00:00:00.000000Z")
        );
    }

    #[test]
    fn runs_share_time_as_the_trigger_says() {
        for (overlap, busy) in [
            (Overlap::Queue, Admission::Wait),
            (Overlap::Skip, Admission::Drop),
            (Overlap::Parallel, Admission::Start),
        ] {
            assert_eq!(admit(overlap, 0, None, None), Admission::Start);
            assert_eq!(admit(overlap, 2, None, None), busy);
            let least = Some(Duration::from_secs(60));
            assert_eq!(admit(overlap, 0, least, Some(Duration::from_secs(59))), Admission::Drop);
            assert_eq!(admit(overlap, 0, least, Some(Duration::from_secs(60))), Admission::Start);
            assert_eq!(admit(overlap, 0, least, None), Admission::Start);
        }
    }

    proptest! {
        /// Whenever it is looked at, a time fires at most once, and the one that fires is the last that passed.
        #[test]
        fn every_time_fires_at_most_once(
            minute in 0u8..60,
            step in 1u8..30,
            gaps in prop::collection::vec(1i64..50_000_000, 1..60),
        ) {
            let cron = Cron::parse(&format!("{minute},*/{step} * * * *")).unwrap();
            let zone = Zone::parse("Europe/Vienna").unwrap();
            let mut seen = at("2026-03-28T22:00:00Z");
            let (mut now, mut last) = (seen, None);
            for gap in gaps {
                now = Timestamp::from_micros(now.as_micros() + gap);
                let found = due(&cron, &zone, seen, now, CatchUp::None);
                if let Some(fire) = found.fire {
                    prop_assert!(fire > seen && fire <= now);
                    prop_assert!(last.is_none_or(|last| fire > last));
                    prop_assert!(next_fire(&cron, &zone, fire).unwrap() > now);
                    last = Some(fire);
                }
                seen = found.seen;
            }
        }
    }
}
