//! The only way to standard output and standard error.
//!
//! A reader that went away (`| head`) is a quiet end: later writes are dropped and nothing panics. Any
//! other write error is kept and told at the end. Colours are applied here and nowhere else.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stead_model::{RunStatus, Status};

/// Both streams.
#[derive(Clone)]
pub struct Output {
    /// Standard output: data.
    pub out: Handle,
    /// Standard error: talk.
    pub err: Handle,
    /// Files that are written as the work goes on, with their paths.
    files: Arc<Mutex<Vec<(PathBuf, Handle)>>>,
}

impl Output {
    /// Returns the streams of this process.
    pub fn of_process() -> Self {
        Self::new(Handle::new(io::stdout()), Handle::new(io::stderr()))
    }

    /// Returns an output that writes to these streams.
    pub(crate) fn new(out: Handle, err: Handle) -> Self {
        Self { out, err, files: Arc::default() }
    }

    /// Returns a handle to the file at `path`; an error of it is told at the end, like one of standard output.
    pub fn file(&self, path: PathBuf, writer: impl Write + Send + 'static) -> Handle {
        let handle = Handle::new(writer);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push((path, handle.clone()));
        handle
    }

    /// Flushes everything and returns the first error of standard output or a file that was not a closed pipe.
    pub fn finish(&mut self) -> io::Result<()> {
        self.err.flush()?;
        self.out.end()?;
        let files = std::mem::take(&mut *self.files.lock().unwrap_or_else(PoisonError::into_inner));
        files.into_iter().try_for_each(|(path, mut file)| {
            let told = |error: io::Error| format!("cannot write {}: {error}", path.display());
            file.end().map_err(|error| io::Error::new(error.kind(), told(error)))
        })
    }
}

/// One stream, shared by all who write to it. Writing never fails.
#[derive(Clone)]
pub struct Handle(Arc<Mutex<Inner>>);

struct Inner {
    writer: Box<dyn Write + Send>,
    state: State,
}

enum State {
    Open,
    /// The reader went away.
    Closed,
    /// Something else went wrong, once.
    Failed(io::Error),
}

impl Handle {
    /// Returns a handle that writes to `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Inner { writer: Box::new(writer), state: State::Open })))
    }

    /// Writes `text` as a whole.
    pub fn print(&self, text: &str) {
        self.lock().put(|writer| writer.write_all(text.as_bytes()).and_then(|()| writer.flush()));
    }

    /// Writes `text` and a newline as a whole.
    pub fn print_line(&self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    /// Whether what is written from now on reaches nobody.
    pub fn is_closed(&self) -> bool {
        !matches!(self.lock().state, State::Open)
    }

    /// Flushes the stream and returns its first error that was not a closed pipe. Later writes are dropped.
    fn end(&mut self) -> io::Result<()> {
        self.flush()?;
        match std::mem::replace(&mut self.lock().state, State::Closed) {
            State::Failed(error) => Err(error),
            State::Open | State::Closed => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic between two writes leaves nothing half done that matters here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn put(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if !matches!(self.state, State::Open) {
            return;
        }
        if let Err(error) = write(&mut *self.writer) {
            self.state =
                if error.kind() == io::ErrorKind::BrokenPipe { State::Closed } else { State::Failed(error) };
        }
    }
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().put(|writer| writer.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().put(|writer| writer.flush());
        Ok(())
    }
}

/// Whether a stream takes colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    /// No escape bytes.
    #[default]
    None,
    /// ANSI sequences.
    Ansi,
}

/// What a piece of text is, not what it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Something went wrong.
    Bad,
    /// Something went well and is different now.
    Good,
    /// A person should look.
    Warn,
    /// Less important.
    Dim,
    /// A name or heading.
    Strong,
}

impl Style {
    const fn sequence(self) -> &'static str {
        match self {
            Self::Bad => "\x1b[1;31m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Dim => "\x1b[2m",
            Self::Strong => "\x1b[1m",
        }
    }

    /// Returns the style of a task's or host's end.
    pub const fn of_status(status: Status) -> Self {
        match status {
            Status::Changed => Self::Good,
            Status::Unchanged | Status::Skipped | Status::NotRun => Self::Dim,
            Status::Failed => Self::Bad,
            Status::Cancelled | Status::Unknown => Self::Warn,
        }
    }

    /// Returns the style of a run's end.
    pub const fn of_run(status: RunStatus) -> Self {
        match status {
            RunStatus::Success => Self::Good,
            RunStatus::Failed | RunStatus::Timeout => Self::Bad,
            RunStatus::Running | RunStatus::Cancelled => Self::Warn,
        }
    }
}

impl Paint {
    /// Returns `text` in the style, or as it is.
    pub fn apply(self, style: Style, text: &str) -> String {
        match self {
            Self::None => text.to_owned(),
            Self::Ansi => format!("{}{text}\x1b[0m", style.sequence()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn finish_after_writing_to(kind: io::ErrorKind) -> io::Result<()> {
        let mut output = Output::new(Handle::new(Broken(kind)), Handle::new(io::sink()));
        output.out.print_line("a");
        output.out.print_line("b");
        output.finish()
    }

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        assert!(finish_after_writing_to(io::ErrorKind::BrokenPipe).is_ok());
        let error = finish_after_writing_to(io::ErrorKind::StorageFull).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn no_paint_no_escape() {
        assert_eq!(Paint::None.apply(Style::Bad, "x"), "x");
        assert_eq!(Paint::Ansi.apply(Style::Good, "x"), "\x1b[32mx\x1b[0m");
    }
}
