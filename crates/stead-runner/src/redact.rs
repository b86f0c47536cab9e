//! Masking of secrets in everything that is recorded or shown.
//!
//! Every secret value, and each of its lines of four bytes or more, becomes `***`: the leftmost match
//! first, the longest of those. Output is masked as it streams: bytes that may be the beginning of a
//! secret are held back until it is clear whether they are.
//!
//! It knows values only as bytes; where they come from and where they may be used is decided elsewhere.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

/// What stands in for a secret.
pub const MASK: &str = "***";
/// Shorter lines of a secret are ordinary text: masking them would eat the output.
const SHORTEST_LINE: usize = 4;
/// Secrets longer than this together get the automaton that is slower and smaller: the fast one takes up to a
/// kilobyte for each of their bytes.
const LARGEST_TABLE: usize = 8 << 10;

/// A secret value. Wiped from memory when dropped; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Returns a secret of these bytes.
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// Returns the bytes, for handing them to a process or a file.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, if the bytes are text.
    pub fn expose_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        self.expose()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Masks secrets. Cheap to clone; without secrets it costs nothing.
#[derive(Clone, Default)]
pub struct Redactor(Option<Arc<Patterns>>);

struct Patterns {
    automaton: AhoCorasick,
    // Sorted, for asking whether some bytes begin one of them.
    sorted: Vec<Secret>,
    longest: usize,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

/// Why no redactor could be made.
#[derive(Debug, thiserror::Error)]
#[error("the secrets are too long to be masked")]
pub struct TooLong;

impl Redactor {
    /// Returns a redactor of `values` and their lines. Empty values are nothing to mask.
    pub fn new<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Result<Self, TooLong> {
        let mut sorted: Vec<Secret> = Vec::new();
        for value in values {
            let value = value.as_ref();
            let lines = value.split(|byte| matches!(byte, b'\n' | b'\r'));
            let lines = lines.filter(|line| line.len() >= SHORTEST_LINE);
            let whole = Some(value).filter(|whole| !whole.is_empty());
            sorted.extend(lines.chain(whole).map(Secret::new));
        }
        sorted.sort_unstable_by(|a, b| a.expose().cmp(b.expose()));
        sorted.dedup();
        if sorted.is_empty() {
            return Ok(Self(None));
        }
        let longest = sorted.iter().map(|pattern| pattern.expose().len()).max().unwrap_or(0);
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest);
        if sorted.iter().map(|pattern| pattern.expose().len()).sum::<usize>() > LARGEST_TABLE {
            builder.kind(Some(AhoCorasickKind::ContiguousNFA));
        }
        let automaton = builder.build(sorted.iter().map(Secret::expose)).map_err(|_| TooLong)?;
        Ok(Self(Some(Arc::new(Patterns { automaton, sorted, longest }))))
    }

    /// Whether there is nothing to mask.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns `text` with every secret masked.
    pub fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            // A secret that is not text may cut a character in two.
            Cow::Owned(bytes) => Cow::Owned(
                String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
            ),
        }
    }

    /// Masks what `text` begins with if it is the end of a secret: `text` may be the tail of a longer one.
    pub fn redact_start(&self, text: &mut String) {
        let Some(patterns) = &self.0 else { return };
        let kept = text.trim_start_matches('\u{FFFD}');
        let cut = text.len() - kept.len();
        let ends = patterns.sorted.iter().flat_map(|secret| {
            let secret = secret.expose();
            (SHORTEST_LINE.min(secret.len())..secret.len())
                .map(move |length| &secret[secret.len() - length..])
        });
        let found = ends.filter(|end| kept.as_bytes().starts_with(end)).map(<[u8]>::len).max();
        if let Some(length) = found.filter(|length| kept.is_char_boundary(*length)) {
            text.replace_range(..cut + length, MASK);
        }
    }

    /// Returns `bytes` with every secret masked.
    pub fn redact_bytes<'t>(&self, bytes: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(patterns) = &self.0 else { return Cow::Borrowed(bytes) };
        let mut out = Vec::new();
        let mut end = 0;
        for found in patterns.automaton.find_iter(bytes) {
            out.extend_from_slice(&bytes[end..found.start()]);
            out.extend_from_slice(MASK.as_bytes());
            end = found.end();
        }
        if end == 0 {
            return Cow::Borrowed(bytes);
        }
        out.extend_from_slice(&bytes[end..]);
        Cow::Owned(out)
    }

    /// Masks every secret in texts, numbers and keys of `value`, however deep.
    pub fn redact_value(&self, value: &mut Value) {
        if self.0.is_none() {
            return;
        }
        // A stack of our own: depth is whatever a program printed.
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::Null | Value::Bool(_) => {}
                Value::Number(number) => {
                    let text = number.to_string();
                    if let Cow::Owned(masked) = self.redact_text(&text) {
                        *value = Value::String(masked);
                    }
                }
                Value::String(text) => {
                    if let Cow::Owned(masked) = self.redact_text(text) {
                        *text = masked;
                    }
                }
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    self.redact_keys(fields);
                    open.extend(fields.values_mut());
                }
            }
        }
    }

    fn redact_keys(&self, fields: &mut Map<String, Value>) {
        if fields.keys().any(|key| matches!(self.redact_text(key), Cow::Owned(_))) {
            let old = std::mem::take(fields);
            for (key, value) in old {
                let masked = self.redact_text(&key).into_owned();
                // Two keys may become one: number the later ones rather than lose a value.
                let mut free = masked.clone();
                let mut number = 2;
                while fields.contains_key(&free) {
                    free = format!("{masked}-{number}");
                    number += 1;
                }
                fields.insert(free, value);
            }
        }
    }

    /// Returns a redactor of one stream of bytes.
    pub fn stream(&self) -> MaskingStream {
        MaskingStream { patterns: self.0.clone(), held: Zeroizing::new(Vec::new()) }
    }
}

impl Patterns {
    /// Returns where the first beginning of a secret lies that more bytes could complete, from `from` on.
    fn open_from(&self, bytes: &[u8], from: usize) -> usize {
        let first = from.max((bytes.len() + 1).saturating_sub(self.longest));
        let may_begin = |tail: &[u8]| {
            let at = self.sorted.partition_point(|pattern| pattern.expose() <= tail);
            self.sorted.get(at).is_some_and(|pattern| pattern.expose().starts_with(tail))
        };
        (first..bytes.len()).find(|at| may_begin(&bytes[*at..])).unwrap_or(bytes.len())
    }

    /// Masks what is decided of `bytes`; returns it and how many bytes were used.
    fn settle(&self, bytes: &[u8]) -> (Vec<u8>, usize) {
        let mut out = Vec::with_capacity(bytes.len());
        let mut done = 0;
        let mut open = self.open_from(bytes, done);
        loop {
            // A match that begins before the first open place is final: bytes to come could give neither an
            // earlier match nor a longer one at its start, or that start would be open itself.
            let input = Input::new(bytes).range(done..).anchored(Anchored::No);
            match self.automaton.find(input).filter(|found| found.start() < open) {
                Some(found) => {
                    out.extend_from_slice(&bytes[done..found.start()]);
                    out.extend_from_slice(MASK.as_bytes());
                    done = found.end();
                    if done > open {
                        // The match took the open place with it.
                        open = self.open_from(bytes, done);
                    }
                }
                None => {
                    out.extend_from_slice(&bytes[done..open]);
                    return (out, open);
                }
            }
        }
    }
}

/// Masks secrets in bytes that come piece by piece, also those that two pieces share.
pub struct MaskingStream {
    patterns: Option<Arc<Patterns>>,
    // Invariant: shorter than the longest secret, and the beginning of one.
    held: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for MaskingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskingStream")
    }
}

impl MaskingStream {
    /// Takes the next piece; returns what can be shown now. Only what may begin a secret is held back.
    pub fn push<'p>(&mut self, piece: &'p [u8]) -> Cow<'p, [u8]> {
        let Some(patterns) = &self.patterns else { return Cow::Borrowed(piece) };
        if self.held.is_empty() {
            let (out, used) = patterns.settle(piece);
            self.held.extend_from_slice(&piece[used..]);
            return Cow::Owned(out);
        }
        self.held.extend_from_slice(piece);
        let (out, used) = patterns.settle(&self.held);
        self.held.drain(..used);
        Cow::Owned(out)
    }

    /// Returns what was held back: no more comes, so it is no beginning any more. The stream can go on anew.
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut *self.held);
        match &self.patterns {
            Some(patterns) => Redactor(Some(Arc::clone(patterns))).redact_bytes(&held).into_owned(),
            None => held,
        }
    }
}

#[cfg(test)]
mod tests;
