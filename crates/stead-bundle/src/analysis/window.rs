//! A window over a stream of bytes: what a capture reader looks at, in memory of a fixed size.

use std::io::{self, Read};

/// How much is held. It is more than any header and the part of a packet that is looked at together, and small
/// enough to stay in a processor's cache.
const CAPACITY: usize = 512 * 1024;

/// A stream, seen through a buffer of fixed size.
#[derive(Debug)]
pub(crate) struct Window<R> {
    source: R,
    buffer: Box<[u8]>,
    // Invariant: start <= end <= buffer.len(); the bytes between are read and not consumed.
    start: usize,
    end: usize,
    bytes_read: u64,
}

impl<R: Read> Window<R> {
    /// Returns a window at the beginning of `source`.
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0, bytes_read: 0 }
    }

    /// Returns how many bytes the stream has given so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns what is in the window.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads until the window holds `wanted` bytes; false if the stream ends before, or if they never fit.
    pub(crate) fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        if self.end - self.start >= wanted {
            return Ok(true);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.source.read(room) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.end += read;
                    self.bytes_read += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Drops `count` bytes, reading on as needed; false if the stream ends before.
    pub(crate) fn skip(&mut self, mut count: u64) -> io::Result<bool> {
        loop {
            let held = (self.end - self.start) as u64;
            if count <= held {
                self.start += usize::try_from(count).unwrap_or(0);
                return Ok(true);
            }
            count -= held;
            self.start = self.end;
            if !self.fill(1)? {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_given_in_order_across_refills() {
        let source: Vec<u8> = (0..2 * CAPACITY + 10).map(|n| (n % 251) as u8).collect();
        let mut window = Window::new(source.as_slice());
        let mut seen = Vec::new();
        while window.fill(1000).unwrap() {
            seen.extend_from_slice(&window.bytes()[..1000]);
            assert!(window.skip(1000).unwrap());
        }
        seen.extend_from_slice(window.bytes());
        assert_eq!(seen, source);
        assert_eq!(window.bytes_read(), source.len() as u64);
    }

    #[test]
    fn skipping_reaches_beyond_the_window_and_says_when_the_stream_ends() {
        let source = vec![7; 3 * CAPACITY];
        let mut window = Window::new(source.as_slice());
        assert!(window.skip(3 * CAPACITY as u64 - 1).unwrap());
        assert!(window.fill(1).unwrap());
        assert!(!window.fill(2).unwrap());
        assert!(!window.skip(u64::MAX).unwrap());
    }
}
