//! Durations counted by microsecond: exact percentiles of any number of samples in bounded memory.

use std::collections::BTreeMap;

/// Samples are below this: ten seconds.
pub(crate) const LIMIT_MICROS: i64 = 10_000_000;

const PAGE: usize = 1_024;

/// How often each duration was seen.
///
/// A counter of 32 bits per microsecond, in pages made when first needed: 40 MB if every duration occurs.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
    /// How often a counter went round, by its duration.
    carries: BTreeMap<usize, u64>,
    count: u64,
    sum: u128,
    squares: u128,
}

impl Samples {
    /// Counts a duration of `micros`, if it is above zero and below ten seconds.
    pub(crate) fn record(&mut self, micros: i64) -> bool {
        let Some(value) = usize::try_from(micros).ok().filter(|_| micros > 0 && micros < LIMIT_MICROS) else {
            return false;
        };
        if self.pages.len() <= value / PAGE {
            self.pages.resize_with(value / PAGE + 1, || None);
        }
        if let Some(page) = self.pages.get_mut(value / PAGE) {
            let page = page.get_or_insert_with(|| Box::new([0; PAGE]));
            let counter = &mut page[value % PAGE];
            *counter = counter.wrapping_add(1);
            if *counter == 0 {
                *self.carries.entry(value).or_default() += 1;
            }
        }
        self.count += 1;
        self.sum += value as u128;
        self.squares += (value as u128) * (value as u128);
        true
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean in milliseconds.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| rounded(self.sum as f64 / self.count as f64 / 1_000.0))
    }

    /// Returns the standard deviation of the whole population in milliseconds.
    pub(crate) fn deviation(&self) -> Option<f64> {
        let count = u128::from(self.count);
        // Exact in integers, where the difference of two large floats would not be.
        let spread = (count * self.squares).saturating_sub(self.sum * self.sum);
        (count > 0).then(|| rounded((spread as f64).sqrt() / count as f64 / 1_000.0))
    }

    /// Returns the smallest in milliseconds.
    pub(crate) fn min(&self) -> Option<f64> {
        self.occurring().next().map(|(value, _)| millis(value))
    }

    /// Returns the nearest-rank percentile, the largest for 100, in milliseconds.
    pub(crate) fn percentile(&self, percent: u8) -> Option<f64> {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100).max(1);
        let mut passed = 0_u128;
        let reached = self.occurring().find(|(_, count)| {
            passed += u128::from(*count);
            passed >= rank
        });
        reached.map(|(value, _)| millis(value))
    }

    /// Returns the durations that occur, ascending, with how often.
    fn occurring(&self) -> impl Iterator<Item = (usize, u64)> {
        let pages = self.pages.iter().enumerate();
        let counters =
            pages.filter_map(|(index, page)| Some((index, page.as_ref()?))).flat_map(|(index, page)| {
                page.iter().enumerate().map(move |(at, counter)| (index * PAGE + at, u64::from(*counter)))
            });
        counters
            .map(|(value, low)| {
                let carry = self.carries.get(&value).copied().unwrap_or(0);
                (value, low + (carry << 32))
            })
            .filter(|(_, count)| *count > 0)
    }
}

/// Returns `micros` in milliseconds.
fn millis(micros: usize) -> f64 {
    micros as f64 / 1_000.0
}

/// Returns `number` rounded to six decimals.
pub(crate) fn rounded(number: f64) -> f64 {
    let scaled = (number * 1e6).round() / 1e6;
    if scaled.is_finite() { scaled } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: impl IntoIterator<Item = i64>) -> Samples {
        let mut samples = Samples::default();
        for value in micros {
            samples.record(value);
        }
        samples
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let samples = of((1..=100).map(|ms| ms * 1_000));
        let percentiles = [50, 90, 95, 99, 100].map(|percent| samples.percentile(percent).unwrap());
        assert_eq!(percentiles, [50.0, 90.0, 95.0, 99.0, 100.0]);
        assert_eq!((samples.min(), samples.mean()), (Some(1.0), Some(50.5)));
        let few = of([3_000, 1_000, 2_000]);
        assert_eq!([50, 90, 1].map(|percent| few.percentile(percent).unwrap()), [2.0, 3.0, 1.0]);
    }

    #[test]
    fn the_deviation_is_that_of_the_population() {
        assert_eq!(of([20_000, 20_000, 25_000, 15_000]).deviation(), Some(3.535534));
        assert_eq!(of([7; 10]).deviation(), Some(0.0));
    }

    #[test]
    fn only_durations_between_nothing_and_ten_seconds_count() {
        let mut samples = Samples::default();
        for outside in [i64::MIN, -1, 0, LIMIT_MICROS, i64::MAX] {
            assert!(!samples.record(outside));
        }
        assert!(samples.record(1) && samples.record(LIMIT_MICROS - 1));
        assert_eq!((samples.min(), samples.percentile(100)), (Some(0.001), Some(9_999.999)));
    }

    #[test]
    fn nothing_has_no_figures() {
        let none = Samples::default();
        assert_eq!(
            (none.min(), none.mean(), none.deviation(), none.percentile(50)),
            (None, None, None, None)
        );
    }
}
