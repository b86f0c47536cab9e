//! Ports of a container that are reached at ports of this machine. Its keeper passes on what comes there, so that they
//! are open while the container lives and need no rule of a firewall that somebody would have to take back.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Bound};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use stead_model::machine::PassedPort;
use stead_runner::machine::MachineError;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::network;
use crate::machine::vm::network::Card;

/// The most connections at once that are passed on to one container; more wait to be taken.
const MOST: usize = 1024;
/// How long a container may take to accept one.
const CONNECT: Duration = Duration::from_secs(10);
/// How long is waited after a connection could not be taken: the process may be out of files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Ports that are open. Dropping it closes them, and what goes through them.
pub(super) struct Passing {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where what comes to a port goes.
#[derive(Clone, Copy, Debug)]
enum To {
    /// There.
    Fixed(SocketAddr),
    /// To the SSH daemon at this address, of the container with this first process.
    Ssh(Ipv4Addr, u32),
}

impl To {
    fn address(self) -> SocketAddr {
        match self {
            Self::Fixed(address) => address,
            // Looked up each time: a machine may be told to have it elsewhere.
            Self::Ssh(address, init) => SocketAddr::from((address, super::ssh_port(init))),
        }
    }
}

impl Passing {
    /// Opens the ports of cards, each with its address; none if there are none.
    pub(super) fn open(cards: &[Card], addresses: &[Ipv4Addr]) -> Result<Option<Self>, MachineError> {
        let bound = bind_all(cards, addresses)?;
        if bound.is_empty() { Ok(None) } else { Self::start(bound, None).map(Some) }
    }

    /// Opens the ports of a card that only the network of the first process `init` leads to, and one of 127.0.0.1 that leads
    /// to its SSH: `last` if that is free. Returns that one, too.
    pub(super) fn open_into(
        card: &Card,
        address: Ipv4Addr,
        init: u32,
        last: Option<u16>,
    ) -> Result<(Self, u16), MachineError> {
        let failed = |error: io::Error| {
            MachineError::Unavailable(format!("no port of this machine can lead to its SSH: {error}"))
        };
        let bind = |port: u16| Bound::bind((Ipv4Addr::LOCALHOST, port));
        let door = last.map_or_else(|| bind(0), |port| bind(port).or_else(|_| bind(0))).map_err(failed)?;
        door.set_nonblocking(true).map_err(failed)?;
        let port = door.local_addr().map_err(failed)?.port();
        let mut bound = bind_all(std::slice::from_ref(card), &[address])?;
        bound.push((door, To::Ssh(address, init)));
        Ok((Self::start(bound, Some(init))?, port))
    }

    /// Passes on what comes to ports that are open, through the network of the process `within`.
    fn start(bound: Vec<(Bound, To)>, within: Option<u32>) -> Result<Self, MachineError> {
        let failed = |error: io::Error| MachineError::failed(format!("ports cannot be passed on: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let (entered, has_entered) = std::sync::mpsc::channel();
        let body = move || {
            let entry = within.map_or(Ok(()), network::enter);
            let is_there = entry.is_ok();
            if entered.send(entry).is_err() || !is_there {
                return;
            }
            runtime.block_on(async {
                let mut doors = JoinSet::new();
                let room = Arc::new(Semaphore::new(MOST));
                for (listener, to) in bound {
                    if let Ok(listener) = TcpListener::from_std(listener) {
                        doors.spawn(pass(listener, to, Arc::clone(&room)));
                    }
                }
                // Whoever has the other end lets go of it when it is over.
                stopped.await.ok();
            });
        };
        let thread =
            std::thread::Builder::new().name("stead-ports".to_owned()).spawn(body).map_err(failed)?;
        let passing = Self { stop: Some(stop), thread: Some(thread) };
        has_entered.recv().map_err(io::Error::other).and_then(|entry| entry).map_err(failed)?;
        Ok(passing)
    }
}

fn bind_all(cards: &[Card], addresses: &[Ipv4Addr]) -> Result<Vec<(Bound, To)>, MachineError> {
    let ports = cards.iter().zip(addresses);
    let ports = ports.flat_map(|(card, address)| card.ports.iter().map(move |port| (*port, *address)));
    ports.map(|(port, address)| bind(port, address)).collect()
}

impl Drop for Passing {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has closed its ports, too.
            thread.join().ok();
        }
    }
}

fn bind(port: PassedPort, address: Ipv4Addr) -> Result<(Bound, To), MachineError> {
    let bound = Bound::bind((Ipv4Addr::UNSPECIFIED, port.host)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = bound.map_err(|error| {
        let host = port.host;
        if error.kind() == io::ErrorKind::PermissionDenied {
            let why = format!("only root passes port {host} of this machine on: name one from 1024 on");
            return MachineError::Unsupported(why);
        }
        // Not for good: whoever has it may go.
        MachineError::Unavailable(format!("port {host} of this machine cannot be passed on: {error}"))
    })?;
    Ok((listener, To::Fixed(SocketAddr::from((address, port.guest)))))
}

/// Passes on everything that comes to a port. Never ends by itself.
async fn pass(listener: TcpListener, to: To, room: Arc<Semaphore>) {
    let mut passed = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((from, _)) => drop(passed.spawn(carry(from, to.address(), permit))),
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
        while passed.try_join_next().is_some() {}
    }
}

async fn carry(mut from: TcpStream, to: SocketAddr, permit: OwnedSemaphorePermit) {
    let Ok(Ok(mut to)) = tokio::time::timeout(CONNECT, TcpStream::connect(to)).await else { return };
    from.set_nodelay(true).ok();
    to.set_nodelay(true).ok();
    // Either side ends it as it likes.
    tokio::io::copy_bidirectional(&mut from, &mut to).await.ok();
    drop(permit);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Stream;

    use super::*;
    use crate::machine::vm::network::Wire;

    fn card(guest: u16, host: u16) -> Card {
        Card {
            wire: Wire::User,
            mac: String::new(),
            address: None,
            gateway: None,
            ports: vec![PassedPort { guest, host }],
        }
    }

    fn free_port() -> u16 {
        Bound::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn what_comes_to_a_port_reaches_the_machine_and_its_answer_comes_back() {
        let guest = Bound::bind("127.0.0.1:0").unwrap();
        let (at, port) = (guest.local_addr().unwrap().port(), free_port());
        let passing = Passing::open(&[card(at, port)], &[Ipv4Addr::LOCALHOST]).unwrap().unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = guest.accept().unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            stream.write_all(format!("heard {said}").as_bytes()).unwrap();
        });
        let mut caller = Stream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        caller.write_all(b"hello").unwrap();
        // Who has said all still hears the answer.
        caller.shutdown(std::net::Shutdown::Write).unwrap();
        let mut heard = String::new();
        caller.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "heard hello");
        answers.join().unwrap();
        drop(passing);
        assert!(Stream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "closed with its container");
    }

    #[test]
    fn a_port_that_somebody_has_is_told() {
        let taken = Bound::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let Err(error) = Passing::open(&[card(80, port)], &[Ipv4Addr::LOCALHOST]) else {
            panic!("it is taken")
        };
        assert!(
            matches!(&error, MachineError::Unavailable(why) if why.contains(&port.to_string())),
            "{error}"
        );
        assert!(Passing::open(&[], &[]).unwrap().is_none());
    }
}
