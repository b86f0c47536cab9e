//! The log of one attempt's stream: made at the first byte, announced in the event log now and then.

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
    announced: u64,
}

impl LogFile {
    /// Returns the log of `stream` of an attempt on `host`, none for a functional task's own output.
    ///
    /// `announced` is how many of its bytes the event log already points to: 0, unless a run goes on.
    pub(crate) fn new(
        bundle: Arc<Path>,
        task: &TaskName,
        host: Option<&HostName>,
        attempt: u32,
        stream: Stream,
        announced: u64,
    ) -> Self {
        // No host is called `_`.
        let host = host.map_or("_", HostName::as_str);
        let file = file_name(host, &format!(".{attempt}.{}", stream.as_str()));
        let relative = format!("{LOGS}/{}/{file}", file_name(task.as_str(), ""));
        Self { bundle, relative, file: None, len: announced, announced }
    }

    /// Returns the path within the bundle, as `log` events name it.
    pub fn relative_path(&self) -> &str {
        &self.relative
    }

    /// Appends `bytes`. On an error some of them may be in the file; they count.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), RecordError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.file.is_none() {
            self.open()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
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
        Ok(())
    }

    /// Returns offset and length of the bytes not announced yet, and counts them as announced from now on.
    pub fn take_announcement(&mut self) -> Option<(u64, u64)> {
        let (offset, len) = (self.announced, self.len - self.announced);
        self.announced = self.len;
        (len > 0).then_some((offset, len))
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
        // What a dead driver wrote and did not announce is announced with what comes now.
        let found = file.metadata().map_err(self.failed("open"))?.len();
        self.announced = self.announced.min(found);
        self.len = found;
        self.file = Some(file);
        Ok(())
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> RecordError + use<> {
        let path = self.bundle.join(&self.relative);
        move |source| RecordError { action, path: path.clone(), source }
    }
}
