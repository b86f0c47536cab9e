//! The one place that asks for wall-clock time and randomness.
//!
//! Everything else takes them as values, so that decisions can be tested and replayed. Durations are
//! measured between monotonic instants, never between timestamps: a clock that is set does not bend them.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use stead_model::RunId;
use stead_model::time::Timestamp;

/// Crockford's base 32 in lower case: digits before letters, so texts sort as the numbers do.
const BASE32: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Bits of an id's last eight characters that are random; the ten above hold the microsecond.
const RANDOM_BITS: u32 = 30;

/// Returns the wall-clock time.
#[expect(clippy::disallowed_methods, reason = "this is the one place that asks")]
pub fn now() -> Timestamp {
    let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    };
    Timestamp::from_micros(micros)
}

/// Returns a moment to measure durations from.
pub fn instant() -> Instant {
    Instant::now()
}

/// Returns random bits, for ids and jitter seeds; not for keys.
fn random() -> u32 {
    let mut bytes = [0; 4];
    if getrandom::fill(&mut bytes).is_ok() {
        return u32::from_ne_bytes(bytes);
    }
    // Without a source of randomness the address of a fresh box and the time still keep ids apart.
    let address = std::ptr::from_ref(Box::new(0_u8).as_ref()).addr();
    let mixed = address as u64 ^ now().as_micros().unsigned_abs().rotate_left(17);
    (mixed as u32) ^ std::process::id()
}

/// Returns a new run id for a run that starts at `now`.
///
/// Ids sort by start: the eight characters after the millisecond begin with the microsecond, the rest
/// is random. Ids made for one microsecond by one process sort in the order they were made.
pub fn new_run_id(now: Timestamp) -> RunId {
    static LAST: Mutex<(i64, u64)> = Mutex::new((i64::MIN, 0));

    let (millis, micros) = (now.as_micros().div_euclid(1_000), now.as_micros().rem_euclid(1_000));
    let fresh = (micros.unsigned_abs() << RANDOM_BITS) | u64::from(random() >> (u32::BITS - RANDOM_BITS));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let tail = if last.0 == millis && fresh <= last.1 { last.1 + 1 } else { fresh };
    *last = (millis, tail);
    drop(last);

    let mut text = now.to_run_id_prefix();
    text.push('-');
    text.extend((0..8).rev().map(|digit| char::from(BASE32[(tail >> (5 * digit)) as usize & 31])));
    RunId::parse(&text).expect("a time and base 32 digits are a run id")
}

/// Returns the id of a run of roles that starts at `now`, to the second: its directory makes it unique.
pub fn run_id_of_second(now: Timestamp) -> RunId {
    let text = now.to_run_id_prefix();
    let head = text.rsplit_once('.').map_or(text.as_str(), |(head, _)| head);
    RunId::parse(head).expect("a time is a run id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_have_the_documented_form() {
        let id = new_run_id(Timestamp::parse("2026-11-15T06:55:12.345678Z").unwrap());
        let (head, tail) = id.as_str().split_at(24);
        assert_eq!(head, "2026-11-15_06-55-12.345-");
        assert_eq!(tail.len(), 8);
        assert!(tail.bytes().all(|b| BASE32.contains(&b)), "{tail}");
    }

    #[test]
    fn ids_of_runs_of_roles_are_to_the_second() {
        let start = Timestamp::parse("2026-11-15T06:55:12.345678Z").unwrap();
        assert_eq!(run_id_of_second(start).as_str(), "2026-11-15_06-55-12");
    }

    /// Case 24: ids sort in start order, also within a millisecond and a microsecond.
    #[test]
    fn run_ids_sort_as_they_were_made() {
        let start = Timestamp::parse("2026-11-15T06:55:12.345000Z").unwrap();
        let same = (0..500).map(|_| new_run_id(start));
        let later = (1..3_000).map(|micros| new_run_id(Timestamp::from_micros(start.as_micros() + micros)));
        let ids: Vec<_> = same.chain(later).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "an id does not sort after the one before");
    }

    #[test]
    fn now_is_after_this_was_written() {
        assert!(now() > Timestamp::parse("2025-01-01T00:00:00Z").unwrap());
    }
}
