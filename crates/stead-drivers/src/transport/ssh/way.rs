//! The bytes' way to a server: TCP, a program, or a channel of another connection.

use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use stead_runner::transport::{TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::settings::{Family, Settings};

/// As much of a proxy's errors as is repeated.
const LAST_WORDS: usize = 2048;
/// How long a proxy that has closed the connection may take to say why.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(500);

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A stream that its [`Cut`] can end from outside: the library's task reads it for as long as there is anything.
pub(super) struct Way {
    bytes: Box<dyn Bytes>,
    state: Arc<CutState>,
}

#[derive(Default)]
struct CutState(Mutex<(bool, Option<Waker>)>);

/// Ends a [`Way`] when dropped.
pub(super) struct Cut(Arc<CutState>);

impl Drop for Cut {
    fn drop(&mut self) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

impl Way {
    fn new(bytes: impl Bytes + 'static) -> (Self, Cut) {
        let state = Arc::new(CutState::default());
        (Self { bytes: Box::new(bytes), state: Arc::clone(&state) }, Cut(state))
    }
}

impl AsyncRead for Way {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            state.1 = Some(context.waker().clone());
        }
        Pin::new(&mut self.bytes).poll_read(context, buffer)
    }
}

impl AsyncWrite for Way {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

/// Connects to the host of `settings` directly.
pub(super) async fn direct(settings: &Settings) -> Result<(Way, Cut), TransportError> {
    let name = settings.name();
    let unknown = |problem: String| {
        TransportError::new(
            TransportErrorKind::NameNotFound,
            format!("{} has no address: {problem}", settings.host),
        )
    };
    let found = tokio::net::lookup_host((settings.host.as_str(), settings.port)).await;
    let addresses: Vec<SocketAddr> = found
        .map_err(|error| unknown(error.to_string()))?
        .filter(|address| match settings.family {
            Family::Any => true,
            Family::Inet => address.is_ipv4(),
            Family::Inet6 => address.is_ipv6(),
        })
        .collect();
    let mut last = None;
    for address in addresses {
        match connect(address, settings.bind_address.as_deref()).await {
            Ok(stream) => {
                // A command would wait 40 ms for the acknowledgement of what was sent before.
                stream.set_nodelay(true).map_err(|error| refused(&name, &error))?;
                return Ok(Way::new(stream));
            }
            Err(error) => {
                let is_address = settings.host.parse::<std::net::IpAddr>().is_ok();
                let tried = if is_address { name.clone() } else { format!("{name} ({address})") };
                last = Some(refused(&tried, &error));
            }
        }
    }
    Err(last.unwrap_or_else(|| unknown("none of the asked-for AddressFamily".to_owned())))
}

fn refused(name: &str, error: &io::Error) -> TransportError {
    let late = error.kind() == io::ErrorKind::TimedOut;
    let kind = if late { TransportErrorKind::TimedOut } else { TransportErrorKind::Refused };
    TransportError::new(kind, format!("{name} cannot be connected to: {error}"))
}

async fn connect(address: SocketAddr, bind: Option<&str>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(bind) = bind {
        let mut own = tokio::net::lookup_host((bind, 0)).await?;
        let own = own.find(|own| own.is_ipv4() == address.is_ipv4());
        socket.bind(own.ok_or_else(|| io::Error::other("BindAddress is of another address family"))?)?;
    }
    socket.connect(address).await
}

/// Connects to the host of `settings` through a connection to another.
pub(super) async fn through(hop: &Connection, settings: &Settings) -> Result<(Way, Cut), TransportError> {
    let opened = hop
        .handle()
        .channel_open_direct_tcpip(settings.host.clone(), u32::from(settings.port), "127.0.0.1", 0)
        .await;
    match opened {
        Ok(channel) => Ok(Way::new(channel.into_stream())),
        Err(russh::Error::ChannelOpenFailure(reason)) => Err(TransportError::new(
            TransportErrorKind::Refused,
            format!(
                "{} cannot be connected to from the jump host {}: {}",
                settings.name(),
                hop.name(),
                reason.description()
            ),
        )),
        Err(_) => Err(hop.lost("it was being jumped through")),
    }
}

/// A running `ProxyCommand`. Dropping it kills its process group.
pub(super) struct ProxyProcess {
    child: Child,
    words: Arc<Mutex<Vec<u8>>>,
    // Ends with this.
    reading: JoinSet<()>,
}

impl ProxyProcess {
    /// What it said last; all of it, if it has ended.
    pub(super) async fn last_words(&mut self) -> String {
        tokio::time::timeout(LAST_WORDS_GRACE, self.reading.join_next()).await.ok();
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).trim().to_owned()
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let group = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        if let Some(group) = group {
            // It may be gone already.
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
        }
    }
}

/// Starts a `ProxyCommand` and returns its input and output as the way.
pub(super) fn command(line: &str) -> Result<(Way, Cut, ProxyProcess), TransportError> {
    let failed = |error: String| {
        TransportError::new(
            TransportErrorKind::Refused,
            format!("the ProxyCommand `{line}` cannot be started: {error}"),
        )
    };
    let mut command = std::process::Command::new("/bin/sh");
    // The user's own line for a shell, as in OpenSSH; `$0` carries it, so nothing is put together here.
    command.args(["-c", "eval \"exec $0\"", line]);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        Command::from(command).kill_on_drop(true).spawn().map_err(|error| failed(error.to_string()))?;
    let (Some(input), Some(output), Some(mut errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed("it has no pipes".to_owned()));
    };
    let words = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&words);
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok(count) = errors.read(&mut buffer).await {
            let Some(new) = buffer.get(..count).filter(|new| !new.is_empty()) else { break };
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(new);
            let surplus = kept.len().saturating_sub(LAST_WORDS);
            kept.drain(..surplus);
        }
    });
    let (way, cut) = Way::new(tokio::io::join(output, input));
    Ok((way, cut, ProxyProcess { child, words, reading }))
}
