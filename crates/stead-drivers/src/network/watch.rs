//! Network changes that undo themselves: a process of their own on the target puts everything back unless the change
//! is confirmed in time.
//!
//! ```text
//!   /run/stead/network/N/  run        the run's id
//!                          undo/NNN   commands, each a list of arguments ended by NUL
//!                          pending    renamed to `confirmed` by whoever confirms, to `undoing` by the process
//!                          applied    the change is made: who is heard from now on is heard through it
//!                          fire       makes the process undo at once
//! ```
//!
//! The rename decides: a change is confirmed or undone, never both. Who confirms: on this machine the operation
//! itself, once it has seen that everything holds. In an executor the driver, by having reached the machine again:
//! it calls [`leave_to_driver`] when it starts, and confirms what was [`made`] before it gave a result when the driver
//! has acknowledged that result.
//! A restart of the machine within the time loses the process; the new files then stay.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stead_model::RunId;
use stead_runner::operation::{OpContext, OpError};

use crate::command::blocking::{self, Program};
use crate::disk::Disk;
use crate::disk::seen::Kind;
use crate::file::entry::Entry;
use crate::setup::Wish;
use crate::setup::live::{Live, is_gone};
use crate::setup::settle::{self, Settle};

const PLACE: &str = "/run/stead/network";
/// How long an undo at once may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process: waits, then runs every command. Arguments: directory, seconds.
const SCRIPT: &str = r#"cd "$1" || exit 1
left=$2
while [ "$left" -gt 0 ] && [ ! -e fire ]; do
    if [ -e confirmed ]; then cd /; rm -rf "$1"; exit 0; fi
    sleep 1
    left=$((left - 1))
done
if mv pending undoing 2>/dev/null; then
    for command in undo/*; do xargs -0 env <"$command"; done
fi
cd /
rm -rf "$1"
"#;

/// Whether the driver confirms, not the operation.
static BY_DRIVER: AtomicBool = AtomicBool::new(false);

/// Leaves it to the driver to confirm network changes made by this process: an executor's, on another machine.
pub fn leave_to_driver() {
    BY_DRIVER.store(true, Ordering::Relaxed);
}

/// Confirms the network changes of a run on this machine: the driver has reached it since.
///
/// Returns how many there were that were made and not undone already.
///
/// # Errors
/// If they cannot be looked at.
pub fn confirm(run: &RunId) -> io::Result<usize> {
    Ok(made(run)?.into_iter().map(Made::confirm).filter(|is_confirmed| *is_confirmed).count())
}

/// A change that is made and waits to be confirmed.
#[derive(Debug)]
pub(crate) struct Made {
    directory: PathBuf,
}

impl Made {
    /// Confirms it; returns whether it was not undone already.
    pub(crate) fn confirm(self) -> bool {
        fs::rename(self.directory.join("pending"), self.directory.join("confirmed")).is_ok()
    }
}

/// Returns the network changes of a run that are made on this machine and wait to be confirmed.
pub(crate) fn made(run: &RunId) -> io::Result<Vec<Made>> {
    let entries = match fs::read_dir(PLACE) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut made = Vec::new();
    for entry in entries {
        let directory = entry?.path();
        let is_ours = directory.join("applied").exists()
            && fs::read_to_string(directory.join("run")).is_ok_and(|found| found == run.as_str());
        if is_ours && directory.join("pending").exists() {
            made.push(Made { directory });
        }
    }
    Ok(made)
}

/// A change that is undone unless it is confirmed.
#[derive(Debug)]
pub(crate) struct Watch {
    directory: PathBuf,
    seconds: u64,
}

impl Watch {
    /// Starts the process that puts back what is there now.
    pub(crate) fn start(
        cx: &OpContext,
        disk: &Disk,
        seconds: u64,
        entries: &[Entry],
        wishes: &[Wish],
        settle: &[Settle],
    ) -> Result<Self, OpError> {
        let failed =
            |error: io::Error| OpError::io(format_args!("cannot watch the change in `{PLACE}`"), &error);
        let directory = make_directory().map_err(failed)?;
        let watch = Self { directory, seconds };
        watch.fill(cx, disk, entries, wishes, settle).and_then(|()| watch.spawn(cx)).inspect_err(|_| {
            // Nothing has been changed and no process runs yet.
            fs::remove_dir_all(&watch.directory).unwrap_or(());
        })?;
        Ok(watch)
    }

    fn fill(
        &self,
        cx: &OpContext,
        disk: &Disk,
        entries: &[Entry],
        wishes: &[Wish],
        settle: &[Settle],
    ) -> Result<(), OpError> {
        let failed = |error: io::Error| OpError::io(format_args!("`{}`", self.directory.display()), &error);
        let mut commands = Vec::new();
        let differing: Vec<&Entry> = entries.iter().filter(|entry| entry.differs()).collect();
        let (gone, kept): (Vec<&Entry>, Vec<&Entry>) =
            differing.iter().partition(|entry| entry.seen.kind == Kind::Absent);
        for (number, entry) in kept.into_iter().enumerate() {
            commands.extend(self.restore(number, disk, entry)?);
        }
        for entry in gone.into_iter().rev() {
            let path = |path: &Path| disk.outside(path).into_os_string();
            let program = if entry.want.kind == Kind::Directory { "rmdir" } else { "rm" };
            commands.push(vec![program.into(), path(&entry.spot.path)]);
            // Made on the way; one that holds something else stays.
            let made = entry.spot.missing.iter().rev();
            commands.extend(made.map(|directory| vec!["rmdir".into(), path(directory)]));
        }
        // Backwards: what was put in last goes first.
        for wish in wishes.iter().rev().filter(|wish| wish.differs) {
            commands.extend(wish.part.ip_args(&wish.seen).map(|args| {
                [vec![OsString::from("ip")], args.into_iter().map(OsString::from).collect()].concat()
            }));
        }
        // A route goes with the address it is reached by, also one that nobody changed: it comes back last.
        let moves = wishes.iter().any(|wish| wish.differs && matches!(wish.part, Live::Address(..)));
        let is_lost = |wish: &&Wish| moves && matches!(wish.part, Live::Route(_)) && !is_gone(&wish.seen);
        let routes = wishes.iter().filter(is_lost);
        commands.extend(routes.filter_map(|wish| wish.part.ip_args(&wish.seen)).map(|args| {
            [vec![OsString::from("ip")], args.into_iter().map(OsString::from).collect()].concat()
        }));
        if settle.contains(&Settle::Netplan) {
            commands.push(vec!["netplan".into(), "apply".into()]);
        }
        fs::create_dir(self.directory.join("undo")).map_err(failed)?;
        for (number, command) in commands.iter().enumerate() {
            let bytes: Vec<u8> =
                command.iter().flat_map(|arg| [arg.as_encoded_bytes(), b"\0"].concat()).collect();
            fs::write(self.directory.join(format!("undo/{number:03}")), bytes).map_err(failed)?;
        }
        let run = cx.run_id.as_ref().map(RunId::as_str).unwrap_or_default();
        fs::write(self.directory.join("run"), run).map_err(failed)?;
        fs::write(self.directory.join("pending"), "").map_err(failed)
    }

    /// Returns the commands that put back what is there.
    fn restore(&self, number: usize, disk: &Disk, entry: &Entry) -> Result<Vec<Vec<OsString>>, OpError> {
        let path = disk.outside(&entry.spot.path).into_os_string();
        match entry.seen.kind {
            Kind::File => {}
            Kind::Directory => return Ok(vec![vec!["mkdir".into(), path]]),
            Kind::Absent | Kind::Symlink | Kind::Other | Kind::Unknown => {
                return Err(OpError::permanent(format!("`{}` is not a file", entry.spot.path.display())));
            }
        }
        let failed = |error: io::Error| OpError::io(format_args!("`{}`", entry.spot.path.display()), &error);
        let bytes = disk.read(&entry.spot, &entry.seen, crate::file::edit::LARGEST)?;
        let copy = self.directory.join(format!("file-{number}"));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy).map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        std::os::unix::fs::fchown(&file, Some(entry.seen.uid), Some(entry.seen.gid)).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(entry.seen.mode)).map_err(failed)?;
        let mut beside = path.clone();
        beside.push(".stead-undo");
        Ok(vec![
            vec!["cp".into(), "-p".into(), copy.into_os_string(), beside.clone()],
            vec!["mv".into(), "-f".into(), beside, path],
        ])
    }

    /// Starts the process, free of this one: neither its end nor a cancel reaches it.
    fn spawn(&self, cx: &OpContext) -> Result<(), OpError> {
        let directory = self.directory.clone().into_os_string();
        let script = ["/bin/sh", "-c", SCRIPT, "stead-network-watch"].map(OsString::from);
        let script = script.into_iter().chain([directory, self.seconds.to_string().into()]);
        let (name, options): (&str, &[&str]) = if settle::has_systemd() {
            ("systemd-run", &["--quiet", "--collect", "--no-block", "--"])
        } else {
            // No variable of the run: by them what a run left behind is found and ended.
            (
                "setsid",
                &["--fork", "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            )
        };
        let args = options.iter().map(OsString::from).chain(script).collect();
        let program = Program { name: name.to_owned(), args, cwd: "/".into(), env: Default::default() };
        let said = blocking::run_apart(cx, program)?;
        if said.is_ok() {
            return Ok(());
        }
        Err(OpError::operation(format!("the change cannot be watched: `{name}`: {}", said.describe())))
    }

    /// Confirms the change if that is for this process to do. Returns what the user should know.
    pub(crate) fn finish(self) -> Result<Option<String>, OpError> {
        if BY_DRIVER.load(Ordering::Relaxed) {
            fs::write(self.directory.join("applied"), "")
                .map_err(|error| OpError::io(format_args!("`{}`", self.directory.display()), &error))?;
            return Ok(Some(format!(
                "undone after {}s unless the driver reaches the machine again",
                self.seconds
            )));
        }
        fs::rename(self.directory.join("pending"), self.directory.join("confirmed")).map(|()| None).map_err(
            |_| {
                OpError::operation(format!(
                    "the change took longer than `confirm`, {}s, and was undone",
                    self.seconds
                ))
            },
        )
    }

    /// Undoes the change at once, and waits until it is undone.
    pub(crate) fn undo(self) {
        // If this fails the time goes by and undoes it.
        fs::write(self.directory.join("fire"), "").unwrap_or(());
        let start = Instant::now();
        while self.directory.exists() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Makes the place of all. Who changes networks of machines removes the empty one above it, perhaps just now.
fn make_place() -> io::Result<()> {
    let mut tries = 1..100;
    loop {
        match DirBuilder::new().recursive(true).mode(0o700).create(PLACE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
            made => return made,
        }
    }
}

/// Makes a directory that nobody else has.
fn make_directory() -> io::Result<PathBuf> {
    make_place()?;
    for number in 1..10_000 {
        let directory = Path::new(PLACE).join(number.to_string());
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Returns an error naming the first part that does not hold.
pub(crate) fn verify(cx: &OpContext, wishes: &[Wish]) -> Result<(), OpError> {
    for wish in wishes.iter().filter(|wish| !wish.part.is_derived()) {
        let now = wish.part.read(cx)?;
        if wish.part.differs(&now, &wish.want) {
            let part: &Live = &wish.part;
            return Err(OpError::operation(format!(
                "after the change {part} should be {} but is {now}; it was undone",
                wish.want
            )));
        }
    }
    Ok(())
}
