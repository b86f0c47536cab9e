//! `stead container keep`: the process of one container, from its start to its end. It has the mounts of the machine's
//! root, writes its console, and knows how it ended.
//!
//! ```text
//!   driver ── spawns ──▶ keeper ── runtime create, start ──▶ first process ── terminal ─▶ console.log
//!                          └─ its child, killed with it; its end goes to exit.json
//! ```

use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fcntl_setfl, openat, statat, unlinkat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, WaitStatus, getpid, pidfd_open, set_child_subreaper, setsid, waitpid,
};
use serde::{Deserialize, Serialize};
use stead_model::machine::{MachineExit, MachineSpec};
use stead_model::site::address::Cidr;
use stead_runner::clock;
use stead_runner::machine::MachineError;

use super::bundle::{self, Bundle, VOLUME};
use super::ports::Passing;
use super::refusal::Refusal;
use super::rootless::{self, WayOut};
use super::runtime::{CONSOLE_SOCKET, HALF_PID_FILE, PID_FILE, Runtime};
use super::storage::Storage;
use super::{KIND, container_id, init, mounts, network, networks};
use crate::machine::console::Console;
use crate::machine::fence;
use crate::machine::home::{self, Found, Home, read, write, write_text};
use crate::machine::local::LOOK_AGAIN;
use crate::machine::process::{ProcessMark, Stat};
use crate::machine::vm::network::{Card, plan};
use crate::machine::vm::run::{self, Sheet};

/// How long the first process may take until it can be told something.
const BIRTH: Duration = Duration::from_secs(30);
/// How long a runtime may take to hand over the terminal.
const HAND_OVER: Duration = Duration::from_secs(5);
/// What is wrong with a runtime that does not.
const NO_TERMINAL: &str = "no terminal was handed over";
/// What is read of a console at once.
const PIECE: usize = 16 << 10;
/// What the driver wants of this start.
const ORDER: &str = "order.json";
/// The places that nobody in a machine of this machine may see, in its volume.
const HIDDEN: &str = "hidden.json";
/// Where the machine is reached in this run of its process.
const DOOR: &str = "door.json";

/// What the driver wants of a start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The runtime.
    pub(super) runtime: PathBuf,
    /// This program.
    pub(super) program: PathBuf,
    /// Its hash.
    pub(super) sha256: String,
    /// The bridge of machines that name none.
    pub(super) bridge: String,
    /// Where addresses come from.
    pub(super) subnet: String,
    /// Places that nobody inside sees.
    pub(super) hidden: Vec<PathBuf>,
    /// What gives a container of an ordinary account its way out; none: it is root's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) way_out: Option<PathBuf>,
}

impl Order {
    pub(super) fn give(&self, home: &Home) -> io::Result<()> {
        write(&home.file(ORDER), self)
    }

    /// Returns what was wanted of the last start.
    pub(super) fn of(home: &Home) -> Option<Self> {
        read(&home.file(ORDER))
    }
}

/// Where a machine is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Door {
    /// The keeper.
    pub(super) process: ProcessMark,
    /// The first process in the container.
    pub(super) init: u32,
    /// Its addresses.
    pub(super) addresses: Vec<String>,
    /// The port of them that leads to its SSH; none: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
}

impl Door {
    /// Returns the door that the live keeper `mark` opened.
    pub(super) fn of(home: &Home, mark: &ProcessMark) -> Option<Self> {
        read(&home.file(DOOR)).filter(|door: &Self| door.process == *mark)
    }

    /// Whether the machine goes down, because somebody asked it to or by itself, or is down and its keeper is about to notice.
    pub(super) fn is_closing(&self) -> bool {
        !is_called(self.init, init::NAME)
    }
}

fn is_called(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim() == name)
}

/// Keeps the container in `directory` to its end; `ticket` says which start this is.
///
/// # Errors
/// If it cannot live. The last lines of its console say why.
pub fn keep(directory: &Path, ticket: &str) -> io::Result<()> {
    // Started as anybody's child it leads no group; where this does not work, a lost terminal may end it.
    setsid().ok();
    set_child_subreaper(Some(getpid()))?;
    let home = Home::at(&KIND, directory.to_owned());
    let Some(_alive) = home.be_the_one(ticket)? else { return Ok(()) };
    let console = Console::new(home.clone());
    let lived = live(&home, &console);
    if let Err(error) = &lived {
        for line in error.to_string().lines() {
            console.say(line);
        }
        Refusal::tell(&home, error)?;
        let reason = "it died at once".to_owned();
        let exit = MachineExit { code: Some(1), signal: None, at: Some(clock::now()), reason };
        home.set_exit(&exit)?;
    }
    lived.map_err(io::Error::other)
}

fn live(home: &Home, console: &Console) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let gone = || home.not_found();
    let order = Order::of(home).ok_or_else(gone)?;
    let Found::Ours(record) = home.find() else { return Err(gone()) };
    let storage = Storage::of(home).ok_or_else(gone)?;
    console.say(&format!("boot of {} by {}", record.spec.owner, order.runtime.display()));
    if let Storage::Copy { why: Some(why) } = &storage {
        console.say(&format!("its root is a copy: {why}"));
    }
    if order.way_out.is_some() {
        console.say("it is that of an ordinary account: nothing limits its processors and its memory");
    }
    // Sockets are named from here: their paths have little room.
    std::env::set_current_dir(home.directory()).map_err(failed)?;
    mounts::go_apart().map_err(failed)?;
    storage.mount(home).map_err(failed)?;
    let id = container_id(home);
    let runtime = Runtime::new(order.runtime.clone(), home, &id);
    runtime.remember().map_err(failed)?;
    let volume = home.file("volume");
    let status = loop {
        init::takes_back_restart(&volume);
        let status = live_once(home, console, &runtime, &order, &record.spec, &storage)?;
        if !init::takes_back_restart(&volume) || run::is_stopping(home) {
            break status;
        }
        console.say("starts again");
        drop(runtime.delete());
        // Nobody is in until it is up again.
        for stale in [DOOR, PID_FILE, HALF_PID_FILE] {
            home::remove(&home.file(stale)).map_err(failed)?;
        }
    };
    // How its program ended is how it ended.
    let of_program = record.spec.program.as_ref().and_then(|_| init::program_exit(&home.file("volume")));
    let exit = of_program.unwrap_or_else(|| exit_of(status));
    console.say(&format!("ended: {}", exit.reason));
    if home.exit().is_none() {
        home.set_exit(&exit).map_err(failed)?;
    }
    drop(runtime.delete());
    Ok(())
}

/// Has the container live once, from its making to the end of its first process; returns how that ended.
fn live_once(
    home: &Home,
    console: &Console,
    runtime: &Runtime,
    order: &Order,
    spec: &MachineSpec,
    storage: &Storage,
) -> Result<Option<WaitStatus>, MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    forget_programs(home).map_err(failed)?;
    hide_below(home, order, spec).map_err(failed)?;
    init::give_program(&home.file("volume"), spec.program.as_ref()).map_err(failed)?;
    let made = make(home, console, runtime, order, spec, storage);
    let (init, output) = made.inspect_err(|_| drop(runtime.delete()))?;
    let plugged = match come_up(home, runtime, order, spec, init) {
        Ok(plugged) => plugged,
        Err(error) => {
            // What it said before it died says why.
            drop(runtime.kill("KILL"));
            drop(follow(console, output, None));
            drop(runtime.delete());
            return Err(error);
        }
    };
    let (own, marked) = (home.clone(), ProcessMark::of(init));
    fence::watch(home.directory().to_owned(), move || {
        if let Some(process) = marked.as_ref().and_then(ProcessMark::open) {
            fence::end(&own, &process);
        }
    });
    let ended = watch(console, init, output).map_err(failed);
    drop(plugged);
    ended
}

/// Removes the places of programs that were only mounted there. The machine may have put links in their way: none is
/// followed.
fn forget_programs(home: &Home) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let volume = rustix::fs::open(home.file("volume"), flags, Mode::empty())?;
    let Ok(programs) = openat(&volume, "bin", flags, Mode::empty()) else { return Ok(()) };
    for entry in Dir::read_from(&programs)?.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(place) = openat(&programs, name, flags, Mode::empty()) else { continue };
        let found = statat(&place, "stead", AtFlags::SYMLINK_NOFOLLOW);
        let is_placeholder = found.is_ok_and(|found| {
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_size == 0
        });
        if is_placeholder {
            unlinkat(&place, "stead", AtFlags::empty())?;
            // Something else may be in it.
            unlinkat(&programs, name, AtFlags::REMOVEDIR).ok();
        }
    }
    Ok(())
}

/// Tells a machine that makes machines which places of the machines around it nobody in those may see.
fn hide_below(home: &Home, order: &Order, spec: &MachineSpec) -> io::Result<()> {
    if !spec.hosts {
        return Ok(());
    }
    write(&home.file("volume").join(HIDDEN), &order.hidden)
}

/// Returns the places of the machines around this one that nobody in a machine of it may see.
pub(super) fn hidden_above() -> Vec<PathBuf> {
    read(&Path::new(VOLUME).join(HIDDEN)).unwrap_or_default()
}

/// Has the runtime make the container; returns its first process, and where what it says is read: its terminal, or a
/// pipe if it can have none.
fn make(
    home: &Home,
    console: &Console,
    runtime: &Runtime,
    order: &Order,
    spec: &MachineSpec,
    storage: &Storage,
) -> Result<(u32, OwnedFd), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let inside = Path::new(VOLUME).join("bin").join(&order.sha256).join("stead");
    let mut bundle = Bundle {
        spec,
        id: &container_id(home),
        directory: home.directory(),
        mark: KIND.mark,
        program: &order.program,
        program_inside: &inside,
        lower: storage.lower(),
        hidden: &order.hidden,
        terminal: true,
        held: bundle::held(),
        rootless: order.way_out.is_some(),
    };
    let why = match make_with_terminal(home, runtime, &bundle) {
        Ok(made) => return Ok(made),
        Err(error) if is_about_terminal(&error, home.directory()) => error,
        Err(error) => return Err(error),
    };
    drop(runtime.delete());
    console.say(&format!("it has no terminal, what it says comes here all the same: {why}"));
    bundle.terminal = false;
    write_text(&home.file("config.json"), &bundle.config().to_string(), 0o600).map_err(failed)?;
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    match runtime.create(Some(File::from(theirs))) {
        Ok(init) => Ok((init, ours)),
        Err(error) => {
            // What the runtime complains of went there, too.
            follow(console, ours, None).map_err(failed)?;
            Err(error)
        }
    }
}

fn make_with_terminal(
    home: &Home,
    runtime: &Runtime,
    bundle: &Bundle<'_>,
) -> Result<(u32, OwnedFd), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    write_text(&home.file("config.json"), &bundle.config().to_string(), 0o600).map_err(failed)?;
    fs::remove_file(home.file(CONSOLE_SOCKET)).ok();
    let no_terminal = |error: io::Error| MachineError::failed(format!("{NO_TERMINAL}: {error}"));
    let listener = UnixListener::bind(CONSOLE_SOCKET).map_err(no_terminal)?;
    let init = runtime.create(None)?;
    let terminal = accept(&listener).and_then(|stream| receive(&stream)).map_err(no_terminal)?;
    fs::remove_file(home.file(CONSOLE_SOCKET)).map_err(failed)?;
    Ok((init, terminal))
}

/// Whether an error is of a kind that a container without a terminal would not have: by the words of the runtime, not by
/// what the machine's directory is called.
fn is_about_terminal(error: &MachineError, directory: &Path) -> bool {
    let MachineError::Failed { what, last_lines } = error else { return false };
    let said = last_lines.join("\n").replace(&*directory.to_string_lossy(), "").to_ascii_lowercase();
    let mut words = said.split(|c: char| !c.is_ascii_alphanumeric());
    what.starts_with(NO_TERMINAL)
        || words.any(|word| ["terminal", "console", "ptmx", "devpts", "pty"].contains(&word))
}

fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + HAND_OVER;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(HAND_OVER))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the descriptor that comes with what is sent.
fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut name = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut name)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = |message| {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message { Some(descriptors) } else { None }
    };
    let mut descriptors = control.drain().filter_map(rights);
    let first = descriptors.next().and_then(|mut descriptors| descriptors.next());
    first.ok_or_else(|| io::Error::other("nothing came"))
}

/// Plugs the machine in, starts its program and waits until that can be told something. Returns how it is plugged in.
fn come_up(
    home: &Home,
    runtime: &Runtime,
    order: &Order,
    spec: &MachineSpec,
    init: u32,
) -> Result<Plugged, MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let plugged = Plugged::new(home, order, spec, init)?;
    runtime.start()?;
    let deadline = Instant::now() + BIRTH;
    while !is_called(init, init::NAME) && !is_called(init, init::LAST_NAME) {
        if Stat::read(init).is_none_or(|stat| stat.is_dead) {
            if init::program_exit(&home.file("volume")).is_some() {
                // It was up, and its program is over already.
                break;
            }
            return Err(MachineError::failed("its first process died at once"));
        }
        if Instant::now() > deadline {
            let state = runtime.state();
            return Err(MachineError::Timeout(format!(
                "its first process did not come up within {} s; the container is {state}",
                BIRTH.as_secs()
            )));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let own = std::process::id();
    let mark = ProcessMark::of(own).ok_or_else(|| failed(io::Error::other("/proc does not show it")))?;
    let addresses = plugged.addresses.iter().map(ToString::to_string).collect();
    let door = Door { process: mark.clone(), init, addresses, port: plugged.port };
    write(&home.file(DOOR), &door).map_err(failed)?;
    home.set_pid(&mark, clock::now()).map_err(failed)?;
    Ok(plugged)
}

/// How a machine is plugged in. Dropping it closes its ports.
#[derive(Default)]
struct Plugged {
    /// Where it is reached.
    addresses: Vec<Ipv4Addr>,
    /// The port there that leads to its SSH; none: its own.
    port: Option<u16>,
    _passing: Option<Passing>,
    _way_out: Option<WayOut>,
}

impl Plugged {
    fn new(home: &Home, order: &Order, spec: &MachineSpec, init: u32) -> Result<Self, MachineError> {
        let cards = plan(home, spec, &networks(&order.bridge, order.way_out.is_some()))?;
        if let Some(program) = &order.way_out {
            return Self::rootless(home, program, &cards, init);
        }
        let subnet = Cidr::parse(&order.subnet).map_err(|error| MachineError::Invalid(error.to_string()))?;
        let found = network::plug(home, &cards, subnet, init)?;
        let (addresses, bridges): (Vec<Ipv4Addr>, Vec<Cidr>) = found.into_iter().unzip();
        if spec.hosts {
            network::tell_above(&home.file("volume"), &bridges)
                .map_err(|error| home.failed("start", &error))?;
        }
        let passing = Passing::open(&cards, &addresses)?;
        Ok(Self { addresses, _passing: passing, ..Self::default() })
    }

    /// Plugs in one of an ordinary account: `program` is the network behind its card, and ports of this machine lead to it.
    fn rootless(home: &Home, program: &Path, cards: &[Card], init: u32) -> Result<Self, MachineError> {
        network::check(cards, true)?;
        network::raise_loopback(init)?;
        let Some(card) = cards.first() else { return Ok(Self::default()) };
        let way_out = WayOut::open(home, program, init)?;
        let sheet = Sheet::of(home);
        let (passing, port) = Passing::open_into(card, rootless::ADDRESS, init, sheet.port)?;
        // The same one the next time, if it can be.
        let sheet = Sheet { port: Some(port), ..sheet };
        sheet.keep(home).map_err(|error| home.failed("start", &error))?;
        let addresses = vec![Ipv4Addr::LOCALHOST];
        Ok(Self { addresses, port: Some(port), _passing: Some(passing), _way_out: Some(way_out) })
    }
}

/// Writes what the machine says until its first process has ended; returns how.
fn watch(console: &Console, init: u32, output: OwnedFd) -> io::Result<Option<WaitStatus>> {
    let pid = i32::try_from(init).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("there is no such process"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    follow(console, output, Some(&process))?;
    Ok(waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status))
}

/// Copies what the machine says to the console until `process` has ended and all is said; without one, what is there
/// now.
fn follow(console: &Console, output: OwnedFd, process: Option<&OwnedFd>) -> io::Result<()> {
    fcntl_setfl(&output, OFlags::NONBLOCK)?;
    let mut output = Some(File::from(output));
    let mut has_ended = process.is_none();
    let mut piece = vec![0; PIECE];
    loop {
        // A terminal that nobody writes to any more is closed; it may be opened again only by a process that lives.
        if let Some(open) = &mut output {
            match open.read(&mut piece) {
                Ok(0) => output = None,
                Ok(size) => {
                    console.write(piece.get(..size).unwrap_or_default());
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => output = None,
            }
        }
        let Some(process) = process.filter(|_| !has_ended) else { return Ok(()) };
        let mut waiting = vec![PollFd::new(process, PollFlags::IN)];
        waiting.extend(output.as_ref().map(|output| PollFd::new(output, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        has_ended = waiting.first().is_some_and(|process| !process.revents().is_empty());
    }
}

fn exit_of(status: Option<WaitStatus>) -> MachineExit {
    let code = status.and_then(WaitStatus::exit_status);
    let signal = status.and_then(WaitStatus::terminating_signal);
    let reason = match (code, signal) {
        (Some(0), _) => "stopped".to_owned(),
        (Some(code), _) => format!("its first process ended with exit code {code}"),
        (None, Some(signal)) => format!("its first process was ended by signal {signal}"),
        (None, None) => "its first process is gone".to_owned(),
    };
    MachineExit { code, signal, at: Some(clock::now()), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_runtime_that_complains_of_terminals_is_used_without_one() {
        let about = |line: &str| {
            let error = MachineError::Failed { what: String::new(), last_lines: vec![line.to_owned()] };
            is_about_terminal(&error, Path::new("/srv/console/pty/machine"))
        };
        assert!(about("runc create failed: unable to start: console socket is missing"));
        assert!(about("open `/dev/ptmx`: No such file or directory"));
        assert!(!about("cannot use an empty list"));
        assert!(!about("open /srv/console/pty/machine/config.json: permission denied"));
        assert!(is_about_terminal(
            &MachineError::failed(format!("{NO_TERMINAL}: timed out")),
            Path::new("/")
        ));
    }
}
