//! A signal ends a measurement by unwinding it, so that no machine, server or temporary directory is left.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// Whether a signal has come.
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// Listens for signals from now on. What is measured at that moment is asked to end.
pub(crate) fn listen() {
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let heard = runtime.and_then(|runtime| runtime.block_on(next()));
        if heard.is_ok() {
            HAS_COME.store(true, Ordering::SeqCst);
            for child in children_of(std::process::id()) {
                let child = i32::try_from(child).ok().and_then(Pid::from_raw);
                child.map(|child| kill_process(child, Signal::TERM));
            }
        }
    });
}

async fn next() -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// Unwinds if a signal has come.
pub(crate) fn check() {
    assert!(!HAS_COME.load(Ordering::SeqCst), "ended by a signal");
}

/// Returns the processes that `process` started and that have not ended.
pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}
