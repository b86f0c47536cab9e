//! What is there: records, processes and what drivers say, looked at anew each time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use stead_engine::fleet::reconcile::{Exit, LocalState};
use stead_model::fleet::{InstanceKey, Millis};
use stead_model::machine::{Machine, OwnerScope};
use stead_runner::machine::MachineError;
use stead_runner::process_table::Process;

use super::act::Hands;
use super::clock;
use super::files::Record;

/// An instance of ours as it is found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) record: Record,
    /// What its driver says; none: it has no such machine.
    pub(super) machine: Option<Machine>,
    /// What it is doing.
    pub(super) state: LocalState,
    /// How long its process has been there.
    pub(super) uptime: Millis,
}

/// Everything that is found.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    pub(super) instances: BTreeMap<InstanceKey, Found>,
    /// Machines beside ours that do not carry our mark.
    pub(super) foreign: BTreeSet<String>,
}

/// Looks at everything.
pub(super) async fn look(hands: &Hands) -> io::Result<Sight> {
    let mut sight = Sight::default();
    let boot_id = clock::boot_id();
    for record in hands.files.records()? {
        let inspected = inspect(hands, &record).await;
        let (machine, is_clear) = inspected.map_or((None, false), |machine| (machine, true));
        let uptime = machine.as_ref().and_then(|machine| machine.pid).and_then(start_of);
        let uptime = uptime.map_or(0, |start| clock::now().saturating_sub(clock::of_ticks(start)));
        // Nothing is done about what cannot be looked at for now.
        let state = if is_clear { state(&record, machine.as_ref(), &boot_id) } else { LocalState::Stopping };
        sight.instances.insert(record.instance.clone(), Found { record, machine, state, uptime });
    }
    let ours = sight.instances.values().filter_map(|found| {
        let id = hands.machines.id(&found.record.instance).ok()?;
        Some((found.record.driver, id))
    });
    let ours: BTreeSet<_> = ours.collect();
    for (kind, driver) in hands.machines.all() {
        let Ok(machines) = driver.list(&OwnerScope::All).await else { continue };
        for machine in machines {
            let is_ours = machine.owner.scope() == hands.machines.scope();
            if !(is_ours && ours.contains(&(kind, machine.id))) {
                sight.foreign.insert(format!("{} {}", kind.word(), machine.owner));
            }
        }
    }
    Ok(sight)
}

async fn inspect(hands: &Hands, record: &Record) -> Result<Option<Machine>, MachineError> {
    let id = hands.machines.id(&record.instance)?;
    hands.machines.get(record.driver)?.inspect(&id).await
}

/// Returns when a live process began, in clock ticks since boot.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    Process::read(pid).filter(|process| !process.is_zombie).map(|process| process.started)
}

/// Returns what an instance is doing, by record, process and driver together.
fn state(record: &Record, machine: Option<&Machine>, boot_id: &str) -> LocalState {
    if let Some(machine) = machine.filter(|machine| machine.state.is_live()) {
        let is_known = record.pid.is_some()
            && record.pid == machine.pid
            && record.boot_id == boot_id
            && record.pid.and_then(start_of) == record.pid_start;
        return if is_known { LocalState::Running } else { LocalState::Begun };
    }
    let gone =
        |exit: Exit, ran_for: Millis| LocalState::Gone { exit, ran_for, is_counted: record.is_counted };
    if let Some(failure) = &record.failure {
        return gone(if failure.is_permanent { Exit::Refused } else { Exit::Failed }, 0);
    }
    let exit = machine.and_then(|machine| machine.exit.as_ref().map(|exit| (machine, exit)));
    let Some((machine, exit)) = exit.filter(|_| !record.is_stopping && record.since > 0) else {
        return LocalState::Remains;
    };
    if exit.at.is_none() && record.boot_id != boot_id {
        // It went with the machine it ran on.
        return LocalState::Remains;
    }
    let ran_for = match (exit.at, machine.started_at) {
        (Some(at), Some(started)) => at.millis_since(started),
        (Some(_) | None, _) => clock::now().saturating_sub(record.since),
    };
    match (exit.code, exit.signal) {
        (Some(code), None) => gone(Exit::Status(code), ran_for),
        (Some(_) | None, Some(_)) | (None, None) => gone(Exit::Killed, ran_for),
    }
}
