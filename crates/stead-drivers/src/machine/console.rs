//! What machines write to their consoles, read as it comes.
//!
//! `console.log` begins at the place that `console.start` names: what was before was let go.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stead_runner::clock;
use stead_runner::machine::{ConsoleStream, MachineError};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::home::{Home, write_text};
use super::local::{self, Local};

/// A console is begun anew at this size; the one before is kept.
pub(super) const ROTATE: u64 = 16 << 20;
/// What is read of a console at once.
const PIECE: usize = 32 << 10;
/// How often a console is looked at for more.
const MORE: Duration = Duration::from_millis(50);
/// Between the console and its reader.
const BUFFER: usize = 64 << 10;

/// Returns the place of the console's first byte.
pub(super) fn start(home: &Home) -> u64 {
    let text = fs::read_to_string(home.file("console.start")).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Puts the console aside, so that the next byte begins another one.
pub(super) fn put_aside(home: &Home) -> io::Result<()> {
    let path = home.console();
    let begins = start(home) + fs::metadata(&path)?.len();
    // Readers find nothing there until they can know where it begins.
    fs::rename(&path, path.with_extension("log.1"))?;
    write_text(&home.file("console.start"), &begins.to_string(), 0o600)
}

/// Returns what the console has at `place`, or at the first place after it that it still has, and which that is;
/// nothing if there is no more.
fn piece(home: &Home, place: u64) -> (u64, Vec<u8>) {
    loop {
        let start = start(home);
        let place = place.max(start);
        let mut piece = vec![0; PIECE];
        let read = (|| {
            let mut file = File::open(home.console())?;
            file.seek(SeekFrom::Start(place - start))?;
            file.read(&mut piece)
        })();
        piece.truncate(read.unwrap_or_default());
        // A console that was begun anew meanwhile had other bytes there.
        if self::start(home) == start {
            return (place, piece);
        }
    }
}

/// Returns what the machine writes, from byte `from` until it ends.
pub(super) fn follow<L: Local>(driver: &L, home: &Home, from: u64) -> Result<ConsoleStream, MachineError> {
    local::is_ours(home)?;
    let begins = from.max(start(home));
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let mut reading = JoinSet::new();
    let (driver, home) = (driver.clone(), home.clone());
    reading.spawn(async move { copy(&driver, &home, begins, ours).await });
    Ok(ConsoleStream { start: begins, bytes: Box::pin(Following { bytes: theirs, _reading: reading }) })
}

/// Copies the console until the machine has ended and all is said.
async fn copy<L: Local>(driver: &L, home: &Home, mut place: u64, mut to: tokio::io::DuplexStream) {
    loop {
        let live = local::machine(driver, home).is_some_and(|machine| machine.state.is_live());
        driver.tend(home).await;
        let (found, piece) = piece(home, place);
        if piece.is_empty() {
            if !live {
                return;
            }
            tokio::time::sleep(MORE).await;
            continue;
        }
        place = found + piece.len() as u64;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

/// A console being read; dropping it ends the reading.
struct Following {
    bytes: tokio::io::DuplexStream,
    _reading: JoinSet<()>,
}

impl tokio::io::AsyncRead for Following {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.bytes).poll_read(cx, buffer)
    }
}

/// What a machine's own process writes to its console.
pub(super) struct Console {
    home: Home,
    file: Mutex<()>,
}

impl Console {
    pub(super) fn new(home: Home) -> Self {
        Self { home, file: Mutex::new(()) }
    }

    /// Writes a line.
    pub(super) fn say(&self, line: &str) {
        self.write(format!("{} {}\n", clock::now(), line.escape_debug()).as_bytes());
    }

    /// Writes what the machine says. A console that cannot be written is no reason to stop.
    pub(super) fn write(&self, bytes: &[u8]) {
        let _one_at_a_time = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = (|| {
            let path = self.home.console();
            let mut file = File::options().create(true).append(true).open(&path)?;
            if file.metadata()?.len() >= ROTATE {
                put_aside(&self.home)?;
                file = File::options().create(true).append(true).open(&path)?;
            }
            file.write_all(bytes)
        })();
        written.unwrap_or(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::home::Kind;

    static KIND: Kind = Kind { driver: "test", noun: "machine", kept: &[], mark: "STEAD_TEST_MACHINE" };

    /// A reader that was left behind goes on where the console now begins, and reads nothing twice.
    #[test]
    fn a_console_that_began_anew_is_read_from_its_beginning() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, place.path().to_owned());
        fs::write(home.console(), "new lines").unwrap();
        fs::write(home.file("console.start"), "1000").unwrap();
        assert_eq!(piece(&home, 3), (1000, b"new lines".to_vec()));
        assert_eq!(piece(&home, 1004), (1004, b"lines".to_vec()));
        assert_eq!(piece(&home, 1009).1, Vec::<u8>::new());
    }
}
