//! What a driver does to a sandbox. Each step leaves a state from which every call goes on or starts over.

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stead_model::machine::MachineExit;
use stead_runner::clock;
use stead_runner::machine::{Changed, MachineError, Stopped};
use tokio::process::Command;

use super::faults::{self, Phase};
use super::home::{Home, Sheet};
use super::{SandboxDriver, SandboxSettings};
use crate::machine::home::{random_hex, write_text};
use crate::machine::local::{LOOK_AGAIN, Local as _, SYSTEM_PATH, blocking, end_all, made};

/// How long a process may take until it lives.
const BIRTH: Duration = Duration::from_secs(60);
/// How long one that goes down may take before it is started anew.
const GOING: Duration = Duration::from_secs(10);

pub(super) fn sheet(settings: &SandboxSettings, node: &str) -> Sheet {
    Sheet {
        schema: 1,
        node: node.to_owned(),
        packages: settings.packages.clone(),
        services: settings.services.clone(),
        boot_delay_ms: u64::try_from(settings.boot_delay.as_millis()).unwrap_or(u64::MAX),
        faults: settings.faults.clone(),
        parent: settings.parent.clone(),
    }
}

/// Waits as long as the fault says, and fails if it says so.
pub(super) async fn suffer(home: &Home, phase: Phase) -> Result<(), MachineError> {
    let Some(struck) = faults::strike(home, phase) else { return Ok(()) };
    tokio::time::sleep(struck.delay).await;
    struck.message().map_or(Ok(()), |message| Err(MachineError::failed(message)))
}

pub(super) async fn start(driver: &SandboxDriver, home: &Home) -> Result<Changed, MachineError> {
    let settings = &driver.settings;
    let Some((held, record)) = made(home).await? else { return Err(home.not_found()) };
    let failed = |error: io::Error| home.failed("start", &error);
    if let Some(running) = home.pid().and_then(|(mark, _)| mark.open()) {
        if !home.file("stopping").exists() {
            return Ok(Changed::No);
        }
        // Somebody wanted to stop it and did not live to ask, or to see it through. What does not go is ended below.
        running.signal(Signal::TERM);
        if let Ok(ended) = tokio::time::timeout(GOING, running.ended()).await {
            ended.map_err(failed)?;
        }
    }
    home.set_sheet(&sheet(settings, record.spec.owner.name())).map_err(failed)?;
    let ticket = random_hex().map_err(failed)?;
    let (place, ender) = (home.clone(), driver.clone());
    let given = ticket.clone();
    // The lock goes along: a call that is dropped here still works in the machine's directory.
    let held = blocking(move || {
        let watch = ender.watch();
        // What a killed supervisor left would be in the way of the next one.
        end_all(&ender, &place)?;
        watch("quiet");
        let failed = |error: io::Error| place.failed("start", &error);
        for stale in ["pid", "door.json", "exit.json", "stopping"] {
            match std::fs::remove_file(place.file(stale)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                Ok(()) | Err(_) => {}
            }
        }
        watch("fresh");
        // A process that was started for an earlier call and only now comes to life sees that it is not meant.
        place.set_ticket(&given).map_err(failed)?;
        watch("ticket");
        Ok(held)
    })
    .await?;
    spawn(settings, home, &ticket).await?;
    drop(held);
    Ok(Changed::Yes)
}

/// Starts the supervisor and waits until it lives.
async fn spawn(settings: &SandboxSettings, home: &Home, ticket: &str) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let console = std::fs::File::options().create(true).append(true).open(home.console()).map_err(failed)?;
    let mut command = Command::new(&settings.program);
    command.arg("sandbox").arg("--machine").arg(home.directory()).arg("--ticket").arg(ticket);
    command.current_dir("/").stdin(Stdio::null());
    command.stdout(console.try_clone().map_err(failed)?).stderr(console);
    command.env_clear().env("PATH", SYSTEM_PATH).env(super::MARK, home.directory());
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + BIRTH;
    loop {
        if home.pid().is_some_and(|(mark, _)| mark.open().is_some()) {
            // It is nobody's child from here on: whoever drives the machine next adopts it.
            return Ok(());
        }
        let dead = |how: String| MachineError::Failed { what: how, last_lines: home.last_lines() };
        if let Some(status) = child.try_wait().map_err(failed)? {
            if home.exit().is_none() {
                let exit = MachineExit {
                    code: status.code(),
                    signal: std::os::unix::process::ExitStatusExt::signal(&status),
                    at: Some(clock::now()),
                    reason: "it died at once".to_owned(),
                };
                home.set_exit(&exit).map_err(failed)?;
            }
            return Err(dead(format!("the sandbox's process died at once ({status})")));
        }
        if Instant::now() > deadline {
            child.start_kill().ok();
            return Err(dead("the sandbox's process does not come to life".to_owned()));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

pub(super) async fn stop(
    driver: &SandboxDriver,
    home: &Home,
    grace: Duration,
) -> Result<Stopped, MachineError> {
    let unchanged = Stopped { changed: false, forced: false };
    let Some((held, _)) = made(home).await? else { return Ok(unchanged) };
    let Some(handle) = home.pid().and_then(|(mark, _)| mark.open()) else {
        let (place, ender) = (home.clone(), driver.clone());
        // What a killed supervisor left goes too.
        return blocking(move || {
            let _held = held;
            end_all(&ender, &place).map(|()| unchanged)
        })
        .await;
    };
    // Known before it is asked: whoever wants it to run sees that it goes down.
    let failed = |error: io::Error| home.failed("stop", &error);
    write_text(&home.file("stopping"), "", 0o600).map_err(failed)?;
    (driver.watch())("stopping");
    handle.signal(Signal::TERM);
    (driver.watch())("told");
    let forced = match tokio::time::timeout(grace, handle.ended()).await {
        Ok(Ok(())) => false,
        Ok(Err(_)) | Err(_) => true,
    };
    (driver.watch())("asked");
    let (place, ender) = (home.clone(), driver.clone());
    blocking(move || {
        if forced {
            let exit = MachineExit {
                code: Some(0),
                signal: Some(Signal::KILL.as_raw()),
                at: Some(clock::now()),
                reason: "it did not stop in time and was forced to".to_owned(),
            };
            // Known before it ends: whoever waits for that is told why.
            place.set_exit(&exit).map_err(|error| place.failed("stop", &error))?;
            (ender.watch())("exit");
        }
        end_all(&ender, &place)?;
        (ender.watch())("quiet");
        drop(held);
        Ok(())
    })
    .await?;
    Ok(Stopped { changed: true, forced })
}
