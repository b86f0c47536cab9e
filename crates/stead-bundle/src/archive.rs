//! Archives of bundles: written so that the same bundle gives the same bytes, read as a stream and strictly.
//!
//! An archive has one top folder with the files of the bundle below it. Whoever reads one learns every entry that has
//! no place there; nothing is ever unpacked, and what a hostile archive can make us hold has a limit each.

mod limits;
mod tar_reader;
mod tar_writer;
mod zip_format;
mod zip_reader;
mod zip_writer;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use crate::layout::LOCK;
use crate::seal::Contents;

pub(crate) use tar_reader::read_tar_zst;
use tar_writer::TarWriter;
pub(crate) use zip_reader::read_zip;
use zip_writer::ZipWriter;

/// The form of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// ZIP with deflate.
    Zip,
    /// TAR compressed with Zstandard.
    TarZst,
}

impl ArchiveFormat {
    /// Every form, in the order they are offered.
    pub const ALL: [Self; 2] = [Self::Zip, Self::TarZst];

    /// Returns its name, which is also how names of its files end.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Zip => "zip",
            Self::TarZst => "tar.zst",
        }
    }

    /// Returns the form that the name of a file ends in.
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.as_bytes();
        Self::ALL.into_iter().find(|format| {
            let end = format.as_str().as_bytes();
            name.strip_suffix(end).is_some_and(|stem| stem.len() > 1 && stem.ends_with(b"."))
        })
    }

    /// Returns the form of a file that begins with `bytes`.
    pub(crate) fn of_beginning(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::TarZst),
            _ => None,
        }
    }
}

/// Gets each file: its path below the top folder, its length and its content, which need not be read.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&Path, u64, &mut dyn Read);

/// Why an archive could not be read to its end.
#[derive(Debug)]
pub(crate) enum ArchiveError {
    /// It is not what such an archive has to be.
    Damaged(String),
    /// The file could not be read.
    Io(io::Error),
}

impl ArchiveError {
    fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

/// What an archive turned out to hold.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The one folder at its top.
    pub(crate) top: Option<String>,
    /// What is below it.
    pub(crate) contents: Contents,
    /// Entries that have no place in an archive of a bundle: path, stable word, sentence.
    pub(crate) misplaced: Vec<(PathBuf, &'static str, String)>,
}

/// What kind of thing an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    File,
    Directory,
    Other,
}

/// Finds the place of each entry, and what has none.
#[derive(Debug, Default)]
struct Placing {
    listing: Listing,
    top: Option<Vec<u8>>,
    seen: BTreeSet<PathBuf>,
    name_bytes: usize,
}

impl Placing {
    /// Returns the path below the top folder of a file that is to be read; none for everything else.
    fn place(&mut self, name: &[u8], kind: EntryKind, bytes: u64) -> Result<Option<PathBuf>, ArchiveError> {
        self.name_bytes += name.len() + 64;
        if self.name_bytes > limits::NAMES {
            return Err(ArchiveError::damaged("it has more entries than any bundle"));
        }
        let shown = Path::new(OsStr::from_bytes(name));
        let Some(path) = self.below_top(name, kind) else {
            let message = "the entry does not lie below the archive's one top folder".to_owned();
            self.listing.misplaced.push((shown.to_owned(), "outside", message));
            return Ok(None);
        };
        if kind == EntryKind::Directory && bytes > 0 {
            let message = "the entry is a folder and has content, which nothing vouches for".to_owned();
            self.listing.misplaced.push((path, "outside", message));
            return Ok(None);
        }
        if path.as_os_str().is_empty() || kind == EntryKind::Directory {
            return Ok(None);
        }
        if path == Path::new(LOCK) {
            let message = "an archive holds no lock: nobody works on it".to_owned();
            self.listing.misplaced.push((path, "extra-file", message));
            return Ok(None);
        }
        if !self.seen.insert(path.clone()) {
            let message = "the archive has two entries of this name".to_owned();
            self.listing.misplaced.push((path, "duplicate", message));
            return Ok(None);
        }
        Ok(self.listing.contents.add(path, bytes, kind == EntryKind::File))
    }

    /// Returns the path below the top folder, which the first entry names.
    fn below_top(&mut self, name: &[u8], kind: EntryKind) -> Option<PathBuf> {
        let name = if kind == EntryKind::Directory { name.strip_suffix(b"/").unwrap_or(name) } else { name };
        let path = Path::new(OsStr::from_bytes(name));
        let plain: PathBuf = path.components().collect();
        let is_plain = !name.contains(&0)
            && plain.as_os_str() == path.as_os_str()
            && path.components().all(|component| matches!(component, Component::Normal(_)));
        let mut parts = path.components();
        let first = parts.next().filter(|_| is_plain)?.as_os_str().as_bytes();
        let below = parts.as_path();
        if below.as_os_str().is_empty() && kind != EntryKind::Directory {
            return None;
        }
        let top = self.top.get_or_insert_with(|| first.to_vec());
        (top.as_slice() == first).then(|| below.to_owned())
    }

    fn finish(mut self) -> Listing {
        self.listing.top = self.top.map(|top| String::from_utf8_lossy(&top).into_owned());
        self.listing.contents.sort();
        self.listing
    }
}

/// Writes an archive, entry by entry in the order given. Nothing but names and bytes decides what comes out.
pub(crate) enum Packer {
    Zip(Box<ZipWriter>),
    TarZst(Box<TarWriter>),
}

impl Packer {
    /// Begins an archive in `file`, which is empty.
    pub(crate) fn begin(file: File, format: ArchiveFormat) -> io::Result<Self> {
        Ok(match format {
            ArchiveFormat::Zip => Self::Zip(Box::new(ZipWriter::new(file))),
            ArchiveFormat::TarZst => Self::TarZst(Box::new(TarWriter::new(file)?)),
        })
    }

    /// Adds a file of `bytes` bytes; `content` must give exactly so many.
    pub(crate) fn add(&mut self, name: &[u8], bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        match self {
            Self::Zip(zip) => zip.add(name, bytes, content),
            Self::TarZst(tar) => tar.add(name, bytes, content),
        }
    }

    /// Writes the end and returns the file.
    pub(crate) fn finish(self) -> io::Result<File> {
        match self {
            Self::Zip(zip) => zip.finish(),
            Self::TarZst(tar) => tar.finish(),
        }
    }
}

/// Copies `content` to `out` through one buffer; returns an error unless it has exactly `bytes` bytes.
fn copy_exactly(content: &mut dyn Read, out: &mut dyn io::Write, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; limits::PIECE];
    let mut copied = 0;
    loop {
        let len = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        copied += len as u64;
        if copied > bytes {
            break;
        }
        out.write_all(&buffer[..len])?;
    }
    if copied == bytes {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the file changed while it was read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More entries than 16 bits count, which takes the fields of large archives.
    #[test]
    fn archives_of_very_many_files_are_read_back() {
        const FILES: u32 = 66_000;
        for format in ArchiveFormat::ALL {
            let file = tempfile::tempfile().unwrap();
            let mut packer = Packer::begin(file.try_clone().unwrap(), format).unwrap();
            for number in 0..FILES {
                packer.add(format!("r1/{number:06}").as_bytes(), 0, &mut io::empty()).unwrap();
            }
            packer.finish().unwrap();
            let mut again = file;
            io::Seek::rewind(&mut again).unwrap();
            let mut seen = 0;
            let mut count = |_: &Path, _: u64, _: &mut dyn Read| seen += 1;
            let listing = match format {
                ArchiveFormat::Zip => read_zip(again, &mut count),
                ArchiveFormat::TarZst => read_tar_zst(again, &mut count),
            };
            let listing = listing.unwrap();
            assert_eq!((seen, listing.contents.files.len(), listing.misplaced.len()), (FILES, 66_000, 0));
        }
    }

    #[test]
    fn forms_are_known_by_name_and_by_beginning() {
        let of = |name: &str| ArchiveFormat::of_name(Path::new(name));
        assert_eq!((of("a/b.zip"), of("x.tar.zst")), (Some(ArchiveFormat::Zip), Some(ArchiveFormat::TarZst)));
        assert_eq!([of("zip"), of(".zip"), of("a.tar"), of("a.zst"), of("a.ZIP")], [None; 5]);
        assert_eq!(ArchiveFormat::of_beginning(b"PK\x03\x04"), Some(ArchiveFormat::Zip));
        assert_eq!(ArchiveFormat::of_beginning(b"PK"), None);
    }
}
