//! What jobs wrote: one file each, beside the journal.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stead_model::MessageId;
use stead_model::node::wire::{NodeReport, WireCode, WireError};

use super::journal::{JournalError, sync_parent};

/// The directory of what jobs wrote.
pub(super) struct Outputs(PathBuf);

#[derive(Serialize, Deserialize)]
struct Output {
    stdout: String,
    stderr: String,
}

impl Outputs {
    /// Opens the directory and removes what belongs to no job in `known`.
    pub(super) fn open<'j>(
        directory: PathBuf,
        known: impl Iterator<Item = &'j MessageId>,
    ) -> Result<Self, JournalError> {
        let failed = |what| {
            let path = directory.clone();
            move |source| JournalError::File { what, path, source }
        };
        fs::create_dir_all(&directory).map_err(failed("make"))?;
        let known: BTreeSet<&str> = known.map(MessageId::as_str).collect();
        for entry in fs::read_dir(&directory).map_err(failed("list"))? {
            let entry = entry.map_err(failed("list"))?;
            if entry.file_name().to_str().is_none_or(|name| !known.contains(name)) {
                fs::remove_file(entry.path()).map_err(failed("tidy"))?;
            }
        }
        Ok(Self(directory))
    }

    /// Keeps what a job wrote: on disk when this returns.
    pub(super) async fn write(&self, id: &MessageId, report: &NodeReport) -> Result<(), WireError> {
        let output = Output { stdout: report.stdout.clone(), stderr: report.stderr.clone() };
        let (directory, path) = (self.0.clone(), self.0.join(id.as_str()));
        let written = tokio::task::spawn_blocking(move || {
            let content = serde_json::to_vec(&output)?;
            let mut file = tempfile::Builder::new().prefix(".new").tempfile_in(&directory)?;
            file.write_all(&content)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            sync_parent(&path)
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                Err(WireError::new(WireCode::E500, "it cannot be kept: look at the disk of the server"))
            }
        }
    }

    /// Returns what a job wrote: standard output, and standard error; none if it is not there or damaged.
    pub(super) fn read(&self, id: &MessageId) -> Option<(String, String)> {
        let content = fs::read(self.0.join(id.as_str())).ok()?;
        let output: Output = serde_json::from_slice(&content).ok()?;
        Some((output.stdout, output.stderr))
    }

    /// Returns where lies what a job wrote.
    pub(super) fn file(&self, id: &MessageId) -> PathBuf {
        self.0.join(id.as_str())
    }
}
