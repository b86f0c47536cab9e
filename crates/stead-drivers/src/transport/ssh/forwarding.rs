//! Connections carried through a connection, in both directions.

use std::sync::Arc;

use russh::{Channel, ChannelId, ChannelMsg};
use stead_runner::transport::{Command, Endpoint, Forward, Forwarded, TransportError, TransportErrorKind};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::program::{self, OnDrop};
use super::spool;
use crate::transport::endpoint::{Listener, Stream, connect, name};

/// Connections of one remote forward that wait to be taken; more are refused.
const WAITING: usize = 64;

/// Begins a forward.
pub(super) async fn forward(
    connection: &Arc<Connection>,
    what: Forward,
) -> Result<Forwarded, TransportError> {
    match what {
        Forward::Local { listen, to } => local(connection, &listen, to).await,
        Forward::Remote { listen, to } => remote(connection, listen, to).await,
    }
}

async fn local(
    connection: &Arc<Connection>,
    listen: &Endpoint,
    to: Endpoint,
) -> Result<Forwarded, TransportError> {
    let (listener, listen) = Listener::bind(listen).await?;
    let connection = Arc::clone(connection);
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        let mut carrying = JoinSet::new();
        while let Ok(stream) = listener.accept().await {
            while carrying.try_join_next().is_some() {}
            let (connection, to) = (Arc::clone(&connection), to.clone());
            carrying.spawn(async move {
                let opened = match to {
                    Endpoint::Tcp(host, port) => {
                        connection
                            .handle()
                            .channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0)
                            .await
                    }
                    Endpoint::Unix(path) => {
                        connection.handle().channel_open_direct_streamlocal(path.to_string_lossy()).await
                    }
                };
                // What the other side refuses is closed, which is all a client can be told.
                if let Ok(channel) = opened {
                    carry(channel, stream).await;
                }
            });
        }
    });
    Ok(Forwarded { listen, guard: Box::new(listening) })
}

async fn remote(
    connection: &Arc<Connection>,
    listen: Endpoint,
    to: Endpoint,
) -> Result<Forwarded, TransportError> {
    let handle = connection.handle();
    let (asked, listen) = match listen {
        Endpoint::Tcp(host, port) => {
            let taken = handle.tcpip_forward(host.clone(), u32::from(port)).await;
            // Zero says that the port is the one asked for.
            let port = taken
                .as_ref()
                .ok()
                .and_then(|port| u16::try_from(*port).ok())
                .filter(|port| *port > 0)
                .unwrap_or(port);
            (taken.map(drop), Endpoint::Tcp(host, port))
        }
        Endpoint::Unix(path) => {
            (handle.streamlocal_forward(path.to_string_lossy()).await, Endpoint::Unix(path))
        }
    };
    match asked {
        Ok(()) => {}
        Err(russh::Error::RequestDenied) => {
            return Err(TransportError::new(
                TransportErrorKind::Failed,
                format!(
                    "{} does not listen on {}: taken, or forbidden by its sshd_config",
                    connection.name(),
                    name(&listen)
                ),
            ));
        }
        Err(_) => return Err(connection.lost("a forward was being set up")),
    }
    let (sender, mut channels) = mpsc::channel(WAITING);
    connection.shared().expect(&listen, sender);
    let mut carrying = JoinSet::new();
    carrying.spawn(async move {
        let mut each = JoinSet::new();
        while let Some(channel) = channels.recv().await {
            while each.try_join_next().is_some() {}
            let to = to.clone();
            each.spawn(async move {
                match connect(&to).await {
                    Ok(stream) => carry(channel, stream).await,
                    Err(_) => drop(channel.close().await),
                }
            });
        }
    });
    let guard =
        RemoteForward { connection: Arc::clone(connection), listen: listen.clone(), _carrying: carrying };
    Ok(Forwarded { listen, guard: Box::new(guard) })
}

/// A forward of the other side; dropping it takes it back.
struct RemoteForward {
    connection: Arc<Connection>,
    listen: Endpoint,
    _carrying: JoinSet<()>,
}

impl Drop for RemoteForward {
    fn drop(&mut self) {
        self.connection.shared().forget(&self.listen);
        let (connection, listen) = (Arc::clone(&self.connection), self.listen.clone());
        self.connection.spawn(async move {
            // If the connection is gone, so is the forward.
            match listen {
                Endpoint::Tcp(host, port) => {
                    connection.handle().cancel_tcpip_forward(host, u32::from(port)).await.ok();
                }
                Endpoint::Unix(path) => {
                    connection.handle().cancel_streamlocal_forward(path.to_string_lossy()).await.ok();
                    // The server leaves the file.
                    let mut command = Command::new(["rm", "-f", "--"]);
                    command.argv.push(path.into());
                    if let Ok(mut running) =
                        program::start(&connection, &command, OnDrop::EndInput, None).await
                    {
                        running.process.wait().await.ok();
                    }
                }
            }
        });
    }
}

/// Carries bytes both ways until both sides have ended. What the stream does not take yet waits in a spool: the
/// connection is never held up.
pub(super) async fn carry<S>(channel: Channel<S>, stream: Box<dyn Stream>)
where
    S: From<(ChannelId, ChannelMsg)> + Send + Sync + 'static,
{
    let (mut reads, writes) = channel.split();
    let (mut from_stream, mut to_stream) = tokio::io::split(stream);
    let (spool, mut spooled) = spool::stream();
    let outward = async {
        if program::copy(&writes, &mut from_stream).await.is_ok() {
            writes.eof().await.ok();
        }
    };
    let inward = async {
        tokio::io::copy(&mut spooled, &mut to_stream).await.ok();
        to_stream.shutdown().await.ok();
    };
    let receiving = async {
        let mut spool = Some(spool);
        loop {
            match reads.wait().await {
                Some(ChannelMsg::Data { data }) => {
                    if let Some(spool) = &spool {
                        spool.write(data);
                    }
                }
                Some(ChannelMsg::Eof) => spool = None,
                None | Some(ChannelMsg::Close) => break,
                Some(_) => {}
            }
        }
    };
    let ends = async {
        tokio::join!(outward, inward);
        writes.close().await.ok();
    };
    // A channel that the server closed takes nothing more; what it sent before is still written.
    tokio::pin!(ends);
    tokio::select! {
        () = &mut ends => {}
        () = receiving => {
            tokio::time::timeout(std::time::Duration::from_secs(5), ends).await.ok();
        }
    }
}
