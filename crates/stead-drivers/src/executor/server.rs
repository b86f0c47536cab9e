//! `stead executor --session RUN`: the process that outlives connections.
//!
//! It takes connections, hears which host of the run each is for, and hands it to that host's [`HostSession`]. It
//! ends when the last of them has ended, removing its directory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stead_model::RunId;
use stead_model::executor::{LEASE, PROTOCOL, Welcome};
use stead_runner::files::Content;
use stead_runner::operation::Registry;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::roles::site::Site;

use super::attach::READY;
use super::greeting::{Greeted, greet};
use super::home::Home;
use super::host::{Connection, HostSession};
use super::lock::TargetLock;
use super::versions;

/// Connections that wait for their host's attention: a host has one driver, which connects anew when it lost one.
const WAITING: usize = 4;

/// Operations at once that need a thread; a host runs eight unless its inventory says more.
const THREADS: usize = 128;

/// What the hosts of one session share.
pub(super) struct Shared {
    pub(super) registry: Registry,
    pub(super) run: RunId,
    pub(super) home: Home,
    pub(super) account_home: PathBuf,
    pub(super) lock: TargetLock,
    pub(super) welcome: Welcome,
    /// Where roles work if nobody says otherwise, the first choice first.
    workdirs: Vec<PathBuf>,
    /// Places where roles work, by what was said: hosts of one run may share one.
    sites: Mutex<BTreeMap<Option<PathBuf>, Arc<Site>>>,
}

impl Shared {
    /// Returns the place where roles work: in `workdir`, if it is said.
    pub(super) fn site(&self, workdir: Option<PathBuf>) -> Arc<Site> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let places = || workdir.clone().map_or_else(|| self.workdirs.clone(), |workdir| vec![workdir]);
        let site = sites.entry(workdir.clone()).or_insert_with(|| Arc::new(Site::new(places())));
        Arc::clone(site)
    }
}

/// Runs the session of `run` to its end.
///
/// # Errors
/// If it cannot listen. What goes wrong later is told to the driver.
pub fn serve(
    registry: Registry,
    run: RunId,
    base: &Path,
    account_home: PathBuf,
    workdirs: Vec<PathBuf>,
) -> io::Result<()> {
    // As a child of `attach` it is no group's leader, so this works; where it does not, a lost terminal may end it.
    rustix::process::setsid().ok();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap_or(());
    crate::network::watch::leave_to_driver();
    let home = Home::new(base, &run);
    let executable = std::env::current_exe()?;
    let directory = executable.parent().map(Path::to_owned).unwrap_or_default();
    let in_use = directory.starts_with(base).then(|| versions::hold(&directory)).flatten();
    let listener = home.listen()?;
    listener.set_nonblocking(true)?;
    std::env::set_current_dir("/")?;
    say_ready()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .build()?;
    let shared = Shared {
        registry,
        lock: TargetLock::new(base),
        account_home,
        workdirs,
        sites: Mutex::default(),
        welcome: welcome(&executable, &directory)?,
        run,
        home,
    };
    let served = runtime.block_on(async {
        let listener = UnixListener::from_std(listener)?;
        listen(Arc::new(shared), &listener).await
    });
    runtime.shutdown_background();
    drop(in_use);
    served
}

/// Tells `attach` that it can connect, and lets go of its pipe.
fn say_ready() -> io::Result<()> {
    let mut out = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(READY)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

fn welcome(executable: &Path, directory: &Path) -> io::Result<Welcome> {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_hash = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let sha256 = match is_hash {
        true => name.to_owned(),
        false => Content::read(&mut std::fs::File::open(executable)?)?.sha256,
    };
    let kernel = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot_id = crate::machine::oci::boot_id().unwrap_or_else(kernel);
    Ok(Welcome {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sha256,
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id(),
        boot_id: boot_id.trim().to_owned(),
        resumed: Vec::new(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        time_micros: 0,
    })
}

async fn listen(shared: Arc<Shared>, listener: &UnixListener) -> io::Result<()> {
    let mut hosts: BTreeMap<String, mpsc::Sender<Greeted>> = BTreeMap::new();
    let mut sessions: JoinSet<(String, Option<Connection>)> = JoinSet::new();
    // A driver that started it and never came.
    let first_contact = tokio::time::Instant::now() + LEASE;
    // Closed when the directory has gone: then a driver that said goodbye knows that nothing is left.
    let mut farewells: Vec<Connection> = Vec::new();
    let mut greetings: JoinSet<Option<Greeted>> = JoinSet::new();
    let mut had_session = false;
    let mut asked = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            // Asked to go, it goes as at the end of its lease: nothing of it stays.
            Some(()) = asked.recv() => { hosts.clear(); had_session = true; }
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                greetings.spawn(greet(stream));
            },
            Some(greeted) = greetings.join_next(), if !greetings.is_empty() => {
                if let Ok(Some(greeted)) = greeted && greeted.hello.run == shared.run {
                    had_session = true;
                    let host = greeted.hello.host.clone();
                    let door = hosts.entry(host.clone()).or_insert_with(|| {
                        let (door, connections) = mpsc::channel(WAITING);
                        let session = HostSession::new(Arc::clone(&shared), host.clone(), connections);
                        sessions.spawn(async move {
                            let connection = session.run().await;
                            (host, connection)
                        });
                        door
                    });
                    // Full: a driver that connects faster than it is heard. It tries again.
                    drop(door.try_send(greeted));
                }
            },
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => match ended {
                Ok((host, connection)) => {
                    hosts.remove(&host);
                    farewells.extend(connection);
                }
                // Its door is closed; the next connection begins anew.
                Err(_) => hosts.retain(|_, door| !door.is_closed()),
            },
            () = tokio::time::sleep_until(first_contact), if !had_session => had_session = true,
        }
        if !sessions.is_empty() {
            farewells.clear();
        } else if had_session && greetings.is_empty() && leave(&shared.home, listener)? {
            return Ok(());
        }
    }
}

/// Removes the session's directory, unless somebody is at the door.
fn leave(home: &Home, listener: &UnixListener) -> io::Result<bool> {
    let doorstep = home.doorstep()?;
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let waiting = poll(&mut [PollFd::new(&listener.as_fd(), PollFlags::IN)], Some(&at_once))?;
    if waiting > 0 {
        return Ok(false);
    }
    home.remove();
    drop(doorstep);
    Ok(true)
}
