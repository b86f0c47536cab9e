//! What is between a worker and its master, to be cut and mended.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A port that passes everything on to a master, unless it is cut.
pub(crate) struct Cable {
    /// Where a worker finds its master.
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_cut: bool,
    is_over: bool,
    ends: Vec<TcpStream>,
}

impl State {
    fn cut(&mut self) {
        self.is_cut = true;
        for end in self.ends.drain(..) {
            end.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Cable {
    pub(crate) fn to(master: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State::default()));
        let (passing, master) = (Arc::clone(&state), master.to_owned());
        thread::spawn(move || {
            for worker in listener.incoming() {
                let mut state = passing.lock().unwrap();
                if state.is_over {
                    return;
                }
                // Nobody answers: whoever called hears that at once, as from a host without the port.
                let Some(worker) = worker.ok().filter(|_| !state.is_cut) else { continue };
                let Ok(master) = TcpStream::connect(&master) else { continue };
                for (from, to) in [(&worker, &master), (&master, &worker)] {
                    pass(from.try_clone().unwrap(), to.try_clone().unwrap());
                }
                state.ends.extend([worker, master]);
            }
        });
        Self { address, state }
    }

    /// Ends what is connected, and lets nothing through.
    pub(crate) fn cut(&self) {
        self.state.lock().unwrap().cut();
    }

    pub(crate) fn mend(&self) {
        self.state.lock().unwrap().is_cut = false;
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.is_over = true;
            state.cut();
        }
        // The thread sees it with the next caller.
        TcpStream::connect(&self.address).ok();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        io::copy(&mut from, &mut to).ok();
        for end in [from, to] {
            end.shutdown(Shutdown::Both).ok();
        }
    });
}
