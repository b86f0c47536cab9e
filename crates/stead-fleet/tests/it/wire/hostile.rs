//! Peers that mean no good, or are broken: they hurt nobody else.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use capnp::capability::FromClientHook;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use stead_fleet::api::{CallError, Master, StatusFilter};
use stead_fleet::identity::{Ledger, MemoryLedger, client_config, join_config};
use stead_fleet::wire::fleet_capnp::master;
use stead_fleet::wire::{Client, MAX_CONNECTIONS, MAX_MESSAGE, Room};
use stead_model::fleet::peer::Role;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, LocalSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::skew::old_worker;
use super::small::{Running, client};

pub(super) async fn open(address: &str, config: ClientConfig) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("master.stead").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Speaks the protocol without any of the client's care. Needs a `LocalSet`.
pub(super) fn speak<T: FromClientHook, S: AsyncRead + AsyncWrite + 'static>(
    stream: S,
) -> (T, JoinHandle<()>) {
    let (input, output) = tokio::io::split(stream);
    let network =
        twoparty::VatNetwork::new(input.compat(), output.compat_write(), Side::Client, Default::default());
    let mut system = RpcSystem::new(Box::new(network), None);
    let offer = system.bootstrap(Side::Server);
    (offer, tokio::task::spawn_local(async move { drop(system.await) }))
}

/// Asserts that somebody else is served: a call that waits for the others is given up after ten seconds.
async fn check_served(observer: &Client) {
    observer.status(0, Duration::ZERO, &StatusFilter::default()).await.unwrap();
}

/// Asserts that the other side ends the connection.
async fn check_ended(stream: &mut TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is still there");
}

/// Section 12: a message has at most 64 MiB, and 64 KiB from somebody without a certificate.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_ends_its_connection() {
    let running = Running::start().await;
    let observer = running.client(Role::Observer, "page").await;
    let identity = running.identity(Role::Worker, "w1").await;
    for (config, limit) in [
        (client_config(&identity).unwrap(), MAX_MESSAGE),
        (join_config(running.authority.pin()).unwrap(), 64 << 10),
    ] {
        let mut stream = open(&running.address, config).await;
        let words = u32::try_from(limit / 8 + 1).unwrap();
        let mut head = vec![0; 4];
        head.extend_from_slice(&words.to_le_bytes());
        stream.write_all(&head).await.unwrap();
        stream.flush().await.unwrap();
        check_ended(&mut stream).await;
    }
    check_served(&observer).await;
    running.stop().await;
}

/// Section 12: a master has room for so many connections, 20,000 unless it is told otherwise. Whoever comes then is turned
/// away and goes to the next master; who is connected notices nothing, and who goes makes room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_master_turns_away_and_serves_on() {
    assert_eq!((Room::default().connections, MAX_CONNECTIONS), (20_000, 20_000));
    let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
    let room = Room { connections: 4, strangers: 1 };
    let full = Running::with_room(room, Arc::clone(&ledger), "127.0.0.1:0").await;
    let other = Running::with(ledger, "127.0.0.1:0").await;
    let mut served = Vec::new();
    for name in ["a", "b"] {
        served.push(full.client(Role::Observer, name).await);
        check_served(&served[served.len() - 1]).await;
    }
    // One of those without a certificate, and no second one, though there is room for a member.
    let pin = full.authority.pin();
    let mut stranger = open(&full.address, join_config(pin).unwrap()).await;
    check_ended(&mut open(&full.address, join_config(pin).unwrap()).await).await;
    served.push(full.client(Role::Observer, "c").await);
    check_served(&served[2]).await;
    let late = full.client(Role::Observer, "d").await;
    let told = late.status(0, Duration::ZERO, &StatusFilter::default()).await;
    assert!(matches!(told, Err(CallError::Away(_))), "{told:?}");
    let mut elsewhere = full.identity(Role::Observer, "e").await;
    elsewhere.masters = vec![full.address.clone(), other.address.clone()];
    check_served(&client(elsewhere)).await;
    assert_eq!(other.master.statuses.load(Ordering::SeqCst), 1, "the next master has room");
    for observer in &served {
        check_served(observer).await;
    }
    stranger.shutdown().await.unwrap();
    drop(stranger);
    // Somebody went: there is room, as soon as the master has seen it.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while late.status(0, Duration::ZERO, &StatusFilter::default()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "nobody is let in any more");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    full.stop().await;
    other.stop().await;
}

/// Hostile input never panics where others are, and never ends anything but its own connection.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_hurts_nobody() {
    let running = Running::start().await;
    let observer = running.client(Role::Observer, "page").await;
    let identity = running.identity(Role::Worker, "w1").await;
    let recorded = old_worker();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap()
    };
    for round in 0..60 {
        let mut bytes = recorded.clone();
        for _ in 0..=round % 8 {
            let at = random() % bytes.len();
            bytes[at] ^= 1 << (random() % 8);
        }
        if round % 5 == 0 {
            bytes.truncate(random() % bytes.len());
        }
        let mut stream = open(&running.address, client_config(&identity).unwrap()).await;
        // The other side may end it before all is written.
        drop(stream.write_all(&bytes).await);
        drop(stream.flush().await);
        let mut answer = [0; 256];
        drop(tokio::time::timeout(Duration::from_millis(20), stream.read(&mut answer)).await);
    }
    check_served(&observer).await;
    running.stop().await;
}

/// Section 12: without a certificate there is `Join` and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_can_only_join() {
    let running = Running::start().await;
    LocalSet::new()
        .run_until(async {
            let stream = open(&running.address, join_config(running.authority.pin()).unwrap()).await;
            let (master, system) = speak::<master::Client, _>(stream);
            let error = master.get_status_request().send().promise.await.err().unwrap();
            assert_eq!(error.kind, capnp::ErrorKind::Unimplemented, "{error}");
            let mut call = master.report_observed_request();
            call.get().init_observed().set_worker_id("w1");
            let error = call.send().promise.await.err().unwrap();
            assert_eq!(error.kind, capnp::ErrorKind::Unimplemented, "{error}");
            system.abort();
        })
        .await;
    assert!(running.master.heard.lock().unwrap().is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_say_nothing_delay_nobody() {
    let running = Running::start().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&running.address).await.unwrap());
    }
    let observer = running.client(Role::Observer, "page").await;
    check_served(&observer).await;
    drop(silent);
    running.stop().await;
}

/// A stream that stops reading when told to.
struct Deaf<S> {
    inner: S,
    is_deaf: Rc<Cell<bool>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Deaf<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_deaf.get() {
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deaf<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Section 12: a slow peer delays nobody, and what waits for it is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_no_answers_is_held_back() {
    const CALLS: usize = 400;
    let running = Running::start().await;
    *running.master.status.lock().unwrap() = "x".repeat(1 << 20);
    let observer = running.client(Role::Observer, "page").await;
    let identity = running.identity(Role::Observer, "slow").await;
    LocalSet::new()
        .run_until(async {
            let is_deaf = Rc::new(Cell::new(false));
            let stream = open(&running.address, client_config(&identity).unwrap()).await;
            let (master, system) =
                speak::<master::Client, _>(Deaf { inner: stream, is_deaf: Rc::clone(&is_deaf) });
            master.get_status_request().send().promise.await.unwrap();
            is_deaf.set(true);
            let mut calls = Vec::new();
            for at in 0..CALLS {
                calls.push(tokio::task::spawn_local(master.get_status_request().send().promise));
                // No more at once than a connection may have under way.
                if at % 32 == 31 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                check_served(&observer).await;
            }
            let asked = running.master.statuses.load(Ordering::SeqCst);
            assert!(asked < CALLS / 2, "{asked} of {CALLS} were answered into nothing");
            system.abort();
        })
        .await;
    running.stop().await;
}
