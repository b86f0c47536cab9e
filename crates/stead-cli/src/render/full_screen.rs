//! The whole screen of a terminal, taken for a while and given back on every way out.
//!
//! The state is the terminal's, so it is one for the process. [`give_back`] may be called from anywhere and any number
//! of times: the screen's end, a panic, a signal that ends the process at once.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use rustix::fd::BorrowedFd;
use rustix::stdio;
use rustix::termios::{Action, OptionalActions, Termios, tcflow, tcgetattr, tcsetattr};

/// To the other screen, and pasted text comes marked as such.
const TAKE: &[u8] = b"\x1b[?1049h\x1b[?2004h\x1b[2J";
/// The same back, and the cursor is shown.
const GIVE_BACK: &[u8] = b"\x1b[?2004l\x1b[?1049l\x1b[?25h";

static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

struct Taken {
    before: Termios,
    drawn_by: ThreadId,
}

/// The screen while it is taken.
#[derive(Debug)]
pub(crate) struct FullScreen(());

impl FullScreen {
    /// Takes the screen of standard input and output; keys come one by one and make no signals from here on.
    pub(crate) fn take() -> io::Result<Self> {
        let input = stdio::stdin();
        let before = tcgetattr(input)?;
        let mut raw = before.clone();
        raw.make_raw();
        *taken() = Some(Taken { before, drawn_by: thread::current().id() });
        tcsetattr(input, OptionalActions::Now, &raw)?;
        let screen = Self(());
        write(stdio::stdout(), TAKE)?;
        Ok(screen)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the screen back if it is taken.
pub(crate) fn give_back() {
    let Some(Taken { before, .. }) = taken().take() else { return };
    let (input, output) = (stdio::stdin(), stdio::stdout());
    // Nothing can be done about a terminal that went away; one that a person stopped must not hold the process.
    drop(tcflow(output, Action::OOn).map_err(io::Error::from));
    drop(write(output, GIVE_BACK));
    drop(tcsetattr(input, OptionalActions::Now, &before).map_err(io::Error::from));
}

/// Whether a message on standard error would end up in the middle of the screen: the screen is taken, and the thread
/// that draws it goes on.
pub(crate) fn is_drawn_elsewhere() -> bool {
    taken().as_ref().is_some_and(|taken| taken.drawn_by != thread::current().id())
}

fn taken() -> MutexGuard<'static, Option<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes past the lock of standard output: a thread that is stuck in a write may hold it.
fn write(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
