//! Files of the driver, as operations see them from wherever they run.
//!
//! An operation names a `source` and asks [`DriverFiles`] what is there; content is asked for only where it differs
//! from the target's. On the driver itself that is the disk ([`LocalFiles`]); in an executor the list came with the
//! operation and content comes by hash. [`Needs`] says from the parameters alone what has to be sent along, so a
//! target can never ask for a file that no parameter names.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use stead_model::executor::{ByteText, EntryKind, SourceEntry, SourceTree};
use stead_model::operation::ParamKind;
use stead_model::{Descriptor, Effect};

use crate::operation::{OpError, Params};

/// Files of the driver.
pub trait DriverFiles: Send + Sync + fmt::Debug {
    /// Returns what is at `source`, relative to the plan file: itself, and all below it that is not left out.
    fn tree(&self, source: &str, exclude: &Exclude) -> Result<Arc<SourceTree>, OpError>;

    /// Returns a file on this machine that holds the content of an entry of the tree of `source`.
    fn content(&self, source: &str, entry: &SourceEntry) -> Result<PathBuf, OpError>;

    /// Keeps a file of the target on the driver, whole or not at all; returns where it is there.
    fn keep(&self, place: &Place, file: &mut File, content: &Content) -> Result<String, OpError>;
}

/// What an operation needs of the driver, known from its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Paths of the driver that it reads.
    pub sources: Vec<(String, Exclude)>,
    /// Whether it renders templates.
    pub names: bool,
    /// Expressions it wants the values of.
    pub expressions: Vec<String>,
    /// Where it may keep a file.
    pub keeps: Option<Place>,
}

impl Needs {
    /// Returns the needs that follow from the kinds of parameters: the paths of the driver that a write reads.
    pub fn of(descriptor: &Descriptor, params: &Params) -> Self {
        let mut needs = Self::default();
        if descriptor.effect != Effect::Read {
            let named = descriptor.params.iter().filter(|param| param.kind == ParamKind::SourcePath);
            needs = named.fold(needs, |needs, param| needs.source(params, param.name));
        }
        needs
    }

    /// Returns these needs with the driver's path that `param` names, if it is given.
    pub fn source(mut self, params: &Params, param: &str) -> Self {
        let source = params.text(param).map(|source| (source.to_owned(), Exclude::default()));
        self.sources.extend(source);
        self
    }
}

/// Where a file of the target goes on the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Relative to the plan file; none: the run's artifacts.
    pub to: Option<String>,
    /// The file's path on the target.
    pub path: String,
}

/// Which bytes are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// How many.
    pub size: u64,
    /// Their SHA-256, in lower-case hex digits.
    pub sha256: String,
}

impl Content {
    /// Returns size and hash of everything `reader` gives.
    pub fn read(reader: &mut dyn Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 128 << 10];
        let mut size = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(Self { size, sha256: hex(&hasher.finalize()) }),
                Ok(n) => {
                    hasher.update(buffer.get(..n).unwrap_or_default());
                    size += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Paths in a source that are left out, with all below; `*` and `?` match within a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclude(Vec<String>);

impl Exclude {
    /// Returns what these patterns leave out.
    pub fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|pattern| pattern.trim_end_matches('/').to_owned()).collect())
    }

    /// Whether the path `below` the source is left out.
    pub fn hits(&self, below: &Path) -> bool {
        let text = below.to_string_lossy();
        self.0.iter().any(|pattern| {
            let (mut names, mut wanted) = (text.split('/'), pattern.split('/'));
            loop {
                match (names.next(), wanted.next()) {
                    (None, None) => break true,
                    (Some(name), Some(wanted)) if matches(wanted, name) => {}
                    _ => break false,
                }
            }
        })
    }
}

/// Whether a name fits a pattern. Linear in the name for each star: no backtracking beyond the last one.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match (pattern.get(p), name.get(n)) {
            (Some('*'), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some('?'), Some(_)) => (p, n) = (p + 1, n + 1),
            (Some(wanted), Some(found)) if wanted == found => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|left| *left == '*')
}

/// The driver's files, on the driver.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    /// Directory that sources start from.
    pub base_dir: PathBuf,
    /// Where the run keeps files of the host; none if it is not recorded.
    pub artifacts: Option<PathBuf>,
}

impl LocalFiles {
    fn place(&self, place: &Place) -> Result<PathBuf, OpError> {
        if let Some(to) = &place.to {
            return Ok(self.base_dir.join(to));
        }
        let Some(artifacts) = &self.artifacts else {
            return Err(OpError::invalid(
                "this run is not recorded and keeps no artifacts: say where the file goes with `to`",
            ));
        };
        // What is left of the path without `/` and `..` cannot leave the directory.
        let parts = Path::new(&place.path).components();
        let inside = parts.filter(|part| matches!(part, Component::Normal(_)));
        Ok(inside.fold(artifacts.clone(), |path, part| path.join(part)))
    }

    /// Begins to keep a file that comes piece by piece; nothing if the same bytes are there already.
    pub(crate) fn begin(&self, place: &Place, content: &Content) -> Result<Incoming, OpError> {
        let to = self.place(place)?;
        let failed = |error: io::Error| OpError::io(format_args!("cannot write `{}`", to.display()), &error);
        if let Ok(mut there) = File::open(&to)
            && there.metadata().is_ok_and(|metadata| metadata.is_file())
            && Content::read(&mut there).is_ok_and(|found| found == *content)
        {
            return Ok(Incoming { to, content: content.clone(), file: None, temporary: None });
        }
        if let Some(directory) = to.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(".stead-tmp");
        let temporary = to.with_file_name(name);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary);
        let file = file.map_err(failed)?;
        Ok(Incoming { to, content: content.clone(), file: Some(file), temporary: Some(temporary) })
    }
}

/// A file on its way to the driver. Dropped before [`finish`](Self::finish) nothing stays.
#[derive(Debug)]
pub(crate) struct Incoming {
    to: PathBuf,
    content: Content,
    /// None: the same bytes are there already.
    file: Option<File>,
    temporary: Option<PathBuf>,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            std::fs::remove_file(temporary).unwrap_or(());
        }
    }
}

impl Incoming {
    /// Returns how many bytes it will have.
    pub(crate) fn size(&self) -> u64 {
        self.content.size
    }

    /// Returns the hash it will have.
    pub(crate) fn sha256(&self) -> &str {
        &self.content.sha256
    }

    /// Whether the bytes are needed.
    pub(crate) fn is_needed(&self) -> bool {
        self.file.is_some()
    }

    /// Takes the next bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    /// Puts the file in its place, if it is what was announced.
    pub(crate) fn finish(mut self) -> Result<(String, bool), OpError> {
        let to = self.to.to_string_lossy().into_owned();
        let Some(mut file) = self.file.take() else { return Ok((to, false)) };
        let failed = |error: io::Error| OpError::io(format_args!("cannot write `{to}`"), &error);
        file.sync_all().map_err(failed)?;
        file.rewind().map_err(failed)?;
        let found = Content::read(&mut file).map_err(failed)?;
        if found != self.content {
            let (found, meant) = (&found.sha256, &self.content.sha256);
            return Err(OpError::operation(format!("`{to}`: SHA-256 {found} arrived, {meant} was sent")));
        }
        if let Some(temporary) = self.temporary.take() {
            std::fs::rename(&temporary, &self.to).map_err(failed)?;
        }
        Ok((to, true))
    }
}

impl DriverFiles for LocalFiles {
    fn tree(&self, source: &str, exclude: &Exclude) -> Result<Arc<SourceTree>, OpError> {
        let root = self.base_dir.join(source);
        let cannot = |error: &dyn fmt::Display| {
            OpError::permanent(format!("cannot read source `{}`: {error}", root.display()))
        };
        let below = |path: &Path| path.strip_prefix(&root).unwrap_or(path).to_owned();
        let walk = walkdir::WalkDir::new(&root).follow_root_links(true).sort_by_file_name().into_iter();
        let mut tree = SourceTree::default();
        for entry in walk.filter_entry(|entry| entry.depth() == 0 || !exclude.hits(&below(entry.path()))) {
            let entry = entry.map_err(|error| match error.io_error() {
                Some(error) => cannot(error),
                None => cannot(&error),
            })?;
            // The source itself may be named through a link.
            let metadata = if entry.depth() == 0 {
                std::fs::metadata(entry.path())
            } else {
                entry.path().symlink_metadata()
            };
            let metadata = metadata.map_err(|error| cannot(&error))?;
            let mut item = SourceEntry {
                path: ByteText(below(entry.path()).as_os_str().as_bytes().to_vec()),
                kind: EntryKind::Directory,
                mode: metadata.permissions().mode() & 0o777,
                size: 0,
                sha256: String::new(),
                to: None,
            };
            if metadata.is_symlink() {
                let to = std::fs::read_link(entry.path()).map_err(|error| cannot(&error))?;
                item.kind = EntryKind::Symlink;
                item.to = Some(ByteText(to.as_os_str().as_bytes().to_vec()));
            } else if metadata.is_file() {
                let mut file = File::open(entry.path()).map_err(|error| cannot(&error))?;
                let content = Content::read(&mut file).map_err(|error| cannot(&error))?;
                item.kind = EntryKind::File;
                (item.size, item.sha256) = (content.size, content.sha256);
            } else if !metadata.is_dir() {
                return Err(cannot(&format_args!("`{}` is a special file", entry.path().display())));
            }
            tree.entries.push(item);
        }
        Ok(Arc::new(tree))
    }

    fn content(&self, source: &str, entry: &SourceEntry) -> Result<PathBuf, OpError> {
        let root = self.base_dir.join(source);
        let below = OsStr::from_bytes(entry.path.as_bytes());
        Ok(if below.is_empty() { root } else { root.join(below) })
    }

    fn keep(&self, place: &Place, file: &mut File, content: &Content) -> Result<String, OpError> {
        let mut incoming = self.begin(place, content)?;
        if incoming.is_needed() {
            let failed =
                |error: io::Error| OpError::io(format_args!("cannot fetch `{}`", place.path), &error);
            file.rewind().map_err(failed)?;
            let mut rest = file.take(content.size);
            let mut buffer = vec![0; 128 << 10];
            loop {
                match rest.read(&mut buffer).map_err(failed)? {
                    0 => break,
                    n => incoming.write(buffer.get(..n).unwrap_or_default()).map_err(failed)?,
                }
            }
        }
        incoming.finish().map(|(to, _)| to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_within_names() {
        let exclude = Exclude::new(&["*.log".to_owned(), "a/b?/".to_owned(), "x/*/z*z".to_owned()]);
        for path in ["a.log", ".log", "a/b1", "x/y/zz", "x/y/zabcz"] {
            assert!(exclude.hits(Path::new(path)), "{path}");
        }
        for path in ["d/a.log", "a/b", "a/b12", "x/y/w/zz", "x/y/z", "a.logs"] {
            assert!(!exclude.hits(Path::new(path)), "{path}");
        }
    }
}
