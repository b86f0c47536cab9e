//! The lines of `/etc/hosts`, edited name by name: spacing, comments, order and foreign names stay. Pure.

use std::net::IpAddr;

use crate::file::edit::Lines;

pub(super) const PATH: &str = "/etc/hosts";

/// The content of `/etc/hosts`.
pub(crate) struct Hosts(Lines);

impl Hosts {
    pub(crate) fn new(content: &[u8]) -> Self {
        Self(Lines::new(content))
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Returns the first line of `address`.
    pub(super) fn line_of(&self, address: IpAddr) -> Option<usize> {
        (0..self.0.len()).find(|i| self.address(*i) == Some(address))
    }

    fn address(&self, i: usize) -> Option<IpAddr> {
        let text = String::from_utf8_lossy(self.0.text(i));
        entry(&text).split_whitespace().next()?.parse().ok()
    }

    /// Returns the names on line `i`.
    pub(super) fn names(&self, i: usize) -> Vec<String> {
        let text = String::from_utf8_lossy(self.0.text(i));
        entry(&text).split_whitespace().skip(1).map(str::to_owned).collect()
    }

    /// Puts `names` that are missing at the end of the names of line `i`.
    pub(super) fn append(&mut self, i: usize, names: &[&str]) {
        let known = self.names(i);
        let missing: Vec<&str> =
            names.iter().copied().filter(|name| known.iter().all(|known| !is_same(known, name))).collect();
        if !missing.is_empty() {
            self.change(i, |entry| format!("{entry} {}", missing.join(" ")));
        }
    }

    /// Puts `names` before all other names of line `i`, where they may be already.
    pub(super) fn lead(&mut self, i: usize, names: &[&str]) {
        let known = self.names(i);
        if names.len() <= known.len() && names.iter().zip(&known).all(|(name, known)| is_same(known, name)) {
            return;
        }
        for name in names {
            self.take_off_line(i, name);
        }
        self.change(i, |entry| {
            let end = entry.find(char::is_whitespace).unwrap_or(entry.len());
            let (address, rest) = entry.split_at(end);
            let rest = rest.trim();
            let space = if rest.is_empty() { "" } else { " " };
            format!("{address}\t{}{space}{rest}", names.join(" "))
        });
    }

    /// Adds a line, after the line `after` or at the end.
    pub(super) fn insert(&mut self, after: Option<usize>, address: IpAddr, names: &[&str]) {
        let line = format!("{address}\t{}", names.join(" "));
        let at = after.map_or(self.0.len(), |i| i + 1);
        self.0.insert(at, &[line.as_bytes()]);
    }

    /// Makes `names` lead to `address`, and to no other of its family.
    pub(crate) fn make_known(&mut self, address: IpAddr, names: &[&str]) {
        if let Some(line) = self.line_of(address) {
            self.append(line, names);
        } else {
            self.insert(None, address, names);
        }
        // The line is looked for anew: lines before it may have gone.
        for name in names {
            let own = self.line_of(address);
            self.take_off(name, |i, found| Some(i) != own && found.is_ipv4() == address.is_ipv4());
        }
    }

    /// Takes `name` off every line that `is_meant`; a line without names goes, its comment stays.
    pub(crate) fn take_off(&mut self, name: &str, is_meant: impl Fn(usize, IpAddr) -> bool) {
        for i in (0..self.0.len()).rev() {
            if !self.address(i).is_some_and(|address| is_meant(i, address))
                || !self.names(i).iter().any(|known| is_same(known, name))
            {
                continue;
            }
            self.take_off_line(i, name);
            if self.names(i).is_empty() {
                let text = String::from_utf8_lossy(self.0.text(i)).into_owned();
                match text.find('#') {
                    Some(comment) => self.0.set(i, &text.as_bytes()[comment..]),
                    None => self.0.remove(i..i + 1),
                }
            }
        }
    }

    fn take_off_line(&mut self, i: usize, name: &str) {
        self.change(i, |entry| {
            let mut kept = String::new();
            let mut rest = entry;
            // Each word with the white space before it; the first is the address.
            let mut is_address = true;
            while !rest.is_empty() {
                let start = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
                let end = rest[start..].find(char::is_whitespace).map_or(rest.len(), |end| start + end);
                if is_address || !is_same(&rest[start..end], name) {
                    kept.push_str(&rest[..end]);
                }
                is_address = false;
                rest = &rest[end..];
            }
            kept
        });
    }

    /// Changes what stands before the comment of line `i`.
    fn change(&mut self, i: usize, change: impl FnOnce(&str) -> String) {
        let text = String::from_utf8_lossy(self.0.text(i)).into_owned();
        let trimmed = entry(&text).trim_end();
        let rest = &text[trimmed.len()..];
        let changed = format!("{}{rest}", change(trimmed));
        self.0.set(i, changed.as_bytes());
    }
}

/// Returns what stands before a line's comment.
fn entry(text: &str) -> &str {
    text.split('#').next().unwrap_or_default()
}

/// Host names are the same whatever their case.
fn is_same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}
