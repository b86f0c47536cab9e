//! What an operation has said and its driver has not yet heard.
//!
//! Pieces are kept until the driver says that they arrived: a MiB per operation in memory, the rest in a file. So a
//! driver that reads slowly, or is away, never makes a command wait and never loses a byte.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::executor::{PIECE, Pipe};
use tokio::sync::Notify;

/// How much is kept in memory for one operation.
const IN_MEMORY: usize = 1 << 20;

/// The output of one operation. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Kept(Arc<Mutex<Streams>>, Arc<Notify>);

#[derive(Debug)]
struct Streams {
    spool: PathBuf,
    streams: [Stream; 2],
    failure: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Where `memory` begins.
    base: u64,
    memory: Vec<u8>,
    /// What comes after `memory`.
    spooled: Option<Spooled>,
    /// Up to here it was written to the connection.
    sent: u64,
}

#[derive(Debug)]
struct Spooled {
    file: File,
    length: u64,
}

impl Stream {
    fn end(&self) -> u64 {
        self.base + self.memory.len() as u64 + self.spooled.as_ref().map_or(0, |spooled| spooled.length)
    }

    fn forget(&mut self, received: u64) {
        let received = received.min(self.end());
        self.sent = self.sent.max(received);
        if received >= self.end() {
            *self = Self { base: received, sent: self.sent, ..Self::default() };
        } else if received > self.base {
            let gone = usize::try_from(received - self.base).unwrap_or(usize::MAX).min(self.memory.len());
            // Only once there is much to win: each byte moves at most a few times.
            if gone > IN_MEMORY / 4 {
                self.memory.drain(..gone);
                self.base += gone as u64;
            }
        }
    }

    fn piece(&self) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.end().saturating_sub(self.sent)).unwrap_or(usize::MAX).min(PIECE);
        let at = usize::try_from(self.sent.saturating_sub(self.base)).unwrap_or(usize::MAX);
        if let Some(bytes) = self.memory.get(at..).filter(|bytes| !bytes.is_empty()) {
            return Ok(bytes[..left.min(bytes.len())].to_vec());
        }
        let Some(spooled) = &self.spooled else { return Ok(Vec::new()) };
        let mut bytes = vec![0; left];
        spooled.file.read_exact_at(&mut bytes, self.sent - self.base - self.memory.len() as u64)?;
        Ok(bytes)
    }
}

impl Kept {
    /// Returns an empty output that spools to a file called `spool` and wakes `wake`.
    pub(super) fn new(spool: PathBuf, wake: Arc<Notify>) -> Self {
        let streams = Streams { spool, streams: Default::default(), failure: None };
        Self(Arc::new(Mutex::new(streams)), wake)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next bytes of a stream.
    pub(super) fn push(&self, pipe: Pipe, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut streams = self.lock();
        if let Err(error) = streams.push(index(pipe), bytes) {
            streams.failure.get_or_insert(error);
        }
        drop(streams);
        self.1.notify_one();
    }

    /// Returns the next piece to be sent, with its place, and counts it as sent.
    pub(super) fn next_piece(&self) -> Option<(Pipe, u64, Vec<u8>)> {
        let mut streams = self.lock();
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            let stream = &mut streams.streams[index(pipe)];
            match stream.piece() {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => {
                    let offset = stream.sent;
                    stream.sent += bytes.len() as u64;
                    return Some((pipe, offset, bytes));
                }
                Err(error) => {
                    stream.sent = stream.end();
                    streams.failure.get_or_insert(error);
                }
            }
        }
        None
    }

    /// Forgets what has arrived.
    pub(super) fn forget(&self, stdout: u64, stderr: u64) {
        let mut streams = self.lock();
        for (stream, received) in streams.streams.iter_mut().zip([stdout, stderr]) {
            stream.forget(received);
        }
    }

    /// Begins again after what has arrived: the connection is another.
    pub(super) fn rewind(&self, stdout: u64, stderr: u64) {
        let mut streams = self.lock();
        for (stream, received) in streams.streams.iter_mut().zip([stdout, stderr]) {
            stream.sent = received.clamp(stream.base, stream.end());
        }
    }

    /// Returns why some of it is lost, if so.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.as_ref().map(ToString::to_string)
    }
}

fn index(pipe: Pipe) -> usize {
    match pipe {
        Pipe::Stdout | Pipe::File => 0,
        Pipe::Stderr => 1,
    }
}

impl Streams {
    fn push(&mut self, index: usize, bytes: &[u8]) -> io::Result<()> {
        let in_memory: usize = self.streams.iter().map(|stream| stream.memory.len()).sum();
        let path = self.spool.with_extension(index.to_string());
        let stream = &mut self.streams[index];
        if stream.spooled.is_none() && in_memory + bytes.len() <= IN_MEMORY {
            stream.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let spooled = match &mut stream.spooled {
            Some(spooled) => spooled,
            none => {
                let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
                // Its name is not needed any more, and so nothing stays of it.
                std::fs::remove_file(&path)?;
                none.insert(Spooled { file, length: 0 })
            }
        };
        spooled.file.write_all(bytes)?;
        spooled.length += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(kept: &Kept) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some((pipe, offset, bytes)) = kept.next_piece() {
            assert_eq!((pipe, offset), (Pipe::Stdout, all.len() as u64));
            all.extend_from_slice(&bytes);
        }
        all
    }

    #[test]
    fn what_does_not_fit_into_memory_goes_through_a_file_in_order() {
        assert_eq!(IN_MEMORY, 1024 * 1024, "as the contract says");
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("1"), Arc::default());
        let mut given = Vec::new();
        for number in 0..60_000_u32 {
            let line = format!("line {number} of a long output that must come back whole\n");
            kept.push(Pipe::Stdout, line.as_bytes());
            given.extend_from_slice(line.as_bytes());
        }
        assert!(given.len() > 2 * IN_MEMORY && kept.lock().streams[0].memory.len() <= IN_MEMORY);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the file has no name");
        assert_eq!(take(&kept), given);
        // Another connection that has heard some of it.
        for received in [0, 100, IN_MEMORY as u64 + 5, given.len() as u64] {
            kept.rewind(received, 0);
            let mut rest = Vec::new();
            while let Some((_, _, bytes)) = kept.next_piece() {
                rest.extend_from_slice(&bytes);
            }
            assert_eq!(rest, given[usize::try_from(received).unwrap()..]);
            kept.forget(received, 0);
        }
        kept.push(Pipe::Stdout, b"more");
        assert_eq!(kept.next_piece(), Some((Pipe::Stdout, given.len() as u64, b"more".to_vec())));
        assert_eq!(kept.failure(), None);
    }

    #[test]
    fn a_disk_that_is_gone_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("gone/spool"), Arc::default());
        kept.push(Pipe::Stderr, &vec![b'x'; IN_MEMORY + 1]);
        assert!(kept.failure().is_some());
    }
}
