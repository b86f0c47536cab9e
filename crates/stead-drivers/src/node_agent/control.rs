//! What is done to a node's agent from outside: it is told something, comes and goes.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use stead_model::node::{Bootstrap, path};
use stead_runner::clock;

use super::place::{AGENT, NodeFiles};
use super::{AgentError, failed, lock};
use crate::machine::{oci, sandbox};

/// The service that runs the agent.
const UNIT: &str = "stead-agent.service";
const UNIT_FILE: &str = "/etc/systemd/system/stead-agent.service";
const UNIT_TEXT: &str = include_str!("../../../../packaging/systemd/stead-agent.service");

/// How long an agent may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn request_path() -> String {
    format!("{AGENT}/converge")
}

/// Tells the agent of the node to converge; returns whether there is one.
///
/// # Errors
/// If its files cannot be used.
pub fn signal_converge(files: &NodeFiles) -> Result<bool, AgentError> {
    let unwritten = "the request cannot be written";
    if !files.real(AGENT).map_err(failed(unwritten))?.is_dir() {
        // There never was one.
        return Ok(false);
    }
    // Written first: an agent that restarts just now finds it.
    files.write(&request_path(), b"", 0o600).map_err(failed(unwritten))?;
    let is_told = lock::signal(files, Signal::USR1).map_err(failed(unwritten))?;
    if !is_told {
        files.remove(&request_path()).map_err(failed(unwritten))?;
    }
    Ok(is_told)
}

/// Whether there is a request to converge.
pub(super) fn has_request(files: &NodeFiles) -> bool {
    files.read(&request_path()).is_ok_and(|request| request.is_some())
}

/// Takes a request to converge: it is kept elsewhere.
pub(super) fn take_request(files: &NodeFiles) {
    // One that stays is found again, and the node converges once more.
    files.remove(&request_path()).ok();
}

/// Tells the node who it is, and has its agent run by that; returns whether something changed.
///
/// # Errors
/// If `bytes` are no bootstrap, or the agent cannot be run.
pub fn enable(files: &NodeFiles, bytes: &[u8]) -> Result<bool, AgentError> {
    let wanted = Bootstrap::parse(bytes).map_err(AgentError::InvalidBootstrap)?;
    let now = files.read(path::BOOTSTRAP).map_err(failed("the bootstrap cannot be read"))?;
    if now.is_some_and(|now| Bootstrap::parse(&now).as_ref() == Ok(&wanted)) {
        return Ok(false);
    }
    files
        .write(path::BOOTSTRAP, wanted.to_json().as_bytes(), 0o600)
        .map_err(failed("the bootstrap cannot be written"))?;
    if !is_kept(files) && is_this_machine(files) {
        let program = std::env::current_exe().map_err(failed("this program's file is not known"))?;
        let unit = UNIT_TEXT.replace("/usr/bin/stead", &program.display().to_string());
        files.write(UNIT_FILE, unit.as_bytes(), 0o644).map_err(failed("the service cannot be written"))?;
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", UNIT])?;
        systemctl(&["restart", UNIT])?;
    }
    Ok(true)
}

/// Stops the node's agent and removes what it was told and what it kept; returns whether something changed.
///
/// # Errors
/// If the agent cannot be stopped.
pub fn disable(files: &NodeFiles) -> Result<bool, AgentError> {
    let unremoved = "the agent's files cannot be removed";
    let was_told = files.read(path::BOOTSTRAP).map_err(failed(unremoved))?.is_some();
    files.remove(path::BOOTSTRAP).map_err(failed(unremoved))?;
    if !is_kept(files) && is_this_machine(files) {
        let unit = files.read(UNIT_FILE).map_err(failed(unremoved))?;
        if unit.is_some() {
            systemctl(&["disable", "--now", UNIT])?;
            files.remove(UNIT_FILE).map_err(failed(unremoved))?;
            systemctl(&["daemon-reload"])?;
        }
    }
    // One that still runs would write again.
    let deadline = clock::instant() + PATIENCE;
    while lock::signal(files, Signal::TERM).map_err(failed(unremoved))? {
        if clock::instant() > deadline {
            return Err(AgentError::Service("the agent does not end".to_owned()));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let kept = files.real(AGENT).map_err(failed(unremoved))?;
    match std::fs::remove_dir_all(kept) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(unremoved)(error)),
        Ok(()) | Err(_) => Ok(was_told),
    }
}

/// Has what keeps the agent of a sandbox or a container look at what the node was told; no if nothing does.
fn is_kept(files: &NodeFiles) -> bool {
    sandbox::look_again(files.root()) || (is_this_machine(files) && oci::look_again())
}

fn is_this_machine(files: &NodeFiles) -> bool {
    files.root() == Path::new("/")
}

fn systemctl(args: &[&str]) -> Result<(), AgentError> {
    let ended = std::process::Command::new("systemctl").args(args).stdin(Stdio::null()).output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(AgentError::Service(format!(
            "systemctl {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) => Err(AgentError::Service(format!(
            "there is no systemctl ({error}): have `stead agent run` started by what starts services here"
        ))),
    }
}

/// Stops the machine.
pub(super) fn power_off(files: &NodeFiles) -> io::Result<()> {
    if sandbox::power_off(files.root()) || (is_this_machine(files) && oci::power_off()) {
        return Ok(());
    }
    if !is_this_machine(files) {
        return Err(io::Error::other("its root is not that of a machine"));
    }
    let ended = std::process::Command::new("poweroff").stdin(Stdio::null()).output()?;
    if ended.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned()))
}
