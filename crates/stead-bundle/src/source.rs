//! Where a bundle's files are read from: its directory, or an archive of it. Nobody else needs to know which.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::archive::{ArchiveError, ArchiveFormat, Listing, Take, read_tar_zst, read_zip};
use crate::error::RecordError;
use crate::layout::{HASHES, RUN_META};
use crate::seal::contents;
use crate::stored::LoadError;

/// What is held of a bundle's files in memory at once, at most: metadata is far shorter.
const MOST_HELD: u64 = 64 << 20;

/// A bundle to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    form: Form,
}

/// In which form a bundle is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it was written.
    Directory,
    /// Exported.
    Archive(ArchiveFormat),
}

impl Source {
    /// Returns the bundle at `path`: a directory, or an archive, which is known by how it begins.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(LoadError::NotABundle { path: path.to_owned() });
            }
            Err(error) => return Err(RecordError::of("find", path)(error).into()),
        };
        let form = if found.is_dir() {
            let is_bundle = [RUN_META, HASHES].iter().any(|name| path.join(name).symlink_metadata().is_ok());
            is_bundle
                .then_some(Form::Directory)
                .ok_or_else(|| LoadError::NotABundle { path: path.to_owned() })?
        } else {
            let mut beginning = Vec::new();
            // Anything else has no beginning, and opening a pipe would wait for its other end.
            if found.is_file() {
                let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut beginning));
                read.map_err(RecordError::of("read", path))?;
            }
            let format = ArchiveFormat::of_beginning(&beginning);
            Form::Archive(format.ok_or_else(|| LoadError::NotAnArchive { path: path.to_owned() })?)
        };
        Ok(Self { path: path.to_owned(), form })
    }

    /// Returns the directory or archive.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns in which form the bundle is there.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Gives every file to `take`, those of a directory sorted by path, those of an archive in its order.
    ///
    /// What `take` does not read costs little. What it reads and cannot be read is an error of the archive, or of the
    /// file alone.
    pub(crate) fn visit(&self, take: Take<'_>) -> Result<Listing, LoadError> {
        match self.form {
            Form::Directory => {
                let found = contents(&self.path)?;
                for (path, bytes) in found.all() {
                    take(&path, bytes, &mut WhenRead { path: self.path.join(&path), file: None });
                }
                let name = fs::canonicalize(&self.path).ok();
                let name = name.as_deref().and_then(Path::file_name);
                let top = name.map(|name| name.to_string_lossy().into_owned());
                Ok(Listing { top, contents: found, misplaced: Vec::new() })
            }
            Form::Archive(format) => {
                let file = File::open(&self.path).map_err(RecordError::of("open", &self.path))?;
                let read = match format {
                    ArchiveFormat::Zip => read_zip(file, take),
                    ArchiveFormat::TarZst => read_tar_zst(file, take),
                };
                read.map_err(|error| match error {
                    ArchiveError::Damaged(reason) => LoadError::Damaged { path: self.path.clone(), reason },
                    ArchiveError::Io(source) => RecordError::of("read", &self.path)(source).into(),
                })
            }
        }
    }

    /// Returns the contents of the files that `wanted` names, and what else is there. Too long ones are left out.
    pub(crate) fn read_files(&self, wanted: &dyn Fn(&Path) -> bool) -> Result<(Files, Listing), LoadError> {
        let mut files = Files::new();
        let mut left = MOST_HELD;
        let listing = self.visit(&mut |path, _, content| {
            if wanted(path) {
                files.insert(path.to_owned(), read_held(content, &mut left));
            }
        })?;
        Ok((files, listing))
    }

    /// Returns the content of the file `name`, none if there is no such file.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, LoadError> {
        let own = match self.form {
            Form::Directory => {
                let path = self.path.join(name);
                let mut left = MOST_HELD;
                let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
                is_file.then(|| read_held(&mut WhenRead { path, file: None }, &mut left))
            }
            Form::Archive(_) => self.read_files(&|path| path == Path::new(name))?.0.into_values().next(),
        };
        let path = self.path.join(name);
        own.transpose().map_err(|error| RecordError::of("read", &path)(error).into())
    }
}

/// Files in memory, by their paths in the bundle.
pub(crate) type Files = BTreeMap<PathBuf, io::Result<Vec<u8>>>;

/// Returns all of `content`, and takes its length off `left`.
pub(crate) fn read_held(content: &mut dyn Read, left: &mut u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    content.take(*left + 1).read_to_end(&mut bytes)?;
    match left.checked_sub(bytes.len() as u64) {
        Some(rest) => {
            *left = rest;
            Ok(bytes)
        }
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than metadata can be")),
    }
}

/// A file that is opened when it is read.
struct WhenRead {
    path: PathBuf,
    file: Option<File>,
}

impl Read for WhenRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        file.read(buffer)
    }
}
