//! Starting a container: what a driver does until its keeper lives.

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stead_runner::machine::{Changed, MachineError};
use tokio::process::Command;

use super::keeper::{Door, Order};
use super::refusal::{self, Refusal};
use super::runtime::{HALF_PID_FILE, PID_FILE};
use super::{OciDriver, is_rootless, rootless};
use crate::machine::home::{Home, random_hex};
use crate::machine::local::{LOOK_AGAIN, SYSTEM_PATH, blocking, end_all, made};
use crate::machine::sandbox::program_sha256;
use crate::machine::vm::run;

/// How long a container may take until it lives: a little more than all that its keeper waits for at most.
const BIRTH: Duration = Duration::from_secs(240);
/// How long one that goes down may take before it is started anew.
const GOING: Duration = Duration::from_secs(10);

pub(super) async fn start(driver: &OciDriver, home: &Home) -> Result<Changed, MachineError> {
    let Some((held, _)) = made(home).await? else { return Err(home.not_found()) };
    if is_open(home) {
        run::outlast_stop(home).await?;
    }
    let deadline = Instant::now() + GOING;
    // One that goes down may come back by itself. What does neither in time is ended by force below.
    while run::live(home).is_some() && Instant::now() < deadline {
        if is_open(home) {
            return Ok(Changed::No);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let (place, starter) = (home.clone(), driver.clone());
    // The lock goes along: a call that is dropped here still works in the machine's directory.
    let (held, ticket) = blocking(move || Ok((held, prepare(&starter, &place)?))).await?;
    let started = spawn(driver, home, &ticket).await;
    if started.is_err() {
        let (place, ender) = (home.clone(), driver.clone());
        // Nothing of one that did not come up stays; what cannot be ended now is told by whoever comes next.
        let ended = blocking(move || {
            let _held = held;
            end_all(&ender, &place)
        });
        ended.await.ok();
    }
    started.map(|()| Changed::Yes)
}

/// Whether the machine is up and does not go down.
fn is_open(home: &Home) -> bool {
    let door = home.pid().and_then(|(mark, _)| mark.open().and_then(|_| Door::of(home, &mark)));
    door.is_some_and(|door| !door.is_closing())
}

/// Removes what the run before left and says what is wanted of the next one; returns its ticket.
fn prepare(driver: &OciDriver, home: &Home) -> Result<String, MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let settings = &driver.settings;
    let runtime = settings.runtime.find()?;
    let way_out = if is_rootless() {
        rootless::refuse(&rootless::absent())?;
        rootless::find(rootless::SLIRP)
    } else {
        None
    };
    run::clear(driver, home, &["door.json", refusal::FILE, PID_FILE, HALF_PID_FILE])?;
    let order = Order {
        runtime,
        sha256: program_sha256(&settings.program).map_err(failed)?,
        program: settings.program.clone(),
        bridge: settings.bridge.clone(),
        subnet: settings.subnet.to_string(),
        hidden: driver.hidden(),
        way_out,
    };
    order.give(home).map_err(failed)?;
    let ticket = random_hex().map_err(failed)?;
    home.set_ticket(&ticket).map_err(failed)?;
    Ok(ticket)
}

/// Starts the keeper and waits until its container lives.
async fn spawn(driver: &OciDriver, home: &Home, ticket: &str) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let console = std::fs::File::options().create(true).append(true).open(home.console()).map_err(failed)?;
    let program = &driver.settings.program;
    let mut command = match is_rootless() {
        true => Command::from(rootless::through(program, None, program, home.directory())),
        false => Command::new(program),
    };
    command.args(["container", "keep", "--machine"]).arg(home.directory()).args(["--ticket", ticket]);
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(console.try_clone().map_err(failed)?)
        .stderr(console);
    command.env_clear().env("PATH", SYSTEM_PATH).env(super::MARK, home.directory());
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + BIRTH;
    loop {
        if run::live(home).is_some() {
            // It is nobody's child from here on: whoever drives the machine next adopts it.
            return Ok(());
        }
        let dead = |what: String| MachineError::Failed { what, last_lines: home.last_lines() };
        if let Some(status) = child.try_wait().map_err(failed)? {
            if home.pid().is_some() {
                // It came up, and its program is over already.
                return Ok(());
            }
            if home.exit().is_none() {
                return Err(run::died(home, Some(status)));
            }
            let told = Refusal::told(home);
            return Err(told.unwrap_or_else(|| dead("the container died at once".to_owned())));
        }
        if Instant::now() > deadline {
            let what = format!("the container does not come to life within {} s", BIRTH.as_secs());
            return Err(dead(what));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
