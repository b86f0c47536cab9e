//! A driver that is killed between any two steps of making or removing: the next one ends right.

use std::path::PathBuf;

use serde::Deserialize as _;
use serde_json::Value;
use stead_drivers::machine::sandbox::SandboxDriver;
use stead_model::machine::{MachineId, MachineKind, MachineSpec, MachineState, Owner};
use stead_runner::machine::{Changed, MachineDriver};
use stead_testkit::machine_contract::{self, Yard};

use super::yard::{DRIVER, Place, driver_process, node, settings};

/// Is a driver, if this process was started to be one; else it shows nothing.
#[tokio::test]
async fn a_driver_of_its_own() {
    let Some(order) = std::env::var_os(DRIVER) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let owner = Owner::deserialize(&order["owner"]).unwrap();
    let root_dir = PathBuf::from(order["root_dir"].as_str().unwrap());
    let driver = SandboxDriver::new(settings(&root_dir)).watched(machine_contract::death());
    let id = MachineId::new(owner.uuid());
    match order["verb"].as_str().unwrap() {
        "create" => {
            let keys = order["keys"].as_array().into_iter().flatten();
            let authorized_keys = keys.map(|key| key.as_str().unwrap().to_owned()).collect();
            let spec = MachineSpec { authorized_keys, ..MachineSpec::new(owner, MachineKind::Vm) };
            drop(driver.ensure_created(&spec).await.unwrap());
        }
        verb => machine_contract::drive(&driver, verb, &id).await,
    }
}

/// Runs `verb` in a process that dies at a step; returns whether it did.
fn dies(place: &Place, verb: &str, owner: &Owner, step: usize) -> bool {
    let mut command = driver_process(&place.root_dir(), verb, owner);
    machine_contract::die_at(&mut command, step);
    let ended = command.output().unwrap();
    let died = std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(9);
    assert!(died || ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    died
}

#[tokio::test]
async fn a_driver_killed_between_any_two_steps_leaves_what_the_next_one_finishes() {
    let place = Place::new();
    let driver = place.sandboxes();
    let spec = place.spec(node("swept"));
    let id = MachineId::new(spec.owner.uuid());
    let mut deaths = 0;
    for step in 0.. {
        // Killed while it makes: made after all, or removed.
        let died = dies(&place, "create", &spec.owner, step);
        if step % 2 == 0 {
            let made = driver.ensure_created(&spec).await.unwrap();
            assert_eq!(
                (made.changed, made.machine.state),
                (died_early(died, step), MachineState::Stopped),
                "{step}"
            );
            assert_eq!(driver.start(&id).await, Ok(Changed::Yes));
            place.up(&made.machine).await;
        } else {
            driver.destroy(&id).await.unwrap();
            assert_eq!(place.left(), Vec::<String>::new(), "after step {step}");
            driver.ensure_created(&spec).await.unwrap();
            driver.start(&id).await.unwrap();
        }
        // Killed while it removes what runs: removed after all, or made again.
        let died_again = dies(&place, "destroy", &spec.owner, step);
        if step % 2 == 1 {
            let made = driver.ensure_created(&spec).await.unwrap();
            if made.machine.state != MachineState::Stopped {
                assert!(
                    !made.changed && made.machine.state.is_live(),
                    "it was killed before it did anything: {step}"
                );
            }
        }
        driver.destroy(&id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new(), "after step {step}");
        deaths += usize::from(died) + usize::from(died_again);
        if !died && !died_again {
            break;
        }
    }
    assert!(deaths > 10, "only {deaths} were killed: this shows nothing");
}

/// Whether there is something left to do for a machine whose maker died at a step: not after the last one.
fn died_early(died: bool, step: usize) -> bool {
    died && step < CREATE_STEPS - 1
}

/// Steps of making a machine; the last is told of when it is made.
const CREATE_STEPS: usize = 14;
