//! A stream that knows what its client is at, so that a slow one can be told from a patient one.
//!
//! ```text
//! Idle ── a byte ──▶ Head ── the request is understood ──▶ Busy ── it is answered ──▶ Idle
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use stead_model::site::settings::Limits;
use stead_runner::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long a connection may wait for its next request: longer than any long-poll.
const IDLE: Duration = Duration::from_secs(65);

const PHASE_IDLE: u8 = 0;
const PHASE_HEAD: u8 = 1;
const PHASE_BUSY: u8 = 2;

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// The head of a request does not come.
    Head,
    /// Nobody asks for anything any more.
    Idle,
    /// Nobody takes the answer.
    Answer,
}

/// What a client is at. One task uses it; the atomics only make it shareable.
pub(crate) struct Pulse {
    start: Instant,
    phase: AtomicU8,
    /// When the phase began, in milliseconds after `start`.
    since: AtomicU64,
    head_bytes: AtomicU64,
    head_limit: u64,
    is_too_large: AtomicBool,
    has_served: AtomicBool,
    /// Since when the client takes nothing, in milliseconds after `start`; 0 if it does.
    stalled: AtomicU64,
}

impl Pulse {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            start: clock::instant(),
            phase: AtomicU8::new(PHASE_IDLE),
            since: AtomicU64::new(0),
            head_bytes: AtomicU64::new(0),
            head_limit: limits.header_bytes,
            is_too_large: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            stalled: AtomicU64::new(0),
        })
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since.store(self.elapsed(), Ordering::Relaxed);
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// A request was understood.
    pub(crate) fn begin_request(&self) {
        self.has_served.store(true, Ordering::Relaxed);
        self.enter(PHASE_BUSY);
    }

    /// It is answered.
    pub(crate) fn end_request(&self) {
        self.head_bytes.store(0, Ordering::Relaxed);
        self.enter(PHASE_IDLE);
    }

    /// Whether the head of a request is larger than it may be.
    pub(crate) fn is_too_large(&self) -> bool {
        self.is_too_large.load(Ordering::Relaxed)
    }

    /// Whether a request was understood on this connection.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Returns by when something has to happen, and what it means if it does not.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<(Instant, Overdue)> {
        let after = |millis: u64, length: Duration| self.start + Duration::from_millis(millis) + length;
        let stalled = self.stalled.load(Ordering::Relaxed);
        if stalled > 0 {
            return Some((after(stalled, Duration::from_secs(limits.body_seconds)), Overdue::Answer));
        }
        let since = self.since.load(Ordering::Relaxed);
        let head = Duration::from_secs(limits.header_seconds);
        match self.phase() {
            PHASE_HEAD => Some((after(since, head), Overdue::Head)),
            PHASE_IDLE if self.has_served() => Some((after(since, IDLE), Overdue::Idle)),
            PHASE_IDLE => Some((after(since, head), Overdue::Head)),
            _ => None,
        }
    }
}

/// A stream whose pulse is taken.
pub(crate) struct Meter<S> {
    stream: S,
    pulse: Arc<Pulse>,
}

impl<S> Meter<S> {
    pub(crate) const fn new(stream: S, pulse: Arc<Pulse>) -> Self {
        Self { stream, pulse }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Meter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pulse = Arc::clone(&self.pulse);
        if pulse.phase() == PHASE_HEAD && pulse.head_bytes.load(Ordering::Relaxed) >= pulse.head_limit {
            // All that was read so far is no whole head. Nothing more is read; the connection's task sees why.
            pulse.is_too_large.store(true, Ordering::Relaxed);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let count = (buffer.filled().len() - before) as u64;
        if count > 0 && pulse.phase() != PHASE_BUSY {
            if pulse.phase() == PHASE_IDLE {
                pulse.enter(PHASE_HEAD);
            }
            pulse.head_bytes.fetch_add(count, Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> Meter<S> {
    /// Notes whether the client takes what it is sent.
    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &polled {
            Poll::Pending if self.pulse.stalled.load(Ordering::Relaxed) == 0 => {
                self.pulse.stalled.store(self.pulse.elapsed(), Ordering::Relaxed);
            }
            Poll::Pending => {}
            Poll::Ready(_) => self.pulse.stalled.store(0, Ordering::Relaxed),
        }
        polled
    }

    /// Whether what is written answers no request: the HTTP library says by itself that it understood none.
    /// The connection's task says it in our words.
    fn swallows(&self) -> bool {
        !self.pulse.has_served()
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Meter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.swallows() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.swallows() {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
