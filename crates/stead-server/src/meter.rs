//! A stream that knows what its client is at, so that a slow one can be told from a patient one.
//!
//! ```text
//! Idle ── a byte ──▶ Head ── the request is understood ──▶ Busy ── its answer has ended ──▶ Idle
//! ```
//! An answer is on its way until its last byte was handed on: meanwhile only a client that takes nothing is late.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use stead_model::site::settings::Limits;
use stead_runner::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::parking::Parked;

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
    /// Whether the client has shown that it may be here: it may then take its time between requests.
    is_trusted: AtomicBool,
    /// Whether a request was understood whose answer is not handed on to the last byte.
    is_answering: AtomicBool,
    /// Whether something was written that is not handed on.
    is_sending: AtomicBool,
    /// Since when the client takes nothing, in milliseconds after `start`; 0 if it does.
    stalled: AtomicU64,
    parked: Mutex<Option<Parked>>,
}

impl Pulse {
    pub(crate) fn new(limits: &Limits, is_trusted: bool) -> Arc<Self> {
        Arc::new(Self {
            start: clock::instant(),
            phase: AtomicU8::new(PHASE_IDLE),
            since: AtomicU64::new(0),
            head_bytes: AtomicU64::new(0),
            head_limit: limits.header_bytes,
            is_too_large: AtomicBool::new(false),
            is_trusted: AtomicBool::new(is_trusted),
            is_answering: AtomicBool::new(false),
            is_sending: AtomicBool::new(false),
            stalled: AtomicU64::new(0),
            parked: Mutex::new(None),
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
        self.is_answering.store(true, Ordering::Relaxed);
        self.enter(PHASE_BUSY);
    }

    /// The client has a token that holds.
    pub(crate) fn trust(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
    }

    /// Its answer has ended; parts of it may not be handed on yet.
    pub(crate) fn end_request(&self) {
        self.head_bytes.store(0, Ordering::Relaxed);
        self.enter(PHASE_IDLE);
    }

    /// Its answer will take a while: the connection's task is to wait for it without everything else.
    pub(crate) fn park(&self, parked: Parked) {
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(parked);
    }

    /// Returns what the connection's task is to wait for.
    pub(crate) fn take_parked(&self) -> Option<Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the head of a request is larger than it may be.
    pub(crate) fn is_too_large(&self) -> bool {
        self.is_too_large.load(Ordering::Relaxed)
    }

    /// Whether a request was understood and its answer is on its way.
    pub(crate) fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Whether something was written that is not handed on.
    pub(crate) fn is_sending(&self) -> bool {
        self.is_sending.load(Ordering::Relaxed)
    }

    /// Everything that was written is handed on.
    fn has_sent(&self) {
        if self.phase() == PHASE_BUSY {
            self.is_sending.store(false, Ordering::Relaxed);
            return;
        }
        self.is_answering.store(false, Ordering::Relaxed);
        if self.is_sending.swap(false, Ordering::Relaxed) {
            // From here on the client has its time.
            self.since.store(self.elapsed(), Ordering::Relaxed);
        }
    }

    /// Returns by when something has to happen, and what it means if it does not.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<(Instant, Overdue)> {
        let after = |millis: u64, length: Duration| self.start + Duration::from_millis(millis) + length;
        let stalled = self.stalled.load(Ordering::Relaxed);
        if stalled > 0 {
            return Some((after(stalled, Duration::from_secs(limits.body_seconds)), Overdue::Answer));
        }
        if self.is_sending() {
            return None;
        }
        let since = self.since.load(Ordering::Relaxed);
        let head = Duration::from_secs(limits.header_seconds);
        match self.phase() {
            PHASE_HEAD => Some((after(since, head), Overdue::Head)),
            PHASE_IDLE if self.is_trusted.load(Ordering::Relaxed) => {
                Some((after(since, IDLE), Overdue::Idle))
            }
            PHASE_IDLE => Some((after(since, head), Overdue::Idle)),
            _ => None,
        }
    }
}

/// A stream whose pulse is taken.
pub(crate) struct Meter<S> {
    stream: S,
    /// What was read already and is to be read again.
    before: Bytes,
    pulse: Arc<Pulse>,
}

impl<S> Meter<S> {
    pub(crate) const fn new(stream: S, before: Bytes, pulse: Arc<Pulse>) -> Self {
        Self { stream, before, pulse }
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
        let filled = buffer.filled().len();
        let polled = if self.before.is_empty() {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        } else {
            let count = self.before.len().min(buffer.remaining());
            buffer.put_slice(self.before.get(..count).unwrap_or_default());
            self.before.advance(count);
            Poll::Ready(Ok(()))
        };
        let count = (buffer.filled().len() - filled) as u64;
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
        !self.pulse.is_answering()
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Meter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.swallows() {
            return Poll::Ready(Ok(bytes.len()));
        }
        self.pulse.is_sending.store(true, Ordering::Relaxed);
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
        self.pulse.is_sending.store(true, Ordering::Relaxed);
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.pulse.has_sent();
        }
        self.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn limits() -> Limits {
        Limits { header_seconds: 5, body_seconds: 30, ..Limits::default() }
    }

    fn overdue(pulse: &Pulse) -> Option<Overdue> {
        pulse.deadline(&limits()).map(|(_, overdue)| overdue)
    }

    /// While an answer is sent a client that takes it is never late, whatever it has sent ahead; one that does not is.
    #[tokio::test]
    async fn an_answer_on_its_way_is_not_cut_off() {
        let (mut client, server) = tokio::io::duplex(16);
        let pulse = Pulse::new(&limits(), false);
        let mut meter = Meter::new(server, Bytes::new(), Arc::clone(&pulse));
        client.write_all(b"GET / HTTP/1.1").await.unwrap();
        meter.read_exact(&mut [0; 14]).await.unwrap();
        assert_eq!(overdue(&pulse), Some(Overdue::Head));
        pulse.begin_request();
        assert_eq!(overdue(&pulse), None);
        meter.write_all(b"head").await.unwrap();
        client.write_all(b"GET /half").await.unwrap();
        meter.read_exact(&mut [0; 9]).await.unwrap();
        assert_eq!(overdue(&pulse), None, "half a request that comes ahead of its time starts no clock");
        pulse.end_request();
        meter.write_all(b"tail").await.unwrap();
        assert_eq!(overdue(&pulse), None, "its tail is not handed on yet");
        assert!(pulse.is_answering());
        meter.flush().await.unwrap();
        assert_eq!((overdue(&pulse), pulse.is_answering()), (Some(Overdue::Idle), false));

        pulse.begin_request();
        let stuck = tokio::time::timeout(Duration::from_millis(10), meter.write_all(&[0; 64])).await;
        assert!(stuck.is_err(), "there is no room");
        assert_eq!(overdue(&pulse), Some(Overdue::Answer));
        client.read_exact(&mut [0; 16]).await.unwrap();
        meter.write_all(b"x").await.unwrap();
        assert_eq!(overdue(&pulse), None, "it takes it again");
    }

    /// Who was told nothing wrong is told nothing: a connection without a byte of a request just ends.
    #[test]
    fn silence_is_not_a_slow_request() {
        let fresh = Pulse::new(&limits(), false);
        let (until, overdue) = fresh.deadline(&limits()).unwrap();
        assert_eq!((until, overdue), (fresh.start + Duration::from_secs(5), Overdue::Idle));
        let trusted = Pulse::new(&limits(), true);
        assert_eq!(trusted.deadline(&limits()), Some((trusted.start + IDLE, Overdue::Idle)));
    }

    /// What the HTTP library says by itself reaches nobody, also after a request was served.
    #[tokio::test]
    async fn only_answers_go_out() {
        let (mut client, server) = tokio::io::duplex(64);
        let pulse = Pulse::new(&limits(), false);
        let mut meter = Meter::new(server, Bytes::new(), Arc::clone(&pulse));
        for _ in 0..2 {
            meter.write_all(b"library").await.unwrap();
            pulse.begin_request();
            meter.write_all(b"ours").await.unwrap();
            pulse.end_request();
            meter.flush().await.unwrap();
        }
        drop(meter);
        let mut all = String::new();
        client.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "oursours");
    }
}
