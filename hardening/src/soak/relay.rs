//! A way to a server that can be cut.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Carries connections to a port of this machine.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) port: u16,
    way: Arc<Way>,
}

#[derive(Debug)]
struct Way {
    to: u16,
    is_over: AtomicBool,
    passed: AtomicU64,
    /// After so many bytes everything that is open is cut, once.
    cut_at: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub(super) fn new(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let way = Arc::new(Way {
            to,
            is_over: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&way);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that cannot be carried is one more that was cut.
                drop(stream.and_then(|stream| carry(&accepting, &stream)));
            }
        });
        Ok(Self { port, way })
    }

    /// Cuts what is open after so many more bytes.
    pub(super) fn cut_after(&self, bytes: u64) {
        self.way.cut_at.store(self.way.passed.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    }

    /// Cuts nothing any more. Returns whether something was cut since it was asked for.
    pub(super) fn spare(&self) -> bool {
        self.way.cut_at.swap(u64::MAX, Ordering::SeqCst) == u64::MAX
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::SeqCst);
        self.way.cut();
        // The listener waits for one more.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl Way {
    fn cut(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in open {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

fn carry(way: &Arc<Way>, client: &TcpStream) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, way.to))?;
    {
        let mut open = way.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended need not be kept.
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([client.try_clone()?, server.try_clone()?]);
    }
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client.try_clone()?)] {
        let way = Arc::clone(way);
        thread::spawn(move || pass(&way, from, to));
    }
    Ok(())
}

fn pass(way: &Way, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let passed = way.passed.fetch_add(length as u64, Ordering::SeqCst) + length as u64;
        if passed >= way.cut_at.load(Ordering::SeqCst) {
            way.cut_at.store(u64::MAX, Ordering::SeqCst);
            way.cut();
            return;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}
