//! What a driver does to a sandbox. Each step leaves a state from which every call goes on or starts over.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stead_model::machine::{MachineExit, MachineSpec};
use stead_runner::clock;
use stead_runner::machine::{Changed, ConsoleStream, Ensured, MachineError, Stopped};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::faults::{self, Phase};
use super::home::{self, Found, Held, Home, Record, Sheet};
use super::{SandboxSettings, StepWatch, make, tree};

/// How long a process may take until it lives.
const BIRTH: Duration = Duration::from_secs(60);
/// How often something on its way is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How often a console is looked at for more.
const MORE: Duration = Duration::from_millis(50);
/// Between the console and its reader.
const BUFFER: usize = 64 << 10;

fn sheet(settings: &SandboxSettings, node: &str) -> Sheet {
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

/// Runs blocking work that goes on to its end whoever still waits for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MachineError> + Send + 'static,
) -> Result<T, MachineError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(MachineError::failed(format!("the work was stopped: {error}"))))
}

/// Waits as long as the fault says, and fails if it says so.
async fn suffer(home: &Home, phase: Phase) -> Result<(), MachineError> {
    let Some(struck) = faults::strike(home, phase) else { return Ok(()) };
    tokio::time::sleep(struck.delay).await;
    struck.message().map_or(Ok(()), |message| Err(MachineError::failed(message)))
}

pub(super) async fn ensure_created(
    settings: &Arc<SandboxSettings>,
    watch: &StepWatch,
    spec: &MachineSpec,
) -> Result<Ensured, MachineError> {
    let home = Home::new(&settings.root_dir, &spec.owner.uuid());
    let (held, record) = claim(&home, watch, spec).await?;
    let wanted = sheet(settings, spec.owner.name());
    let failed = |home: &Home, error: &io::Error| home.failed("make", error);
    if record.made {
        if record.spec_hash != spec.hash() {
            let machine = format!("the sandbox {}", spec.owner);
            return Err(MachineError::Conflict { machine, changes: spec.differences(&record.spec) });
        }
        home.set_sheet(&wanted).map_err(|error| failed(&home, &error))?;
        return ensured(&home, false);
    }
    // What it may suffer is known before it can be half made by it.
    home.set_sheet(&wanted).map_err(|error| failed(&home, &error))?;
    watch("sheet");
    suffer(&home, Phase::Create).await?;
    let (spec, watch, place) = (spec.clone(), Arc::clone(watch), home.clone());
    let program = settings.program.clone();
    blocking(move || {
        let held: Held = held;
        let failed = |error: io::Error| place.failed("make", &error);
        end_all(&place)?;
        watch("quiet");
        place.wipe().map_err(failed)?;
        watch("wiped");
        let mut record = Record::new(&spec, record.created_at);
        place.set_record(&record).map_err(failed)?;
        watch("record");
        make::make(&place, &spec, &program, &*watch)?;
        place.set_sheet(&wanted).map_err(failed)?;
        watch("settings");
        record.made = true;
        place.set_record(&record).map_err(failed)?;
        watch("made");
        drop(held);
        Ok(())
    })
    .await?;
    ensured(&home, true)
}

fn ensured(home: &Home, changed: bool) -> Result<Ensured, MachineError> {
    let machine = home.machine().ok_or_else(|| home.not_found())?;
    Ok(Ensured { machine, changed })
}

/// Returns the machine's lock and record, making both if there is nothing.
async fn claim(home: &Home, watch: &StepWatch, spec: &MachineSpec) -> Result<(Held, Record), MachineError> {
    loop {
        if let Some(found) = home.lock().await? {
            return Ok(found);
        }
        let record = Record::new(spec, clock::now());
        if let Some(held) = home.reserve(&record)? {
            watch("reserved");
            return Ok((held, record));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Ends whatever still runs of it, by force.
fn end_all(home: &Home) -> Result<(), MachineError> {
    let supervisor = home.pid().map(|(mark, _)| mark);
    if tree::kill_all(home.directory(), supervisor.as_ref()) {
        return Ok(());
    }
    Err(MachineError::failed(format!(
        "processes of the sandbox in {} cannot be ended",
        home.directory().display()
    )))
}

/// Returns the lock of a machine that is wholly made.
async fn made(home: &Home) -> Result<Option<(Held, Record)>, MachineError> {
    Ok(home.lock().await?.filter(|(_, record)| record.made))
}

pub(super) async fn start(
    settings: &SandboxSettings,
    watch: &StepWatch,
    home: &Home,
) -> Result<Changed, MachineError> {
    let Some((held, record)) = made(home).await? else { return Err(home.not_found()) };
    let failed = |error: io::Error| home.failed("start", &error);
    if let Some(running) = home.pid().and_then(|(mark, _)| mark.open()) {
        if !home.file("stopping").exists() {
            return Ok(Changed::No);
        }
        // Somebody asked it to stop and did not see it through.
        running.ended().await.map_err(failed)?;
    }
    home.set_sheet(&sheet(settings, record.spec.owner.name())).map_err(failed)?;
    let ticket = home::random_hex().map_err(failed)?;
    let place = home.clone();
    let (given, watch) = (ticket.clone(), Arc::clone(watch));
    // The lock goes along: a call that is dropped here still works in the machine's directory.
    let held = blocking(move || {
        // What a killed supervisor left would be in the way of the next one.
        end_all(&place)?;
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
        home::write_text(&place.file("ticket"), &given, 0o600).map_err(failed)?;
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
    command.env_clear().env("PATH", super::door::SYSTEM_PATH).env(tree::MARK, home.directory());
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

pub(super) async fn stop(home: &Home, grace: Duration) -> Result<Stopped, MachineError> {
    let unchanged = Stopped { changed: false, forced: false };
    let Some((held, _)) = made(home).await? else { return Ok(unchanged) };
    let Some(handle) = home.pid().and_then(|(mark, _)| mark.open()) else { return Ok(unchanged) };
    handle.signal(Signal::TERM);
    let forced = match tokio::time::timeout(grace, handle.ended()).await {
        Ok(Ok(())) => false,
        Ok(Err(_)) | Err(_) => true,
    };
    let place = home.clone();
    blocking(move || {
        end_all(&place)?;
        if forced {
            let exit = MachineExit {
                code: Some(0),
                signal: Some(Signal::KILL.as_raw()),
                at: Some(clock::now()),
                reason: "it did not stop in time and was forced to".to_owned(),
            };
            place.set_exit(&exit).map_err(|error| place.failed("stop", &error))?;
        }
        drop(held);
        Ok(())
    })
    .await?;
    Ok(Stopped { changed: true, forced })
}

pub(super) async fn destroy(
    settings: &SandboxSettings,
    watch: &StepWatch,
    home: &Home,
) -> Result<Changed, MachineError> {
    let Some((held, mut record)) = home.lock().await? else {
        let root_dir = settings.root_dir.clone();
        return blocking(move || {
            home::sweep(&root_dir);
            std::fs::remove_dir(&root_dir).ok();
            Ok(Changed::No)
        })
        .await;
    };
    suffer(home, Phase::Destroy).await?;
    let (place, watch, root_dir) = (home.clone(), Arc::clone(watch), settings.root_dir.clone());
    blocking(move || {
        let failed = |error: io::Error| place.failed("remove", &error);
        watch("found");
        // From here it is half made: whoever finds it next removes it, or makes it anew.
        record.made = false;
        place.set_record(&record).map_err(failed)?;
        watch("unmade");
        end_all(&place)?;
        watch("quiet");
        place.wipe().map_err(failed)?;
        watch("wiped");
        home::sweep(&root_dir);
        place.vanish().map_err(failed)?;
        watch("gone");
        drop(held);
        Ok(Changed::Yes)
    })
    .await
}

pub(super) async fn wait(home: &Home) -> Result<MachineExit, MachineError> {
    match home.find() {
        Found::Ours(_) => {}
        Found::Absent => return Err(home.not_found()),
        Found::Foreign => return Err(home.foreign()),
        Found::Unreadable(error) => return Err(home.unreadable(&error)),
    }
    let run = home.pid().map(|(mark, _)| mark);
    if let Some(handle) = run.as_ref().and_then(super::process::ProcessMark::open) {
        handle.ended().await.map_err(|error| home.failed("wait for", &error))?;
    }
    let never = || MachineError::Invalid(format!("{} was never started", home.directory().display()));
    home.exit_of(run.as_ref()).ok_or_else(never)
}

pub(super) async fn console(home: &Home, from: u64) -> Result<ConsoleStream, MachineError> {
    match home.find() {
        Found::Ours(_) => {}
        Found::Absent => return Err(home.not_found()),
        Found::Foreign => return Err(home.foreign()),
        Found::Unreadable(error) => return Err(home.unreadable(&error)),
    }
    let start = from.max(super::supervisor::console_start(home));
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let mut reading = JoinSet::new();
    let home = home.clone();
    reading.spawn(async move { follow(&home, start, ours).await });
    Ok(ConsoleStream { start, bytes: Box::pin(Following { bytes: theirs, _reading: reading }) })
}

/// Copies the console until the machine has ended and all is said.
async fn follow(home: &Home, mut place: u64, mut to: tokio::io::DuplexStream) {
    loop {
        let live = home.machine().is_some_and(|machine| machine.state.is_live());
        let (found, piece) = super::supervisor::console_piece(home, place);
        if piece.is_empty() {
            if !live {
                return;
            }
            tokio::time::sleep(MORE).await;
            continue;
        }
        place = found + piece.len() as u64;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

/// A console being read; dropping it ends the reading.
struct Following {
    bytes: tokio::io::DuplexStream,
    _reading: JoinSet<()>,
}

impl tokio::io::AsyncRead for Following {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.bytes).poll_read(cx, buffer)
    }
}
