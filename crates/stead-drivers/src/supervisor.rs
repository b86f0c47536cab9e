//! `stead supervise`: one process that starts one role, keeps its output, judges its readiness and stops its tree.
//!
//! ```text
//!  driver or session ══ stdin: Start, Stop ══▶ supervisor ── role ── its children …
//!                    ◀═ stdout: events ═══════     │
//!                                                  └─▶ stdout.log, stderr.log
//! ```
//!
//! It lives in a session of its own and is a child subreaper, so everything the role starts stays below it. When its
//! control pipe closes, it stops the role and ends: nothing outlives whoever asked for it. What it is to start comes
//! over the pipe, never through arguments, environment or files.

mod judge;
mod output;
mod supervised;
pub(crate) mod tree;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use stead_model::executor::{FrameBuffer, write};
use stead_model::role::{RoleEvent, SupervisorRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use supervised::Supervised;

/// The command that is a supervisor.
pub const COMMAND: &str = "supervise";

/// Supervises the role that standard input names, to its end.
///
/// # Errors
/// If its pipes are no pipes. What goes wrong with the role is told as an event.
pub fn supervise() -> io::Result<()> {
    // Whoever starts it is no group's leader for it; where this fails, a lost terminal may end it, and the role with it.
    rustix::process::setsid().ok();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut control = Control::of_process()?;
        match control.next().await? {
            Some(SupervisorRequest::Start { order, logs, note, plain }) => {
                Supervised { order: *order, logs, note, plain, control }.run().await
            }
            Some(SupervisorRequest::Stop { .. }) | None => Ok(()),
        }
    })
}

/// Both ends of the conversation with whoever holds the supervisor.
struct Control {
    input: Option<pipe::Receiver>,
    inbox: FrameBuffer,
    buffer: Vec<u8>,
    output: Option<pipe::Sender>,
    outbox: Vec<u8>,
}

impl Control {
    fn of_process() -> io::Result<Self> {
        let input: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
        let output: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
        // From here on these are its own: neither the role nor a stray line may get at them.
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(Self {
            input: Some(pipe::Receiver::from_owned_fd(input)?),
            inbox: FrameBuffer::default(),
            buffer: vec![0; 16 << 10],
            output: Some(pipe::Sender::from_owned_fd(output)?),
            outbox: Vec::new(),
        })
    }

    /// Returns the next message; nothing when the pipe has closed or makes no sense any more. Cancel safe.
    async fn next(&mut self) -> io::Result<Option<SupervisorRequest>> {
        loop {
            match self.inbox.next_frame() {
                Ok(Some(frame)) => match serde_json::from_slice(&frame.body) {
                    Ok(message) => return Ok(Some(message)),
                    Err(_) => self.input = None,
                },
                Ok(None) => {}
                Err(_) => self.input = None,
            }
            let Some(input) = &mut self.input else { return Ok(None) };
            match input.read(&mut self.buffer).await {
                Ok(0) | Err(_) => {
                    self.input = None;
                    return Ok(None);
                }
                Ok(n) => self.inbox.push(self.buffer.get(..n).unwrap_or_default()),
            }
        }
    }

    /// Puts an event on its way.
    fn tell(&mut self, event: &RoleEvent) {
        if self.output.is_some() {
            // An event is never as long as a frame may be.
            write(&mut self.outbox, 0, event).unwrap_or(());
        }
    }

    /// Whether everything that was told has gone out.
    fn is_quiet(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Writes what is on its way; waits for ever if there is nothing. Cancel safe.
    async fn write_some(&mut self) {
        let Some(output) = self.output.as_mut().filter(|_| !self.outbox.is_empty()) else {
            return std::future::pending().await;
        };
        match output.write(&self.outbox).await {
            Ok(n) if n > 0 => drop(self.outbox.drain(..n)),
            // Nobody listens any more.
            Ok(_) | Err(_) => {
                self.output = None;
                self.outbox.clear();
            }
        }
    }

    /// Writes everything.
    async fn flush(&mut self) {
        while !self.is_quiet() {
            self.write_some().await;
        }
    }
}
