//! Requests outside of any plan: what daemons fetch and put, with the system's certificates.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use stead_runner::operation::OpError;
use tokio::fs::File;
use tokio::io::{AsyncRead as _, ReadBuf};

use crate::http::client::{Request, Response, Roots, send_body, send_uncancelled};

/// How much of a file is in memory at a time.
const PIECE: usize = 64 << 10;

/// What came back, without the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Answer {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Sends `body` to `url` and gives what comes back to `sink`; an error of the sink ends the exchange. Redirects are not
/// followed. Dropping the future ends it.
///
/// # Errors
/// If there is no whole answer within `timeout`.
pub async fn exchange(
    method: &str,
    url: &str,
    body: Vec<u8>,
    timeout: Duration,
    sink: &mut (dyn FnMut(&[u8]) -> io::Result<()> + Send),
) -> io::Result<Answer> {
    let request = Request { url, method, headers: Vec::new(), body, roots: Roots::System, timeout };
    let mut take = |bytes: &[u8]| sink(bytes).map_err(|error| OpError::operation(error.to_string()));
    answered(send_uncancelled(request, &mut take).await)
}

/// Puts the file at `path` to `url`, a piece at a time, as long as it is when it is opened.
///
/// # Errors
/// If it cannot be read, becomes shorter meanwhile, or if there is no whole answer within `timeout`.
pub async fn put_file(url: &str, path: &Path, timeout: Duration) -> io::Result<Answer> {
    let file = File::open(path).await?;
    let left = file.metadata().await?.len();
    let body = FileBody { file, left, piece: vec![0; PIECE] };
    let (headers, roots) = (Vec::new(), Roots::System);
    let request = Request { url, method: "PUT", headers, body: Vec::new(), roots, timeout };
    answered(send_body(request, body, &mut |_| Ok(())).await)
}

fn answered(answer: Result<Response, OpError>) -> io::Result<Answer> {
    let answer = answer.map_err(|error| io::Error::other(error.message))?;
    Ok(Answer { status: answer.status, headers: answer.headers })
}

/// A file on its way.
struct FileBody {
    file: File,
    /// How much is still to come.
    left: u64,
    piece: Vec<u8>,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { file, left, piece } = self.get_mut();
        if *left == 0 {
            return Poll::Ready(None);
        }
        let most = usize::try_from(*left).unwrap_or(PIECE).min(PIECE);
        let mut buffer = ReadBuf::new(piece.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(file).poll_read(context, &mut buffer))?;
        let read = buffer.filled();
        if read.is_empty() {
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        }
        *left -= read.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(read)))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Takes one request; returns its head and its body, as long as the head says.
    fn take_one(listener: &TcpListener) -> (String, Vec<u8>) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let lines = head.to_lowercase();
        let length = lines.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").unwrap();
        (head, body)
    }

    #[tokio::test]
    async fn a_file_is_put_in_pieces_and_arrives_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (path, listener) = (directory.path().join("blob"), TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("http://{}/blobs/1", listener.local_addr().unwrap());
        for length in [0, 1, PIECE, 5 * PIECE + 3] {
            let bits: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            std::fs::write(&path, &bits).unwrap();
            let listener = listener.try_clone().unwrap();
            let server = std::thread::spawn(move || take_one(&listener));
            let answer = put_file(&url, &path, Duration::from_secs(60)).await.unwrap();
            let (head, body) = server.join().unwrap();
            assert_eq!(answer.status, 201);
            assert!(head.starts_with("PUT /blobs/1 HTTP/1.1\r\n"), "{head}");
            assert!(body == bits, "{length}: {} bytes came", body.len());
        }
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_not_put() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blob");
        std::fs::write(&path, "bits").unwrap();
        let file = File::open(&path).await.unwrap();
        let mut body = FileBody { file, left: 5, piece: vec![0; PIECE] };
        let frames: Vec<_> = [
            http_body_util::BodyExt::frame(&mut body).await.unwrap(),
            http_body_util::BodyExt::frame(&mut body).await.unwrap(),
        ]
        .into();
        assert_eq!(frames[0].as_ref().unwrap().data_ref().unwrap(), "bits");
        assert_eq!(frames[1].as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(put_file("http://127.0.0.1:1/x", &path.join("none"), Duration::from_secs(60)).await.is_err());
    }
}
