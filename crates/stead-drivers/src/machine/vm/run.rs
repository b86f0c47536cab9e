//! One run of a virtual machine's process, from its start to its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use stead_model::machine::{MachineExit, MachineState, SshDoor};
use stead_model::tail::LAST_LINES;
use stead_runner::clock;
use stead_runner::machine::{Changed, MachineError, Stopped};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::network::{self, Card, Wire};
use crate::machine::home::{EXIT, Home, Run, last_lines, read, remove, write, write_text};
use crate::machine::local::{Local, SYSTEM_PATH, blocking, end_all, made};
use crate::machine::process::{Handle, ProcessMark};

/// What the program that runs the machine says of itself.
pub(crate) const LOG: &str = "vm.log";
/// Says which process is up.
const READY: &str = "ready";
/// There as long as the machine is asked to stop.
const STOPPING: &str = "stopping";
/// How a machine ended that did not stop.
const FORCED: &str = "it did not stop in time and was forced to";
/// Files of the run before.
const STALE: [&str; 4] = ["pid", READY, STOPPING, EXIT];
/// How often a guest that may not listen yet is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long a guest that was asked to stop may take before it counts as one that runs on.
const GOING: Duration = Duration::from_secs(20);
/// How long a program that is told to quit may take.
const QUIT: Duration = Duration::from_secs(2);

/// What is special to a program that runs virtual machines.
#[async_trait::async_trait]
pub(crate) trait Virtual: Local {
    /// Presses the power button.
    async fn ask(&self, home: &Home);

    /// Tells the program to quit, whatever the guest does.
    async fn quit(&self, home: &Home);

    /// The signal that [`Self::quit`] is, if it is one.
    const QUIT_SIGNAL: Option<Signal> = None;
}

/// Returns a hold on the machine's process, if it lives.
pub(crate) fn live(home: &Home) -> Option<Handle> {
    home.pid().and_then(|(mark, _)| mark.open())
}

/// Removes what the run before left. Blocks.
pub(crate) fn clear<L: Local>(driver: &L, home: &Home, also: &[&str]) -> Result<(), MachineError> {
    // What a driver that died at the wrong moment started, and nobody knows of.
    end_all(driver, home)?;
    for stale in STALE.iter().chain(also) {
        remove(&home.file(stale)).map_err(|error| home.failed("start", &error))?;
    }
    Ok(())
}

/// Waits for the end of a machine that somebody asked to stop without seeing it through. A guest that does not listen
/// goes on running.
pub(crate) async fn outlast_stop(home: &Home) -> Result<(), MachineError> {
    if !home.file(STOPPING).exists() {
        return Ok(());
    }
    if let Some(process) = live(home)
        && timeout(GOING, process.ended()).await.is_ok()
    {
        return Ok(());
    }
    forget_force(home)
        .and_then(|()| remove(&home.file(STOPPING)))
        .map_err(|error| home.failed("start", &error))
}

/// Forgets the end of a machine that somebody wanted to force, and did not live to: it has not ended so.
fn forget_force(home: &Home) -> io::Result<()> {
    match home.exit() {
        Some(exit) if exit.reason == FORCED => remove(&home.file(EXIT)),
        Some(_) | None => Ok(()),
    }
}

/// Starts the machine's program in its directory, and keeps its mark.
pub(crate) fn spawn(
    home: &Home,
    program: &Path,
    arguments: &[OsString],
    stdin: Stdio,
    stdout: Option<File>,
) -> io::Result<Child> {
    let mut log = File::options().create(true).append(true).open(home.file(LOG))?;
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    writeln!(log, "{} {} {}", clock::now(), program.display(), words.join(" "))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(home.directory()).stdin(stdin);
    command.stdout(match stdout {
        Some(file) => file,
        None => log.try_clone()?,
    });
    command.stderr(log).env_clear().env("PATH", SYSTEM_PATH).env(home.kind().mark, home.directory());
    // In a group of its own: what interrupts the driver leaves the machine alone.
    command.process_group(0);
    let child = command.spawn()?;
    if let Some(mark) = child.id().and_then(ProcessMark::of) {
        home.set_pid(&mark, clock::now())?;
    }
    Ok(child)
}

/// Returns the error of a program that could not even be started.
pub(crate) fn not_started(home: &Home, program: &Path, error: &io::Error) -> MachineError {
    if error.kind() == io::ErrorKind::NotFound {
        return MachineError::Unavailable(format!("{} is not installed", program.display()));
    }
    home.failed("start", error)
}

/// Says that the machine's process is up.
pub(crate) fn set_ready(home: &Home) -> io::Result<()> {
    let Some((mark, _)) = home.pid() else { return Ok(()) };
    write_text(&home.file(READY), &mark.to_string(), 0o600)
}

/// Whether the process with this mark is up.
pub(crate) fn is_ready(home: &Home, mark: &ProcessMark) -> bool {
    fs::read_to_string(home.file(READY)).is_ok_and(|text| text == mark.to_string())
}

/// Whether the machine is asked to stop.
pub(crate) fn is_stopping(home: &Home) -> bool {
    home.file(STOPPING).exists()
}

/// Returns what a live process is doing.
pub(crate) fn seen(home: &Home, mark: &ProcessMark, cards: &[Card]) -> Run {
    let state = match (is_stopping(home), is_ready(home, mark)) {
        (true, _) => MachineState::Stopping,
        (false, true) => MachineState::Running,
        (false, false) => MachineState::Starting,
    };
    let addresses = network::addresses(cards);
    let sheet = Sheet::of(home);
    let door = match (cards.first().map(|card| &card.wire), sheet.port) {
        (Some(Wire::User), Some(port)) => addresses.first().map(|host| (host, port)),
        (Some(Wire::Tap { .. }), _) => addresses.first().map(|host| (host, sheet.guest_port())),
        (Some(Wire::User) | None, _) => None,
    };
    let ssh = door.zip(super::host_key(home)).map(|((host, port), host_key)| SshDoor {
        host: host.clone(),
        port,
        host_key,
    });
    Run { state, addresses, ssh }
}

/// Refuses a process that died while it came up; `child` is the one that this driver started itself.
pub(crate) fn must_live(home: &Home, child: Option<&mut Child>) -> Result<(), MachineError> {
    // Before its status: whoever is seen dead here has one, and who dies between the two is seen next time.
    let lives = live(home).is_some();
    let status = child.map(Child::try_wait).transpose().map_err(|error| home.failed("start", &error))?;
    match status.flatten() {
        None if lives => Ok(()),
        status => Err(died(home, status)),
    }
}

/// Keeps how a process ended that died at once, and returns the error that says so.
pub(crate) fn died(home: &Home, status: Option<ExitStatus>) -> MachineError {
    let exit = MachineExit {
        code: status.and_then(|status| status.code()).filter(|code| *code != 0),
        signal: status.and_then(|status| status.signal()),
        at: Some(clock::now()),
        reason: "it died at once".to_owned(),
    };
    if let Err(error) = home.set_exit(&exit) {
        return home.failed("start", &error);
    }
    let how = status.map_or_else(String::new, |status| format!(" ({status})"));
    failed(home, format!("the {}'s process died at once{how}", home.kind().noun))
}

/// Returns an error with the last lines of the console and of the log.
pub(crate) fn failed(home: &Home, what: String) -> MachineError {
    let log = last_lines(&home.file(LOG));
    let console = home.last_lines();
    let room = LAST_LINES.saturating_sub(log.len().min(LAST_LINES / 2));
    let mut lines: Vec<String> = console.into_iter().rev().take(room).collect();
    lines.reverse();
    let rest = LAST_LINES - lines.len();
    lines.extend(log.iter().skip(log.len().saturating_sub(rest)).cloned());
    MachineError::Failed { what, last_lines: lines }
}

/// Asks the machine to stop, and forces it once `grace` is over.
pub(crate) async fn stop<V: Virtual>(
    driver: &V,
    home: &Home,
    grace: Duration,
) -> Result<Stopped, MachineError> {
    let unchanged = Stopped { changed: false, forced: false };
    let Some((held, _)) = made(home).await? else { return Ok(unchanged) };
    let Some(process) = live(home) else {
        let (place, ender) = (home.clone(), driver.clone());
        // What a driver that was killed at the wrong moment started, and nobody knows of, goes too.
        return blocking(move || {
            let _held = held;
            end_all(&ender, &place).map(|()| unchanged)
        })
        .await;
    };
    let failed = |error: io::Error| home.failed("stop", &error);
    forget_force(home).map_err(failed)?;
    write_text(&home.file(STOPPING), "", 0o600).map_err(failed)?;
    (driver.watch())("stopping");
    let asking = async {
        loop {
            driver.ask(home).await;
            sleep(ASK_AGAIN).await;
        }
    };
    let ended = async {
        tokio::select! {
            ended = process.ended() => ended.is_ok(),
            () = asking => false,
        }
    };
    let forced = !timeout(grace, ended).await.unwrap_or(false);
    (driver.watch())("asked");
    if forced {
        let set_exit = |signal: Option<Signal>| {
            let signal = signal.map(Signal::as_raw);
            let (at, reason) = (Some(clock::now()), FORCED.to_owned());
            home.set_exit(&MachineExit { code: Some(0), signal, at, reason }).map_err(failed)
        };
        // Known before it ends: whoever waits for that is told why.
        set_exit(V::QUIT_SIGNAL)?;
        (driver.watch())("exit");
        if let Some(process) = live(home) {
            let quitting = async {
                driver.quit(home).await;
                process.ended().await
            };
            // What does not quit is killed.
            if timeout(QUIT, quitting).await.is_err() {
                set_exit(Some(Signal::KILL))?;
            }
        }
    }
    let (driver, home) = (driver.clone(), home.clone());
    blocking(move || {
        end_all(&driver, &home)?;
        (driver.watch())("quiet");
        remove(&home.file(STOPPING)).map_err(|error| home.failed("stop", &error))?;
        (driver.watch())("stopped");
        drop(held);
        Ok(())
    })
    .await?;
    Ok(Stopped { changed: true, forced })
}

/// Where they are kept.
const SHEET: &str = "run.json";
/// Where a guest takes logins unless its spec says otherwise.
const SSH: u16 = 22;

/// The run's own facts, kept for whoever drives the machine next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sheet {
    /// The port of 127.0.0.1 that leads to SSH.
    pub(crate) port: Option<u16>,
    /// The guest's own port for SSH; none: the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guest_port: Option<u16>,
    /// The way to that port is being changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_moving: bool,
}

impl Sheet {
    /// Returns what is known of the machine in `home`.
    pub(crate) fn of(home: &Home) -> Self {
        read(&home.file(SHEET)).unwrap_or_default()
    }

    /// Keeps it.
    pub(crate) fn keep(&self, home: &Home) -> io::Result<()> {
        write(&home.file(SHEET), self)
    }

    /// Returns the guest's own port for SSH.
    pub(crate) fn guest_port(&self) -> u16 {
        self.guest_port.unwrap_or(SSH)
    }

    /// Returns this with the guest's SSH at `port`, and nothing changed yet that leads there; none if that is known.
    pub(crate) fn moved(&self, port: u16) -> Option<Self> {
        let is_known = self.guest_port() == port && !self.is_moving;
        (!is_known).then(|| Self { guest_port: Some(port), is_moving: true, ..self.clone() })
    }
}

/// Notes where the guest takes logins, for a machine that is reached at its own address.
pub(crate) async fn ssh_moved(home: &Home, port: u16) -> Result<Changed, MachineError> {
    let Some((_held, _)) = made(home).await? else { return Err(home.not_found()) };
    let Some(sheet) = Sheet::of(home).moved(port) else { return Ok(Changed::No) };
    let kept = Sheet { is_moving: false, ..sheet }.keep(home);
    kept.map(|()| Changed::Yes).map_err(|error| home.failed("change", &error))
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;
    use crate::machine::home::Kind;

    static KIND: Kind = Kind { driver: "vm", noun: "virtual machine", kept: &[], mark: "STEAD_MACHINE" };

    /// Nodes, section 5: the port that a posture sets is where a machine with its own address is reached.
    #[test]
    fn a_machine_with_its_own_address_is_reached_where_its_ssh_listens() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, dir.path().to_owned());
        fs::write(home.file(super::super::HOST_KEY), "ssh-ed25519 AAAA\n").unwrap();
        let mark = ProcessMark::of(process::id()).unwrap();
        let cards = [Card {
            wire: Wire::Tap { name: "st0-1".to_owned(), bridge: "br0".to_owned() },
            mac: "52:54:00:83:99:24".to_owned(),
            address: Some("10.44.1.2/24".to_owned()),
            gateway: None,
            ports: Vec::new(),
        }];
        let port = |home: &Home| seen(home, &mark, &cards).ssh.unwrap().port;
        assert_eq!(port(&home), 22);
        assert_eq!(Sheet::of(&home).moved(22), None, "as it is");
        Sheet::of(&home).moved(2222).unwrap().keep(&home).unwrap();
        assert_eq!(port(&home), 2222);
        assert!(Sheet::of(&home).moved(2222).is_some(), "whoever began it may have been cut off");
        Sheet { is_moving: false, ..Sheet::of(&home) }.keep(&home).unwrap();
        assert_eq!(Sheet::of(&home).moved(2222), None);
    }
}
