//! Counts of what was seen, bounded however many different things a capture invents.

use std::collections::{BTreeMap, HashMap};

use super::bytes::ByteOrder;
use super::cip::{path_text, service_name};
use super::summary::{PathCount, ServiceCount};

/// How many different services, and how many different paths, are told apart; later ones are part of the totals
/// only. Real devices have dozens.
const MOST_KEYS: usize = 65_536;
/// How many bytes of paths are kept.
const MOST_PATH_BYTES: usize = 8 * 1024 * 1024;
/// How many paths are shown.
const TOP_PATHS: usize = 10;

/// What services are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServiceKey {
    pub(crate) service: u8,
    pub(crate) class: u16,
    pub(crate) response: bool,
}

/// How often a service was seen. Replies do not name a class, but are named by that of their request.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    on_connection_manager: u64,
    on_others: u64,
}

/// Services and how often they were seen.
#[derive(Debug, Default)]
pub(crate) struct ServiceTally {
    seen: BTreeMap<ServiceKey, Seen>,
    unknown: u64,
}

impl ServiceTally {
    /// Counts a message; `class` is that of the request, if known.
    pub(crate) fn add(&mut self, key: ServiceKey, class: Option<u16>) {
        if service_name(key.service, class.unwrap_or(0)).is_none() {
            self.unknown += 1;
        }
        if self.seen.len() >= MOST_KEYS && !self.seen.contains_key(&key) {
            return;
        }
        let seen = self.seen.entry(key).or_default();
        seen.count += 1;
        match class {
            Some(6) => seen.on_connection_manager += 1,
            Some(_) => seen.on_others += 1,
            None => {}
        }
    }

    /// Returns how many messages had a service without a name.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Returns the counts, by service, class and direction.
    pub(crate) fn counts(&self) -> Vec<ServiceCount> {
        let count = |(key, seen): (&ServiceKey, &Seen)| {
            let class = if seen.on_connection_manager > seen.on_others { 6 } else { key.class };
            ServiceCount {
                service: key.service,
                name: name(key.service, class),
                class: key.class,
                response: key.response,
                count: seen.count,
            }
        };
        self.seen.iter().map(count).collect()
    }

    /// Returns the classes other than 0.
    pub(crate) fn classes(&self) -> Vec<u16> {
        let mut classes: Vec<u16> =
            self.seen.keys().map(|key| key.class).filter(|class| *class != 0).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}

fn name(service: u8, class: u16) -> String {
    service_name(service, class).map_or_else(|| format!("Unknown(0x{service:02X})"), str::to_owned)
}

/// Paths of requests and how often they were seen.
#[derive(Debug, Default)]
pub(crate) struct PathTally {
    counts: HashMap<Box<[u8]>, u64>,
    bytes: usize,
}

impl PathTally {
    /// Counts a path.
    pub(crate) fn add(&mut self, path: &[u8]) {
        if let Some(count) = self.counts.get_mut(path) {
            *count += 1;
        } else if self.counts.len() < MOST_KEYS && self.bytes + path.len() <= MOST_PATH_BYTES {
            self.bytes += path.len();
            self.counts.insert(path.into(), 1);
        }
    }

    /// Returns the most frequent, ties by name.
    pub(crate) fn top(&self) -> Vec<PathCount> {
        // Two encodings of one path are one path.
        let mut by_text: BTreeMap<String, u64> = BTreeMap::new();
        for (path, count) in &self.counts {
            *by_text.entry(path_text(ByteOrder::Little, path)).or_default() += count;
        }
        let mut top: Vec<PathCount> =
            by_text.into_iter().map(|(path, count)| PathCount { path, count }).collect();
        top.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.path.cmp(&b.path)));
        top.truncate(TOP_PATHS);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_named_by_the_class_of_their_requests() {
        let mut tally = ServiceTally::default();
        let reply = ServiceKey { service: 0x4e, class: 0, response: true };
        tally.add(reply, Some(6));
        assert_eq!(tally.counts()[0].name, "Forward_Close");
        tally.add(reply, Some(0x6b));
        assert_eq!(tally.counts()[0].name, "Read_Modify_Write_Tag");
        tally.add(ServiceKey { service: 0x77, class: 3, response: false }, Some(3));
        assert_eq!((tally.unknown(), tally.classes()), (1, vec![3]));
        assert_eq!(tally.counts()[1].name, "Unknown(0x77)");
    }

    #[test]
    fn different_paths_are_bounded() {
        let mut tally = PathTally::default();
        for number in 0..100_000_u32 {
            tally.add(&number.to_le_bytes());
        }
        assert_eq!(tally.counts.len(), MOST_KEYS);
        for _ in 0..3 {
            tally.add(&[0x20, 4, 0x24, 1]);
        }
        tally.counts.insert([0x20, 4, 0x25, 0, 1, 0].as_slice().into(), 2);
        assert_eq!(tally.top().len(), TOP_PATHS);
    }

    #[test]
    fn the_most_frequent_paths_come_first() {
        let mut tally = PathTally::default();
        for path in [[0x20, 5, 0x24, 1], [0x20, 4, 0x24, 1], [0x20, 4, 0x24, 2], [0x20, 4, 0x24, 2]] {
            tally.add(&path);
        }
        let top: Vec<String> =
            tally.top().into_iter().map(|path| format!("{} {}", path.path, path.count)).collect();
        assert_eq!(top, ["0x04/2 2", "0x04/1 1", "0x05/1 1"]);
    }
}
