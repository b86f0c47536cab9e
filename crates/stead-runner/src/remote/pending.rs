//! One question to a session, until its answer is here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use stead_model::event::Stream;
use stead_model::executor::{Frame, FrameKind, Keep, PIECE, Pipe, Received, Reply, Request, write};
use stead_model::role::RoleEvent;
use tokio::sync::{mpsc, oneshot};

use crate::files::{Content, Incoming, LocalFiles, Place};
use crate::operation::{OpError, Output};

/// What a target may have of the driver for one operation.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    /// Files it may ask for, by hash.
    pub(crate) content: BTreeMap<String, (PathBuf, u64)>,
    /// Where it may put a file.
    pub(crate) keeps: Option<(LocalFiles, Place)>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// What happened.
    pub(crate) error: OpError,
    /// Whether the target may have begun.
    pub(crate) begun: bool,
}

/// A question without an answer yet.
pub(crate) struct Pending {
    /// Sent again if the session never received it.
    pub(crate) message: Vec<u8>,
    pub(crate) sent: bool,
    pub(crate) output: Output,
    pub(crate) allowed: Allowed,
    pub(crate) received: Received,
    /// What the session was last told of it.
    pub(crate) told: Received,
    /// What the next bytes are.
    next: Option<(Pipe, u64)>,
    incoming: Option<Incoming>,
    /// The answer to `keep`, should the session ask again.
    kept: Option<Request>,
    /// Where the events of a role go; dropped when no more come.
    events: Option<mpsc::UnboundedSender<RoleEvent>>,
    /// How the role was asked to stop, should the session not have heard it.
    pub(crate) stop: Option<Request>,
    pub(crate) answer: oneshot::Sender<Result<Reply, Lost>>,
}

impl Pending {
    pub(crate) fn new(
        id: u32,
        message: Vec<u8>,
        output: Output,
        allowed: Allowed,
        answer: oneshot::Sender<Result<Reply, Lost>>,
    ) -> Self {
        let received = Received { id, ..Received::default() };
        Self {
            message,
            sent: false,
            output,
            allowed,
            received,
            told: received,
            next: None,
            incoming: None,
            kept: None,
            events: None,
            stop: None,
            answer,
        }
    }

    /// Returns it with a place for the events of the role it starts.
    pub(crate) fn with_events(self, events: mpsc::UnboundedSender<RoleEvent>) -> Self {
        Self { events: Some(events), ..self }
    }

    /// Takes a role's event, unless it came before; returns whether it is the last one.
    pub(crate) fn take_event(&mut self, number: u64, event: RoleEvent) -> bool {
        if number != self.received.events + 1 {
            return false;
        }
        self.received.events = number;
        let is_last = event.is_last();
        // Nobody may care any more; the role goes on.
        self.events.iter().for_each(|events| drop(events.send(event.clone())));
        is_last
    }

    /// Output is announced.
    pub(crate) fn expect(&mut self, pipe: Pipe, offset: u64) {
        self.next = Some((pipe, offset));
    }

    /// Takes the bytes that were announced. What came before is not taken twice; returns whether it fits.
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) -> bool {
        let Some((pipe, offset)) = self.next.take() else { return false };
        let have = match pipe {
            Pipe::Stdout => &mut self.received.stdout,
            Pipe::Stderr => &mut self.received.stderr,
            Pipe::File => &mut self.received.file,
        };
        let Some(known) = have.checked_sub(offset) else { return false };
        let new = bytes.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        *have += new.len() as u64;
        match pipe {
            Pipe::Stdout => self.output.write(Stream::Stdout, new),
            Pipe::Stderr => self.output.write(Stream::Stderr, new),
            Pipe::File => {
                if let Some(Err(error)) = self.incoming.as_mut().map(|incoming| incoming.write(new)) {
                    self.incoming = None;
                    self.kept = Some(refused(&OpError::io("cannot keep the file", &error)));
                }
            }
        }
        true
    }

    /// Takes the offer of a file; returns the answer if there is one at once.
    pub(crate) fn offer(&mut self, keep: &Keep) -> Option<Request> {
        if self.kept.is_some() {
            return self.kept.clone();
        }
        if self.incoming.is_none() {
            let content = Content { size: keep.size, sha256: keep.sha256.clone() };
            let begun = match &self.allowed.keeps {
                Some((files, place)) => files.begin(place, &content),
                None => Err(OpError::permanent("this operation brings no files")),
            };
            match begun {
                Ok(incoming) => self.incoming = Some(incoming),
                Err(error) => self.kept = Some(refused(&error)),
            }
        }
        self.finish_file(keep.size)
    }

    /// Returns the answer to `keep` once the file is whole, or cannot be kept.
    pub(crate) fn finish_file(&mut self, size: u64) -> Option<Request> {
        let is_whole = self.received.file >= size;
        if let Some(incoming) = self.incoming.take_if(|incoming| is_whole || !incoming.is_needed()) {
            let sha256 = incoming.sha256().to_owned();
            self.kept = Some(match incoming.finish() {
                Ok((path, changed)) => Request::Done { sha256, changed, path: Some(path), error: None },
                Err(error) => refused(&error),
            });
        }
        self.kept.clone()
    }

    /// Returns the size of the file that is on its way.
    pub(crate) fn file_size(&self) -> Option<u64> {
        self.incoming.as_ref().map(Incoming::size)
    }

    /// Ends it. One who does not wait any more needs no answer.
    pub(crate) fn end(self, answer: Result<Reply, Lost>) {
        drop(self.answer.send(answer));
    }
}

fn refused(error: &OpError) -> Request {
    Request::Done { sha256: String::new(), changed: false, path: None, error: Some(error.message.clone()) }
}

/// Content on its way to a target, as frames. Runs on a thread that may wait, and ends when nobody listens.
pub(crate) fn send_content(
    id: u32,
    generation: u64,
    sha256: String,
    offset: u64,
    file: Option<(PathBuf, u64)>,
    to: &mpsc::Sender<(u64, Vec<u8>)>,
) {
    let failed = |error: String| {
        let message = Request::Blob { sha256: sha256.clone(), size: 0, offset: 0, error: Some(error) };
        let mut frame = Vec::new();
        if write(&mut frame, id, &message).is_ok() {
            drop(to.blocking_send((generation, frame)));
        }
    };
    let Some((path, size)) = file else {
        return failed("no parameter of the operation names this content".to_owned());
    };
    if let Err(error) = send_file(id, generation, &sha256, offset, &path, size, to) {
        failed(format!("cannot read source `{}`: {error}", path.display()));
    }
}

fn send_file(
    id: u32,
    generation: u64,
    sha256: &str,
    offset: u64,
    path: &Path,
    size: u64,
    to: &mpsc::Sender<(u64, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut left = size.saturating_sub(offset);
    let mut frames = Vec::new();
    let head = Request::Blob { sha256: sha256.to_owned(), size, offset, error: None };
    write(&mut frames, id, &head).map_err(std::io::Error::other)?;
    let mut buffer = vec![0; PIECE];
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        let piece = buffer.get_mut(..want).unwrap_or_default();
        file.read_exact(piece)?;
        Frame::write(&mut frames, FrameKind::Bytes, id, piece).map_err(std::io::Error::other)?;
        left -= want as u64;
        if to.blocking_send((generation, std::mem::take(&mut frames))).is_err() {
            return Ok(());
        }
    }
    if !frames.is_empty() {
        drop(to.blocking_send((generation, frames)));
    }
    Ok(())
}
