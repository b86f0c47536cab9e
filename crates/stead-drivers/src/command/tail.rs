//! The last bytes of a stream that may be endless. Grows with what it is given, never past twice its bound.

/// How much of each stream a result keeps.
const KEPT: usize = 1 << 20;

/// Keeps the last [`KEPT`] bytes it was given.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Adds bytes at the end.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        // Cutting only at twice the bound moves each byte at most once more, so a long stream stays linear.
        if self.0.len() > 2 * KEPT {
            self.0.drain(..self.0.len() - KEPT);
        }
    }

    /// Returns the kept bytes as text; what is not UTF-8 becomes U+FFFD.
    pub(super) fn into_text(self) -> String {
        let kept = &self.0[self.0.len().saturating_sub(KEPT)..];
        String::from_utf8_lossy(kept).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_mebibyte_whatever_the_pieces() {
        for piece in [1_000, 65_536, 3 * KEPT] {
            let mut tail = Tail::default();
            let mut given = 0;
            while given < 3 * KEPT {
                tail.push(&vec![b'a'; piece]);
                given += piece;
            }
            tail.push(b"end");
            let text = tail.into_text();
            assert_eq!(text.len(), KEPT);
            assert!(text.ends_with("aend"));
        }
    }
}
