//! Inputs: those that are kept below `corpus/TARGET`, and others made from them.
//!
//! [`Mutations`] knows nothing of what an input reaches, unlike `ci/fuzz`; it gives the same inputs for the same seed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::targets::Target;

/// The longest input that is made.
const LONGEST: usize = 1 << 16;

/// Returns where the corpus is.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the inputs that are kept for a target, by name.
pub fn kept(target: &Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(directory().join(target.name))? {
        let path = entry?.path();
        inputs.push((path.clone(), fs::read(path)?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Inputs made from others, without end.
#[derive(Debug)]
pub struct Mutations {
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
    state: u64,
}

impl Mutations {
    /// Returns those of `seeds`, with words that lead further.
    pub fn new(seeds: Vec<Vec<u8>>, words: &'static [&'static str], seed: u64) -> Self {
        Self { seeds, words, state: seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).unwrap_or(0) % bound.max(1)
    }

    /// Returns a place in `bytes`, its end included.
    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len() + 1)
    }

    /// Returns a part of `bytes`.
    fn part(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.place(bytes);
        let length = self.below((bytes.len() - start).min(64) + 1);
        start..start + length
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        match self.below(10) {
            0 | 1 if !bytes.is_empty() => {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }
            2 if !bytes.is_empty() => {
                let at = self.below(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b' ', b'-'][self.below(8)];
            }
            3 => {
                let part = self.part(bytes);
                bytes.drain(part);
            }
            4 => {
                let part = self.part(bytes);
                let copy = bytes[part].to_vec();
                let at = self.place(bytes);
                let times = 1 << self.below(6);
                bytes.splice(at..at, copy.repeat(times));
            }
            5 | 6 if !self.words.is_empty() => {
                let word = self.words[self.below(self.words.len())];
                let at = self.place(bytes);
                bytes.splice(at..at, word.bytes());
            }
            7 => {
                let at = self.below(self.seeds.len());
                let other = self.seeds[at].clone();
                let (from, to) = (self.part(&other), self.part(bytes));
                bytes.splice(to, other[from].iter().copied());
            }
            8 => {
                let number = [
                    "0",
                    "-1",
                    "1",
                    "255",
                    "65536",
                    "4294967296",
                    "9223372036854775807",
                    "18446744073709551616",
                    "1e999",
                    "0.1",
                ];
                let number = number[self.below(number.len())];
                let digits = bytes.iter().position(u8::is_ascii_digit);
                let start = digits.unwrap_or_else(|| self.place(bytes));
                let end = start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(start..end, number.bytes());
            }
            _ => {
                let at = self.place(bytes);
                let count = self.below(4);
                let random: Vec<u8> =
                    (0..=count).map(|_| u8::try_from(self.below(256)).unwrap_or(0)).collect();
                bytes.splice(at..at, random);
            }
        }
        bytes.truncate(LONGEST);
    }
}

impl Iterator for Mutations {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.seeds.is_empty() {
            return None;
        }
        let at = self.below(self.seeds.len());
        let mut bytes = self.seeds[at].clone();
        for _ in 0..=self.below(5) {
            self.change(&mut bytes);
        }
        Some(bytes)
    }
}
