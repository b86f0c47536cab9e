//! Our side of the SSH protocol's callbacks: the host key, the reason of the end, and what the server opens to us.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelOpenFailure, Names};
use stead_runner::transport::{Endpoint, TransportError};
use tokio::sync::mpsc;

use super::host_key::HostKeyCheck;

/// Why a connection could not be made or went away.
#[derive(Debug)]
pub(super) enum ClientError {
    /// By the library's word.
    Protocol(russh::Error),
    /// The host key did not please.
    HostKey(TransportError),
    /// The host key is not the pinned one, which may be another of the server's.
    OtherKey(Box<PublicKey>),
}

impl From<russh::Error> for ClientError {
    fn from(error: russh::Error) -> Self {
        Self::Protocol(error)
    }
}

/// What a connection's callbacks know, for those who use it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    reason: Mutex<Option<String>>,
    server: OnceLock<String>,
    forwards: Mutex<BTreeMap<String, mpsc::Sender<Channel<Msg>>>>,
}

impl Shared {
    /// Returns the server's OpenSSH version, if that is what it is.
    pub(super) fn server_version(&self) -> Option<(u32, u32)> {
        let after = self.server.get()?.split_once("OpenSSH_")?.1;
        let mut numbers = after.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// Returns why the connection ended.
    pub(super) fn end_reason(&self) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.clone().unwrap_or_else(|| "the other side closed it".to_owned())
    }

    /// Sends channels that the server opens for `listen` to `to`, until [`Self::forget`].
    pub(super) fn expect(&self, listen: &Endpoint, to: mpsc::Sender<Channel<Msg>>) {
        let mut forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        forwards.insert(forward_name(listen), to);
    }

    /// Refuses channels for `listen` again.
    pub(super) fn forget(&self, listen: &Endpoint) {
        let mut forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        forwards.remove(&forward_name(listen));
    }

    fn expected(&self, name: &str) -> Option<mpsc::Sender<Channel<Msg>>> {
        let forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        forwards.get(name).cloned()
    }
}

/// Servers say the address in their own words; the port is what tells forwards apart.
fn forward_name(listen: &Endpoint) -> String {
    match listen {
        Endpoint::Tcp(_, port) => port.to_string(),
        Endpoint::Unix(path) => path.display().to_string(),
    }
}

/// The callbacks of one connection.
pub(super) struct Client {
    check: HostKeyCheck,
    shared: Arc<Shared>,
}

impl Client {
    pub(super) fn new(check: HostKeyCheck, shared: Arc<Shared>) -> Self {
        Self { check, shared }
    }

    async fn hand_over(&self, name: &str, channel: Channel<Msg>, reply: ChannelOpenHandle) {
        match self.shared.expected(name) {
            // Full means the user takes none: refused rather than waited for, which would stop the connection.
            Some(to) => match to.try_reserve() {
                Ok(place) => {
                    reply.accept().await;
                    place.send(channel);
                }
                Err(_) => reply.reject(ChannelOpenFailure::ResourceShortage).await,
            },
            None => reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await,
        }
    }
}

impl Handler for Client {
    type Error = ClientError;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, ClientError> {
        let shown = key.public_key();
        if self.check.wants_another_than(&shown) {
            return Err(ClientError::OtherKey(Box::new(shown)));
        }
        self.check.check(key).map_err(ClientError::HostKey)?;
        Ok(true)
    }

    async fn kex_done(
        &mut self,
        _secret: Option<&[u8]>,
        _names: &Names,
        session: &mut Session,
    ) -> Result<(), ClientError> {
        self.shared.server.get_or_init(|| String::from_utf8_lossy(session.remote_sshid()).into_owned());
        Ok(())
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        _connected_address: &str,
        connected_port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        self.hand_over(&connected_port.to_string(), channel, reply).await;
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        socket_path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        self.hand_over(socket_path, channel, reply).await;
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _channel: Channel<Msg>,
        _host: &str,
        _port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _channel: Channel<Msg>,
        _path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _channel: Channel<Msg>,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), ClientError> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<ClientError>) -> Result<(), ClientError> {
        let (text, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                (format!("the server disconnected ({})", info.message.trim()), Ok(()))
            }
            DisconnectReason::Error(ClientError::HostKey(error)) => {
                (error.message.clone(), Err(ClientError::HostKey(error)))
            }
            DisconnectReason::Error(error @ ClientError::OtherKey(_)) => {
                ("its key is not the pinned one".to_owned(), Err(error))
            }
            DisconnectReason::Error(ClientError::Protocol(error)) => {
                let text = if matches!(error, russh::Error::KeepaliveTimeout) {
                    "it answers no keepalive".to_owned()
                } else if matches!(error, russh::Error::HUP | russh::Error::Disconnect) {
                    "the other side closed it".to_owned()
                } else {
                    error.to_string()
                };
                (text, Err(ClientError::Protocol(error)))
            }
        };
        let mut kept = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(text);
        drop(kept);
        result
    }
}
