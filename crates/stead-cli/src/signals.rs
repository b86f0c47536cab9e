//! Signals that stop a run: counted, and the third one ends the process at once.
//!
//! A thread of its own listens, with a runtime of its own, so that a third Ctrl-C works whatever the rest
//! of the process is doing. What the counts mean is the runner's business: one asks, two kills.

use std::io;
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::render::cursor;

/// The count that ends the process.
const PATIENCE: u32 = 3;
/// What a process that SIGQUIT ended exits with in a shell.
const QUIT_CODE: i32 = 131;

/// What was heard so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// How many SIGINT, SIGTERM and SIGHUP.
    pub count: u32,
    /// Whether the last of them was SIGHUP.
    pub hung_up: bool,
}

/// Listens from now on and returns the signals so far.
///
/// A SIGHUP that was ignored when the process started (`nohup`) stays ignored.
pub fn listen() -> io::Result<watch::Receiver<Signals>> {
    let (counts, receiver) = watch::channel(Signals::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut heard = {
        let _entered = runtime.enter();
        Heard::new()?
    };
    thread::Builder::new().name("stead-signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let kind = heard.next().await;
                if kind == Kind::Quit {
                    end(QUIT_CODE);
                }
                counts.send_modify(|signals| {
                    signals.count += 1;
                    signals.hung_up = kind == Kind::HangUp;
                });
                if counts.borrow().count >= PATIENCE {
                    end(130);
                }
            }
        });
    })?;
    Ok(receiver)
}

#[expect(clippy::exit, reason = "the third signal must end the process whatever the others do")]
fn end(code: i32) -> ! {
    cursor::restore();
    std::process::exit(code)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stop,
    HangUp,
    Quit,
}

struct Heard {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    quit: Signal,
}

impl Heard {
    fn new() -> io::Result<Self> {
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
            quit: signal(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) -> Kind {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Kind::Stop,
            _ = self.terminate.recv() => Kind::Stop,
            _ = hangup => Kind::HangUp,
            _ = self.quit.recv() => Kind::Quit,
        }
    }
}

/// Asks the kernel whether SIGHUP is ignored; where it cannot be asked, it is not.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
