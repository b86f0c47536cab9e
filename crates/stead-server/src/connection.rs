//! One connection: one task, from the handshake to the end, whatever the client does.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use stead_model::node::wire::{WireCode, WireError};
use stead_model::site::settings::Limits;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::answer::{Sent, raw_refusal};
use crate::handle::{Peer, handle};
use crate::meter::{Meter, Overdue, Pulse};
use crate::parking::{self, Parked};
use crate::server::Server;

/// The least that the HTTP library takes for its buffer.
const LEAST_BUFFER: usize = 8192;

/// The most fields of a head.
const MOST_FIELDS: usize = 64;

/// How long a client that was refused may take to hear of it.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is read of a client that was refused before it had said everything, so that it reads why.
const MOST_DRAINED: usize = 4 << 20;

/// How a connection ended.
enum End {
    /// By itself.
    Done,
    /// What came is no request.
    Garbled,
    /// The head of a request is too large.
    TooLarge,
    /// Something did not come.
    Late(Overdue),
    /// Not at all: an agent waits.
    Parked(Box<Parked>),
}

struct Answering {
    server: Arc<Server>,
    peer: Peer,
    pulse: Arc<Pulse>,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Sent>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.pulse.begin_request();
        let (server, peer, pulse) = (Arc::clone(&self.server), self.peer, Arc::clone(&self.pulse));
        Box::pin(async move {
            let answer = handle(&server, peer, &pulse, request).await;
            Ok(answer.map(|body| Sent { body, pulse }))
        })
    }
}

/// Serves one connection to its end.
pub(crate) async fn serve<S>(server: Arc<Server>, peer: Peer, mut stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut before = Bytes::new();
    let mut is_trusted = matches!(peer, Peer::Local { .. });
    loop {
        // On the heap and gone while an agent waits, with all buffers.
        let conversation = Box::pin(converse(&server, peer, stream, before, is_trusted)).await;
        let End::Parked(parked) = conversation.end else {
            return part(conversation.stream, &conversation.end, &server).await;
        };
        stream = conversation.stream;
        match parking::wait(&server, peer, *parked, conversation.ahead, &mut stream).await {
            Some(ahead) => (before, is_trusted) = (ahead, true),
            None => return,
        }
    }
}

/// What is left of a connection when the HTTP library is done with it.
struct Conversation<S> {
    end: End,
    stream: S,
    /// What the client has sent and nobody has looked at.
    ahead: Bytes,
}

/// Answers requests until there are no more, or one takes a while.
async fn converse<S>(
    server: &Arc<Server>,
    peer: Peer,
    stream: S,
    before: Bytes,
    is_trusted: bool,
) -> Conversation<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = *server.snapshot().limits();
    let pulse = Pulse::new(&limits, is_trusted);
    let answering = Answering { server: Arc::clone(server), peer, pulse: Arc::clone(&pulse) };
    let largest = usize::try_from(limits.header_bytes).unwrap_or(LEAST_BUFFER).saturating_add(1 << 16);
    let mut builder = http1::Builder::new();
    builder.max_buf_size(largest.max(LEAST_BUFFER)).max_headers(MOST_FIELDS);
    let meter = TokioIo::new(Meter::new(stream, before, Arc::clone(&pulse)));
    let mut connection = builder.serve_connection(meter, answering);
    let end = drive(&mut connection, server, &pulse, &limits).await;
    let parts = connection.into_parts();
    // An empty rest would hold on to the whole buffer.
    let ahead = if parts.read_buf.is_empty() { Bytes::new() } else { parts.read_buf };
    Conversation { end, stream: parts.io.into_inner().into_inner(), ahead }
}

/// Says why the connection ends, if there is something to say.
async fn part<S: AsyncRead + AsyncWrite + Unpin>(stream: S, end: &End, server: &Server) {
    let refusal = match end {
        End::TooLarge => Some(too_large()),
        End::Late(Overdue::Head) => {
            let seconds = server.snapshot().limits().header_seconds;
            Some(WireError::new(WireCode::E104, format!("a request has {seconds} s")))
        }
        End::Garbled => Some(WireError::new(WireCode::E100, "this is no request of HTTP/1.1")),
        End::Done | End::Parked(_) | End::Late(Overdue::Idle | Overdue::Answer) => None,
    };
    // A client that does not take its farewell is left.
    timeout(FAREWELL, farewell(stream, refusal)).await.ok();
}

/// Returns why a head is refused that is too large.
pub(crate) fn too_large() -> WireError {
    WireError::new(WireCode::E103, "the head of the request is too large")
}

/// Says why, if there is something to say, and ends the stream in a way that lets the client read it.
async fn farewell<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, refusal: Option<WireError>) {
    if let Some(error) = refusal
        && stream.write_all(&raw_refusal(&error)).await.is_err()
    {
        return;
    }
    if stream.shutdown().await.is_err() {
        return;
    }
    // On the heap: a future holds its arrays as long as it lives, also while nothing is read.
    let mut piece = vec![0; 4096];
    let mut drained = 0;
    while drained < MOST_DRAINED {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(count) => drained += count,
        }
    }
}

/// Lets the connection go on until it ends, is overdue, or the server stops and it is idle.
async fn drive<S>(
    connection: &mut http1::Connection<TokioIo<Meter<S>>, Answering>,
    server: &Server,
    pulse: &Pulse,
    limits: &Limits,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stopping = server.stopping();
    let stop = async move { stopping.wait_for(|stopping| *stopping).await.is_ok() };
    tokio::pin!(stop);
    let mut is_stopping = false;
    let mut sleep: Pin<Box<Sleep>> = Box::pin(sleep_until(Instant::now()));
    let mut armed = None;
    poll_fn(|cx| {
        if !is_stopping && stop.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        match connection.poll_without_shutdown(cx) {
            Poll::Ready(Err(error)) if error.is_parse_too_large() && !pulse.is_answering() => {
                return Poll::Ready(End::TooLarge);
            }
            Poll::Ready(Err(error)) if error.is_parse() && !pulse.is_answering() => {
                return Poll::Ready(End::Garbled);
            }
            // What else goes wrong is that the client is gone.
            Poll::Ready(Ok(()) | Err(_)) => return Poll::Ready(End::Done),
            Poll::Pending => {}
        }
        // What was answered before goes out first: the library's buffers end with it.
        if !pulse.is_sending()
            && let Some(parked) = pulse.take_parked()
        {
            return Poll::Ready(End::Parked(Box::new(parked)));
        }
        if pulse.is_too_large() && !pulse.is_sending() {
            return Poll::Ready(End::TooLarge);
        }
        let Some((deadline, overdue)) = pulse.deadline(limits) else { return Poll::Pending };
        if armed != Some(deadline) {
            armed = Some(deadline);
            sleep.as_mut().reset(Instant::from_std(deadline));
        }
        sleep.as_mut().poll(cx).map(|()| End::Late(overdue))
    })
    .await
}
