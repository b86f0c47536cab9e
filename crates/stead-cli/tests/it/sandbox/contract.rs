//! The contracts of machine drivers and of transports, for sandboxes.

use std::time::{Duration, Instant};

use stead_model::machine::{MachineState, OwnerScope};
use stead_runner::machine::MachineDriver;
use stead_testkit::machine_contract::{self, Yard};
use stead_testkit::transport_contract;
use tokio::task::JoinSet;

use super::yard::{Place, node};

/// Case 26: the contract of machine drivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_keep_the_machine_contract() {
    machine_contract::verify(&Place::new()).await;
}

/// Section 11 of reach: what the transport promises holds against the server of a sandbox as against OpenSSH's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_keeps_the_transport_contract() {
    let place = Place::new();
    let machine = place.start("door").await;
    // Its sockets are reached, and nobody else's.
    let directory = tempfile::tempdir_in(place.home(&machine.owner).join("root/tmp")).unwrap();
    transport_contract::verify(place.connect(&machine).await, directory.path()).await;
    place.sandboxes().destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Fifty machines at once come up, and nothing of them stays. How long that takes is for the bench.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_sandboxes_start_at_once_and_leave_nothing() {
    let place = Place::new();
    let driver = place.sandboxes();
    let begun = Instant::now();
    let mut starting = JoinSet::new();
    for number in 0..50 {
        let (driver, spec) = (driver.clone(), place.spec(node(&format!("n{number}"))));
        starting.spawn(async move {
            let made = driver.ensure_created(&spec).await.unwrap();
            driver.start(&made.machine.id).await.unwrap();
            loop {
                let seen = driver.inspect(&made.machine.id).await.unwrap().unwrap();
                if seen.state == MachineState::Running {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    let machines = starting.join_all().await;
    let took = begun.elapsed();
    let ports: std::collections::BTreeSet<u16> =
        machines.iter().map(|machine| machine.ssh.as_ref().unwrap().port).collect();
    assert_eq!(ports.len(), 50);
    assert_eq!(driver.list(&OwnerScope::All).await.unwrap().len(), 50);
    let mut removing = JoinSet::new();
    for machine in machines {
        let driver = driver.clone();
        removing.spawn(async move { driver.destroy(&machine.id).await.unwrap() });
    }
    removing.join_all().await;
    println!("50 sandboxes: up after {took:?}, gone after {:?}", begun.elapsed());
    assert_eq!(place.left(), Vec::<String>::new());
}
