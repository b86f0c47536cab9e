//! Programs that are run in a container from outside, by its runtime: to look whether it is ready.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stead_model::machine::MachineId;

use super::runtime::Runtime;
use super::{KIND, container_id};
use crate::machine::home::{Home, canonical, remove};
use crate::machine::local::LOOK_AGAIN;
use crate::machine::tree;

/// How long the runtime may take to note that what it ran was killed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Numbers the programs that this process runs.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Runs a program in the container `id` that is kept in `root_dir`, and returns whether it ended well. One that takes
/// longer than `patience`, or that `is_over` says nobody waits for any more, is killed. Blocks.
///
/// # Errors
/// With how it ended, or why it could not be run.
pub fn execute(
    root_dir: &Path,
    id: &MachineId,
    argv: &[String],
    patience: Duration,
    is_over: &AtomicBool,
) -> Result<(), String> {
    let home = Home::at(&KIND, canonical(root_dir).join(id.as_str()));
    let runtime =
        Runtime::of(&home, &container_id(&home)).ok_or("the container was never started, or does not run")?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Names of its own: a runtime does not write over what is there.
    let name = format!("exec-{}-{number}", std::process::id());
    let (pid_file, log) = (home.file(&format!("{name}.pid")), home.file(&format!("{name}.log")));
    let mut command = runtime.exec(argv, &pid_file, &log);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let run = || wait(command.spawn()?, &pid_file, Instant::now() + patience, is_over);
    let ended = runtime.apart(run).map_err(|error| error.to_string());
    let said = fs::read_to_string(&log).unwrap_or_default();
    for file in [&pid_file, &log] {
        remove(file).ok();
    }
    match ended?.map_err(|error| format!("{} cannot be started: {error}", runtime.name()))? {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let last = stead_model::tail::last_words(&said).into_iter().next_back().map(str::to_owned);
            Err(last.map_or_else(|| status.to_string(), |line| format!("{status}: {line}")))
        }
        None => Err(format!("it did not end within {} s", patience.as_secs())),
    }
}

/// Waits for the end of a program; none if it had to be killed.
fn wait(
    mut child: Child,
    pid_file: &Path,
    deadline: Instant,
    is_over: &AtomicBool,
) -> io::Result<Option<ExitStatus>> {
    while Instant::now() < deadline && !is_over.load(Ordering::Relaxed) {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let deadline = Instant::now() + LAST_WORDS;
    while child.try_wait()?.is_none() {
        // It may only be coming up. The runtime waits for it, so that the number is nobody else's.
        let inside = fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok());
        tree::signal_each(inside, Signal::KILL)?;
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(None)
}
