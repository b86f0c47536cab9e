//! Starting a machine's QEMU, giving it orders, and keeping its console from growing without end.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use stead_runner::machine::{Changed, MachineError};
use tokio::process::Child;

use super::argv::{self, Order};
use super::qmp::{self, Qmp};
use super::{QemuDriver, SHEET, events};
use crate::machine::console::{self, ROTATE};
use crate::machine::home::{Held, Home, Record, last_lines, read, write, write_text};
use crate::machine::local::{LOOK_AGAIN, blocking, end_all, made};
use crate::machine::vm::network::{self, Wire};
use crate::machine::vm::run::{self, Sheet, live};

/// How long a process may take until it answers.
const BIRTH: Duration = Duration::from_secs(60);
/// How often another port is tried if somebody takes the one that was free.
const PORTS: usize = 5;
/// What the monitor of events is told.
const LISTEN: &str = "{\"execute\": \"qmp_capabilities\"}\n";
/// Where it reads that.
const LISTEN_FILE: &str = "events.in";
/// A console that is about to take the place of a large one.
const NEXT_CONSOLE: &str = "console.next";

/// A process that is on its way up, and what is held meanwhile.
struct Started {
    child: Child,
    held: Held,
    record: Record,
    /// Nobody else chooses a port until this one is taken.
    ports: Option<(File, u16)>,
}

pub(super) async fn start(driver: &QemuDriver, home: &Home) -> Result<Changed, MachineError> {
    let Some((mut held, mut record)) = made(home).await? else { return Err(home.not_found()) };
    run::outlast_stop(home).await?;
    if let Some((mark, _)) = home.pid().filter(|(mark, _)| mark.open().is_some()) {
        if !run::is_ready(home, &mark) {
            // Whoever started it did not live to see it up.
            come_up(home, None, None).await?;
        }
        return Ok(Changed::No);
    }
    let kvm = driver.acceleration().await.kvm;
    for attempt in 1.. {
        let (place, starter) = (home.clone(), driver.clone());
        let mut started = blocking(move || spawn(&starter, &place, held, record, kvm)).await?;
        match come_up(home, Some(&mut started.child), started.ports.take()).await {
            Ok(()) => break,
            Err(_) if attempt < PORTS && is_port_taken(home) => {
                (held, record) = (started.held, started.record);
            }
            Err(error) => {
                let (place, ender, held) = (home.clone(), driver.clone(), started.held);
                // Nothing of one that did not come up stays; what cannot be ended now is told by whoever comes next.
                let ended = blocking(move || {
                    let _held = held;
                    end_all(&ender, &place)
                });
                ended.await.ok();
                return Err(error);
            }
        }
    }
    Ok(Changed::Yes)
}

fn is_port_taken(home: &Home) -> bool {
    last_lines(&home.file(run::LOG)).last().is_some_and(|line| line.contains("host forwarding rule"))
}

fn spawn(
    driver: &QemuDriver,
    home: &Home,
    held: Held,
    record: Record,
    kvm: bool,
) -> Result<Started, MachineError> {
    let failed = |error: std::io::Error| home.failed("start", &error);
    let last: Sheet = read(&home.file(SHEET)).unwrap_or_default();
    run::clear(driver, home, &[events::FILE, qmp::SOCKET])?;
    if fs::metadata(home.console()).is_ok_and(|console| console.len() >= ROTATE) {
        console::put_aside(home).map_err(failed)?;
    }
    if home.file(NEXT_CONSOLE).exists() {
        // Whoever began it did not live to put it in place.
        fs::rename(home.file(NEXT_CONSOLE), home.console()).map_err(failed)?;
    }
    let booted = driver.settings.boot.resolve(record.spec.boot.as_ref())?;
    let cards = network::cards(home);
    network::make_taps(home, &cards)?;
    let has_user = cards.iter().any(|card| card.wire == Wire::User);
    let held_ports = has_user.then(|| network::hold_all(home)).transpose().map_err(failed)?;
    network::refuse_taken_ports(&cards)?;
    let port = has_user.then(|| network::free_port(last.port)).transpose().map_err(failed)?;
    write(&home.file(SHEET), &Sheet { port }).map_err(failed)?;
    write_text(&home.file(LISTEN_FILE), LISTEN, 0o600).map_err(failed)?;
    let arguments = argv::arguments(&Order {
        spec: &record.spec,
        machine: driver.settings.machine.resolve(booted.kernel.is_some(), kvm),
        kvm,
        has_disk: home.file(argv::DISK).exists(),
        kernel: booted.kernel.as_ref(),
        firmware: booted.firmware.as_deref(),
        cards: &cards,
        port,
    });
    let listen = File::open(home.file(LISTEN_FILE)).map_err(failed)?;
    let events = File::create(home.file(events::FILE)).map_err(failed)?;
    let binary = &driver.settings.binary;
    let child = run::spawn(home, binary, &arguments, Stdio::from(listen), Some(events))
        .map_err(|error| run::not_started(home, binary, &error))?;
    Ok(Started { child, held, record, ports: held_ports.zip(port) })
}

/// Waits until QEMU answers. Others may choose a port as soon as it has its own, whatever else it does.
async fn come_up(
    home: &Home,
    mut child: Option<&mut Child>,
    mut ports: Option<(File, u16)>,
) -> Result<(), MachineError> {
    let failed = |error: std::io::Error| home.failed("start", &error);
    let deadline = Instant::now() + BIRTH;
    loop {
        if let Ok(mut qmp) = Qmp::connect(home).await
            && qmp.execute("query-status", None).await.is_ok()
        {
            return run::set_ready(home).map_err(failed);
        }
        ports.take_if(|(_, port)| network::is_listened_to(*port));
        let status = child.as_mut().map(|child| child.try_wait()).transpose().map_err(failed)?.flatten();
        if status.is_some() || live(home).is_none() {
            return Err(run::died(home, status));
        }
        if Instant::now() > deadline {
            let what = format!("QEMU does not answer within {} s", BIRTH.as_secs());
            return Err(run::failed(home, what));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Gives an order. One that does not get through is given again, or followed by a harder one.
pub(super) async fn order(home: &Home, command: &str) {
    if let Ok(mut qmp) = Qmp::connect(home).await {
        qmp.execute(command, None).await.ok();
    }
}

/// Begins another console if this one is large: QEMU goes on writing to the old file until it has the new one, so that
/// nothing is lost.
pub(super) async fn rotate(home: &Home) {
    let is_large = match fs::metadata(home.console()) {
        Ok(console) => console.len() >= ROTATE,
        // Whoever put it aside did not live to put the next one in its place.
        Err(_) => home.file(NEXT_CONSOLE).exists(),
    };
    if !is_large || live(home).is_none() {
        return;
    }
    // Without the lock somebody else is at it, or the machine is being stopped.
    let Ok(Some(_held)) = home.try_lock() else { return };
    if !home.console().exists() {
        fs::rename(home.file(NEXT_CONSOLE), home.console()).ok();
        return;
    }
    let Ok(mut qmp) = Qmp::connect(home).await else { return };
    // By its name in the directory that QEMU works in.
    let file = json!({ "type": "file", "data": { "out": NEXT_CONSOLE, "append": true } });
    let change = json!({ "id": "console", "backend": file });
    if qmp.execute("chardev-change", Some(change)).await.is_ok() && console::put_aside(home).is_ok() {
        // It has the file open: another name changes nothing for it.
        fs::rename(home.file(NEXT_CONSOLE), home.console()).ok();
    }
}
