//! Containers of an ordinary account. Everything that root does for one is done by the root of a user namespace, which
//! is the account itself outside of it.
//!
//! ```text
//!   driver ── spawns ──▶ stead container apart ── becomes ──▶ stead container keep | make | remove
//!                          └─ stead container map ── newuidmap, newgidmap
//! ```
//! A process that has several threads cannot have another user namespace, so that nothing of this is done in the driver
//! itself. The namespace goes with its last process; files in it belong to the numbers that `/etc/subuid` and
//! `/etc/subgid` give the account, and only from such a namespace can they be removed again.

mod making;
mod way_out;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups};
use stead_runner::machine::MachineError;

pub use making::make;
pub(super) use making::make_apart;
pub(super) use way_out::{ADDRESS, WayOut};

use super::MARK;
use crate::command::program;
use crate::machine::home;
use crate::machine::local::SYSTEM_PATH;

/// What accounts are called.
const ACCOUNTS: &str = "/etc/passwd";
/// What gives a container its way out.
pub(super) const SLIRP: &str = "slirp4netns";
/// By what that is a network card.
const TUN: &str = "/dev/net/tun";
/// How many numbers a root has besides its own: as many as distributions use.
const NUMBERS: u32 = 65_535;

/// A list of who may use which numbers, and the program that hands them out.
struct Numbers {
    file: &'static str,
    program: &'static str,
    /// What `usermod` calls them.
    flag: &'static str,
}

const USERS: Numbers = Numbers { file: "/etc/subuid", program: "newuidmap", flag: "--add-subuids" };
const GROUPS: Numbers = Numbers { file: "/etc/subgid", program: "newgidmap", flag: "--add-subgids" };

/// Something that this account lacks to have containers, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What it is called where things are checked one by one.
    pub name: &'static str,
    /// What is missing.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// Whether containers are those of an ordinary account here.
pub fn is_rootless() -> bool {
    !geteuid().is_root()
}

/// Returns what this account lacks to have containers; `program` is this program. Where nothing is missing it is tried, which
/// leaves nothing.
pub fn lacks(program: &Path) -> Vec<Lack> {
    let mut found = absent();
    if found.is_empty()
        && let Err(why) = attempt(program)
    {
        let fix = "let accounts have user namespaces: see `sysctl user.max_user_namespaces \
                   kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`";
        let what = format!("this account cannot have namespaces of its own: {why}");
        found.push(Lack { name: "user namespaces", what, fix: fix.to_owned() });
    }
    found
}

/// Returns what is not there that containers of this account need.
pub(super) fn absent() -> Vec<Lack> {
    let mut found = Vec::new();
    let mut lack = |name: &'static str, what: String, fix: String| found.push(Lack { name, what, fix });
    let uid = geteuid().as_raw();
    let accounts = fs::read_to_string(ACCOUNTS).unwrap_or_default();
    let account = name_of(&accounts, uid).map_or_else(|| uid.to_string(), str::to_owned);
    for Numbers { file, program, flag } in [USERS, GROUPS] {
        if find(program).is_none() {
            let what = format!("the program `{program}` is not installed");
            lack(program, what, "install the Debian package uidmap".to_owned());
        }
        let ranges = fs::read_to_string(file).unwrap_or_default();
        if range_of(&ranges, &account, uid).is_none() {
            let what = format!("{file} gives the account {account} no {NUMBERS} numbers in a row");
            let fix =
                format!("as root: usermod {flag} FIRST-LAST {account}, with 65536 that nobody else has");
            lack(file, what, fix);
        }
    }
    if find(SLIRP).is_none() {
        let what = format!("the program `{SLIRP}` is not installed, by which containers have a way out");
        lack(SLIRP, what, format!("install the Debian package {SLIRP}"));
    }
    if let Err(error) = File::options().read(true).write(true).open(TUN) {
        let what = format!("{TUN} cannot be opened, by which containers have a network card: {error}");
        lack(TUN, what, format!("as root: modprobe tun; chmod 666 {TUN}, as udev does"));
    }
    found
}

/// Refuses to go on where something is missing: no waiting brings it.
pub(super) fn refuse(lacks: &[Lack]) -> Result<(), MachineError> {
    let said: Vec<String> = lacks.iter().map(|lack| format!("{} ({})", lack.what, lack.fix)).collect();
    if said.is_empty() {
        return Ok(());
    }
    let why = "only root has containers here, because an ordinary account lacks what it needs for them";
    Err(MachineError::Unsupported(format!("{why}: {}", said.join("; "))))
}

/// Tries what every container needs, in a namespace that goes at once.
fn attempt(program: &Path) -> Result<(), String> {
    let ended = through(program, None, program, Path::new("/")).args(["container", "try"]).output();
    let ended = ended.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = || stead_model::tail::last_words(&said).into_iter().next_back().unwrap_or_default();
    // Its own code says nothing that is not said here.
    let why = || last().split_once("]: ").map_or_else(last, |(_, why)| why).to_owned();
    if ended.status.success() { Ok(()) } else { Err(why()) }
}

pub(super) fn find(name: &str) -> Option<PathBuf> {
    program::find(name, Path::new("/"), Some(OsStr::new(SYSTEM_PATH))).ok()
}

/// Returns the command that runs `inner` as root of a user namespace: that of the process `of`, else one of its own.
/// `program` is this program; what runs is known by `mark`.
pub(super) fn through(program: &Path, of: Option<u32>, inner: &Path, mark: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["container", "apart"]);
    if let Some(pid) = of {
        command.args(["--of", &pid.to_string()]);
    }
    command.arg("--").arg(inner).stdin(Stdio::null());
    command.env_clear().env("PATH", SYSTEM_PATH).env(MARK, mark).current_dir("/");
    command
}

/// Becomes the program of `argv` as root of a user namespace: that of the process `of`, else one of its own.
///
/// # Errors
/// If it cannot.
pub fn apart(of: Option<u32>, argv: &[OsString]) -> io::Result<()> {
    let [program, arguments @ ..] = argv else { return Err(io::Error::other("there is no program")) };
    match of {
        Some(pid) => join(pid)?,
        None => part()?,
    }
    // Groups that the account is in are no groups of whoever is in a container.
    set_thread_groups(&[])?;
    Err(Command::new(program).args(arguments).exec())
}

/// Gives this process a user namespace of its own, in which it is root.
#[expect(
    deprecated,
    reason = "the other one is unsafe; no descriptor is unshared here, which is what can go wrong"
)]
fn part() -> io::Result<()> {
    // Started before, because it has to stay outside.
    let mut mapper = Command::new(std::env::current_exe()?);
    mapper.args(["container", "map", &std::process::id().to_string()]);
    let mut mapper = mapper.stdin(Stdio::piped()).spawn()?;
    let gone = rustix::thread::unshare(UnshareFlags::NEWUSER)
        .map_err(|errno| io::Error::other(format!("the kernel gives it no user namespace: {errno}")));
    let told = match (&gone, mapper.stdin.take()) {
        (Ok(()), Some(mut pipe)) => pipe.write_all(b"\n"),
        (Ok(()) | Err(_), _) => Ok(()),
    };
    let status = mapper.wait()?;
    gone.and(told)?;
    if status.success() { Ok(()) } else { Err(io::Error::other("its numbers cannot be mapped")) }
}

/// Puts this process into the user namespace of another, and among its mounts.
fn join(pid: u32) -> io::Result<()> {
    let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
    let (user, mounts) = (open("user")?, open("mnt")?);
    move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(())
}

/// Maps the numbers of this account into the user namespace of the process `pid`, once standard input says that it has
/// one.
///
/// # Errors
/// If they cannot be, or there is none.
pub fn map(pid: u32) -> io::Result<()> {
    if io::stdin().read(&mut [0])? == 0 {
        return Err(io::Error::other("there is no namespace"));
    }
    let uid = geteuid().as_raw();
    let accounts = fs::read_to_string(ACCOUNTS)?;
    let account = name_of(&accounts, uid).map_or_else(|| uid.to_string(), str::to_owned);
    for (Numbers { file, program, .. }, own) in [(USERS, uid), (GROUPS, getegid().as_raw())] {
        let first = range_of(&fs::read_to_string(file)?, &account, uid);
        let first = first.ok_or_else(|| io::Error::other(format!("{file} has too little for {account}")))?;
        let words = [pid, 0, own, 1, 1, first, NUMBERS].map(|number| number.to_string());
        let mut command = Command::new(program);
        let status = command.args(words).env("PATH", SYSTEM_PATH).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("`{program}` failed ({status})")));
        }
    }
    Ok(())
}

/// Removes trees in which files belong to numbers of this account. Blocks.
pub(super) fn remove_apart(program: &Path, mark: &Path, paths: &[PathBuf]) -> io::Result<()> {
    let mut command = through(program, None, program, mark);
    let ended = command.args(["container", "remove"]).args(paths).output()?;
    if ended.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned()))
}

/// Removes trees.
///
/// # Errors
/// If one cannot be removed.
pub fn remove(paths: &[PathBuf]) -> io::Result<()> {
    paths.iter().try_for_each(|path| home::remove(path))
}

/// Returns what an account is called.
fn name_of(accounts: &str, uid: u32) -> Option<&str> {
    let number = uid.to_string();
    let line = accounts.lines().find(|line| line.split(':').nth(2) == Some(number.as_str()))?;
    line.split(':').next()
}

/// Returns the first of as many numbers as a container has, that the account may use.
fn range_of(ranges: &str, account: &str, uid: u32) -> Option<u32> {
    let number = uid.to_string();
    ranges.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let whose = fields.next()?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let fits = (whose == account || whose == number) && count >= NUMBERS;
        (fits && first > 0 && first.checked_add(count).is_some()).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_account_and_enough() {
        let accounts = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!((name_of(accounts, 1000), name_of(accounts, 1)), (Some("ann"), None));
        let ranges = "bob:100000:65536\nann:7:10\nann:165536:65536\n1001:300000:65535\nbad\nann:x:1\n";
        assert_eq!(range_of(ranges, "ann", 1000), Some(165_536));
        assert_eq!(range_of(ranges, "1001", 1001), Some(300_000));
        assert_eq!(range_of(ranges, "eve", 1002), None);
        assert_eq!(range_of("ann:0:65536\nann:4294967290:65536\n", "ann", 1000), None);
    }
}
