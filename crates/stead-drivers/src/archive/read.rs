//! Reads archives: which files they hold, and that none of them leads out of the directory they go to.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Component, Path};

use stead_runner::operation::OpError;

use super::stage::{self, Stage};
use super::{Item, Items};
use crate::disk::seen::Kind;

/// Bounds that stop archives made to fill a disk.
const MOST_ENTRIES: usize = 1_000_000;
const LARGEST_CONTENT: u64 = 16 << 30;

/// Returns what `archive` holds; with a stage, the files' bytes are kept there.
///
/// # Errors
/// If it cannot be read or holds something that leads out of its directory.
pub(super) fn unpack(archive: File, strip: i64, stage: Option<&Stage>) -> Result<Items, OpError> {
    let mut found = Found { items: Items::new(), strip: usize::try_from(strip).unwrap_or(0), stage };
    found.read(archive).map_err(|error| match error {
        Trouble::Refused(message) => OpError::permanent(format!("the archive is refused: {message}")),
        Trouble::Io(error) => OpError::permanent(format!("the archive cannot be read: {error}")),
    })?;
    Ok(found.items)
}

enum Trouble {
    Refused(String),
    Io(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Found<'a> {
    items: Items,
    strip: usize,
    stage: Option<&'a Stage>,
}

/// One entry as the archive has it.
struct Raw<'a> {
    name: &'a [u8],
    mode: u32,
    what: What<'a>,
}

enum What<'a> {
    File(&'a mut dyn Read),
    Directory,
    Symlink(String),
    /// The name of another entry of the archive.
    HardLink(Vec<u8>),
}

impl Found<'_> {
    fn read(&mut self, mut archive: File) -> Result<(), Trouble> {
        let mut magic = Vec::new();
        archive.by_ref().take(6).read_to_end(&mut magic)?;
        archive.rewind()?;
        if magic.starts_with(b"PK\x03\x04") || magic.starts_with(b"PK\x05\x06") {
            return self.zip(archive);
        }
        let archive = BufReader::new(archive);
        let reader: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) {
            Box::new(flate2::bufread::MultiGzDecoder::new(archive))
        } else if magic.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
            Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(archive))
        } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Box::new(zstd::Decoder::with_buffer(archive)?)
        } else {
            Box::new(archive)
        };
        self.tar(reader)
    }

    fn tar(&mut self, reader: Box<dyn Read>) -> Result<(), Trouble> {
        let mut archive = tar::Archive::new(Bounded { reader, left: LARGEST_CONTENT });
        for entry in archive.entries()? {
            let mut entry = entry?;
            let name = entry.path_bytes().into_owned();
            let mode = entry.header().mode()? & 0o777;
            let kind = entry.header().entry_type();
            let link = entry.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default();
            let what = if kind.is_dir() {
                What::Directory
            } else if kind.is_symlink() {
                What::Symlink(text(link)?)
            } else if kind.is_hard_link() {
                What::HardLink(link)
            } else if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() {
                What::File(&mut entry)
            } else if kind.is_pax_global_extensions() {
                continue;
            } else {
                return Err(Trouble::Refused(format!(
                    "`{}` is a special file",
                    String::from_utf8_lossy(&name)
                )));
            };
            self.add(Raw { name: &name, mode, what })?;
        }
        Ok(())
    }

    fn zip(&mut self, archive: File) -> Result<(), Trouble> {
        let mut archive = zip::ZipArchive::new(BufReader::new(archive)).map_err(io::Error::other)?;
        let mut left = LARGEST_CONTENT;
        for i in 0..archive.len() {
            let mut entry = archive.by_index(i).map_err(io::Error::other)?;
            let name = entry.name().map_err(io::Error::other)?.into_owned().into_bytes();
            let default = if entry.is_dir() { 0o755 } else { 0o644 };
            let mode = entry.unix_mode().map_or(default, |mode| mode & 0o777);
            let (is_dir, is_link) = (entry.is_dir(), entry.is_symlink());
            let mut reader = Bounded { reader: &mut entry, left };
            if is_dir {
                self.add(Raw { name: &name, mode, what: What::Directory })?;
            } else if is_link {
                let mut to = Vec::new();
                reader.by_ref().take(4096).read_to_end(&mut to)?;
                self.add(Raw { name: &name, mode, what: What::Symlink(text(to)?) })?;
            } else {
                self.add(Raw { name: &name, mode, what: What::File(&mut reader) })?;
            }
            left = reader.left;
        }
        Ok(())
    }

    fn add(&mut self, raw: Raw<'_>) -> Result<(), Trouble> {
        let shown = String::from_utf8_lossy(raw.name).into_owned();
        let Some(label) = self.label(raw.name)? else {
            // Left off by `strip`; its bytes still have to be passed over.
            if let What::File(reader) = raw.what {
                stage::exhaust(reader)?;
            }
            return Ok(());
        };
        if self.items.len() >= MOST_ENTRIES {
            return Err(Trouble::Refused(format!("it has more than {MOST_ENTRIES} entries")));
        }
        let mut item = Item { kind: Kind::File, mode: raw.mode, body: None, to: None };
        match raw.what {
            What::Directory => item.kind = Kind::Directory,
            What::Symlink(to) => {
                if !stays_inside(&label, &to) {
                    return Err(Trouble::Refused(format!(
                        "link `{shown}` to `{to}` leads out of the directory"
                    )));
                }
                item.kind = Kind::Symlink;
                item.to = Some(to);
            }
            What::HardLink(to) => {
                let known = self.label(&to)?.and_then(|to| self.items.get(&to));
                let Some(known) = known.filter(|known| known.kind == Kind::File) else {
                    return Err(Trouble::Refused(format!(
                        "hard link `{shown}` is to no file of the archive"
                    )));
                };
                item.body.clone_from(&known.body);
            }
            What::File(reader) => item.body = Some(stage::body(self.stage, reader)?),
        }
        // Directories on the way may not have an entry of their own.
        for above in Path::new(&label).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let above = above.to_string_lossy().into_owned();
            let known = self.items.entry(above.clone()).or_insert(Item {
                kind: Kind::Directory,
                mode: 0o755,
                body: None,
                to: None,
            });
            if known.kind != Kind::Directory {
                return Err(Trouble::Refused(format!(
                    "`{shown}` goes through `{above}`, which is no directory"
                )));
            }
        }
        if self.items.get(&label).is_some_and(|known| known.kind != item.kind) {
            return Err(Trouble::Refused(format!("`{shown}` is there twice, as different things")));
        }
        self.items.insert(label, item);
        Ok(())
    }

    /// Returns the name an entry gets, or nothing if `strip` leaves none.
    fn label(&self, name: &[u8]) -> Result<Option<String>, Trouble> {
        let name = text(name.to_vec())?;
        let mut parts = Vec::new();
        for part in Path::new(&name).components() {
            match part {
                Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(Trouble::Refused(format!("entry `{name}` leads out of the directory")));
                }
            }
        }
        if parts.iter().any(|part| part.contains('\0')) {
            return Err(Trouble::Refused("a name holds a NUL byte".to_owned()));
        }
        let kept = parts.get(self.strip..).unwrap_or_default().join("/");
        Ok(Some(kept).filter(|kept| !kept.is_empty()))
    }
}

fn text(bytes: Vec<u8>) -> Result<String, Trouble> {
    String::from_utf8(bytes).map_err(|error| {
        Trouble::Refused(format!("the name `{}` is not UTF-8", String::from_utf8_lossy(error.as_bytes())))
    })
}

/// Whether a link at `label` stays inside: steps up come first, and no more of them than there are directories
/// above. A step up after a name could lead anywhere if that name is a link.
fn stays_inside(label: &str, to: &str) -> bool {
    let above = Path::new(label).components().count() - 1;
    let (mut up, mut down) = (0, false);
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir if down => return false,
            Component::ParentDir => up += 1,
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    !to.is_empty() && !to.contains('\0') && up <= above
}

/// Ends with an error when more comes than allowed.
struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.left =
            self.left.checked_sub(n as u64).ok_or_else(|| io::Error::other("it holds more than 16 GiB"))?;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_may_not_lead_out() {
        for (label, to) in [("a", "b"), ("d/a", "../b"), ("d/e/a", "../../b/c"), ("a", "./b")] {
            assert!(stays_inside(label, to), "{label} -> {to}");
        }
        for (label, to) in [("a", "../b"), ("a", "/b"), ("d/a", "../../b"), ("d/a", "b/../.."), ("a", "")] {
            assert!(!stays_inside(label, to), "{label} -> {to}");
        }
    }
}
