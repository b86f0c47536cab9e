//! `stead sandbox`: the process of one sandbox, from its start to its end, over as many boots as it has.
//!
//! TERM stops it: what runs in it is asked to go, and it waits for that. HUP restarts it: what runs goes, by force if
//! need be, and another boot begins. USR1 makes it look again whether its node is to have an agent. It adopts whatever is left without a parent in it, so that everything started in
//! the sandbox stays its descendant, and ends with the sandbox it runs in. A sandbox that is given a program runs it from
//! each boot on, and ends with it and as it did.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

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
use super::program::Program;
use super::quota::Quota;
use super::tree;
use crate::machine::console::Console;
use crate::machine::fence;
use crate::transport::ssh::server::{ServerKey, SshHost, SshServer};

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
    let Some(_alive) = home.be_the_one(ticket)? else { return Ok(()) };
    let console = Arc::new(Console::new((*home).clone()));
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
        let quota = house.quota.clone();
        home.set_pid(&mark, clock::now())?;
        let reason = house.run(parent).await;
        quota.iter().for_each(Quota::remove);
        reason
    });
    runtime.shutdown_background();
    let exit = reason?;
    console.say(&format!("ended: {}", exit.reason));
    home.set_exit(&exit)
}

/// Returns the end of a sandbox that ended well.
fn well(reason: &str) -> MachineExit {
    MachineExit { code: Some(0), signal: None, at: Some(clock::now()), reason: reason.to_owned() }
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
    /// Its lease is over.
    Fenced,
    /// Its program ended.
    Ended(MachineExit),
}

struct House<'a> {
    home: &'a Home,
    sheet: Sheet,
    console: &'a Arc<Console>,
    mark: ProcessMark,
    public_key: String,
    server: Arc<SshServer>,
    guest: Arc<Guest>,
    quota: Option<Quota>,
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
        // A machine that cannot be limited runs all the same, and says so.
        let quota = Quota::of(home).unwrap_or_else(|error| {
            console.say(&format!("no quota of processor time: {error}"));
            None
        });
        Ok(Self {
            quota,
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

    /// Boots until it is stopped; returns how it ended.
    async fn run(mut self, parent: Option<Handle>) -> io::Result<MachineExit> {
        let orphaned = async {
            match parent {
                Some(parent) => parent.ended().await.unwrap_or(()),
                None => std::future::pending().await,
            }
        };
        let over = fenced(self.home.directory());
        tokio::pin!(orphaned, over);
        // Kept over restarts: nobody else gets the port meanwhile.
        let mut listener = None;
        loop {
            let boot = self.home.new_boot()?;
            self.console.say(&format!("boot {boot} of {}", self.sheet.node));
            self.prepare()?;
            let end = tokio::select! {
                end = self.boot(&mut listener) => end,
                () = &mut orphaned => Ok(End::Orphaned),
                () = &mut over => Ok(End::Fenced),
            };
            self.quota.iter().for_each(Quota::leave);
            let end = end?;
            match end {
                End::Stop => {
                    // What a driver sees of it while it goes down.
                    fs::write(self.home.file("stopping"), "")?;
                    tokio::select! {
                        () = self.ask_all_to_go(None) => return Ok(well("stopped")),
                        () = &mut orphaned => {}
                        () = &mut over => {}
                    }
                    self.ask_all_to_go(Some(Duration::ZERO)).await;
                    return Ok(well("the sandbox it ran in ended"));
                }
                End::Restart => {
                    fs::remove_file(self.home.file("door.json")).ok();
                    self.ask_all_to_go(Some(GRACE)).await;
                }
                End::Orphaned => {
                    self.ask_all_to_go(Some(Duration::ZERO)).await;
                    return Ok(well("the sandbox it ran in ended"));
                }
                End::Fenced => {
                    self.ask_all_to_go(Some(Duration::ZERO)).await;
                    return Ok(fence::exit());
                }
                End::Ended(exit) => {
                    self.ask_all_to_go(Some(GRACE)).await;
                    return Ok(exit);
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
        let mut program = Program::of(&self.guest);
        let mut bury = false;
        loop {
            tokio::select! {
                up = &mut coming_up, if !is_up => {
                    is_up = true;
                    match up {
                        Ok(()) => {
                            self.open(listener).await?;
                            // From here on it starts what is limited; coming up is not.
                            if let Some(Err(error)) = self.quota.as_ref().map(Quota::enter) {
                                self.console.say(&format!("no quota of processor time: {error}"));
                            }
                            agent.look();
                            if let Some(program) = &mut program {
                                program.start();
                            }
                        }
                        Err(why) => self.console.say(&format!("no address: {why}")),
                    }
                }
                () = agent.turn() => {}
                exit = ended(program.as_mut()) => return Ok(End::Ended(exit)),
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
        tree::signal_each(tree::descendants(own).unwrap_or_default(), Signal::TERM).ok();
        let begun = tokio::time::Instant::now();
        loop {
            self.bury_orphans();
            match tree::descendants(own) {
                Ok(left) if left.is_empty() => return,
                Ok(left) if patience.is_some_and(|patience| begun.elapsed() >= patience) => {
                    tree::signal_each(left, Signal::KILL).ok();
                }
                // What cannot be looked at now is looked at again.
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// Waits until the lease of the machine is over.
async fn fenced(directory: &Path) {
    while !fence::is_over(directory) {
        tokio::time::sleep(fence::LOOK).await;
    }
}

/// Waits for the end of the program, if there is one. Cancel safe.
async fn ended(program: Option<&mut Program>) -> MachineExit {
    match program {
        Some(program) => program.ended().await,
        None => std::future::pending().await,
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
