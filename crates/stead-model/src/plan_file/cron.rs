//! Cron schedules: five fields with lists, ranges, steps and names.

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// Not five fields.
    #[error("a schedule has five fields (minute, hour, day of month, month, day of week), this has {0}")]
    Fields(usize),
    /// A field that cannot be read.
    #[error(
        "`{text}` is not a {field}: {low} to {high}, with `*`, lists `1,2`, ranges `1-5` and steps `*/10`"
    )]
    Field {
        /// Which field.
        field: &'static str,
        /// What is written.
        text: String,
        /// Its smallest value.
        low: u8,
        /// Its largest value.
        high: u8,
    },
}

/// A schedule as sets of numbers, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cron {
    /// 0 to 59.
    pub minutes: u64,
    /// 0 to 23.
    pub hours: u64,
    /// 1 to 31.
    pub days: u64,
    /// 1 to 12.
    pub months: u64,
    /// 0 (Sunday) to 6.
    pub weekdays: u64,
    /// Whether the day of the month is restricted (not `*`).
    pub days_restricted: bool,
    /// Whether the day of the week is restricted. If both are, either matches.
    pub weekdays_restricted: bool,
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Cron {
    /// Returns the schedule `text` names.
    pub fn parse(text: &str) -> Result<Self, InvalidCron> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(InvalidCron::Fields(fields.len()));
        };
        let sundays = field("day of week", weekdays, 0, 7, WEEKDAYS, 0)?;
        Ok(Self {
            minutes: field("minute", minutes, 0, 59, &[], 0)?,
            hours: field("hour", hours, 0, 23, &[], 0)?,
            days: field("day of month", days, 1, 31, &[], 0)?,
            months: field("month", months, 1, 12, MONTHS, 1)?,
            // 7 is Sunday as well.
            weekdays: (sundays | sundays >> 7) & 0x7f,
            days_restricted: !days.starts_with('*'),
            weekdays_restricted: !weekdays.starts_with('*'),
        })
    }
}

fn field(
    name: &'static str,
    text: &str,
    low: u8,
    high: u8,
    words: &[&str],
    first_word: u8,
) -> Result<u64, InvalidCron> {
    let refuse = || InvalidCron::Field { field: name, text: text.to_owned(), low, high };
    let number = |text: &str| -> Result<u8, InvalidCron> {
        let lower = text.to_ascii_lowercase();
        if let Some(index) = words.iter().position(|word| *word == lower) {
            return u8::try_from(index).map(|index| index + first_word).map_err(|_| refuse());
        }
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| plain && (low..=high).contains(number)).ok_or_else(refuse)
    };
    let mut set = 0_u64;
    for element in text.split(',') {
        let (range, step) = match element.split_once('/') {
            Some((range, step)) => {
                let step: u8 =
                    step.parse().ok().filter(|step| (1..=high).contains(step)).ok_or_else(refuse)?;
                (range, Some(step))
            }
            None => (element, None),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((from, to)) => (number(from)?, number(to)?),
            // `5/10` is from 5 on.
            None => (number(range)?, if step.is_some() { high } else { number(range)? }),
        };
        if from > to {
            return Err(refuse());
        }
        set = (from..=to).step_by(usize::from(step.unwrap_or(1))).fold(set, |set, number| set | 1 << number);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_ranges_steps_and_names() {
        let cron = Cron::parse("*/15 0-2,22 1 jan-mar mon,5").unwrap();
        assert_eq!(cron.minutes, 1 | 1 << 15 | 1 << 30 | 1 << 45);
        assert_eq!(cron.hours, 0b111 | 1 << 22);
        assert_eq!(cron.months, 0b1110);
        assert_eq!(cron.weekdays, 1 << 1 | 1 << 5);
        assert!(cron.days_restricted && cron.weekdays_restricted);
        assert_eq!(Cron::parse("5/20 * * * 7").unwrap().minutes, 1 << 5 | 1 << 25 | 1 << 45);
        assert_eq!(Cron::parse("0 0 * * 7").unwrap().weekdays, 1);
        assert!(!Cron::parse("0 0 */2 * *").unwrap().days_restricted);
    }

    #[test]
    fn refuses_what_is_out_of_range_or_malformed() {
        assert_eq!(Cron::parse("* * * *"), Err(InvalidCron::Fields(4)));
        for bad in [
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            ", * * * *",
            "a * * * *",
            "1- * * * *",
            "+1 * * * *",
            "* * * foo *",
        ] {
            assert!(matches!(Cron::parse(bad), Err(InvalidCron::Field { .. })), "{bad}");
        }
    }
}
