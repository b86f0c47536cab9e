//! Files on their way: content of the driver for an operation, a file of the target for the driver.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use stead_model::executor::{Keep, PIECE, Pipe, Reply};
use stead_runner::files::Content;
use stead_runner::operation::OpError;
use tokio::sync::oneshot;

use crate::disk::body::hex;
use crate::executor::home::private_directory;

use super::HostSession;

/// Content of the driver that an operation waits for.
pub(super) struct Arriving {
    content: Content,
    /// Where it is put until it is whole.
    part: PathBuf,
    file: File,
    hasher: Sha256,
    have: u64,
    answer: oneshot::Sender<Result<PathBuf, OpError>>,
}

impl Arriving {
    /// Returns the question for what is not there yet.
    pub(super) fn ask_again(&mut self) -> Reply {
        Reply::Want { sha256: self.content.sha256.clone(), offset: self.have }
    }

    pub(super) fn end(self, result: Result<PathBuf, OpError>) {
        if result.is_err() {
            std::fs::remove_file(&self.part).unwrap_or(());
        }
        // An operation that was cancelled does not wait any more.
        drop(self.answer.send(result));
    }

    /// Takes the next bytes; returns whether it is whole now.
    fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let left = usize::try_from(self.content.size - self.have).unwrap_or(usize::MAX);
        let bytes = bytes.get(..left.min(bytes.len())).unwrap_or_default();
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.have += bytes.len() as u64;
        Ok(self.have == self.content.size)
    }

    fn finish(self, place: &Path) {
        let found = hex(&self.hasher.clone().finalize());
        if found != self.content.sha256 {
            let message =
                format!("a source changed on the driver: SHA-256 {found}, not {}", self.content.sha256);
            return self.end(Err(OpError::operation(message)));
        }
        let renamed = std::fs::rename(&self.part, place);
        let result =
            renamed.map(|()| place.to_owned()).map_err(|error| OpError::io("cannot keep a source", &error));
        self.end(result);
    }
}

/// A file of the target on its way to the driver.
pub(super) struct Leaving {
    file: File,
    content: Content,
    sent: u64,
    answer: oneshot::Sender<Result<String, OpError>>,
}

impl Leaving {
    pub(super) fn new(
        file: File,
        content: Content,
        answer: oneshot::Sender<Result<String, OpError>>,
    ) -> Self {
        Self { file, content, sent: 0, answer }
    }

    /// Returns the offer; what the driver has already is not sent again.
    pub(super) fn announce_from(&mut self, received: u64) -> Reply {
        self.sent = received.min(self.content.size);
        Reply::Keep(Keep { size: self.content.size, sha256: self.content.sha256.clone() })
    }

    /// Returns the next piece, if not all is sent.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<(Reply, Vec<u8>)>> {
        let left = usize::try_from(self.content.size - self.sent).unwrap_or(usize::MAX).min(PIECE);
        if left == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; left];
        self.file.read_exact_at(&mut bytes, self.sent)?;
        let offset = self.sent;
        self.sent += left as u64;
        Ok(Some((Reply::Out { stream: Pipe::File, offset }, bytes)))
    }

    pub(super) fn end(self, result: Result<String, OpError>) {
        drop(self.answer.send(result));
    }
}

impl HostSession {
    /// Asks the driver for content, unless the session has it from an earlier operation.
    pub(super) fn want(
        &mut self,
        id: u32,
        content: Content,
        answer: oneshot::Sender<Result<PathBuf, OpError>>,
    ) {
        let directory = self.shared.home.directory.join("blobs");
        let place = directory.join(&content.sha256);
        if place.exists() {
            drop(answer.send(Ok(place)));
            return;
        }
        let Some(work) = self.works.get_mut(&id) else { return };
        let part = directory.join(format!("{}-{id}.part", self.host));
        let created = private_directory(&directory).and_then(|()| File::create(&part));
        let file = match created {
            Ok(file) => file,
            Err(error) => {
                drop(answer.send(Err(OpError::io("cannot keep a source", &error))));
                return;
            }
        };
        let mut arriving = Arriving { content, part, file, hasher: Sha256::new(), have: 0, answer };
        if arriving.content.size == 0 {
            return arriving.finish(&place);
        }
        let question = arriving.ask_again();
        work.arriving = Some(arriving);
        if self.connection.is_some() {
            self.say(id, &question);
        }
    }

    /// Content begins to come, or the driver says why not.
    pub(super) fn take_blob(&mut self, id: u32, sha256: &str, offset: u64, error: Option<String>) {
        let Some(work) = self.works.get_mut(&id) else { return };
        let fits = work
            .arriving
            .as_ref()
            .is_some_and(|arriving| arriving.content.sha256 == sha256 && arriving.have == offset);
        match error {
            _ if fits && error.is_none() => {}
            error => {
                let error =
                    error.unwrap_or_else(|| "the driver sent other content than was asked for".to_owned());
                if let Some(arriving) = work.arriving.take() {
                    arriving.end(Err(OpError::permanent(error)));
                }
            }
        }
    }

    pub(super) fn take_bytes(&mut self, id: u32, bytes: &[u8]) {
        if self.take_input(id, bytes) {
            return;
        }
        let place = self.shared.home.directory.join("blobs");
        let Some(work) = self.works.get_mut(&id) else { return };
        let Some(arriving) = &mut work.arriving else { return };
        match arriving.take(bytes) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(arriving) = work.arriving.take() {
                    let place = place.join(&arriving.content.sha256);
                    arriving.finish(&place);
                }
            }
            Err(error) => {
                if let Some(arriving) = work.arriving.take() {
                    arriving.end(Err(OpError::io("cannot keep a source", &error)));
                }
            }
        }
    }
}
