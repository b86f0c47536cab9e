//! The log of one attempt's stream: made at the first byte, never shortened.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use stead_model::event::Stream;
use stead_model::{HostName, TaskName};

use crate::directory::make_directory;
use crate::error::RecordError;
use crate::layout::{LOGS, file_name};

/// Output of one stream of one attempt. Nothing is on the disk before the first byte.
#[derive(Debug)]
pub struct LogFile {
    bundle: Arc<Path>,
    relative: String,
    file: Option<File>,
    len: u64,
}

impl LogFile {
    /// Returns the log of `stream` of an attempt on `host`, none for a functional task's own output.
    pub(crate) fn new(
        bundle: Arc<Path>,
        task: &TaskName,
        host: Option<&HostName>,
        attempt: u32,
        stream: Stream,
    ) -> Self {
        // No host is called `_`.
        let host = host.map_or("_", HostName::as_str);
        let file = file_name(host, &format!(".{attempt}.{}", stream.as_str()));
        let relative = format!("{LOGS}/{}/{file}", file_name(task.as_str(), ""));
        Self { bundle, relative, file: None, len: 0 }
    }

    /// Returns the path within the bundle, as `log` events name it.
    pub fn relative_path(&self) -> &str {
        &self.relative
    }

    /// Appends `bytes` and returns where in the file they begin: after whatever was there, at the first call too. On an
    /// error some of them may be in the file; they count.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<u64, RecordError> {
        if self.file.is_none() {
            self.open()?;
        }
        let start = self.len;
        let Some(file) = &mut self.file else { return Ok(start) };
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err(self.failed("write")(io::ErrorKind::WriteZero.into())),
                Ok(taken) => {
                    self.len += taken as u64;
                    bytes = &bytes[taken..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("write")(error)),
            }
        }
        Ok(start)
    }

    fn open(&mut self) -> Result<(), RecordError> {
        let path = self.bundle.join(&self.relative);
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().unwrap_or(&self.bundle);
                make_directory(directory)?;
                options.open(&path)
            }
            other => other,
        };
        let file = file.map_err(self.failed("open"))?;
        self.len = file.metadata().map_err(self.failed("open"))?.len();
        self.file = Some(file);
        Ok(())
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> RecordError + use<> {
        let path = self.bundle.join(&self.relative);
        move |source| RecordError { action, path: path.clone(), source }
    }
}
