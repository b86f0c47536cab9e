//! Durations as people write and read them.

use std::fmt;
use std::time::Duration;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// A bare number.
    #[error("`{0}` has no unit; write `{0}s`, `{0}ms`, `{0}m` or `{0}h`")]
    NoUnit(String),
    /// Anything else.
    #[error("`{0}` is not a duration; examples: 250ms, 30s, 5m, 2h, 1h30m")]
    Malformed(String),
}

/// Units, largest first: a duration names each at most once, in this order.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Returns the duration `text` names: whole numbers with units, such as `1h30m`.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let malformed = || InvalidDuration::Malformed(text.to_owned());
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(InvalidDuration::NoUnit(text.to_owned()));
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| malformed())?;
        let (_, millis) = units.find(|(name, _)| *name == unit).ok_or_else(malformed)?;
        total = number.checked_mul(*millis).and_then(|part| total.checked_add(part)).ok_or_else(malformed)?;
        rest = tail;
    }
    if text.is_empty() { Err(malformed()) } else { Ok(Duration::from_millis(total)) }
}

/// Writes a duration the way every Stead output does: cut, not rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short(pub Duration);

impl Short {
    /// Returns the display form of a number of milliseconds.
    pub fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{}ms", self.0.subsec_millis()),
            1..60 => write!(f, "{seconds}.{}s", self.0.subsec_millis() / 100),
            60..3600 => write!(f, "{}m{:02}s", seconds / 60, seconds % 60),
            3600.. => write!(f, "{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

/// Writes a duration in the form [`parse`] reads, exactly: `1h30m`, `250ms`, `0s`.
pub fn to_exact(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, size) in UNITS {
        if millis >= size {
            text.push_str(&format!("{}{unit}", millis / size));
            millis %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Serde form of durations in files Stead writes: whole milliseconds.
pub mod as_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes whole milliseconds.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// Reads whole milliseconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u64::deserialize(deserializer)?))
    }
}

/// Serde form of optional durations: whole milliseconds or nothing.
pub mod as_optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes whole milliseconds or null.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    /// Reads whole milliseconds or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_contract_lists() {
        for (text, millis) in
            [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("1h30m", 5_400_000)]
        {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
            assert_eq!(to_exact(parse(text).unwrap()), text);
        }
    }

    #[test]
    fn refuses_numbers_without_unit_and_nonsense() {
        assert_eq!(parse("30"), Err(InvalidDuration::NoUnit("30".into())));
        for bad in [
            "",
            "s",
            "1.5s",
            "-1s",
            "1x",
            "1m1h",
            "1s1s",
            "1 s",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert!(matches!(parse(bad), Err(InvalidDuration::Malformed(_))), "{bad}");
        }
    }

    #[test]
    fn shows_durations_cut_not_rounded() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1.0s"),
            (59_999, "59.9s"),
            (60_000, "1m00s"),
            (3_599_999, "59m59s"),
            (3_600_000, "1h00m"),
            (360_000_000, "100h00m"),
        ] {
            assert_eq!(Short::from_millis(millis).to_string(), text);
        }
    }
}
