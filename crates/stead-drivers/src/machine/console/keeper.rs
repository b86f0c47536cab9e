//! The consoles of machines whose program writes a file and knows no bound: it is given a pipe, and a process of ours
//! beside it writes the console.
//!
//! ```text
//!   QEMU, Cloud Hypervisor ── serial ─▶ console.pipe ─▶ `stead console` ─▶ console.log
//! ```
//! The process outlives the driver and ends with the last that can write to the pipe. Killed, it is replaced by the next
//! driver that looks at the machine; until then what the machine says is lost, and nothing grows. `console.lock` is held
//! by the one that is there, from before its birth.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, mknodat};
use rustix::io::Errno;
use tokio::process::Command;

use super::{Console, PIECE};
use crate::machine::fence;
use crate::machine::home::{Home, Kind};
use crate::machine::local::{LOOK_AGAIN, SYSTEM_PATH};
use crate::machine::tree;
use crate::machine::vm::run;

/// What a machine's program takes for its console.
pub(in crate::machine) const PIPE: &str = "console.pipe";
const LOCK: &str = "console.lock";
/// The variable by which keepers are known: it holds the machine's directory. Not that of the machine's own processes,
/// which end first.
const MARK: &str = "STEAD_CONSOLE";
/// How long a keeper may take to write down what is left to be said.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// What says that a pipe has no reader.
const NO_READER: Option<i32> = Some(Errno::NXIO.raw_os_error());

static KIND: Kind = Kind { driver: "console", noun: "console", kept: &[], mark: MARK };

/// An open end of a machine's console: as long as it is there its keeper stays, and opening the pipe never waits.
pub(in crate::machine) struct Pipe {
    _end: File,
}

impl Pipe {
    /// Opens the pipe of a machine, making it if need be, and sees that it has a keeper. Needs the machine's lock.
    pub(in crate::machine) fn open(home: &Home, program: &Path) -> io::Result<Self> {
        match mknodat(CWD, home.file(PIPE), FileType::Fifo, Mode::from_raw_mode(0o600), 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Held before it is looked whether there is a keeper: one that was about to end sees it and stays.
        let end = open_pipe(home, OFlags::RDWR)?;
        let lock = File::options().create(true).truncate(false).write(true).open(home.file(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => spawn(home, program, lock)?,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self { _end: end })
    }
}

fn open_pipe(home: &Home, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(home.file(PIPE), flags, Mode::empty())?))
}

fn spawn(home: &Home, program: &Path, lock: File) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(["console", "--machine"]).arg(home.directory()).current_dir("/");
    // It has the pipe and the lock from its first moment: nobody waits for it to come up.
    command.stdin(open_pipe(home, OFlags::RDONLY)?).stdout(lock).stderr(Stdio::null());
    command.env_clear().env("PATH", SYSTEM_PATH).env(MARK, home.directory());
    // It is nobody's child from here on.
    command.spawn().map(drop)
}

/// Gives a machine that runs a keeper of its console if it has lost it.
pub(in crate::machine) fn mend(home: &Home, program: &Path) {
    // A pipe that nobody reads cannot be opened to write without waiting.
    let is_lost = open_pipe(home, OFlags::WRONLY).is_err_and(|error| error.raw_os_error() == NO_READER);
    if !is_lost || run::live(home).is_none() {
        return;
    }
    // Without the lock somebody else is at it; what cannot be mended now is tried again by whoever looks next.
    if let Ok(Some(_held)) = home.try_lock() {
        Pipe::open(home, program).map(drop).unwrap_or(());
    }
}

/// Whether somebody still writes down what the machine says, or said last.
pub(in crate::machine) fn is_kept(home: &Home) -> bool {
    home.file(PIPE).exists() && !tree::is_quiet(MARK, home.directory()).unwrap_or(false)
}

/// Waits until everything that a machine said is written down, once nothing of it runs; returns whether nobody is left.
/// Blocks.
///
/// # Errors
/// If it cannot be told who is left.
pub(in crate::machine) fn drain(home: &Home) -> io::Result<bool> {
    if !home.file(PIPE).exists() {
        return Ok(true);
    }
    let end = Instant::now() + LAST_WORDS;
    while !tree::is_quiet(MARK, home.directory())? {
        if Instant::now() > end {
            return tree::kill_leftovers(MARK, home.directory());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

/// Writes what comes on standard input to the console of the machine in `directory`, until nobody can write there any
/// more. Standard output is the lock.
///
/// # Errors
/// If it cannot be read.
pub fn keep(directory: &Path) -> io::Result<()> {
    // Started as anybody's child it leads no group; where this does not work, a lost terminal may end it.
    rustix::process::setsid().ok();
    let home = Home::at(&KIND, directory.to_owned());
    let console = Console::new(home.clone());
    fence::watch(directory.to_owned(), move || {
        if let Some(process) = run::live(&home) {
            fence::end(&home, &process);
        }
    });
    let mut pipe = File::from(rustix::io::dup(rustix::stdio::stdin())?);
    let lock = rustix::stdio::stdout();
    loop {
        copy(&mut pipe, &console)?;
        // A driver that comes now finds no keeper and has another one made, or is seen by this one.
        flock(lock, FlockOperation::Unlock)?;
        let is_over = !has_writer(&pipe)?;
        if is_over || flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
    }
}

/// Copies until nobody can write any more and all is said.
fn copy(pipe: &mut File, console: &Console) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(size) => console.write(piece.get(..size).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(pipe)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn has_writer(pipe: &File) -> io::Result<bool> {
    let mut looking = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut looking, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(looking.iter().all(|end| !end.revents().contains(PollFlags::HUP)))
}

fn wait(pipe: &File) -> io::Result<()> {
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
