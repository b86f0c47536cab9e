//! Starting a machine's Cloud Hypervisor, and the way from there to a guest that runs.

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::machine::{MachineSpec, ShapeChange};
use stead_runner::machine::{Changed, MachineError};
use tokio::process::Child;

use super::api::{self, Answer};
use super::config::{DISK, config, extra_disk};
use super::{CloudHypervisorDriver, events};
use crate::machine::console;
use crate::machine::home::{Held, Home, Record};
use crate::machine::local::{LOOK_AGAIN, blocking, end_all, made};
use crate::machine::vm::{image, network, run, seed};

/// How long it may take until the guest runs.
const BIRTH: Duration = Duration::from_secs(60);
/// How long an order that has to wait for another one rests.
const PENDING: Duration = Duration::from_millis(100);

/// What the machine is, as its process says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// `vm.create` is still to come.
    NotCreated,
    /// `vm.boot` is still to come.
    Created,
    /// The guest runs.
    Running,
}

pub(super) async fn start(driver: &CloudHypervisorDriver, home: &Home) -> Result<Changed, MachineError> {
    let Some((held, record)) = made(home).await? else { return Err(home.not_found()) };
    run::outlast_stop(home).await?;
    if let Some((mark, _)) = home.pid().filter(|(mark, _)| mark.open().is_some()) {
        if !run::is_ready(home, &mark) {
            // Whoever started it did not live to see it up.
            let console = console::Pipe::open(home, &driver.settings.program);
            let console = console.map_err(|error| home.failed("start", &error))?;
            come_up(driver, home, &record, None, (console, held)).await?;
        }
        return Ok(Changed::No);
    }
    let (place, starter) = (home.clone(), driver.clone());
    let ((mut child, console), held) = blocking(move || Ok((spawn(&starter, &place)?, held))).await?;
    come_up(driver, home, &record, Some(&mut child), (console, held)).await?;
    Ok(Changed::Yes)
}

fn spawn(driver: &CloudHypervisorDriver, home: &Home) -> Result<(Child, console::Pipe), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    // A socket without its process would be in the way.
    run::clear(driver, home, &[events::FILE, api::SOCKET])?;
    network::make_taps(home, &network::cards(home))?;
    let arguments: Vec<OsString> =
        ["--api-socket", api::SOCKET, "--event-monitor", &format!("path={}", events::FILE)]
            .map(OsString::from)
            .into();
    let console = console::Pipe::open(home, &driver.settings.program).map_err(failed)?;
    let binary = &driver.settings.binary;
    let child = run::spawn(home, binary, &arguments, Stdio::null(), None)
        .map_err(|error| run::not_started(home, binary, &error))?;
    Ok((child, console))
}

/// Goes on from whatever is there to a guest that runs; ends the process if that does not work.
async fn come_up(
    driver: &CloudHypervisorDriver,
    home: &Home,
    record: &Record,
    child: Option<&mut Child>,
    (console, held): (console::Pipe, Held),
) -> Result<(), MachineError> {
    let up = climb(driver, home, record, child).await;
    // From here the machine itself has it open, or is to be ended.
    drop(console);
    if up.is_err() {
        let (driver, home) = (driver.clone(), home.clone());
        // Nobody else comes to it before that is over, whoever still waits for this call.
        blocking(move || {
            let _held = held;
            end_all(&driver, &home)
        })
        .await?;
    }
    up
}

async fn climb(
    driver: &CloudHypervisorDriver,
    home: &Home,
    record: &Record,
    mut child: Option<&mut Child>,
) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("start", &error);
    let deadline = Instant::now() + BIRTH;
    let mut last = None;
    loop {
        match step(driver, home, record).await? {
            Some(State::Running) => return run::set_ready(home).map_err(failed),
            // It got somewhere.
            state @ Some(State::NotCreated | State::Created) if state != last => last = state,
            Some(State::NotCreated | State::Created) | None => tokio::time::sleep(LOOK_AGAIN).await,
        }
        run::must_live(home, child.as_deref_mut())?;
        if Instant::now() > deadline {
            let what = format!("Cloud Hypervisor has no running guest within {} s", BIRTH.as_secs());
            return Err(run::failed(home, what));
        }
    }
}

/// Looks at the machine and does what comes next; returns what it was, none if nobody answers.
async fn step(
    driver: &CloudHypervisorDriver,
    home: &Home,
    record: &Record,
) -> Result<Option<State>, MachineError> {
    match api::get(home, "vmm.ping").await {
        Ok(answer) if answer.status == 200 => {}
        Ok(_) | Err(_) => return Ok(None),
    }
    let Ok(info) = api::get(home, "vm.info").await else { return Ok(None) };
    let state = state(home, &info)?;
    let answer = match state {
        State::Running => return Ok(Some(state)),
        State::NotCreated => {
            let booted = driver.settings.boot.resolve(record.spec.boot.as_ref())?;
            let config = config(
                &record.spec,
                booted.kernel.as_ref(),
                booted.firmware.as_deref().or(driver.settings.firmware.as_deref()),
                home.file(DISK).exists(),
                &network::cards(home),
            );
            api::put(home, "vm.create", Some(&config)).await
        }
        State::Created => api::put(home, "vm.boot", None).await,
    };
    // Without an answer it is seen next time how far it came.
    let Ok(answer) = answer else { return Ok(None) };
    match answer.status {
        200..=299 | 409 => Ok(Some(state)),
        429 => {
            tokio::time::sleep(PENDING).await;
            Ok(Some(state))
        }
        _ => Err(refusal(home, record, &answer)),
    }
}

fn state(home: &Home, info: &Answer) -> Result<State, MachineError> {
    let word = info.json().and_then(|info| info.get("state").and_then(Value::as_str).map(str::to_owned));
    match (info.status, word.as_deref()) {
        // Older ones call it an error of their own.
        (404, _) => Ok(State::NotCreated),
        (500, _) if info.messages().to_ascii_lowercase().contains("not created") => Ok(State::NotCreated),
        (200, Some("Created" | "Shutdown")) => Ok(State::Created),
        (200, Some("Running" | "Paused" | "BreakPoint")) => Ok(State::Running),
        (_, _) => {
            Err(run::failed(home, format!("Cloud Hypervisor does not say how it is: {}", info.messages())))
        }
    }
}

/// Returns the error of an order that was refused.
fn refusal(home: &Home, record: &Record, answer: &Answer) -> MachineError {
    let said = answer.messages();
    if let Some(path) = locked_path(home, &record.spec, &said) {
        let change = ShapeChange { field: path, old: json!("locked by another process"), new: json!("free") };
        let machine = format!("the virtual machine {}", record.spec.owner);
        return MachineError::Conflict { machine, changes: vec![change] };
    }
    match answer.status {
        400 => MachineError::Invalid(format!("Cloud Hypervisor refuses the machine: {said}")),
        _ => run::failed(home, format!("Cloud Hypervisor cannot start the machine: {said}")),
    }
}

/// Returns the disk of the machine that a message says is locked, with its whole path: whatever it is called, and of several
/// that are named alike the one with the longest name.
fn locked_path(home: &Home, spec: &MachineSpec, said: &str) -> Option<String> {
    let words = said.to_ascii_lowercase();
    // A block device is no lock.
    let is_locked = words.match_indices("lock").any(|(at, _)| !words[..at].ends_with('b'));
    if !is_locked {
        return None;
    }
    let layers = (0..spec.drives.len()).map(image::layer);
    let own = [DISK.to_owned(), seed::FILE.to_owned()].into_iter().chain(layers);
    let own = own.chain(spec.disks.iter().map(|disk| extra_disk(&disk.name)));
    let given = spec.drives.iter().map(|drive| drive.path.clone());
    let named = own.chain(given).filter(|disk| said.contains(disk.as_str()));
    let longest = named.max_by_key(String::len)?;
    Some(home.directory().join(longest).display().to_string())
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{Drive, DriveAccess, DriveFormat, ExtraDisk, MachineKind, Owner};

    use super::*;
    use crate::machine::cloud_hypervisor::KIND;

    /// Section 10: a locked disk is named by its path, also one that was there before the machine and has any name.
    #[test]
    fn every_disk_of_a_machine_may_be_the_locked_one() {
        let home = Home::at(&KIND, "/machines/quay".into());
        let drive = |path: &str, access| Drive { path: path.to_owned(), format: DriveFormat::Qcow2, access };
        let spec = MachineSpec {
            disks: vec![ExtraDisk { name: "data".to_owned(), size_gb: 1 }],
            drives: vec![
                drive("/store/root.qcow2", DriveAccess::Private),
                drive("/store/my disk.qcow2", DriveAccess::Shared),
                drive("/dev/vg/data", DriveAccess::Shared),
            ],
            ..MachineSpec::new(Owner::new("lab/harbour/local", "quay").unwrap(), MachineKind::Vm)
        };
        for (named, path) in [
            ("disk.raw", "/machines/quay/disk.raw"),
            ("\"/machines/quay/disk.raw\"", "/machines/quay/disk.raw"),
            ("disk-data.raw", "/machines/quay/disk-data.raw"),
            ("layer-0.qcow2", "/machines/quay/layer-0.qcow2"),
            ("seed.iso", "/machines/quay/seed.iso"),
            ("/store/my disk.qcow2", "/store/my disk.qcow2"),
            ("`/dev/vg/data`", "/dev/vg/data"),
        ] {
            let said = format!("Cannot boot: The disk {named} is locked by another process");
            assert_eq!(locked_path(&home, &spec, &said).as_deref(), Some(path), "{said}");
        }
        assert_eq!(locked_path(&home, &spec, "VM state is locked"), None);
        let missing = "Cannot create the block device disk.raw: No such file or directory";
        assert_eq!(locked_path(&home, &spec, missing), None);
    }
}
