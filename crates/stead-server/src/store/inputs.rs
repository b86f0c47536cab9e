//! What jobs read: one file each, beside the journal, for this account alone, until the job has ended.
//!
//! It may hold keys. The journal says only that there is such a file.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use stead_model::MessageId;
use stead_model::node::wire::{JobInput, WireCode, WireError};

use super::journal::JournalError;

/// The directory of what jobs read.
pub(super) struct Inputs(PathBuf);

impl Inputs {
    /// Opens the directory and removes what belongs to no job in `readers`.
    pub(super) fn open<'j>(
        directory: PathBuf,
        readers: impl Iterator<Item = &'j MessageId>,
    ) -> Result<Self, JournalError> {
        let failed = |what| {
            let path = directory.clone();
            move |source| JournalError::File { what, path, source }
        };
        fs::create_dir_all(&directory).map_err(failed("make"))?;
        let readers: BTreeSet<&str> = readers.map(MessageId::as_str).collect();
        for entry in fs::read_dir(&directory).map_err(failed("list"))? {
            let entry = entry.map_err(failed("list"))?;
            if entry.file_name().to_str().is_none_or(|name| !readers.contains(name)) {
                fs::remove_file(entry.path()).map_err(failed("tidy"))?;
            }
        }
        Ok(Self(directory))
    }

    /// Puts an input on the disk; it has no name yet.
    pub(super) async fn write(&self, input: &JobInput) -> Result<tempfile::NamedTempFile, WireError> {
        let (directory, input) = (self.0.clone(), input.clone());
        let written = tokio::task::spawn_blocking(move || {
            let mut file = tempfile::Builder::new().prefix(".new").tempfile_in(&directory)?;
            file.write_all(input.expose().as_bytes())?;
            file.as_file().sync_all()?;
            Ok::<_, std::io::Error>(file)
        });
        match written.await {
            Ok(Ok(file)) => Ok(file),
            Ok(Err(_)) | Err(_) => Err(unkept()),
        }
    }

    /// Makes a written input that of a job.
    pub(super) fn name(&self, file: tempfile::NamedTempFile, id: &MessageId) -> Result<(), WireError> {
        file.persist(self.0.join(id.as_str())).map(drop).map_err(|_| unkept())
    }

    /// Returns what a job reads.
    pub(super) async fn read(&self, id: &MessageId) -> Result<Vec<u8>, WireError> {
        let path = self.0.join(id.as_str());
        let read = tokio::task::spawn_blocking(move || fs::read(path)).await;
        match read {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(_)) | Err(_) => Err(WireError::new(WireCode::E500, "what the job reads is not there")),
        }
    }

    /// Returns where lies what a job reads.
    pub(super) fn file(&self, id: &MessageId) -> PathBuf {
        self.0.join(id.as_str())
    }
}

fn unkept() -> WireError {
    WireError::new(WireCode::E500, "it cannot be kept: look at the disk of the server")
}
