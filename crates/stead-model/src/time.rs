//! Points in time as values: microseconds since the Unix epoch, UTC.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in UTC with microsecond precision; written as RFC 3339 with six decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the moment `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns whole milliseconds from `earlier` to this moment, zero if it lies in the future.
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0) / 1_000).unwrap_or(0)
    }

    /// Returns the moment that an RFC 3339 text names.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|stamp| Self(stamp.as_microsecond()))
    }

    fn civil(self) -> jiff::civil::DateTime {
        let stamp = jiff::Timestamp::from_microsecond(self.0).unwrap_or_default();
        stamp.to_zoned(jiff::tz::TimeZone::UTC).datetime()
    }

    /// Returns `YYYY-MM-DD_HH-MM-SS.mmm`, the sortable head of a run id.
    pub fn to_run_id_prefix(self) -> String {
        let t = self.civil();
        format!(
            "{:04}-{:02}-{:02}_{:02}-{:02}-{:02}.{:03}",
            t.year(),
            t.month(),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.millisecond()
        )
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.civil();
        // Every event has a time: digits are put in place by hand.
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let micros = t.subsec_nanosecond() / 1_000;
        if t.year() < 0 {
            f.write_str("-")?;
        }
        put(&mut text[0..4], t.year().into());
        put(&mut text[5..7], t.month().into());
        put(&mut text[8..10], t.day().into());
        put(&mut text[11..13], t.hour().into());
        put(&mut text[14..16], t.minute().into());
        put(&mut text[17..19], t.second().into());
        put(&mut text[20..26], micros);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Writes `number` in decimal, right-aligned over zeros.
fn put(digits: &mut [u8], number: i32) {
    let mut rest = number.unsigned_abs();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not an RFC 3339 time")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_with_six_decimals() {
        let text = "2026-01-02T03:04:05.678901Z";
        let stamp = Timestamp::parse(text).unwrap();
        assert_eq!(stamp.to_string(), text);
        assert_eq!(stamp.to_run_id_prefix(), "2026-01-02_03-04-05.678");
    }
}
