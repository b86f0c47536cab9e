//! `stead sandbox`: the process of one sandbox, from its start to its end, over as many boots as it has.
//!
//! TERM stops it: what runs in it is asked to go, and it waits for that. HUP restarts it: what runs goes, by force if
//! need be, and another boot begins. USR1 makes it look again whether its node is to have an agent. It adopts whatever is left without a parent in it, so that everything started in
//! the sandbox stays its descendant, and ends with the sandbox it runs in.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use stead_model::machine::{MachineExit, SshDoor};
use stead_runner::clock;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::task::JoinSet;

use super::database;
use super::door::{Awaited, Guest};
use super::faults::{self, Phase};
use super::home::{Door, Home, Sheet};
use super::keeper::Keeper;
use super::process::{Handle, ProcessMark, Stat};
use super::tree;
use crate::transport::ssh::server::{ServerKey, SshHost, SshServer};

/// A console is begun anew at this size; the one before is kept.
const ROTATE: u64 = 16 << 20;
/// What is read of a console at once.
const PIECE: usize = 32 << 10;
/// How long what runs may take when the machine restarts.
const GRACE: Duration = Duration::from_secs(2);
/// How often ending processes are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a machine that cannot take a connection waits for the next one.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How long an orphan may wait to be buried.
const BURY: Duration = Duration::from_millis(200);

/// Runs the sandbox in `directory` to its end; `ticket` says which start this is.
///
/// # Errors
/// If it cannot live. The last line of its console says why.
pub fn supervise(directory: &Path, ticket: &str) -> io::Result<()> {
    // Started as anybody's child it leads no group; where this does not work, a lost terminal may end it.
    rustix::process::setsid().ok();
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let home = Home::at(directory.to_owned());
    let Some(_alive) = be_the_one(&home, ticket)? else { return Ok(()) };
    let console = Arc::new(Console::new(home.clone()));
    let lived = live(&home, &console);
    if let Err(error) = &lived {
        console.say(&format!("ended: {error}"));
        let exit =
            MachineExit { code: Some(1), signal: None, at: Some(clock::now()), reason: error.to_string() };
        // Without it, it looks killed.
        home.set_exit(&exit).ok();
    }
    lived
}

/// Takes the place of the one process of the machine; none if another has it, or this start is not wanted any more.
fn be_the_one(home: &Home, ticket: &str) -> io::Result<Option<File>> {
    let alive = File::options().create(true).truncate(false).write(true).open(home.file("alive"))?;
    if rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let wanted = fs::read_to_string(home.file("ticket")).is_ok_and(|wanted| wanted == ticket);
    Ok(wanted.then_some(alive))
}

fn live(home: &Home, console: &Arc<Console>) -> io::Result<()> {
    let gone = || io::Error::other("its settings are gone");
    let sheet = home.sheet().ok_or_else(gone)?;
    let parent = sheet.parent.as_deref().map(parent_process).transpose()?;
    if let Some(struck) = faults::strike(home, Phase::Boot) {
        std::thread::sleep(struck.delay);
        if struck.crash {
            die();
        }
        if let Some(error) = struck.error {
            return Err(io::Error::other(error));
        }
    }
    let key = fs::read_to_string(home.file("host_key"))?;
    let key = ServerKey::parse(&key).map_err(io::Error::other)?;
    let mark =
        ProcessMark::of(std::process::id()).ok_or_else(|| io::Error::other("/proc does not show it"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reason = runtime.block_on(async {
        // From the moment others can find this process it hears their signals.
        let house = House::new(home, sheet, console, mark.clone(), key)?;
        home.set_pid(&mark, clock::now())?;
        house.run(parent).await
    });
    runtime.shutdown_background();
    let reason = reason?;
    console.say(&format!("ended: {reason}"));
    let exit = MachineExit { code: Some(0), signal: None, at: Some(clock::now()), reason: reason.to_owned() };
    home.set_exit(&exit)
}

/// Returns the process of the sandbox this one runs in.
fn parent_process(directory: &Path) -> io::Result<Handle> {
    let process = Home::at(directory.to_owned()).pid().and_then(|(mark, _)| mark.open());
    process
        .ok_or_else(|| io::Error::other(format!("the sandbox it runs in, {}, is down", directory.display())))
}

/// Ends this process as a crash does.
fn die() {
    // Nothing comes after it.
    kill_process(getpid(), Signal::KILL).ok();
}

/// What ended a boot.
enum End {
    Stop,
    Restart,
    Orphaned,
}

struct House<'a> {
    home: &'a Home,
    sheet: Sheet,
    console: &'a Arc<Console>,
    mark: ProcessMark,
    public_key: String,
    server: Arc<SshServer>,
    guest: Arc<Guest>,
    terminate: Signals,
    hang_up: Signals,
    look_again: Signals,
    child: Signals,
}

impl<'a> House<'a> {
    fn new(
        home: &'a Home,
        sheet: Sheet,
        console: &'a Arc<Console>,
        mark: ProcessMark,
        key: ServerKey,
    ) -> io::Result<Self> {
        let guest = Arc::new(Guest {
            home: home.clone(),
            node: sheet.node.clone(),
            console: Arc::clone(console),
            awaited: Awaited::default(),
        });
        Ok(Self {
            public_key: key.public()?,
            server: Arc::new(SshServer::new(key, Arc::clone(&guest) as Arc<dyn SshHost>)),
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            look_again: signal(SignalKind::user_defined1())?,
            child: signal(SignalKind::child())?,
            home,
            sheet,
            console,
            mark,
            guest,
        })
    }

    /// Boots until it is stopped; returns why it ended.
    async fn run(mut self, parent: Option<Handle>) -> io::Result<&'static str> {
        let orphaned = async {
            match parent {
                Some(parent) => parent.ended().await.unwrap_or(()),
                None => std::future::pending().await,
            }
        };
        tokio::pin!(orphaned);
        // Kept over restarts: nobody else gets the port meanwhile.
        let mut listener = None;
        loop {
            let boot = self.home.new_boot()?;
            self.console.say(&format!("boot {boot} of {}", self.sheet.node));
            self.prepare()?;
            let end = tokio::select! {
                end = self.boot(&mut listener) => end?,
                () = &mut orphaned => End::Orphaned,
            };
            match end {
                End::Stop => {
                    // What a driver sees of it while it goes down.
                    fs::write(self.home.file("stopping"), "")?;
                    tokio::select! {
                        () = self.ask_all_to_go(None) => return Ok("stopped"),
                        () = &mut orphaned => {}
                    }
                    self.ask_all_to_go(Some(Duration::ZERO)).await;
                    return Ok("the sandbox it ran in ended");
                }
                End::Restart => {
                    fs::remove_file(self.home.file("door.json")).ok();
                    self.ask_all_to_go(Some(GRACE)).await;
                }
                End::Orphaned => {
                    self.ask_all_to_go(Some(Duration::ZERO)).await;
                    return Ok("the sandbox it ran in ended");
                }
            }
        }
    }

    /// What a boot does to a machine: nothing of the last one runs, and what is enabled does.
    fn prepare(&self) -> io::Result<()> {
        let run = self.home.root().join("run");
        if fs::symlink_metadata(&run).is_ok_and(|found| found.is_dir()) {
            for entry in fs::read_dir(&run)?.flatten() {
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let removed = if is_directory {
                    fs::remove_dir_all(entry.path())
                } else {
                    fs::remove_file(entry.path())
                };
                removed.ok();
            }
        }
        database::update(self.home, |database| {
            for service in database.services.values_mut() {
                service.active = service.enabled;
            }
        })
    }

    /// One boot, until something ends it.
    async fn boot(&mut self, listener: &mut Option<TcpListener>) -> io::Result<End> {
        let coming_up = come_up(self.home, &self.sheet);
        tokio::pin!(coming_up);
        let mut is_up = false;
        let mut connections = JoinSet::new();
        let mut agent = Keeper::new(Arc::clone(&self.guest));
        let mut bury = false;
        loop {
            tokio::select! {
                up = &mut coming_up, if !is_up => {
                    is_up = true;
                    match up {
                        Ok(()) => {
                            self.open(listener).await?;
                            agent.look();
                        }
                        Err(why) => self.console.say(&format!("no address: {why}")),
                    }
                }
                () = agent.turn() => {}
                Some(()) = self.look_again.recv(), if is_up => agent.look(),
                accepted = accept(listener.as_ref()), if is_up => {
                    if accepted.is_err() {
                        // Out of descriptors, say: what others let go of is waited for.
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                    if let Ok(stream) = accepted {
                        let (home, server, console) =
                            (self.home.clone(), Arc::clone(&self.server), Arc::clone(self.console));
                        connections.spawn(async move {
                            if let Some(struck) = faults::strike(&home, Phase::Ssh) {
                                tokio::time::sleep(struck.delay).await;
                                if struck.crash {
                                    die();
                                }
                                if let Some(error) = struck.error {
                                    console.say(&format!("refused a connection: {error}"));
                                    return;
                                }
                            }
                            server.serve(stream).await;
                        });
                    }
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                Some(()) = self.terminate.recv() => return Ok(End::Stop),
                Some(()) = self.hang_up.recv() => return Ok(End::Restart),
                Some(()) = self.child.recv() => bury = true,
                () = tokio::time::sleep(BURY), if bury => bury = self.bury_orphans(),
            }
        }
    }

    /// Listens, where it last did if that is free, and says so.
    async fn open(&self, listener: &mut Option<TcpListener>) -> io::Result<()> {
        if listener.is_none() {
            let last =
                fs::read_to_string(self.home.file("port")).ok().and_then(|port| port.trim().parse().ok());
            let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
            let bound = match last {
                Some(port) => TcpListener::bind(at(port)).await,
                None => Err(io::ErrorKind::NotFound.into()),
            };
            *listener = Some(match bound {
                Ok(listener) => listener,
                Err(_) => TcpListener::bind(at(0)).await?,
            });
        }
        let Some(listener) = listener else { return Ok(()) };
        let port = listener.local_addr()?.port();
        super::home::write_text(&self.home.file("port"), &format!("{port}\n"), 0o600)?;
        let ssh = SshDoor { host: "127.0.0.1".to_owned(), port, host_key: self.public_key.clone() };
        self.home.set_door(&Door { process: self.mark.clone(), ssh })?;
        self.console.say(&format!("takes logins on 127.0.0.1:{port}"));
        Ok(())
    }

    /// Takes what ended without anybody waiting for it out of the list of processes; returns whether to look again.
    fn bury_orphans(&self) -> bool {
        let awaited = self.guest.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let mut again = false;
        for pid in tree::children(std::process::id()) {
            if awaited.contains(&pid) || Stat::read(pid).is_none_or(|stat| !stat.is_dead) {
                continue;
            }
            let buried = i32::try_from(pid)
                .ok()
                .and_then(Pid::from_raw)
                .map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
            again |= !matches!(buried, Some(Ok(Some(_))));
        }
        again
    }

    /// Asks everything that runs to go, and waits; after `patience`, if there is one, it is killed.
    async fn ask_all_to_go(&mut self, patience: Option<Duration>) {
        let own = std::process::id();
        tree::signal_each(tree::descendants(own), Signal::TERM);
        let begun = tokio::time::Instant::now();
        loop {
            self.bury_orphans();
            let left = tree::descendants(own);
            if left.is_empty() {
                return;
            }
            if patience.is_some_and(|patience| begun.elapsed() >= patience) {
                tree::signal_each(left, Signal::KILL);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Waits as long as a boot takes; returns why there will be no address, if so.
async fn come_up(home: &Home, sheet: &Sheet) -> Result<(), String> {
    tokio::time::sleep(Duration::from_millis(sheet.boot_delay_ms)).await;
    let Some(struck) = faults::strike(home, Phase::Address) else { return Ok(()) };
    tokio::time::sleep(struck.delay).await;
    if struck.crash {
        die();
    }
    struck.error.map_or(Ok(()), Err)
}

/// What the machine says of itself.
pub(super) struct Console {
    home: Home,
    file: Mutex<()>,
}

impl Console {
    fn new(home: Home) -> Self {
        Self { home, file: Mutex::new(()) }
    }

    /// Writes a line. A console that cannot be written is no reason to stop.
    pub(super) fn say(&self, line: &str) {
        let _one_at_a_time = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let said = (|| {
            let path = self.home.console();
            let mut file = File::options().create(true).append(true).open(&path)?;
            if file.metadata()?.len() >= ROTATE {
                let start = console_start(&self.home) + file.metadata()?.len();
                // Readers find nothing there until they can know where it begins.
                fs::rename(&path, path.with_extension("log.1"))?;
                super::home::write_text(&self.home.file("console.start"), &start.to_string(), 0o600)?;
                file = File::options().create(true).append(true).open(&path)?;
            }
            file.write_all(format!("{} {}\n", clock::now(), line.escape_debug()).as_bytes())
        })();
        said.unwrap_or(());
    }
}

/// Returns the place of the console's first byte.
pub(super) fn console_start(home: &Home) -> u64 {
    let text = fs::read_to_string(home.file("console.start")).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Returns what the console has at `place`, or at the first place after it that it still has, and which that is;
/// nothing if there is no more.
pub(super) fn console_piece(home: &Home, place: u64) -> (u64, Vec<u8>) {
    loop {
        let start = console_start(home);
        let place = place.max(start);
        let mut piece = vec![0; PIECE];
        let read = (|| {
            let mut file = File::open(home.console())?;
            file.seek(SeekFrom::Start(place - start))?;
            file.read(&mut piece)
        })();
        piece.truncate(read.unwrap_or_default());
        // A console that was begun anew meanwhile had other bytes there.
        if console_start(home) == start {
            return (place, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that was left behind goes on where the console now begins, and reads nothing twice.
    #[test]
    fn a_console_that_began_anew_is_read_from_its_beginning() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::at(place.path().to_owned());
        fs::write(home.console(), "new lines").unwrap();
        fs::write(home.file("console.start"), "1000").unwrap();
        assert_eq!(console_piece(&home, 3), (1000, b"new lines".to_vec()));
        assert_eq!(console_piece(&home, 1004), (1004, b"lines".to_vec()));
        assert_eq!(console_piece(&home, 1009).1, Vec::<u8>::new());
    }
}
