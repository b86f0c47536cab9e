//! The ends of a forward on this machine: sockets that listen or are connected to.

use std::io;
use std::path::PathBuf;

use stead_runner::socket::SocketPath;
use stead_runner::transport::{Endpoint, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A connected socket.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A socket that listens. Dropping it removes its file, if it has one.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket; removed when dropped.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever removed it before us did our work.
        std::fs::remove_file(&self.0).ok();
    }
}

impl Listener {
    /// Listens on `at` and returns where that is, with the port it took.
    pub(super) async fn bind(at: &Endpoint) -> Result<(Self, Endpoint), TransportError> {
        let bound = async {
            Ok::<_, io::Error>(match at {
                Endpoint::Tcp(host, port) => {
                    let listener = TcpListener::bind((host.as_str(), *port)).await?;
                    let taken = listener.local_addr()?.port();
                    (Self::Tcp(listener), Endpoint::Tcp(host.clone(), taken))
                }
                Endpoint::Unix(path) => {
                    let listener = UnixListener::bind(SocketPath::new(path)?.path())?;
                    (Self::Unix { listener, _file: SocketFile(path.clone()) }, at.clone())
                }
            })
        };
        bound.await.map_err(|error| {
            TransportError::new(
                TransportErrorKind::Failed,
                format!("{} cannot be listened on: {error}", name(at)),
            )
        })
    }

    /// Returns the next connection.
    pub(super) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }
}

/// Connects to `to`.
pub(super) async fn connect(to: &Endpoint) -> io::Result<Box<dyn Stream>> {
    Ok(match to {
        Endpoint::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Endpoint::Unix(path) => Box::new(UnixStream::connect(SocketPath::new(path)?.path()).await?),
    })
}

/// Returns an endpoint in words.
pub(super) fn name(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp(host, port) => format!("{host}:{port}"),
        Endpoint::Unix(path) => path.display().to_string(),
    }
}
