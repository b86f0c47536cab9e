//! Machines and drivers that die, do not listen, or are at it at once.

use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use stead_model::machine::{MachineSpec, MachineState};
use stead_runner::machine::{Changed, MachineError, Stopped};

use super::cells::conflict;
use super::{GRACE, Yard, die_at, is_empty, make, owner, remove, start, state, up, within};

pub(super) async fn killed_machine(yard: &dyn Yard) {
    let driver = yard.driver();
    let spec = yard.spec(owner("killed"));
    let machine = start(yard, &spec).await;
    let waiting = driver.wait(&machine.id);
    yard.kill(&machine);
    let exit = within(waiting).await.expect("its end is noticed");
    assert!(exit.code != Some(0) && !exit.reason.is_empty(), "{exit:?}");
    assert_eq!(within(driver.wait(&machine.id)).await, Ok(exit), "however often it is waited for");
    assert_eq!(state(yard, &machine.id).await, Some(MachineState::Failed));
    for _ in 0..2 {
        let again = within(driver.ensure_created(&spec)).await.expect("it is there");
        assert!(!again.changed, "one that failed is left as it is");
        let stopped = within(driver.stop(&machine.id, GRACE)).await;
        assert_eq!(stopped, Ok(Stopped { changed: false, forced: false }));
        assert_eq!(state(yard, &machine.id).await, Some(MachineState::Failed), "nothing was touched");
    }
    conflict(yard, &spec, &machine.id).await;
    assert_eq!(within(driver.start(&machine.id)).await, Ok(Changed::Yes));
    up(yard, &machine.id).await;
    remove(yard, &machine.id).await;
}

pub(super) async fn deaf(yard: &dyn Yard) {
    let driver = yard.driver();
    let machine = start(yard, &yard.spec(owner("deaf"))).await;
    yard.deafen(&machine);
    let stopped = within(driver.stop(&machine.id, Duration::from_millis(300))).await;
    assert_eq!(stopped, Ok(Stopped { changed: true, forced: true }));
    assert_eq!(state(yard, &machine.id).await, Some(MachineState::Stopped));
    assert_eq!(within(driver.start(&machine.id)).await, Ok(Changed::Yes));
    let machine = up(yard, &machine.id).await;
    yard.deafen(&machine);
    remove(yard, &machine.id).await;
}

pub(super) async fn doomed(yard: &dyn Yard) {
    let driver = yard.driver();
    let id = make(yard, &yard.doomed(owner("doomed"))).await;
    for _ in 0..2 {
        match within(driver.start(&id)).await {
            Err(MachineError::Failed { last_lines, .. }) => {
                assert!(last_lines.iter().any(|line| line.contains("doomed")), "{last_lines:?}");
                assert!(last_lines.len() <= stead_model::tail::LAST_LINES);
            }
            other => panic!("a machine that dies at once has failed to start, not {other:?}"),
        }
        let seen = within(driver.inspect(&id)).await.expect("a look").expect("it is there");
        assert_eq!(seen.state, MachineState::Failed, "its true state, and its exit: {seen:?}");
        assert!(seen.exit.is_some_and(|exit| exit.code != Some(0)));
    }
    remove(yard, &id).await;
}

pub(super) async fn swapped_process(yard: &dyn Yard) {
    let driver = yard.driver();
    let machine = start(yard, &yard.spec(owner("swapped"))).await;
    if machine.pid.is_none() {
        // Its machines are no processes of this machine.
        return remove(yard, &machine.id).await;
    }
    yard.swap_process(&machine);
    let seen = within(driver.inspect(&machine.id)).await.expect("a look").expect("it is there");
    assert!(seen.pid.is_none() && !seen.state.is_live(), "another process is taken for it: {seen:?}");
    assert_eq!(within(driver.stop(&machine.id, GRACE)).await, Ok(Stopped { changed: false, forced: false }));
    assert_eq!(within(driver.start(&machine.id)).await, Ok(Changed::Yes));
    assert_ne!(up(yard, &machine.id).await.pid, machine.pid);
    remove(yard, &machine.id).await;
}

/// What ran when this machine went down is stopped when it is back, and starts as ever.
pub(super) async fn restarted_host(yard: &dyn Yard) {
    let driver = yard.driver();
    let machine = start(yard, &yard.spec(owner("before"))).await;
    if yard.restart_host(&machine) {
        let seen = within(driver.inspect(&machine.id)).await.expect("a look").expect("it is there");
        assert_eq!((seen.state, seen.pid), (MachineState::Stopped, None), "{seen:?}");
        assert_eq!(seen.exit.and_then(|exit| exit.code), Some(0), "it has not failed");
        assert_eq!(within(driver.start(&machine.id)).await, Ok(Changed::Yes));
        up(yard, &machine.id).await;
    }
    remove(yard, &machine.id).await;
}

pub(super) async fn two_drivers(yard: &dyn Yard) {
    let spec = yard.spec(owner("twice"));
    for _ in 0..5 {
        let (one, other) = (yard.driver(), yard.driver());
        let (a, b) =
            within(async { tokio::join!(one.ensure_created(&spec), other.ensure_created(&spec)) }).await;
        let (a, b) = (a.expect("a machine"), b.expect("a machine"));
        assert!(a.changed != b.changed, "one makes it, the other sees it");
        assert_eq!(a.machine, b.machine);
        let id = a.machine.id;
        let (a, b) = within(async { tokio::join!(one.start(&id), other.start(&id)) }).await;
        let mut starts = [a.expect("a start"), b.expect("a start")];
        starts.sort_by_key(|changed| *changed == Changed::No);
        assert_eq!(starts, [Changed::Yes, Changed::No]);
        let (a, b) = within(async { tokio::join!(one.destroy(&id), other.destroy(&id)) }).await;
        let mut ends = [a.expect("an end"), b.expect("an end")];
        ends.sort_by_key(|changed| *changed == Changed::No);
        assert_eq!(ends, [Changed::Yes, Changed::No]);
        is_empty(yard);
    }
}

/// After so many polls a call is either over or waits for the same again and again.
const MOST_POLLS: usize = 100;

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a future as often as `polls` says, each time after it was woken; returns whether it ended.
async fn poll_and_drop<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    for poll in 0..polls {
        if matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(_)) {
            return true;
        }
        let woken = async {
            while count.0.load(Ordering::SeqCst) <= poll {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(woken).await;
    }
    false
}

pub(super) async fn dropped_everywhere(yard: &dyn Yard) {
    let spec = yard.spec(owner("dropped"));
    let id = make(yard, &spec).await;
    remove(yard, &id).await;
    let mut polls = 1;
    loop {
        let driver = yard.driver();
        let mut whole = poll_and_drop(driver.ensure_created(&spec), polls).await;
        let made = within(driver.ensure_created(&spec)).await.expect("made after all");
        assert_eq!(made.machine.state, MachineState::Stopped, "after {polls} polls of create");
        whole &= poll_and_drop(driver.start(&id), polls).await;
        within(driver.start(&id)).await.expect("started after all");
        up(yard, &id).await;
        whole &= poll_and_drop(driver.stop(&id, GRACE), polls).await;
        within(driver.stop(&id, GRACE)).await.expect("stopped after all");
        assert_eq!(state(yard, &id).await, Some(MachineState::Stopped), "after {polls} polls of stop");
        // What it still ends of the run before is not the next one.
        poll_and_drop(driver.stop(&id, GRACE), polls).await;
        within(driver.start(&id)).await.expect("started again");
        up(yard, &id).await;
        assert_eq!(
            within(driver.start(&id)).await,
            Ok(Changed::No),
            "after {polls} polls of a stop for nothing"
        );
        whole &= poll_and_drop(driver.destroy(&id), polls).await;
        within(driver.destroy(&id)).await.expect("removed after all");
        is_empty(yard);
        // Those that look again and again whether something has come have no end of awaits.
        if whole || polls > MOST_POLLS {
            return;
        }
        polls = longer(polls);
    }
}

/// As long as it polls no oftener each await is one where a call is dropped; then closer than any call changes what it does.
const EACH: usize = 40;

fn longer(polls: usize) -> usize {
    polls + if polls < EACH { 1 } else { 1 + polls / 4 }
}

/// A start that fails ends what it began, also for whoever does not wait for that, before anybody else comes to the machine.
pub(super) async fn dropped_while_failing(yard: &dyn Yard) {
    let driver = yard.driver();
    let id = make(yard, &yard.doomed(owner("doomed-dropped"))).await;
    let mut polls = 1;
    loop {
        let whole = poll_and_drop(driver.start(&id), polls).await;
        let started = within(driver.start(&id)).await;
        assert!(matches!(started, Err(MachineError::Failed { .. })), "after {polls} polls: {started:?}");
        let seen = state(yard, &id).await;
        assert_eq!(seen, Some(MachineState::Failed), "after {polls} polls of a start that fails");
        if whole || polls > MOST_POLLS {
            return remove(yard, &id).await;
        }
        polls = longer(polls);
    }
}

pub(super) async fn killed_driver(yard: &dyn Yard) {
    let spec: MachineSpec = yard.spec(owner("orphan"));
    let driver = yard.driver();
    let id = make(yard, &spec).await;
    remove(yard, &id).await;
    // Spread over what the calls take, closer where they begin.
    for step in 0..8_u64 {
        let moment = Duration::from_millis(step * step * 4);
        for verb in ["create", "start", "stop", "start", "destroy"] {
            let mut command = yard.driver_process(verb, &spec.owner);
            let mut process =
                command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a driver of its own");
            tokio::time::sleep(moment).await;
            process.kill().ok();
            process.wait().expect("its end");
            match verb {
                "create" => {
                    let made = within(driver.ensure_created(&spec)).await.expect("made after all");
                    assert_eq!(made.machine.state, MachineState::Stopped);
                }
                "start" => {
                    within(driver.start(&id)).await.expect("started after all");
                    up(yard, &id).await;
                }
                "stop" => {
                    within(driver.stop(&id, GRACE)).await.expect("stopped after all");
                    assert_eq!(state(yard, &id).await, Some(MachineState::Stopped));
                }
                _ => {
                    within(driver.destroy(&id)).await.expect("removed after all");
                    is_empty(yard);
                }
            }
        }
    }
}

/// A driver that is killed between any two steps of a stop, asked for or forced: the next one stops or starts the machine.
pub(super) async fn killed_while_stopping(yard: &dyn Yard) {
    let driver = yard.driver();
    let machine = start(yard, &yard.spec(owner("half-stopped"))).await;
    let id = &machine.id;
    for verb in ["stop", "force"] {
        for step in 0.. {
            let mut command = yard.driver_process(verb, &machine.owner);
            die_at(&mut command, step);
            let ended = command.stdin(Stdio::null()).output().expect("a driver of its own");
            let died = std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(9);
            assert!(died || ended.status.success(), "{verb}: {}", String::from_utf8_lossy(&ended.stdout));
            // Whether the next one wants it to run or not, it does what it is told.
            if step % 2 == 0 {
                within(driver.stop(id, GRACE)).await.expect("stopped after all");
                let seen = within(driver.inspect(id)).await.expect("a look").expect("it is there");
                assert_eq!(seen.state, MachineState::Stopped, "{verb}, step {step}: {seen:?}");
                let exit = within(driver.wait(id)).await.expect("it has ended");
                assert_eq!(exit.code, Some(0), "{verb}, step {step}: {exit:?}");
            }
            within(driver.start(id)).await.expect("started after all");
            up(yard, id).await;
            if !died {
                // Machines of this machine are stopped step by step; others by one call.
                assert!(step > 1 || machine.pid.is_none(), "{verb}: {step} steps show nothing");
                break;
            }
        }
    }
    remove(yard, id).await;
}
