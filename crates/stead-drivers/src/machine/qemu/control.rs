//! Starting a machine's QEMU, and giving it orders.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stead_runner::machine::{Changed, MachineError};
use tokio::process::Child;

use super::argv::{self, Order};
use super::qmp::{self, Qmp};
use super::{QemuDriver, events};
use crate::machine::console;
use crate::machine::home::{Held, Home, Record, last_lines, write_text};
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

/// A process that is on its way up, and what is held meanwhile.
struct Started {
    child: Child,
    held: Held,
    record: Record,
    /// Nobody else chooses a port until this one is taken.
    ports: Option<(File, u16)>,
    console: console::Pipe,
}

pub(super) async fn start(driver: &QemuDriver, home: &Home) -> Result<Changed, MachineError> {
    let Some((mut held, mut record)) = made(home).await? else { return Err(home.not_found()) };
    run::outlast_stop(home).await?;
    if let Some((mark, _)) = home.pid().filter(|(mark, _)| mark.open().is_some()) {
        if !run::is_ready(home, &mark) {
            // Whoever started it did not live to see it up.
            let _console = console::Pipe::open(home, &driver.settings.program)
                .map_err(|error| home.failed("start", &error))?;
            if let Err(error) = come_up(home, None, None).await {
                give_up(driver, home, held).await;
                return Err(error);
            }
        }
        finish_move(home).await?;
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
                drop(started.console);
                give_up(driver, home, started.held).await;
                return Err(error);
            }
        }
    }
    Ok(Changed::Yes)
}

/// Ends what did not come up: nothing of it stays. What cannot be ended now is told by whoever comes next.
async fn give_up(driver: &QemuDriver, home: &Home, held: Held) {
    let (place, ender) = (home.clone(), driver.clone());
    let ended = blocking(move || {
        let _held = held;
        end_all(&ender, &place)
    });
    ended.await.ok();
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
    let last = Sheet::of(home);
    run::clear(driver, home, &[events::FILE, qmp::SOCKET])?;
    let booted = driver.settings.boot.resolve(record.spec.boot.as_ref())?;
    let cards = network::cards(home);
    network::make_taps(home, &cards)?;
    let has_user = cards.iter().any(|card| card.wire == Wire::User);
    let held_ports = has_user.then(|| network::hold_all(home)).transpose().map_err(failed)?;
    network::refuse_taken_ports(&cards)?;
    let port = has_user.then(|| network::free_port(last.port)).transpose().map_err(failed)?;
    let sheet = Sheet { port, is_moving: false, ..last };
    sheet.keep(home).map_err(failed)?;
    write_text(&home.file(LISTEN_FILE), LISTEN, 0o600).map_err(failed)?;
    let arguments = argv::arguments(&Order {
        spec: &record.spec,
        machine: driver.settings.machine.resolve(booted.kernel.is_some(), kvm),
        kvm,
        has_disk: home.file(argv::DISK).exists(),
        kernel: booted.kernel.as_ref(),
        firmware: booted.firmware.as_deref(),
        cards: &cards,
        port: port.map(|port| (port, sheet.guest_port())),
    });
    let listen = File::open(home.file(LISTEN_FILE)).map_err(failed)?;
    let events = File::create(home.file(events::FILE)).map_err(failed)?;
    let console = console::Pipe::open(home, &driver.settings.program).map_err(failed)?;
    let binary = &driver.settings.binary;
    let child = run::spawn(home, binary, &arguments, Stdio::from(listen), Some(events))
        .map_err(|error| run::not_started(home, binary, &error))?;
    Ok(Started { child, held, record, ports: held_ports.zip(port), console })
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
        run::must_live(home, child.as_deref_mut())?;
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

/// Leads the way in to another port of the guest.
pub(super) async fn ssh_moved(home: &Home, port: u16) -> Result<Changed, MachineError> {
    let Some((_held, _)) = made(home).await? else { return Err(home.not_found()) };
    let Some(sheet) = Sheet::of(home).moved(port) else { return Ok(Changed::No) };
    // Known first: whoever is cut off here leaves it to the next one.
    sheet.keep(home).map_err(|error| home.failed("change", &error))?;
    finish_move(home).await?;
    Ok(Changed::Yes)
}

/// Leads the way in to where the guest's SSH is known to listen, if somebody began to and did not come to it.
async fn finish_move(home: &Home) -> Result<(), MachineError> {
    let sheet = Sheet::of(home);
    if !sheet.is_moving {
        return Ok(());
    }
    let failed = |error: std::io::Error| home.failed("change", &error);
    let card = network::cards(home).iter().position(|card| card.wire == Wire::User);
    // One that does not run is led there when it starts.
    if let (Some(card), Some(port), Some(_)) = (card, sheet.port, live(home)) {
        let way = format!("tcp:127.0.0.1:{port}");
        let mut qmp = Qmp::connect(home).await.map_err(failed)?;
        // It may have gone already; connections that are open stay so.
        qmp.human(&format!("hostfwd_remove net{card} {way}")).await.map_err(failed)?;
        let said = qmp.human(&format!("hostfwd_add net{card} {way}-:{}", sheet.guest_port())).await;
        let said = said.map_err(failed)?;
        if !said.is_empty() {
            return Err(run::failed(
                home,
                format!("QEMU does not lead to another port of the guest: {said}"),
            ));
        }
    }
    Sheet { is_moving: false, ..sheet }.keep(home).map_err(failed)
}
