//! Drivers in processes of their own, which may die at any of their steps.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stead_model::machine::MachineId;
use stead_runner::machine::MachineDriver;

use super::GRACE;

/// Holds the number of the step at which a driver dies.
const DIES_AT: &str = "STEAD_TEST_DIES_AT";

/// Makes a driver's process die at its step `step`, counted from 0.
pub fn die_at(command: &mut Command, step: usize) {
    command.env(DIES_AT, step.to_string());
}

/// Returns who is told of a driver's steps and ends its process at the one that [`die_at`] says.
///
/// # Panics
/// If this process cannot be ended.
pub fn death() -> Arc<dyn Fn(&str) + Send + Sync> {
    let last = std::env::var_os(DIES_AT).and_then(|step| step.to_str()?.parse().ok());
    let steps = AtomicUsize::new(0);
    Arc::new(move |_| {
        if last == Some(steps.fetch_add(1, Ordering::SeqCst)) {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("an end");
        }
    })
}

/// Does with a machine what a verb says: `start`, `stop`, `force` (a stop that does not wait), `destroy`.
///
/// # Panics
/// If it fails, or there is no such verb.
pub async fn drive(driver: &dyn MachineDriver, verb: &str, id: &MachineId) {
    match verb {
        "start" => drop(driver.start(id).await.expect("a start")),
        "stop" => drop(driver.stop(id, GRACE).await.expect("a stop")),
        "force" => drop(driver.stop(id, Duration::ZERO).await.expect("a stop")),
        "destroy" => drop(driver.destroy(id).await.expect("an end")),
        verb => panic!("{verb}"),
    }
}
