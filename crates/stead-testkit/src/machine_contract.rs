//! What every machine driver must do: one suite, run by the tests of each.
//!
//! [`verify`] takes a [`Yard`]: a place where a driver keeps machines, and the ways to look at it and to disturb it.
//! Each part panics with what is not as promised, and leaves the yard empty.

mod cells;
mod disturbed;
mod driver_process;
pub mod large_console;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{Machine, MachineId, MachineSpec, MachineState, Owner};
use stead_runner::machine::{Changed, MachineDriver};

pub use driver_process::{death, die_at, drive};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a machine is given to stop by itself.
const GRACE: Duration = Duration::from_secs(20);

/// A place where a driver keeps machines.
pub trait Yard: Send + Sync {
    /// Returns a new driver of this place, as a new process would have.
    fn driver(&self) -> Arc<dyn MachineDriver>;

    /// Returns the spec of an ordinary machine of `owner`.
    fn spec(&self, owner: Owner) -> MachineSpec;

    /// Returns the spec of a machine whose start fails, with `doomed` among the last lines of its console.
    fn doomed(&self, owner: Owner) -> MachineSpec;

    /// Leaves behind what a driver leaves that dies while it makes the machine.
    fn half_make(&self, spec: &MachineSpec);

    /// Puts something at the machine's place that is not ours.
    fn plant_foreign(&self, spec: &MachineSpec);

    /// Removes what was put there.
    ///
    /// # Panics
    /// If it is not as it was put there.
    fn take_foreign(&self, spec: &MachineSpec);

    /// Whether a machine that runs has an address by itself.
    fn has_addresses(&self) -> bool {
        true
    }

    /// Makes a running machine ignore being asked to stop.
    fn deafen(&self, machine: &Machine);

    /// Kills the machine's process, as a crash would.
    fn kill(&self, machine: &Machine);

    /// Makes the record of the machine's process name a process that is none of it, and ends its own.
    fn swap_process(&self, machine: &Machine);

    /// Leaves of a running machine what a restart of this machine leaves of it. Returns whether that can be: machines that are
    /// elsewhere know nothing of it.
    fn restart_host(&self, _machine: &Machine) -> bool {
        false
    }

    /// Returns a program that does something with the machine of `owner` as a driver of its own: `create`, or a verb of
    /// [`drive`]. A driver that tells its steps is watched by [`death`].
    fn driver_process(&self, verb: &str, owner: &Owner) -> Command;

    /// Returns everything that machines left here: processes, files, sockets.
    fn left(&self) -> Vec<String>;
}

/// Runs the whole suite.
///
/// # Panics
/// If the driver breaks a promise.
pub async fn verify(yard: &dyn Yard) {
    cells::absent(yard).await;
    cells::half_made(yard).await;
    cells::stopped(yard).await;
    cells::running(yard).await;
    cells::foreign(yard).await;
    cells::listed(yard).await;
    cells::ten_at_once(yard).await;
    cells::console(yard).await;
    disturbed::killed_machine(yard).await;
    disturbed::deaf(yard).await;
    disturbed::doomed(yard).await;
    disturbed::swapped_process(yard).await;
    disturbed::restarted_host(yard).await;
    disturbed::two_drivers(yard).await;
    disturbed::dropped_everywhere(yard).await;
    disturbed::dropped_while_failing(yard).await;
    disturbed::killed_driver(yard).await;
    disturbed::killed_while_stopping(yard).await;
}

/// Makes the mark of a machine's process one of another boot of this machine, with a number that another process has now.
///
/// # Panics
/// If there is none.
pub fn begin_boot(file: &std::path::Path) {
    let text = std::fs::read_to_string(file).expect("a mark");
    let (mark, rest) = text.split_once('\n').expect("a line");
    let start = mark.split_whitespace().nth(1).expect("when it was started");
    let mark = format!("{} {start} another-boot", std::process::id());
    std::fs::write(file, format!("{mark}\n{rest}")).expect("the mark");
}

fn owner(name: &str) -> Owner {
    Owner::new("test/contract/yard", name).expect("an owner")
}

#[track_caller]
fn is_empty(yard: &dyn Yard) {
    assert_eq!(yard.left(), Vec::<String>::new(), "something was left behind");
}

async fn make(yard: &dyn Yard, spec: &MachineSpec) -> MachineId {
    let made = within(yard.driver().ensure_created(spec)).await.expect("a machine");
    assert!(made.changed, "a new machine is a change");
    assert_eq!(made.machine.state, MachineState::Stopped, "a new machine is stopped");
    assert_eq!((&made.machine.owner, made.machine.uuid), (&spec.owner, spec.owner.uuid()));
    assert_eq!(made.machine.spec_hash, spec.hash());
    made.machine.id
}

/// Makes and starts a machine, and waits until it is up.
async fn start(yard: &dyn Yard, spec: &MachineSpec) -> Machine {
    let id = make(yard, spec).await;
    assert_eq!(within(yard.driver().start(&id)).await, Ok(Changed::Yes));
    up(yard, &id).await
}

/// Waits until the machine is up.
async fn up(yard: &dyn Yard, id: &MachineId) -> Machine {
    let driver = yard.driver();
    let up = async {
        loop {
            match driver.inspect(id).await.expect("a look") {
                Some(machine) if machine.state == MachineState::Running => return machine,
                Some(_) | None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    within(up).await
}

async fn state(yard: &dyn Yard, id: &MachineId) -> Option<MachineState> {
    within(yard.driver().inspect(id)).await.expect("a look").map(|machine| machine.state)
}

async fn remove(yard: &dyn Yard, id: &MachineId) {
    assert_eq!(within(yard.driver().destroy(id)).await, Ok(Changed::Yes));
    assert_eq!(state(yard, id).await, None);
    is_empty(yard);
}

#[track_caller]
fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("nothing happened for {PATIENCE:?} at {caller}"),
        }
    }
}
