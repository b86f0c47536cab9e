//! The lines of `/etc/fstab`: one is changed, the others stay byte for byte. Pure.

use crate::file::edit::Lines;

pub(super) const PATH: &str = "/etc/fstab";

/// One line: device, mount point, type, options. The two numbers after them are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) device: String,
    pub(super) path: String,
    pub(super) fstype: String,
    pub(super) options: String,
    numbers: Vec<String>,
}

impl Line {
    pub(super) fn new(device: &str, path: &str, fstype: &str, options: &str) -> Self {
        let numbers = vec!["0".to_owned(), "0".to_owned()];
        Self {
            device: device.into(),
            path: path.into(),
            fstype: fstype.into(),
            options: options.into(),
            numbers,
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_whitespace();
        let mut next = || words.next().map(unescape);
        let device = next().filter(|word| !word.starts_with('#'))?;
        let (path, fstype) = (next()?, next()?);
        let options = next().unwrap_or_else(|| "defaults".to_owned());
        Some(Self { device, path, fstype, options, numbers: words.map(str::to_owned).collect() })
    }

    fn to_text(&self) -> String {
        let words = [&self.device, &self.path, &self.fstype, &self.options];
        let words = words.into_iter().map(|word| escape(word)).chain(self.numbers.iter().cloned());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The content of `/etc/fstab`.
pub(super) struct Table(Lines);

impl Table {
    pub(super) fn new(content: &[u8]) -> Self {
        Self(Lines::new(content))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    fn at(&self, path: &str) -> Vec<usize> {
        self.0.find(|text| Line::parse(text).is_some_and(|line| same_path(&line.path, path)))
    }

    /// Returns the line for `path`, the last if there are several: that is what ends up on top.
    pub(super) fn get(&self, path: &str) -> Option<Line> {
        self.at(path).last().and_then(|i| Line::parse(self.0.text(*i)))
    }

    /// Makes sure the line for its path is `line`, but for its last two numbers.
    pub(super) fn set(&mut self, line: &Line) {
        match self.at(&line.path).last() {
            Some(i) => {
                let Some(old) = Line::parse(self.0.text(*i)) else { return };
                let new = Line { numbers: old.numbers.clone(), path: old.path.clone(), ..line.clone() };
                if new != old {
                    self.0.set(*i, new.to_text().as_bytes());
                }
            }
            None => self.0.insert(self.0.len(), &[line.to_text().as_bytes()]),
        }
    }

    /// Removes every line for `path`.
    pub(super) fn remove(&mut self, path: &str) {
        for i in self.at(path).into_iter().rev() {
            self.0.remove(i..i + 1);
        }
    }
}

fn same_path(one: &str, other: &str) -> bool {
    let bare =
        |path: &str| if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path.to_owned() };
    bare(one) == bare(other)
}

/// Returns `text` as one word of the table, or of the kernel's.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            ' ' => escaped.push_str("\\040"),
            '\t' => escaped.push_str("\\011"),
            '\n' => escaped.push_str("\\012"),
            '\\' => escaped.push_str("\\134"),
            '#' if escaped.is_empty() => escaped.push_str("\\043"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns what a word of the table, or of the kernel's, stands for.
pub(super) fn unescape(word: &str) -> String {
    let bytes = word.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digits =
            bytes.get(i + 1..i + 4).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) if bytes[i] == b'\\' => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(u8::try_from(value).unwrap_or(b'?'));
                i += 4;
            }
            Some(_) | None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_lines_and_the_numbers_stay() {
        let text = "# c\nUUID=1  /  ext4 errors=remount-ro 0 1\n\n/dev/b\t/data ext4 defaults 0 2 # x";
        let mut table = Table::new(text.as_bytes());
        table.set(&Line::new("/dev/b", "/data", "ext4", "defaults"));
        assert_eq!(String::from_utf8(table.into_bytes()).unwrap(), text, "the same is not written anew");
        let mut table = Table::new(text.as_bytes());
        table.set(&Line::new("/dev/b", "/data", "ext4", "noatime"));
        table.set(&Line::new("tmpfs", "/my dir", "tmpfs", "size=1m"));
        let made = String::from_utf8(table.into_bytes()).unwrap();
        let (same, _) = text.split_once("/dev/b").unwrap();
        assert_eq!(
            made,
            format!("{same}/dev/b /data ext4 noatime 0 2 # x\ntmpfs /my\\040dir tmpfs size=1m 0 0")
        );
        let mut table = Table::new(made.as_bytes());
        assert_eq!(table.get("/my dir/").unwrap().options, "size=1m");
        table.remove("/my dir");
        table.remove("/data/");
        assert_eq!(String::from_utf8(table.into_bytes()).unwrap(), same.strip_suffix('\n').unwrap());
    }

    #[test]
    fn words_are_escaped_both_ways() {
        for text in ["a b", "a\\b", "#x", "a\tb\nc", "plain"] {
            assert_eq!(unescape(&escape(text)), text);
            assert!(!escape(text).contains([' ', '\t', '\n']));
        }
    }
}
