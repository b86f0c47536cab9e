//! The process that keeps an errand going: it starts the command, passes on the wish to stop and writes down the end.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use stead_model::RunId;
use stead_model::node::ErrandEnd;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::{ARGUMENTS, ErrandError, Errands, Home, KEEPER, RUNNING, failed};
use crate::machine::ProcessMark;

/// The longest document of a command that is handed on.
const LONGEST_DOCUMENT: u64 = 16 << 20;
/// As much is handed on of what it complained of.
const LONGEST_COMPLAINT: u64 = 4096;

/// Keeps the errand `run` going with `program` until it ends; at once if somebody else does, or it has ended.
pub fn keep(errands: &Errands, run: &RunId, program: &Path) -> Result<(), ErrandError> {
    // Whoever started this may go, with all of its group.
    rustix::process::setsid().ok();
    let home = errands.home(run);
    let Some(manifest) = home.open_manifest()? else { return Err(ErrandError::Unknown(run.clone())) };
    // Waits: whoever asks whether it is kept has the lock for a moment. Another keeper has it until the end.
    rustix::fs::flock(&manifest, FlockOperation::LockExclusive)
        .map_err(|errno| failed("lock", &home.directory)(errno.into()))?;
    if home.end()?.is_some() {
        return Ok(());
    }
    if let Some(mark) = ProcessMark::of(std::process::id()) {
        home.write(KEEPER, mark.to_string().as_bytes())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(run_command(&home, &manifest, program)));
    let end = match ended {
        Ok(code) => end_of(&home, code),
        Err(error) => ErrandEnd { complaint: error.to_string(), ..ErrandEnd::default() },
    };
    // Before anybody hears that it ended.
    errands.clear_after(&home, &end);
    home.set_end(&end)
}

/// Returns how an errand ended whose command exited with `code`.
pub(super) fn end_of(home: &Home, code: Option<i32>) -> ErrandEnd {
    ErrandEnd { code, document: document(home), complaint: complaint(home) }
}

/// Runs the command to its end and returns its exit code.
///
/// Its input is the locked file itself: should this process be killed, the command still holds the lock, and the errand
/// goes on as long as the command does.
async fn run_command(home: &Home, manifest: &File, program: &Path) -> io::Result<Option<i32>> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let arguments: Vec<String> = serde_json::from_slice(&fs::read(home.file(ARGUMENTS))?)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdin(manifest.try_clone()?);
    command.stdout(File::create(home.file("document.json"))?).stderr(File::create(home.file("stderr.txt"))?);
    let mut child = command.spawn()?;
    if let Some(mark) = child.id().and_then(ProcessMark::of) {
        // Without it nobody stops the command if this process is killed; that is no reason to stop it now.
        home.write(RUNNING, mark.to_string().as_bytes()).ok();
    }
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    loop {
        tokio::select! {
            ended = child.wait() => return ended.map(|status| status.code()),
            Some(()) = stop.recv() => {}
            Some(()) = interrupt.recv() => {}
        }
        if let Some(pid) = pid {
            // One that has just ended needs no signal.
            kill_process(pid, Signal::INT).ok();
        }
    }
}

fn document(home: &Home) -> Option<serde_json::Value> {
    let mut bytes = Vec::new();
    let file = File::open(home.file("document.json")).ok()?;
    file.take(LONGEST_DOCUMENT).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn complaint(home: &Home) -> String {
    let read = (|| {
        let mut file = File::open(home.file("stderr.txt"))?;
        let from = file.metadata()?.len().saturating_sub(LONGEST_COMPLAINT);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LONGEST_COMPLAINT).read_to_end(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    })();
    read.unwrap_or_default()
}
