//! One stream of a remote program between the connection and whoever reads it.
//!
//! The connection is shared by all channels and must never wait for one slow reader, and the library below grants the
//! server new window as soon as data is in. So a stream holds [`IN_MEMORY`] bytes, and what is more goes to a file
//! without a name until the reader has caught up: memory stays bounded, nothing is lost, nobody else waits.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

/// How much waits in memory: a round trip's worth at a gigabit, small enough for hundreds of channels.
const IN_MEMORY: usize = 1 << 20;

#[derive(Default)]
struct State {
    // Invariant: what is in memory was written before what is in the file.
    memory: VecDeque<Bytes>,
    held: usize,
    file: Option<Overflow>,
    ended: bool,
    failure: Option<String>,
    reader_gone: bool,
    reader: Option<Waker>,
}

struct Overflow {
    file: File,
    read: u64,
    written: u64,
}

/// Returns both ends of a new stream.
pub(super) fn stream() -> (SpoolWriter, SpoolReader) {
    let state = Arc::new(Mutex::new(State::default()));
    (SpoolWriter(Arc::clone(&state)), SpoolReader(state))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection's end. Dropping it ends the stream.
pub(super) struct SpoolWriter(Arc<Mutex<State>>);

impl SpoolWriter {
    /// Adds `data`. Never waits. What nobody will read is thrown away.
    pub(super) fn write(&self, data: Bytes) {
        let mut state = lock(&self.0);
        if state.reader_gone || data.is_empty() || state.failure.is_some() {
            return;
        }
        if state.file.is_none() && state.held + data.len() <= IN_MEMORY {
            state.held += data.len();
            state.memory.push_back(data);
        } else if let Err(error) = state.overflow(&data) {
            // Whole or an error, never silently cut.
            state.failure = Some(format!("output waiting to be read could not be kept on disk: {error}"));
        }
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
    }

    /// Ends the stream with an error once all that came is read.
    pub(super) fn fail(&self, message: &str) {
        let mut state = lock(&self.0);
        state.failure.get_or_insert_with(|| message.to_owned());
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.ended = true;
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
    }
}

impl State {
    fn overflow(&mut self, data: &[u8]) -> io::Result<()> {
        let overflow = match &mut self.file {
            Some(overflow) => overflow,
            None => self.file.insert(Overflow { file: unnamed_file()?, read: 0, written: 0 }),
        };
        overflow.file.write_all_at(data, overflow.written)?;
        overflow.written += data.len() as u64;
        Ok(())
    }

    fn read(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
        if let Some(first) = self.memory.front_mut() {
            let count = first.len().min(buffer.remaining());
            buffer.put_slice(first.get(..count).unwrap_or_default());
            first.advance(count);
            self.held -= count;
            if first.is_empty() {
                self.memory.pop_front();
            }
            return Ok(());
        }
        let Some(overflow) = &mut self.file else { return Ok(()) };
        let left = usize::try_from(overflow.written - overflow.read).unwrap_or(usize::MAX);
        let space = buffer.initialize_unfilled_to(left.min(buffer.remaining()));
        let count = overflow.file.read_at(space, overflow.read)?;
        overflow.read += count as u64;
        if overflow.read >= overflow.written || count == 0 {
            self.file = None;
        }
        buffer.advance(count);
        Ok(())
    }
}

/// Returns a file that is gone when it is closed, whatever happens to this process.
fn unnamed_file() -> io::Result<File> {
    tempfile::tempfile()
}

/// The user's end.
pub(super) struct SpoolReader(Arc<Mutex<State>>);

impl AsyncRead for SpoolReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        if !state.memory.is_empty() || state.file.is_some() {
            return Poll::Ready(state.read(buffer));
        }
        if let Some(message) = &state.failure {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message.clone())));
        }
        if state.ended {
            return Poll::Ready(Ok(()));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.reader_gone = true;
        state.memory = VecDeque::new();
        state.file = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn a_reader_that_comes_late_gets_everything_and_memory_stays_bounded() {
        let (writer, mut reader) = stream();
        let piece: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        for _ in 0..50 {
            writer.write(Bytes::from(piece.clone()));
        }
        assert!(lock(&writer.0).held <= IN_MEMORY);
        let mut first = vec![0; 123_456];
        reader.read_exact(&mut first).await.unwrap();
        writer.write(Bytes::from_static(b"last"));
        drop(writer);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        first.extend(rest);
        let mut expected = piece.repeat(50);
        expected.extend(b"last");
        assert!(first == expected, "{} of {} bytes", first.len(), expected.len());
    }

    #[tokio::test]
    async fn what_came_before_a_failure_is_still_read() {
        let (writer, mut reader) = stream();
        writer.write(Bytes::from_static(b"half"));
        writer.fail("the connection ended");
        let mut buffer = [0; 4];
        reader.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"half");
        assert!(reader.read(&mut buffer).await.is_err());
    }
}
