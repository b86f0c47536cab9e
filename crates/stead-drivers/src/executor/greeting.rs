//! The first words of a connection.

use std::io;
use std::time::Duration;

use stead_model::executor::{FrameBuffer, FrameKind, Hello, PROTOCOL, Reply, Request, UnknownMessage, write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A driver that has connected says hello within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection whose driver has said hello.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) hello: Hello,
    pub(super) stream: UnixStream,
    /// What came after the hello.
    pub(super) inbox: FrameBuffer,
}

/// Reads the hello of a connection; a driver that says anything else is told so and left.
pub(super) async fn greet(mut stream: UnixStream) -> Option<Greeted> {
    let mut inbox = FrameBuffer::default();
    let hello = tokio::time::timeout(PATIENCE, read_hello(&mut stream, &mut inbox)).await.ok()?;
    match hello {
        Ok(hello) if hello.protocol.contains(&PROTOCOL) => Some(Greeted { hello, stream, inbox }),
        Ok(hello) => {
            let message = format!(
                "no common protocol: the driver (stead {}) speaks {:?}, the executor (stead {}) speaks [{PROTOCOL}]",
                hello.version,
                hello.protocol,
                env!("CARGO_PKG_VERSION")
            );
            refuse(&mut stream, message).await;
            None
        }
        Err(message) => {
            refuse(&mut stream, message?).await;
            None
        }
    }
}

/// Returns the hello, or what is wrong; nothing if the connection simply ended.
async fn read_hello(stream: &mut UnixStream, inbox: &mut FrameBuffer) -> Result<Hello, Option<String>> {
    let mut buffer = vec![0; 4 << 10];
    loop {
        let frame = inbox.next_frame().map_err(|error| Some(format!("a bad frame: {error}")))?;
        if let Some(frame) = frame {
            if frame.kind != FrameKind::Json {
                return Err(Some("the first message must be `hello`".to_owned()));
            }
            return match Request::read(&frame.body) {
                Ok(Request::Hello(hello)) => Ok(hello),
                Ok(_) => Err(Some("the first message must be `hello`".to_owned())),
                Err(
                    error @ (UnknownMessage::NotAMessage
                    | UnknownMessage::Unknown(_)
                    | UnknownMessage::Bad { .. }),
                ) => Err(Some(error.to_string())),
            };
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return Err(None),
            Ok(n) => inbox.push(buffer.get(..n).unwrap_or_default()),
        }
    }
}

async fn refuse(stream: &mut UnixStream, message: String) {
    let mut bytes = Vec::new();
    let class = Some(stead_model::ErrorClass::Permanent);
    if write(&mut bytes, 0, &Reply::Error { message, class }).is_ok() {
        // A driver that has gone needs no answer.
        let told: io::Result<()> = stream.write_all(&bytes).await;
        drop(told);
        drop(stream.shutdown().await);
    }
}
