//! Answers, and the bodies they have.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use stead_model::node::wire::{ErrorBody, WireError};
use stead_web::Live;
use tokio::task::JoinHandle;

use crate::meter::Pulse;

/// How much of a file is read at once.
const PIECE: u64 = 64 * 1024;

/// What is sent back.
pub(crate) type Answer = Response<AnswerBody>;

/// The body of an answer.
pub(crate) enum AnswerBody {
    /// Bytes, until they are sent.
    Whole(Option<Bytes>),
    /// A part of a file.
    File(Piecewise),
    /// What comes, until nothing more does.
    Live(Live),
}

/// A body that is on its way: when it is gone the request has its answer.
pub(crate) struct Sent {
    pub(crate) body: AnswerBody,
    pub(crate) pulse: Arc<Pulse>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.pulse.end_request();
    }
}

/// A part of a file that is read as it is sent.
pub(crate) struct Piecewise {
    file: Arc<File>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl AnswerBody {
    /// Returns bytes `from` to `end` of `file` as a body.
    pub(crate) fn file(file: File, from: u64, end: u64) -> Self {
        Self::File(Piecewise { file: Arc::new(file), at: from, end, reading: None })
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::File(file) => file.poll_piece(cx).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Self::Live(pieces) => {
                pieces.poll_piece(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::File(file) => file.at >= file.end,
            Self::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::File(file) => SizeHint::with_exact(file.end - file.at),
            Self::Live(_) => SizeHint::default(),
        }
    }
}

impl Piecewise {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.at >= self.end {
            return Poll::Ready(None);
        }
        let (file, at, length) = (Arc::clone(&self.file), self.at, PIECE.min(self.end - self.at));
        let reading = self.reading.get_or_insert_with(|| {
            tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; usize::try_from(length).unwrap_or_default()];
                file.read_exact_at(&mut piece, at)?;
                Ok(Bytes::from(piece))
            })
        });
        let read = ready!(Pin::new(reading).poll(cx)).unwrap_or_else(|error| Err(io::Error::other(error)));
        self.reading = None;
        self.at += length;
        Poll::Ready(Some(read))
    }
}

/// Returns an answer without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    with_status(status, AnswerBody::Whole(None))
}

fn with_status(status: StatusCode, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}

/// Returns an answer of bytes of a kind.
pub(crate) fn bytes(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let answer = with_status(status, AnswerBody::Whole(Some(body)));
    with(answer, header::CONTENT_TYPE, HeaderValue::from_static(kind))
}

/// Returns an answer of JSON that is there already.
pub(crate) fn json_bytes(status: StatusCode, body: Bytes) -> Answer {
    bytes(status, "application/json", body)
}

/// Returns an answer of JSON.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    json_bytes(status, serde_json::to_vec(body).unwrap_or_default().into())
}

/// Returns an answer with a header.
pub(crate) fn with(mut answer: Answer, name: HeaderName, value: HeaderValue) -> Answer {
    answer.headers_mut().insert(name, value);
    answer
}

/// Returns the answer that refuses.
pub(crate) fn refusal(error: &WireError) -> Answer {
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, &ErrorBody { error: error.clone() })
}

/// Returns the bytes of the answer that refuses, for a connection on which no request was understood.
pub(crate) fn raw_refusal(error: &WireError) -> Vec<u8> {
    let body = serde_json::to_string(&ErrorBody { error: error.clone() }).unwrap_or_default();
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::BAD_REQUEST);
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        status.as_str(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    )
    .into_bytes()
}
