//! Every cell of the table of calls and states, each call twice.

use std::time::Duration;

use stead_model::machine::{MachineId, MachineSpec, MachineState, Owner, OwnerScope};
use stead_runner::machine::{Changed, MachineError, Stopped};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use super::{GRACE, Yard, is_empty, make, owner, remove, start, state, up, within};

const UNCHANGED: Stopped = Stopped { changed: false, forced: false };

/// Returns what the driver calls a machine that is not there.
async fn id_of_absent(yard: &dyn Yard, spec: &MachineSpec) -> MachineId {
    let id = make(yard, spec).await;
    remove(yard, &id).await;
    id
}

pub(super) async fn absent(yard: &dyn Yard) {
    let driver = yard.driver();
    let id = id_of_absent(yard, &yard.spec(owner("absent"))).await;
    for _ in 0..2 {
        assert_eq!(within(driver.start(&id)).await, Err(MachineError::NotFound(id.clone())));
        assert_eq!(within(driver.stop(&id, GRACE)).await, Ok(UNCHANGED));
        assert_eq!(within(driver.destroy(&id)).await, Ok(Changed::No));
        assert_eq!(within(driver.inspect(&id)).await, Ok(None));
        assert!(within(driver.wait(&id)).await.is_err());
        assert!(within(driver.console(&id, 0)).await.is_err());
    }
    is_empty(yard);
}

/// Who lists machines is told of each what who looks at it is told.
async fn listed_as_seen(yard: &dyn Yard, id: &MachineId, owner: &Owner) {
    let driver = yard.driver();
    let seen = within(driver.inspect(id)).await.expect("a look");
    let listed = within(driver.list(&OwnerScope::Exactly(owner.scope().to_owned()))).await.expect("a list");
    assert_eq!(listed.into_iter().find(|machine| machine.owner == *owner), seen);
}

pub(super) async fn half_made(yard: &dyn Yard) {
    let driver = yard.driver();
    let spec = yard.spec(owner("half"));
    let id = id_of_absent(yard, &spec).await;
    yard.half_make(&spec);
    for _ in 0..2 {
        assert_eq!(state(yard, &id).await, Some(MachineState::Creating));
        listed_as_seen(yard, &id, &spec.owner).await;
        assert_eq!(within(driver.start(&id)).await, Err(MachineError::NotFound(id.clone())));
        assert_eq!(within(driver.stop(&id, GRACE)).await, Ok(UNCHANGED));
    }
    remove(yard, &id).await;
    yard.half_make(&spec);
    let made = within(driver.ensure_created(&spec)).await.expect("it is finished or replaced");
    assert!(made.changed);
    assert_eq!(made.machine.state, MachineState::Stopped);
    assert_eq!(within(driver.start(&id)).await, Ok(Changed::Yes));
    up(yard, &id).await;
    remove(yard, &id).await;
}

pub(super) async fn stopped(yard: &dyn Yard) {
    let driver = yard.driver();
    let spec = yard.spec(owner("stopped"));
    let id = make(yard, &spec).await;
    let before = within(driver.inspect(&id)).await.expect("a look");
    for _ in 0..2 {
        let again = within(driver.ensure_created(&spec)).await.expect("it is there");
        assert!(!again.changed);
        assert_eq!(within(driver.stop(&id, GRACE)).await, Ok(UNCHANGED));
    }
    assert_eq!(within(driver.inspect(&id)).await.expect("a look"), before, "nothing was touched");
    conflict(yard, &spec, &id).await;
    assert_eq!(within(driver.start(&id)).await, Ok(Changed::Yes));
    up(yard, &id).await;
    assert_eq!(within(driver.stop(&id, GRACE)).await, Ok(Stopped { changed: true, forced: false }));
    let exit = within(driver.wait(&id)).await.expect("it has ended");
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let machine = within(driver.inspect(&id)).await.expect("a look").expect("it is there");
    assert_eq!((machine.state, machine.pid), (MachineState::Stopped, None));
    assert_eq!(machine.exit, Some(exit));
    remove(yard, &id).await;
}

/// Another machine of the same name is refused, and nothing changes.
pub(super) async fn conflict(yard: &dyn Yard, spec: &MachineSpec, id: &MachineId) {
    let before = within(yard.driver().inspect(id)).await;
    let other = MachineSpec { memory_mb: Some(spec.memory_mb.unwrap_or(512) + 512), ..spec.clone() };
    match within(yard.driver().ensure_created(&other)).await {
        Err(MachineError::Conflict { changes, .. }) => {
            let fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
            assert_eq!(fields, ["memory_mb"]);
            assert_ne!(changes[0].old, changes[0].new);
        }
        other => panic!("another shape is a conflict, not {other:?}"),
    }
    assert_eq!(within(yard.driver().inspect(id)).await, before);
}

pub(super) async fn running(yard: &dyn Yard) {
    let driver = yard.driver();
    let spec = yard.spec(owner("running"));
    let machine = start(yard, &spec).await;
    let id = &machine.id;
    assert!(machine.started_at.is_some(), "{machine:?}");
    assert_eq!(!machine.addresses.is_empty(), yard.has_addresses(), "{machine:?}");
    for _ in 0..2 {
        assert_eq!(within(driver.start(id)).await, Ok(Changed::No));
        let again = within(driver.ensure_created(&spec)).await.expect("it is there");
        assert_eq!((again.changed, again.machine), (false, machine.clone()), "it is left as it is");
    }
    conflict(yard, &spec, id).await;
    assert_eq!(within(yard.driver().inspect(id)).await, Ok(Some(machine.clone())), "a new driver adopts it");
    listed_as_seen(yard, id, &spec.owner).await;
    let waiting = driver.wait(id);
    let ending = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        within(yard.driver().stop(id, GRACE)).await
    };
    let (ended, stopped) = tokio::join!(within(waiting), ending);
    assert_eq!(stopped, Ok(Stopped { changed: true, forced: false }));
    assert_eq!(ended.expect("it ended").code, Some(0));
    assert_eq!(within(driver.stop(id, GRACE)).await, Ok(UNCHANGED));
    assert_eq!(within(driver.start(id)).await, Ok(Changed::Yes));
    up(yard, id).await;
    remove(yard, id).await;
}

pub(super) async fn foreign(yard: &dyn Yard) {
    let driver = yard.driver();
    let spec = yard.spec(owner("foreign"));
    let id = id_of_absent(yard, &spec).await;
    yard.plant_foreign(&spec);
    let is_foreign = |error: &MachineError| matches!(error, MachineError::Foreign { .. });
    for _ in 0..2 {
        assert!(within(driver.ensure_created(&spec)).await.is_err_and(|error| is_foreign(&error)));
        assert!(within(driver.start(&id)).await.is_err_and(|error| is_foreign(&error)));
        assert!(within(driver.stop(&id, GRACE)).await.is_err_and(|error| is_foreign(&error)));
        assert!(within(driver.destroy(&id)).await.is_err_and(|error| is_foreign(&error)));
        assert_eq!(within(driver.inspect(&id)).await, Ok(None));
        assert_eq!(within(driver.list(&OwnerScope::All)).await, Ok(Vec::new()));
    }
    yard.take_foreign(&spec);
    is_empty(yard);
}

pub(super) async fn listed(yard: &dyn Yard) {
    let driver = yard.driver();
    let elsewhere = Owner::new("test/contract/elsewhere", "b").expect("an owner");
    let specs = [owner("b"), owner("a"), elsewhere].map(|owner| yard.spec(owner));
    let mut ids = Vec::new();
    for spec in &specs {
        ids.push(make(yard, spec).await);
    }
    let names = async |scope: OwnerScope| {
        let listed = within(driver.list(&scope)).await.expect("a list");
        listed.iter().map(|machine| machine.owner.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(OwnerScope::Exactly("test/contract/yard".to_owned())).await,
        ["test/contract/yard/a", "test/contract/yard/b"]
    );
    assert_eq!(names(OwnerScope::All).await.len(), 3);
    assert!(names(OwnerScope::Exactly("test/contract".to_owned())).await.is_empty());
    for id in &ids {
        assert_eq!(within(driver.destroy(id)).await, Ok(Changed::Yes));
    }
    is_empty(yard);
}

pub(super) async fn ten_at_once(yard: &dyn Yard) {
    let driver = yard.driver();
    let mut making = JoinSet::new();
    for number in 0..10 {
        let (driver, spec) = (driver.clone(), yard.spec(owner(&format!("ten-{number}"))));
        making.spawn(async move {
            let made = driver.ensure_created(&spec).await.expect("a machine");
            driver.start(&made.machine.id).await.expect("a start");
            made.machine.id
        });
    }
    let ids = within(making.join_all()).await;
    let mut pids = std::collections::BTreeSet::new();
    for id in &ids {
        let machine = up(yard, id).await;
        assert!(machine.pid.is_none_or(|pid| pids.insert(pid)), "two machines in one process");
    }
    let mut removing = JoinSet::new();
    for id in ids {
        let driver = driver.clone();
        removing.spawn(async move { driver.destroy(&id).await });
    }
    for removed in within(removing.join_all()).await {
        assert_eq!(removed, Ok(Changed::Yes));
    }
    is_empty(yard);
}

pub(super) async fn console(yard: &dyn Yard) {
    let driver = yard.driver();
    if !driver.capabilities().console {
        return;
    }
    let machine = start(yard, &yard.spec(owner("console"))).await;
    let mut stream = within(driver.console(&machine.id, 0)).await.expect("a console");
    let mut first = [0; 1];
    within(stream.bytes.read_exact(&mut first)).await.expect("it has said something");
    within(driver.stop(&machine.id, GRACE)).await.expect("a stop");
    let mut rest = Vec::new();
    within(stream.bytes.read_to_end(&mut rest)).await.expect("it ends with the machine");
    let mut whole = within(driver.console(&machine.id, 0)).await.expect("a console");
    let mut all = Vec::new();
    within(whole.bytes.read_to_end(&mut all)).await.expect("what it said stays");
    assert_eq!(all, [&first[..], &rest[..]].concat(), "followed and read afterwards it is the same");
    let mut later = within(driver.console(&machine.id, 1)).await.expect("a console");
    let mut tail = Vec::new();
    within(later.bytes.read_to_end(&mut tail)).await.expect("from a later byte");
    assert_eq!((later.start, tail), (1, rest));
    remove(yard, &machine.id).await;
}
