//! Where a program's own output begins: what a login shell prints before it is noise.

/// As much as a login shell may print before the program; more is no banner.
pub(super) const LONGEST_NOISE: usize = 64 << 10;

/// One stream up to its mark.
#[derive(Debug)]
pub(super) struct Preamble {
    mark: Vec<u8>,
    seen: Vec<u8>,
    start: Option<usize>,
    found: bool,
}

/// What has become of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The mark is still to come.
    Waiting,
    /// There was the mark; this is the rest of its line, and the program's bytes after it.
    Marked(String, Vec<u8>),
    /// More noise than is allowed.
    TooMuch,
}

impl Preamble {
    /// Returns a stream whose mark is a line that starts with `mark`.
    pub(super) fn new(mark: &str) -> Self {
        Self { mark: mark.as_bytes().to_vec(), seen: Vec::new(), start: None, found: false }
    }

    /// Whether the mark has been seen.
    pub(super) fn is_over(&self) -> bool {
        self.found
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, data: &[u8]) -> Step {
        // The mark may be cut by the packets' ends: what could be its beginning is looked at again.
        let from = self.seen.len().saturating_sub(self.mark.len());
        self.seen.extend_from_slice(data);
        if self.start.is_none() {
            let tail = self.seen.get(from..).unwrap_or_default();
            let place = tail.windows(self.mark.len()).position(|window| window == self.mark.as_slice());
            self.start = place.map(|place| place + from);
        }
        if let Some(start) = self.start {
            let after = self.seen.get(start + self.mark.len()..).unwrap_or_default();
            if let Some(end) = after.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(after.get(..end).unwrap_or_default()).trim().to_owned();
                let rest = after.get(end + 1..).unwrap_or_default().to_vec();
                self.found = true;
                self.seen.truncate(start);
                return Step::Marked(line, rest);
            }
        }
        if self.seen.len() > LONGEST_NOISE + 256 { Step::TooMuch } else { Step::Waiting }
    }

    /// What came before the mark.
    pub(super) fn noise(&self) -> &[u8] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_wherever_packets_are_cut() {
        let whole = b"motd\nno mark here\nMARK 4711\nreal\n";
        for cut in 0..whole.len() {
            for second in cut..whole.len() {
                let mut preamble = Preamble::new("MARK");
                let mut line = None;
                let mut output = Vec::new();
                for part in [&whole[..cut], &whole[cut..second], &whole[second..]] {
                    if preamble.is_over() {
                        output.extend_from_slice(part);
                    } else if let Step::Marked(found, rest) = preamble.feed(part) {
                        line = Some(found);
                        output.extend(rest);
                    }
                }
                assert_eq!(line.as_deref(), Some("4711"), "cut at {cut} and {second}");
                assert_eq!(output, b"real\n");
                assert_eq!(preamble.noise(), b"motd\nno mark here\n");
            }
        }
    }

    #[test]
    fn noise_without_end_is_too_much() {
        let mut preamble = Preamble::new("MARK");
        assert_eq!(preamble.feed(&vec![b'x'; LONGEST_NOISE]), Step::Waiting);
        assert_eq!(preamble.feed(&[b'x'; 1024]), Step::TooMuch);
    }
}
