//! What is there: records, processes and what drivers say, looked at anew each time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use stead_engine::fleet::reconcile::{Exit, LocalState};
use stead_model::fleet::vm::Driver;
use stead_model::fleet::{InstanceKey, Millis};
use stead_model::machine::{Machine, MachineId, OwnerScope};
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
    // Before the records: whatever is made of ours meanwhile has one by then.
    let mut listed = Vec::new();
    for (kind, driver) in hands.machines.all() {
        let machines = driver.list(&OwnerScope::All).await.unwrap_or_default();
        listed.extend(machines.into_iter().map(|machine| (kind, machine)));
    }
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
    for (kind, machine) in listed {
        let is_called_as_ours = machine.owner.scope() == hands.machines.scope();
        let name = format!("{} {}", kind.word(), machine.owner);
        let entry = (kind, machine.id);
        // One without a record may just have been removed by us.
        if is_called_as_ours && (ours.contains(&entry) || !is_there(hands, &entry).await) {
            continue;
        }
        sight.foreign.insert(name);
    }
    Ok(sight)
}

/// Whether a driver still has a machine, as far as that can be told.
async fn is_there(hands: &Hands, (kind, id): &(Driver, MachineId)) -> bool {
    match hands.machines.get(*kind) {
        Ok(driver) => driver.inspect(id).await.is_ok_and(|machine| machine.is_some()),
        Err(_) => false,
    }
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
        // One that ended since its driver looked is still our run: its end is noticed at the next look.
        let is_same_run = |pid: u32| start_of(pid).is_none_or(|start| Some(start) == record.pid_start);
        let is_known =
            record.boot_id == boot_id && record.pid == machine.pid && record.pid.is_some_and(is_same_run);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use stead_model::plan::Digest;

    use super::*;
    use crate::worker::machine::tests::spec;

    fn seen_as(pid: u32) -> Machine {
        serde_json::from_value(json!({
            "id": "web-0", "owner": {"scope": "fleet/w1", "name": "web-0"}, "uuid": "u", "state": "running",
            "spec_hash": "h", "pid": pid, "created_at": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    /// F1, case 14: an end between the driver's look and ours is an end, and no run that somebody else began.
    #[test]
    fn what_ends_while_it_is_looked_at_was_running() {
        let key = InstanceKey::parse("web/0").unwrap();
        let spec = Arc::new(spec(&json!({"runtime": {"driver": "sandbox"}})));
        let own = std::process::id();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let boot_id = clock::boot_id();
        let mut record = Record::new(&key, &spec, Digest::of(b"web"), Driver::Sandbox);
        (record.pid, record.pid_start) = (Some(ended.id()), Some(1));
        assert_eq!(state(&record, Some(&seen_as(ended.id())), &boot_id), LocalState::Running);
        assert_eq!(state(&record, Some(&seen_as(own)), &boot_id), LocalState::Begun, "another process");
        record.pid = Some(own);
        assert_eq!(state(&record, Some(&seen_as(own)), &boot_id), LocalState::Begun, "its number again");
        record.pid_start = start_of(own);
        assert_eq!(state(&record, Some(&seen_as(own)), &boot_id), LocalState::Running);
        assert_eq!(state(&record, Some(&seen_as(own)), "another boot"), LocalState::Begun);
    }
}
