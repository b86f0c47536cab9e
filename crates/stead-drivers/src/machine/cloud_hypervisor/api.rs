//! Calls on the socket of one Cloud Hypervisor, each on a connection of its own, with an end in time and size.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use stead_runner::socket::SocketPath;
use tokio::net::UnixStream;

use crate::machine::home::Home;

/// The socket's file in the machine's directory.
pub(super) const SOCKET: &str = "api.sock";
/// Nothing that is asked for here is longer.
const LONGEST: usize = 1 << 20;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    body: Vec<u8>,
}

/// No answer came: nobody listens, or the connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer: {0}")]
pub(super) struct Lost(String);

impl Answer {
    /// Returns the answer as JSON.
    pub(super) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Returns what an error says: a list of messages, from what was done to why it failed.
    pub(super) fn messages(&self) -> String {
        let listed = self.json().and_then(|value| {
            let texts = value.as_array()?.iter().filter_map(|text| text.as_str().map(str::to_owned));
            Some(texts.collect::<Vec<_>>().join(": "))
        });
        let said = listed.unwrap_or_else(|| String::from_utf8_lossy(&self.body).trim().to_owned());
        if said.is_empty() { format!("status {}", self.status) } else { said }
    }
}

/// Asks.
pub(super) async fn get(home: &Home, path: &str) -> Result<Answer, Lost> {
    call(home, "GET", path, None).await
}

/// Orders.
pub(super) async fn put(home: &Home, path: &str, body: Option<&Value>) -> Result<Answer, Lost> {
    call(home, "PUT", path, body).await
}

async fn call(home: &Home, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Lost> {
    let exchange = exchange(home, method, path, body);
    tokio::time::timeout(ANSWER, exchange).await.unwrap_or_else(|_| Err(Lost("it took too long".to_owned())))
}

async fn exchange(home: &Home, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Lost> {
    let lost = |error: &dyn std::fmt::Display| Lost(error.to_string());
    let socket = SocketPath::new(&home.directory().join(SOCKET)).map_err(|error| lost(&error))?;
    let stream = UnixStream::connect(socket.path()).await.map_err(|error| lost(&error))?;
    let text = body.map(Value::to_string).unwrap_or_default();
    let mut request =
        hyper::Request::builder().method(method).uri(format!("/api/v1/{path}")).header("host", "localhost");
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let request = request.body(Full::new(Bytes::from(text))).map_err(|error| lost(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
    let conversation = async {
        let response = sender.send_request(request).await.map_err(|error| lost(&error))?;
        let status = response.status().as_u16();
        let body =
            Limited::new(response.into_body(), LONGEST).collect().await.map_err(|error| lost(&error))?;
        Ok(Answer { status, body: body.to_bytes().to_vec() })
    };
    // The connection is driven here, not in a task of its own: dropping this future ends everything.
    tokio::pin!(conversation, connection);
    let mut closed = false;
    loop {
        tokio::select! {
            biased;
            answer = &mut conversation => return answer,
            // Its errors reach the conversation too.
            _ = &mut connection, if !closed => closed = true,
        }
    }
}
