//! Finding marks in bytes, and in whatever the bytes are packed with.

use std::io::{self, Cursor, Read};
use std::path::Path;

use aho_corasick::AhoCorasick;

use super::{Leak, MARKS};

/// The most bytes of one file that are looked at, unpacked.
const MOST: u64 = 256 << 20;
/// How deep archives may lie in archives.
const DEEPEST: usize = 4;
/// Shorter pieces of base64 would be found by chance.
const SHORTEST: usize = 7;
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Finds marks.
#[derive(Debug)]
pub struct Finder {
    automaton: AhoCorasick,
    /// Which mark each pattern is of, and how it is written.
    patterns: Vec<(&'static str, &'static str)>,
}

impl Default for Finder {
    fn default() -> Self {
        Self::new()
    }
}

impl Finder {
    /// Returns what finds the marks as they are, in hex and in base64.
    pub fn new() -> Self {
        let (mut texts, mut patterns) = (Vec::new(), Vec::new());
        for mark in MARKS {
            let mut add = |text: Vec<u8>, form| {
                texts.push(text);
                patterns.push((*mark, form));
            };
            add(mark.as_bytes().to_vec(), "as it is");
            add(mark.bytes().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect(), "in hex");
            for shift in 0..3 {
                let coded = base64_inside(mark.as_bytes(), shift);
                if coded.len() >= SHORTEST {
                    add(coded, "in base64");
                }
            }
        }
        let automaton = AhoCorasick::new(&texts).expect("a few short texts");
        Self { automaton, patterns }
    }

    /// Returns the marks in the file called `path` with this content.
    pub fn find(&self, path: &Path, bytes: Vec<u8>) -> Vec<Leak> {
        let mut leaks = Vec::new();
        self.look(path, bytes, 0, &mut leaks);
        leaks.sort();
        leaks.dedup_by(|a, b| (&a.path, a.mark, a.form) == (&b.path, b.mark, b.form));
        leaks
    }

    fn look(&self, path: &Path, bytes: Vec<u8>, depth: usize, leaks: &mut Vec<Leak>) {
        // A program knows how keys begin, and is no place for what a run was given.
        if bytes.starts_with(b"\x7fELF") {
            return;
        }
        for found in self.automaton.find_overlapping_iter(&bytes) {
            let (mark, form) = self.patterns[found.pattern().as_usize()];
            // A file that is a private key is where that key belongs; inside of anything else it is a leak.
            if mark.starts_with("-----BEGIN") && found.start() == 0 && depth == 0 {
                continue;
            }
            let around = &bytes[found.start().saturating_sub(40)..(found.end() + 20).min(bytes.len())];
            let around = String::from_utf8_lossy(around).replace(|c: char| c.is_control(), " ");
            leaks.push(Leak { path: path.to_owned(), mark, form, around });
        }
        if depth < DEEPEST {
            // What cannot be unpacked has been looked at as it is.
            drop(self.unpack(path, &bytes, depth + 1, leaks));
        }
    }

    fn unpack(&self, path: &Path, bytes: &[u8], depth: usize, leaks: &mut Vec<Leak>) -> io::Result<()> {
        match bytes {
            [0x1f, 0x8b, ..] => {
                self.look(path, all(flate2::read::MultiGzDecoder::new(bytes))?, depth, leaks);
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                self.look(path, all(zstd::Decoder::new(bytes)?)?, depth, leaks);
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
                self.look(path, all(liblzma::read::XzDecoder::new(bytes))?, depth, leaks);
            }
            [b'P', b'K', 3, 4, ..] => {
                let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(io::Error::other)?;
                for index in 0..archive.len() {
                    let entry = archive.by_index(index).map_err(io::Error::other)?;
                    let inside = path.join(entry.name().map_err(io::Error::other)?.trim_start_matches('/'));
                    self.look(&inside, all(entry)?, depth, leaks);
                }
            }
            _ if bytes.get(257..262) == Some(b"ustar") => {
                let mut archive = tar::Archive::new(bytes);
                for entry in archive.entries()? {
                    let entry = entry?;
                    let name = entry.path()?.into_owned();
                    let inside = path.join(name.strip_prefix("/").unwrap_or(&name));
                    self.look(&inside, all(entry)?, depth, leaks);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns what `reader` gives, as far as it is looked at. A damaged end does not hide the beginning.
fn all(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match reader.take(MOST).read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        Ok(_) | Err(_) => Ok(bytes),
    }
}

/// Returns the digits of base64 that `text` always gives where it begins `shift` bytes behind a group's beginning.
fn base64_inside(text: &[u8], shift: usize) -> Vec<u8> {
    let bits: Vec<u8> = text.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    // The first whole digit begins at the next multiple of six bits.
    let skip = (6 - shift * 8 % 6) % 6;
    let digits = bits.get(skip..).unwrap_or_default().chunks_exact(6);
    digits.map(|bits| DIGITS[usize::from(bits.iter().fold(0, |digit, bit| digit << 1 | bit))]).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn marks(bytes: Vec<u8>) -> Vec<(String, &'static str, &'static str)> {
        let found = Finder::new().find(Path::new("f"), bytes);
        found.into_iter().map(|leak| (leak.path.display().to_string(), leak.mark, leak.form)).collect()
    }

    #[test]
    fn a_mark_is_found_as_it_is_in_hex_and_in_base64() {
        assert_eq!(marks(b"nothing here".to_vec()), []);
        assert_eq!(marks(b"x=hunter2\n".to_vec()), [("f".to_owned(), "hunter2", "as it is")]);
        assert_eq!(marks(b"68756e74657232".to_vec()), [("f".to_owned(), "hunter2", "in hex")]);
        for before in ["", "u", "u:", "ann"] {
            let coded = stead_model::base64::encode(format!("{before}hunter2x").as_bytes());
            assert_eq!(
                marks(coded.clone().into_bytes()),
                [("f".to_owned(), "hunter2", "in base64")],
                "{coded}"
            );
        }
    }

    #[test]
    fn a_key_may_be_a_file_and_nothing_else() {
        let key = b"-----BEGIN PRIVATE KEY-----\nabc\n".to_vec();
        assert_eq!(marks(key.clone()), []);
        let logged = [b"read ".as_slice(), &key].concat();
        assert_eq!(marks(logged), [("f".to_owned(), "-----BEGIN PRIVATE KEY-----", "as it is")]);
    }

    #[test]
    fn a_mark_is_found_in_what_it_is_packed_with() {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(7);
        header.set_mode(0o600);
        tar.append_data(&mut header, "r1/log", b"hunter2".as_slice()).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("r1/log", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(b"deeply hunter2 hidden").unwrap();
        let zip = zip.finish().unwrap().into_inner();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&tar).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&tar).unwrap();
        for packed in [
            zip.clone(),
            gzip.finish().unwrap(),
            zstd::encode_all(tar.as_slice(), 1).unwrap(),
            xz.finish().unwrap(),
            zstd::encode_all(zip.as_slice(), 1).unwrap(),
        ] {
            let found = marks(packed);
            assert!(found.contains(&("f/r1/log".to_owned(), "hunter2", "as it is")), "{found:?}");
        }
    }
}
