//! Schedules: five-field cron expressions, and when they fire next in a time zone.
//!
//! Pure: the moment to start from comes in, and the zone rules are those built into the program. A local time that does
//! not exist fires at the end of the gap; one that occurs twice, at the first.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp as Moment};
use stead_model::diagnostic::suggest;
use stead_model::time::Timestamp;

#[cfg(test)]
mod tests;

/// Longest time between two fires of any schedule that fires at all: 29 February on a given weekday, over a century
/// without a leap day.
const HORIZON_DAYS: usize = 366 * 41;

/// A five-field cron expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: Bits,
    hours: Bits,
    days: Bits,
    months: Bits,
    weekdays: Bits,
    /// Whether a day must fit both day fields: one of them holds `*`.
    both_days: bool,
}

/// Numbers from 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits(u64);

impl Bits {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.0.checked_shr(number).is_some_and(|bits| bits & 1 == 1))
    }

    fn iter(self, end: i8) -> impl Iterator<Item = i8> {
        (0..end).filter(move |number| self.has(*number))
    }
}

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// It has not five fields.
    #[error("expected five fields (minute hour day month weekday), found {found}")]
    Fields {
        /// How many it has.
        found: usize,
    },
    /// A field is malformed.
    #[error("field `{field}`, `{text}`: {message}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What is in it.
        text: String,
        /// What is wrong.
        message: String,
    },
    /// No such day exists.
    #[error("no month has such a day: it would never fire")]
    Never,
    /// The time zone is unknown.
    #[error("unknown time zone `{name}`; {help}")]
    Zone {
        /// The zone.
        name: String,
        /// The nearest.
        help: String,
    },
}

struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    words: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", low: 0, high: 59, words: &[] },
    Field { name: "hour", low: 0, high: 23, words: &[] },
    Field { name: "day", low: 1, high: 31, words: &[] },
    Field {
        name: "month",
        low: 1,
        high: 12,
        words: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Field { name: "weekday", low: 0, high: 7, words: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

impl Cron {
    /// Returns the schedule `text` is, or why it is none.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let texts: Vec<&str> = text.split_ascii_whitespace().collect();
        let &[minute, hour, day, month, weekday] = &texts[..] else {
            return Err(CronError::Fields { found: texts.len() });
        };
        let [minutes, hours, days, months, weekdays] = &FIELDS;
        let mut cron = Self {
            minutes: minutes.parse(minute)?,
            hours: hours.parse(hour)?,
            days: days.parse(day)?,
            months: months.parse(month)?,
            weekdays: weekdays.parse(weekday)?,
            both_days: day.contains('*') || weekday.contains('*'),
        };
        // 0 and 7 are both Sunday.
        if cron.weekdays.has(7) {
            cron.weekdays.0 |= 1;
        }
        let longest = |month: i8| {
            if month == 2 { 29 } else { 30 + i8::from(matches!(month, 1 | 3 | 5 | 7 | 8 | 10 | 12)) }
        };
        let first_day = cron.days.iter(32).next().unwrap_or(1);
        if cron.both_days && !cron.months.iter(13).any(|month| first_day <= longest(month)) {
            return Err(CronError::Never);
        }
        Ok(cron)
    }

    fn is_day(&self, date: Date) -> bool {
        let day = self.days.has(date.day());
        let weekday = self.weekdays.has(date.weekday().to_sunday_zero_offset());
        self.months.has(date.month()) && if self.both_days { day && weekday } else { day || weekday }
    }
}

impl Field {
    fn parse(&self, text: &str) -> Result<Bits, CronError> {
        let mut bits = Bits::default();
        for item in text.split(',') {
            self.item(item, &mut bits).map_err(|message| CronError::Field {
                field: self.name,
                text: text.to_owned(),
                message,
            })?;
        }
        Ok(bits)
    }

    fn item(&self, item: &str, bits: &mut Bits) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let (low, high) = match range.split_once('-') {
            _ if range == "*" => (self.low, if self.high == 7 { 6 } else { self.high }),
            Some((low, high)) => (self.number(low)?, self.number(high)?),
            // `5/10` starts at 5 and goes on to the end.
            None => (self.number(range)?, if step.is_some() { self.high } else { self.number(range)? }),
        };
        if low > high {
            return Err(format!("`{range}` runs backwards; write two ranges"));
        }
        let step = match step {
            None => 1,
            Some(step) => match step.parse::<u8>() {
                Ok(step) if step > 0 => step,
                Ok(_) | Err(_) => return Err(format!("`{step}` is not a step; write a number from 1")),
            },
        };
        (low..=high).step_by(usize::from(step)).for_each(|number| bits.0 |= 1 << number);
        Ok(())
    }

    fn number(&self, text: &str) -> Result<u8, String> {
        if let Some(at) = self.words.iter().position(|word| word.eq_ignore_ascii_case(text)) {
            return Ok(u8::try_from(at).unwrap_or(0) + self.low);
        }
        match text.parse::<u8>() {
            Ok(number)
                if (self.low..=self.high).contains(&number) && text.bytes().all(|b| b.is_ascii_digit()) =>
            {
                Ok(number)
            }
            Ok(_) | Err(_) => {
                let words = match (self.words.first(), self.words.last()) {
                    (Some(first), Some(last)) => format!(", or {first} to {last}"),
                    _ => String::new(),
                };
                Err(format!("`{text}` is not a number from {} to {}{words}", self.low, self.high))
            }
        }
    }
}

/// A time zone by its IANA name, from the rules built into the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Returns the zone called `name`.
    pub fn parse(name: &str) -> Result<Self, CronError> {
        let database = TimeZoneDatabase::bundled();
        database.get(name).map(Self).map_err(|_| {
            let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
            let help = match stead_model::diagnostic::nearest(name, names.iter().map(String::as_str)) {
                Some(_) => suggest(name, names.iter().map(String::as_str)),
                None => "write an IANA name such as `UTC` or `Europe/Vienna`".to_owned(),
            };
            CronError::Zone { name: name.to_owned(), help }
        })
    }
}

/// Returns the first moment after `after` at which `cron` fires in `zone`; nothing if that is beyond all calendars.
pub fn next_fire(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let start = Moment::from_microsecond(after.as_micros()).ok()?;
    // One day early: a local time in a gap fires later than it reads.
    let mut date = zone.0.to_datetime(start).date().yesterday().ok()?;
    for _ in 0..HORIZON_DAYS {
        if cron.is_day(date) {
            for hour in cron.hours.iter(24) {
                for minute in cron.minutes.iter(60) {
                    let moment = moment_of(&zone.0, date.to_datetime(Time::new(hour, minute, 0, 0).ok()?))?;
                    if moment > start {
                        return Some(Timestamp::from_micros(moment.as_microsecond()));
                    }
                }
            }
        }
        date = date.tomorrow().ok()?;
    }
    None
}

fn moment_of(zone: &TimeZone, local: DateTime) -> Option<Moment> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
        AmbiguousOffset::Gap { before, .. } => {
            // Read with the offset of before, the time lies at or past the change of the clocks, which ends the gap.
            let past = before.to_timestamp(local).ok()?.checked_add(Span::new().nanoseconds(1)).ok()?;
            zone.preceding(past).next().map(|transition| transition.timestamp())
        }
    }
}
