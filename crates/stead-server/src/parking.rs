//! Agents that wait: as little as possible is kept for each, since there are thousands of them.
//!
//! A long-poll that finds nothing is taken out of the hands of the HTTP library, with its buffers: only the stream stays.
//! When there is an answer, or the time is over, it is written, and the library has the connection again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stead_model::NodeName;
use stead_model::node::wire::{Signal, WireError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::answer::raw_refusal;
use crate::handle::{Noted, Peer, note};
use crate::server::Server;
use crate::store::Taken;

/// What a client may send before it is answered; more is left where it is.
const MOST_AHEAD: usize = 4096;

/// An agent that waits.
pub(crate) struct Parked {
    /// Of which node.
    pub(crate) node: NodeName,
    /// What it has taken down already.
    pub(crate) taken: Taken,
    /// For how long it waits.
    pub(crate) wait: Duration,
    /// What the log says of it.
    pub(crate) noted: Noted,
}

/// Waits until the agent can be answered and answers it. Returns what it has sent in the meantime; nothing if it is gone.
pub(crate) async fn wait<S: AsyncRead + AsyncWrite + Unpin>(
    server: &Server,
    peer: Peer,
    parked: Parked,
    before: Bytes,
    stream: &mut S,
) -> Option<Bytes> {
    let mut ahead = BytesMut::from(before.as_ref());
    drop(before);
    // Its token may be revoked or expire while it waits.
    let may_know = || parked.noted.claims().map_or(Ok(()), |claims| server.verify_again(claims));
    let next = server.store.next(&parked.node, parked.taken, parked.wait, may_know);
    let result = tokio::select! {
        result = next => result,
        () = until_gone(stream, &mut ahead) => return None,
    };
    let (status, answer) = match &result {
        Ok(Some(signal)) => (200, found(signal)),
        Ok(None) => (204, b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        Err(error) => (error.code.status(), raw_refusal(error)),
    };
    note(server, peer, &parked.noted, status, result.as_ref().err().map(|error: &WireError| error.code));
    let patience = Duration::from_secs(server.snapshot().limits().body_seconds);
    let writing = async { stream.write_all(&answer).await.is_ok() && stream.flush().await.is_ok() };
    let is_taken = timeout(patience, writing).await.unwrap_or(false);
    (is_taken && result.is_ok()).then(|| ahead.freeze())
}

fn found(signal: &Signal) -> Vec<u8> {
    let body = serde_json::to_string(signal).unwrap_or_default();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Ends when the client has ended the connection.
async fn until_gone<S: AsyncRead + Unpin>(stream: &mut S, ahead: &mut BytesMut) {
    let mut piece = [0; 64];
    while ahead.len() < MOST_AHEAD {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(count) => ahead.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
    std::future::pending().await
}
