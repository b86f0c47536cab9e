//! A stream that knows how it fares: when something last came, and since when nothing can be written.
//!
//! A server holds back what a peer asks while that peer does not take its answers, so that what waits for it stays
//! bounded; a watchdog ends the connection of one that stays so.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What both halves of a stream know.
#[derive(Debug)]
pub(super) struct Flow {
    holds_back: bool,
    last_read: Cell<Instant>,
    stuck_since: Cell<Option<Instant>>,
    reader: RefCell<Option<Waker>>,
    refusal: Cell<Option<AlertDescription>>,
}

impl Flow {
    /// Returns the flow of a new stream; `holds_back`: nothing is read while nothing can be written.
    pub(super) fn new(holds_back: bool) -> Rc<Self> {
        Rc::new(Self {
            holds_back,
            last_read: Cell::new(Instant::now()),
            stuck_since: Cell::new(None),
            reader: RefCell::new(None),
            refusal: Cell::new(None),
        })
    }

    /// Returns for how long nothing has come.
    pub(super) fn silence(&self) -> Duration {
        self.last_read.get().elapsed()
    }

    /// Returns for how long what was written has not been taken.
    pub(super) fn stuck(&self) -> Duration {
        self.stuck_since.get().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns why the other side ended the connection, if it said so.
    pub(super) fn refusal(&self) -> Option<AlertDescription> {
        self.refusal.get()
    }

    fn note_error(&self, error: &io::Error) {
        let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = alert {
            self.refusal.set(Some(*alert));
        }
    }

    fn note_write<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &result {
            Poll::Pending => {
                let since = self.stuck_since.get().unwrap_or_else(Instant::now);
                self.stuck_since.set(Some(since));
            }
            Poll::Ready(outcome) => {
                if let Err(error) = outcome {
                    self.note_error(error);
                }
                self.stuck_since.set(None);
                if let Some(reader) = self.reader.take() {
                    reader.wake();
                }
            }
        }
        result
    }
}

/// The half that is read.
pub(super) struct Input<R> {
    inner: R,
    flow: Rc<Flow>,
}

impl<R> Input<R> {
    pub(super) fn new(inner: R, flow: &Rc<Flow>) -> Self {
        Self { inner, flow: Rc::clone(flow) }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.flow.holds_back && self.flow.stuck_since.get().is_some() {
            *self.flow.reader.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        match &result {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                self.flow.last_read.set(Instant::now());
            }
            Poll::Ready(Err(error)) => self.flow.note_error(error),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        result
    }
}

/// The half that is written.
pub(super) struct Output<W> {
    inner: W,
    flow: Rc<Flow>,
}

impl<W> Output<W> {
    pub(super) fn new(inner: W, flow: &Rc<Flow>) -> Self {
        Self { inner, flow: Rc::clone(flow) }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Output<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.flow.note_write(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.flow.note_write(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
