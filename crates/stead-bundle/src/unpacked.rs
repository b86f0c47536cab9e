//! Files of a bundle at paths of their own, for readers that go back and forth in them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::RecordError;
use crate::source::{Form, Source};
use crate::stored::LoadError;

/// A bundle's directory, or some files of an archive in a directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Unpacked {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Unpacked {
    /// Returns the directory in which the files of `source` that `wanted` names can be read.
    ///
    /// Nothing is copied of a directory. Paths come out of an archive checked: none leads out.
    pub fn of(source: &Source, wanted: impl Fn(&Path) -> bool) -> Result<Self, LoadError> {
        if source.form() == Form::Directory {
            return Ok(Self { path: source.path().to_owned(), _temporary: None });
        }
        let temporary = tempfile::Builder::new().prefix("stead-").tempdir();
        let temporary =
            temporary.map_err(RecordError::of("create directory", Path::new("of temporary files")))?;
        let mut failed = None;
        source.visit(&mut |path, _, content| {
            if failed.is_some() || !wanted(path) {
                return;
            }
            let to = temporary.path().join(path);
            let made = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(&to));
            let copied = made.and_then(|mut file| io::copy(content, &mut file));
            failed = copied.err().map(RecordError::of("unpack", &to));
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(Self { path: temporary.path().to_owned(), _temporary: Some(temporary) }),
        }
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
