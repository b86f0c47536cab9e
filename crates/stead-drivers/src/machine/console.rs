//! What machines write to their consoles: bounded, and read as it comes.
//!
//! ```text
//!   console.log.N   what was put aside last: its first byte is the console's byte N
//!   console.log     the rest; begins where that ends
//! ```
//! One process writes a console. It puts a full one aside by one rename, so that whoever is killed when, the names and
//! sizes of the two say where every byte is.

mod keeper;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stead_runner::clock;
use stead_runner::machine::{ConsoleStream, MachineError};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::home::Home;
use super::local::{self, Local};
pub use keeper::keep;
pub(super) use keeper::{PIPE, Pipe, drain, is_kept, mend};

/// No console is larger. The one before is kept.
const LARGEST: u64 = 16 << 20;
/// What is read of a console at once.
const PIECE: usize = 32 << 10;
/// How often a console is looked at for more.
const MORE: Duration = Duration::from_millis(50);
/// Between the console and its reader.
const BUFFER: usize = 64 << 10;

/// What was put aside last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Aside {
    path: PathBuf,
    begins: u64,
    size: u64,
}

/// Returns what was put aside, the latest last.
fn asides(home: &Home) -> io::Result<Vec<Aside>> {
    let log = home.console();
    let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir(home.directory())? {
        let entry = entry?;
        let begins = entry.file_name().to_str().and_then(|found| {
            found.strip_prefix(&name)?.strip_prefix('.').and_then(|place| place.parse().ok())
        });
        // One that is gone meanwhile was not the latest.
        if let (Some(begins), Ok(metadata)) = (begins, entry.metadata()) {
            found.push(Aside { path: entry.path(), begins, size: metadata.len() });
        }
    }
    found.sort_by_key(|aside| aside.begins);
    Ok(found)
}

fn latest_aside(home: &Home) -> Option<Aside> {
    asides(home).ok().and_then(|mut found| found.pop())
}

/// Returns the place of the first byte that is kept, and of the first one of `console.log`.
fn beginnings(aside: Option<&Aside>) -> (u64, u64) {
    aside.map_or((0, 0), |aside| (aside.begins, aside.begins + aside.size))
}

/// Puts the console aside, so that the next byte begins another one.
fn put_aside(home: &Home) -> io::Result<()> {
    let before = asides(home)?;
    let (_, begins) = beginnings(before.last());
    let log = home.console();
    fs::rename(&log, log.with_extension(format!("log.{begins}")))?;
    before.iter().try_for_each(|aside| fs::remove_file(&aside.path))
}

/// Returns what the console has at `place`, or at the first place after it that it still has, and which that is;
/// nothing if there is no more.
fn piece(home: &Home, place: u64) -> (u64, Vec<u8>) {
    loop {
        let aside = latest_aside(home);
        let (kept, log) = beginnings(aside.as_ref());
        let place = place.max(kept);
        let (path, begins) = match &aside {
            Some(aside) if place < log => (aside.path.clone(), aside.begins),
            Some(_) | None => (home.console(), log),
        };
        let mut piece = Vec::new();
        let read = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(place - begins))?;
            file.take(PIECE as u64).read_to_end(&mut piece)
        });
        if read.is_err() {
            piece.clear();
        }
        // A console that was begun anew meanwhile had other bytes there.
        if latest_aside(home) == aside {
            return (place, piece);
        }
    }
}

/// Returns what the machine writes, from byte `from` until it ends.
pub(super) fn follow<L: Local>(driver: &L, home: &Home, from: u64) -> Result<ConsoleStream, MachineError> {
    local::is_ours(home)?;
    let begins = from.max(beginnings(latest_aside(home).as_ref()).0);
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
        let may_say_more = live || is_kept(home);
        driver.tend(home).await;
        let (found, piece) = piece(home, place);
        if piece.is_empty() {
            if !may_say_more {
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

/// What a process writes to the console that it keeps.
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
        bytes.chunks(PIECE).try_for_each(|piece| self.append(piece)).unwrap_or(());
    }

    fn append(&self, piece: &[u8]) -> io::Result<()> {
        let open = || File::options().create(true).append(true).open(self.home.console());
        let mut file = open()?;
        let size = file.metadata()?.len();
        if size > 0 && size + piece.len() as u64 > LARGEST {
            put_aside(&self.home)?;
            let next = open()?;
            follow_with_own_output(&file, &next)?;
            file = next;
        }
        file.write_all(piece)
    }
}

/// Has what this process itself prints go to `next` if it went to `last`: what is put aside does not grow.
fn follow_with_own_output(last: &File, next: &File) -> io::Result<()> {
    let id = |file: rustix::fs::Stat| (file.st_dev, file.st_ino);
    let last = id(rustix::fs::fstat(last)?);
    let is_last = |found: rustix::io::Result<rustix::fs::Stat>| found.is_ok_and(|found| id(found) == last);
    if is_last(rustix::fs::fstat(rustix::stdio::stdout())) {
        rustix::stdio::dup2_stdout(next)?;
    }
    if is_last(rustix::fs::fstat(rustix::stdio::stderr())) {
        rustix::stdio::dup2_stderr(next)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::home::Kind;

    static KIND: Kind = Kind { driver: "test", noun: "machine", kept: &[], mark: "STEAD_TEST_MACHINE" };

    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Reads everything that is kept from `place` on; returns where that begins, too.
    fn all(home: &Home, place: u64) -> (u64, Vec<u8>) {
        let (begins, mut bytes) = piece(home, place);
        loop {
            let next = begins + bytes.len() as u64;
            let (found, more) = piece(home, next);
            if more.is_empty() {
                return (begins, bytes);
            }
            assert_eq!(found, next, "nothing is left out on the way");
            bytes.extend(more);
        }
    }

    /// A reader that was left behind goes on with the first byte that is kept, and reads nothing twice.
    #[test]
    fn every_byte_that_is_kept_has_its_place() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, place.path().to_owned());
        fs::write(home.file("console.log.1000"), "old lines ").unwrap();
        fs::write(home.console(), "new lines").unwrap();
        assert_eq!(all(&home, 3), (1000, b"old lines new lines".to_vec()));
        assert_eq!(all(&home, 1004), (1004, b"lines new lines".to_vec()));
        assert_eq!(all(&home, 1014), (1014, b"lines".to_vec()));
        assert_eq!(piece(&home, 1019).1, Vec::<u8>::new());
        // Whoever put it aside was killed before the next byte, and before what was there is removed.
        fs::rename(home.console(), home.file("console.log.1010")).unwrap();
        assert_eq!(all(&home, 0), (1010, b"new lines".to_vec()));
        Console::new(home.clone()).write(b", and more");
        assert_eq!(all(&home, 1014), (1014, b"lines, and more".to_vec()));
    }

    /// However much is written in whatever pieces, a console is no larger than it may be and the one before is kept.
    #[test]
    fn a_console_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, place.path().to_owned());
        let console = Console::new(home.clone());
        let written: Vec<u8> = (0..LARGEST * 5 / 2).map(|index| (index % 251) as u8).collect();
        for part in written.chunks(300_007) {
            console.write(part);
            assert!(
                names(place.path())
                    .iter()
                    .all(|name| { fs::metadata(place.path().join(name)).unwrap().len() <= LARGEST })
            );
        }
        let (begins, kept) = all(&home, 0);
        assert!(kept.len() as u64 > LARGEST, "the one before is kept: {}", kept.len());
        assert_eq!(begins + kept.len() as u64, written.len() as u64);
        assert!(kept == written[usize::try_from(begins).unwrap()..], "every byte at its place");
        assert_eq!(names(place.path()), ["console.log".to_owned(), format!("console.log.{begins}")]);
    }
}
