//! How often somebody may do something: buckets that fill with time, bounded in number.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most that are remembered. Beyond it those that are full again are forgotten.
const MOST: usize = 1 << 16;

/// Buckets by who fills them.
#[derive(Debug)]
pub(crate) struct Rates<K> {
    buckets: Mutex<HashMap<K, Bucket>>,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { buckets: Mutex::default() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Eq + Hash> Rates<K> {
    /// Takes one of `most` per `period` that `who` has; says how many seconds to wait if none is left. 0 is no limit.
    pub(crate) fn take(&self, who: K, most: u64, period: Duration, now: Instant) -> Result<(), u64> {
        if most == 0 {
            return Ok(());
        }
        let most = most as f64;
        let per_second = most / period.as_secs_f64();
        let filled = |bucket: &Bucket| {
            let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * per_second;
            (bucket.left + gained).min(most)
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&who) {
            buckets.retain(|_, bucket| filled(bucket) < most);
            if buckets.len() >= MOST {
                return Err(1);
            }
        }
        let bucket = buckets.entry(who).or_insert(Bucket { left: most, at: now });
        bucket.left = filled(bucket);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        let wait = ((1.0 - bucket.left) / per_second).ceil();
        Err(if wait < 1.0 { 1 } else { wait as u64 })
    }
}

/// Returns who an address counts as: one of version 6 as the network it is in, which one client has to itself.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => IpAddr::V4(four),
            None => {
                let [a, b, c, d, ..] = six.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_empty_and_fill_again() {
        let rates = Rates::default();
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        for _ in 0..60 {
            assert_eq!(rates.take("a", 60, minute, start), Ok(()));
        }
        assert_eq!(rates.take("a", 60, minute, start), Err(1));
        assert_eq!(rates.take("b", 60, minute, start), Ok(()));
        assert_eq!(rates.take("a", 60, minute, start + Duration::from_secs(1)), Ok(()));
        assert_eq!(rates.take("a", 0, minute, start), Ok(()), "no limit");
        assert_eq!(rates.take("c", 1, minute, start), Ok(()));
        assert_eq!(rates.take("c", 1, minute, start), Err(60));
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let same = |a: &str, b: &str| counted(a.parse().unwrap()) == counted(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::2") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
    }
}
