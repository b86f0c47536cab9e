//! Asks a server over its socket: one request, one answer, within a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use stead_model::node::wire::{ErrorBody, WireError};
use stead_runner::clock;
use stead_runner::socket::SocketPath;

/// The longest answer that is read.
const LONGEST: u64 = 4 << 20;

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is none, or it takes too long.
    #[error("it cannot be reached")]
    Io(#[from] io::Error),
    /// What it answers is not HTTP.
    #[error("its answer cannot be understood")]
    NotHttp,
    /// It refuses.
    #[error("it refuses: {0}")]
    Refused(WireError),
}

/// Returns the body of the answer to a request without one.
pub(crate) fn ask(
    socket: &Path,
    method: &str,
    target: &str,
    patience: Duration,
) -> Result<Vec<u8>, AskError> {
    let deadline = clock::instant() + patience;
    let mut stream = UnixStream::connect(SocketPath::new(socket)?.path())?;
    stream.set_write_timeout(Some(patience.max(Duration::from_millis(1))))?;
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: stead\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while (answer.len() as u64) < LONGEST {
        let left = deadline.saturating_duration_since(clock::instant());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or(AskError::NotHttp)?;
    let body = answer.split_off(end + 4);
    let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
    match status.and_then(|status| status.parse::<u16>().ok()) {
        Some(200..=299) => Ok(body),
        Some(_) => Err(ErrorBody::parse(&body).map_or(AskError::NotHttp, AskError::Refused)),
        None => Err(AskError::NotHttp),
    }
}
