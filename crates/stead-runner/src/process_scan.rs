//! Processes that a dead run left behind: found by the environment it gave them, and ended.
//!
//! A driver that is killed cannot end its commands. Before a resumed run starts anything, what is left
//! of its interrupted attempts must be gone. Processes of attempts that ended are not touched: a daemon
//! that a finished task started is that task's result. Reads `/proc`, so it finds nothing elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use stead_model::event::InterruptedAttempt;
use stead_model::{HostName, RunId, TaskName};

use crate::clock;
use crate::process_table::{Environment, Process, pids};

/// How often it is looked whether processes have ended.
const POLL: Duration = Duration::from_millis(20);
/// How long killed processes may take to go: the kernel needs no more unless a disk hangs.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// How often new processes of a tree that forks while it is ended are looked for.
const ROUNDS: u32 = 10;

/// A live process of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftProcess {
    /// Its process id.
    pub pid: u32,
    /// The task that started it.
    pub task: TaskName,
    /// The host it was started for, if it was for one.
    pub host: Option<HostName>,
    /// Its name, as the kernel knows it.
    pub name: String,
}

/// What became of the processes of a dead run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Those that are gone.
    pub ended: Vec<LeftProcess>,
    /// Those that could not be ended.
    pub remaining: Vec<LeftProcess>,
}

/// Returns the live processes that `run`, recorded in `bundle`, started for one of `attempts`, never this process or an ancestor of it.
///
/// An attempt without a host fits any host.
pub fn find(run: &RunId, bundle: &Path, attempts: &[InterruptedAttempt]) -> Vec<LeftProcess> {
    scan(run, bundle, attempts).into_iter().map(|(process, _)| process).collect()
}

/// Ends the live processes that `run` started for one of `attempts`: asks, waits for `grace`, kills.
pub async fn end(run: &RunId, bundle: &Path, attempts: &[InterruptedAttempt], grace: Duration) -> Ended {
    let mut seen: BTreeSet<LeftProcess> = BTreeSet::new();
    let mut asked: BTreeSet<u32> = BTreeSet::new();
    let asking_ends = clock::instant() + grace;
    // Asked again and again: a process that is being ended may start another one.
    loop {
        let left = scan(run, bundle, attempts);
        if left.is_empty() {
            return Ended { ended: seen.into_iter().collect(), remaining: Vec::new() };
        }
        for (process, handle) in &left {
            if asked.insert(process.pid) {
                signal(handle, Signal::TERM);
            }
        }
        seen.extend(left.iter().map(|(process, _)| process.clone()));
        let time = asking_ends.saturating_duration_since(clock::instant());
        if time.is_zero() {
            break;
        }
        gone(&left, time).await;
    }
    for _ in 0..ROUNDS {
        let left = scan(run, bundle, attempts);
        if left.is_empty() {
            break;
        }
        for (_, handle) in &left {
            signal(handle, Signal::KILL);
        }
        seen.extend(left.iter().map(|(process, _)| process.clone()));
        gone(&left, KILL_WAIT).await;
    }
    let remaining = find(run, bundle, attempts);
    Ended { ended: seen.into_iter().filter(|process| !remaining.contains(process)).collect(), remaining }
}

/// Sends a signal; a process that is gone already needs none, one that is not ours is found again and reported.
fn signal(handle: &OwnedFd, signal: Signal) {
    pidfd_send_signal(handle, signal).ok();
}

/// Resolves when all processes are gone or `time` has passed.
async fn gone(left: &[(LeftProcess, OwnedFd)], time: Duration) {
    let end = clock::instant() + time;
    while !left.iter().all(|(_, handle)| is_gone(handle)) {
        let time = end.saturating_duration_since(clock::instant());
        if time.is_zero() {
            return;
        }
        tokio::time::sleep(time.min(POLL)).await;
    }
}

/// Whether a process has ended; one that nobody has waited for yet counts as ended.
fn is_gone(handle: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(handle, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&at_once)), Ok(ready) if ready > 0)
}

/// Returns the processes that fit, each with a handle that stays with it though its number be used again.
fn scan(run: &RunId, bundle: &Path, attempts: &[InterruptedAttempt]) -> Vec<(LeftProcess, OwnedFd)> {
    let own = own_line();
    let mut found: Vec<_> = pids()
        .filter(|pid| !own.contains(pid))
        .filter_map(|pid| {
            started_for(pid, run, bundle, attempts)?;
            // The number may have changed owner before the handle was made: ask again with the handle in hand.
            let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
            let (task, host) = started_for(pid, run, bundle, attempts)?;
            if is_gone(&handle) {
                return None;
            }
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Some((LeftProcess { pid, task, host, name: name.trim_end().to_owned() }, handle))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Returns the attempt that a process was started for, if it is one of `attempts` of `run`.
fn started_for(
    pid: u32,
    run: &RunId,
    bundle: &Path,
    attempts: &[InterruptedAttempt],
) -> Option<(TaskName, Option<HostName>)> {
    let environment = Environment::of(pid)?;
    let variable = |name: &str| std::str::from_utf8(environment.get(name)?).ok();
    if variable("STEAD_RUN_ID")? != run.as_str() {
        return None;
    }
    // Ids that people choose are unique in one state directory only.
    if variable("STEAD_BUNDLE").is_some_and(|path| fs::canonicalize(path).ok().as_deref() != Some(bundle)) {
        return None;
    }
    let task = TaskName::parse(variable("STEAD_TASK")?).ok()?;
    let host = variable("STEAD_HOST").and_then(|host| HostName::parse(host).ok());
    let fits = |attempt: &InterruptedAttempt| {
        attempt.task == task && (attempt.host.is_none() || attempt.host == host)
    };
    attempts.iter().any(fits).then_some((task, host))
}

/// Returns this process and its ancestors.
fn own_line() -> BTreeSet<u32> {
    let mut line = BTreeSet::new();
    let mut pid = Some(getpid().as_raw_nonzero().get().unsigned_abs());
    while let Some(current) = pid {
        if !line.insert(current) {
            break;
        }
        pid = Process::read(current).map(|process| process.parent).filter(|parent| *parent > 0);
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn attempt(task: &str, host: Option<&str>) -> InterruptedAttempt {
        InterruptedAttempt {
            task: TaskName::parse(task).unwrap(),
            host: host.map(|host| HostName::parse(host).unwrap()),
        }
    }

    /// A process group that is killed and reaped when dropped.
    struct Group(Child);

    impl Group {
        /// Starts a script as an attempt; returns when it has said `ready`.
        fn start(run: &RunId, task: &str, host: &str, script: &str) -> Self {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
            command.env("STEAD_RUN_ID", run.as_str()).env("STEAD_TASK", task).env("STEAD_HOST", host);
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            Self(child)
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let group = Pid::from_child(&self.0);
            rustix::process::kill_process_group(group, Signal::KILL).ok();
            drop(self.0.wait());
        }
    }

    fn own_run(name: &str) -> RunId {
        RunId::parse(&format!("{name}-{}", std::process::id())).unwrap()
    }

    #[test]
    fn finds_processes_of_the_named_attempts_only() {
        let run = own_run("scan");
        let wanted = Group::start(&run, "t", "web1", "echo ready; read x");
        let _other_host = Group::start(&run, "t", "web2", "echo ready; read x");
        let _other_task = Group::start(&run, "u", "web1", "echo ready; read x");
        let _other_run = Group::start(&own_run("other"), "t", "web1", "echo ready; read x");
        let pids = |attempts: &[InterruptedAttempt]| -> Vec<u32> {
            find(&run, Path::new("/"), attempts).into_iter().map(|process| process.pid).collect()
        };
        assert_eq!(pids(&[attempt("t", Some("web1"))]), [wanted.0.id()]);
        assert_eq!(pids(&[attempt("t", None)]).len(), 2);
        assert_eq!(pids(&[]), [0_u32; 0]);
    }

    /// Two state directories may have runs of one name.
    #[test]
    fn a_run_of_the_same_name_elsewhere_is_another_run() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = own_run("twice");
        let script =
            format!("export STEAD_BUNDLE='{}'; exec /bin/sh -c 'echo ready; read x'", here.path().display());
        let own = Group::start(&run, "t", "local", &script);
        let pids = |bundle: &Path| -> Vec<u32> {
            let bundle = fs::canonicalize(bundle).unwrap();
            find(&run, &bundle, &[attempt("t", None)]).into_iter().map(|process| process.pid).collect()
        };
        assert_eq!(pids(here.path()), [own.0.id()]);
        assert_eq!(pids(there.path()), [0_u32; 0]);
    }

    #[tokio::test]
    async fn ends_a_tree_by_asking_and_kills_what_does_not_listen() {
        let run = own_run("end");
        let polite = Group::start(&run, "polite", "local", "sleep 600 & echo ready; wait");
        let deaf = Group::start(&run, "deaf", "local", "trap '' TERM; echo ready; while :; do sleep 1; done");
        let _spared = Group::start(&run, "done", "local", "echo ready; read x");
        let attempts = [attempt("polite", Some("local")), attempt("deaf", Some("local"))];
        let ended = end(&run, Path::new("/"), &attempts, Duration::from_millis(300)).await;
        assert_eq!(ended.remaining, []);
        let pids: Vec<_> = ended.ended.iter().map(|process| process.pid).collect();
        assert!(pids.contains(&polite.0.id()) && pids.contains(&deaf.0.id()), "{ended:?}");
        assert!(
            ended.ended.iter().filter(|process| process.task.as_str() == "polite").count() >= 2,
            "{ended:?}"
        );
        assert_eq!(find(&run, Path::new("/"), &attempts), []);
        assert_eq!(find(&run, Path::new("/"), &[attempt("done", None)]).len(), 1);
    }

    #[test]
    fn never_finds_itself_or_its_ancestors() {
        const VARIABLE: &str = "STEAD_TEST_SCAN_SELF";
        let run = RunId::parse("self-scan").unwrap();
        if std::env::vars_os().any(|(name, _)| name == VARIABLE) {
            assert_eq!(find(&run, Path::new("/"), &[attempt("t", None)]), []);
            return;
        }
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "\"$0\" --exact process_scan::tests::never_finds_itself_or_its_ancestors; exit $?"]);
        command.arg(std::env::current_exe().unwrap()).env(VARIABLE, "1");
        let output = command.env("STEAD_RUN_ID", "self-scan").env("STEAD_TASK", "t").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
