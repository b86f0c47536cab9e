//! Keeps a [`Terminal`] moving when no event comes, and stops it while a person is asked.
//!
//! ```text
//!  events, output ──▶ Mutex<Terminal> ◀── ticker thread, every 100 ms
//!                            ▲
//!                       Pauser (confirm)
//! ```

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use stead_model::event::Stream;
use stead_model::{Event, HostName, TaskName};
use stead_runner::Observer;

use super::{BETWEEN_DRAWS, Terminal};

/// A terminal that redraws itself. Dropping it ends the display.
pub struct Live {
    terminal: Arc<Mutex<Terminal>>,
    /// Dropped to end the ticker; nothing is ever sent.
    stop: Option<SyncSender<()>>,
    ticker: Option<JoinHandle<()>>,
}

/// Stops the display for a while.
#[derive(Clone)]
pub struct Pauser(Arc<Mutex<Terminal>>);

fn lock(terminal: &Mutex<Terminal>) -> MutexGuard<'_, Terminal> {
    // A display that panicked once may show nonsense; it must not take the run with it.
    terminal.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Starts the display. Without a thread to be had it still moves with every event.
    pub fn start(terminal: Terminal) -> Self {
        let terminal = Arc::new(Mutex::new(terminal));
        let (stop, stopped) = sync_channel::<()>(0);
        let shared = Arc::clone(&terminal);
        let ticker = std::thread::Builder::new().name("stead-progress".to_owned()).spawn(move || {
            while stopped.recv_timeout(BETWEEN_DRAWS) == Err(RecvTimeoutError::Timeout) {
                lock(&shared).tick();
            }
        });
        Self { terminal, stop: Some(stop), ticker: ticker.ok() }
    }

    /// Returns what stops the display while a person is asked.
    pub fn pauser(&self) -> Pauser {
        Pauser(Arc::clone(&self.terminal))
    }
}

impl Pauser {
    /// Calls `ask` while nothing is drawn. Events are still taken, their lines wait.
    pub fn during<T>(&self, ask: impl FnOnce() -> T) -> T {
        lock(&self.0).pause();
        let answer = ask();
        lock(&self.0).resume();
        answer
    }
}

impl Observer for Live {
    fn on_event(&mut self, event: &Event) {
        lock(&self.terminal).on_event(event);
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        lock(&self.terminal).on_output(task, host, stream, bytes);
    }

    fn wants_output(&self) -> bool {
        lock(&self.terminal).wants_output()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(ticker) = self.ticker.take() {
            // A ticker that panicked has said so already.
            drop(ticker.join());
        }
        lock(&self.terminal).finish();
    }
}
