//! Sandboxes that may use a part of the processors: control groups where they can be made, and a word where not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use stead_drivers::machine::sandbox;
use stead_model::machine::{Machine, MachineProgram, MachineSpec, MachineState};
use stead_runner::machine::MachineDriver;
use stead_testkit::machine_contract::Yard;

use super::yard::{Place, node};

fn limited(place: &Place, name: &str, script: &str) -> MachineSpec {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let program = MachineProgram { argv, ..MachineProgram::default() };
    MachineSpec { cpu_milli: Some(150), program: Some(program), ..place.spec(node(name)) }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the group that a machine was given.
fn group(place: &Place, machine: &Machine) -> PathBuf {
    PathBuf::from(fs::read_to_string(place.home(&machine.owner).join("cgroup")).unwrap())
}

/// Returns how often what is in a group had to wait for its share.
fn throttled(group: &Path) -> u64 {
    let stat = fs::read_to_string(group.join("cpu.stat")).unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// Section 11: `cpuMilli` is a quota. What runs in a sandbox is held to it, it still stops when it is asked to, and its
/// group goes with it, also when its process was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_uses_no_more_than_its_part() {
    if let Err(why) = sandbox::try_quota() {
        eprintln!("left out: no control groups here: {why}");
        return;
    }
    let place = Place::new();
    let driver = place.sandboxes();
    let spec = limited(&place, "busy", "while :; do :; done");
    let made = driver.ensure_created(&spec).await.unwrap().machine;
    driver.start(&made.id).await.unwrap();
    let machine = place.up(&made).await;
    let own = group(&place, &machine);
    let quota = ["cpu.cfs_quota_us", "cpu.max"].map(|name| fs::read_to_string(own.join(name)));
    let quota: String = quota.into_iter().flatten().collect();
    assert_eq!(quota.split_whitespace().next(), Some("15000"), "{}", own.display());
    until("it has to wait for its share", || throttled(&own) > 0).await;
    let members = || fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
    assert!(members().lines().count() >= 2, "the program and its supervisor: {}", members());
    let stopped = driver.stop(&machine.id, Duration::from_secs(60)).await.unwrap();
    assert!(stopped.changed && !stopped.forced, "{stopped:?}");
    assert!(!own.exists(), "it goes with the run");

    driver.start(&machine.id).await.unwrap();
    place.up(&made).await;
    until("it is in its group again", || members().lines().count() >= 2).await;
    // As a machine that is out of memory would: nobody is there to take the group back.
    place.kill(&driver.inspect(&machine.id).await.unwrap().unwrap());
    driver.destroy(&machine.id).await.unwrap();
    assert!(!own.exists(), "it goes with the machine");
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 11: a program that ends takes the group along, and is limited again when it is started anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_ends_leaves_no_group() {
    if let Err(why) = sandbox::try_quota() {
        eprintln!("left out: no control groups here: {why}");
        return;
    }
    let place = Place::new();
    let driver = place.sandboxes();
    let spec = limited(&place, "brief", "cat /proc/self/cgroup >\"$STEAD_ROOT/groups\"; exit 3");
    let made = driver.ensure_created(&spec).await.unwrap().machine;
    for _ in 0..2 {
        driver.start(&made.id).await.unwrap();
        assert_eq!(driver.wait(&made.id).await.unwrap().code, Some(3));
        let own = group(&place, &made);
        let groups = fs::read_to_string(place.home(&made.owner).join("root/groups")).unwrap();
        assert!(groups.contains(own.file_name().unwrap().to_str().unwrap()), "{groups}");
        assert!(!own.exists());
    }
    driver.destroy(&made.id).await.unwrap();
}

/// Section 11: where no group can be made a sandbox runs all the same, and its console says what it does without. One
/// whose account has no rights at all is such a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_a_quota_says_so() {
    let place = Place::new();
    let mut settings = place.settings();
    // The same program, in a place where control groups are not shown.
    let wrapper = place.path("hidden-groups");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount /bin/sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"' {} \"$@\"\n",
        env!("CARGO_BIN_EXE_stead")
    );
    fs::write(&wrapper, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&wrapper, mode).unwrap();
    let may_hide = std::process::Command::new("unshare")
        .args(["--mount", "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !may_hide.is_ok_and(|status| status.success()) {
        eprintln!("left out: this account cannot hide control groups");
        return;
    }
    settings.program = wrapper;
    let driver = sandbox::SandboxDriver::new(settings);
    let made = driver.ensure_created(&limited(&place, "free", "exec sleep 1000")).await.unwrap().machine;
    driver.start(&made.id).await.unwrap();
    let machine = place.up(&made).await;
    assert_eq!(machine.state, MachineState::Running);
    let console = fs::read_to_string(place.home(&machine.owner).join("console.log")).unwrap();
    assert_eq!(console.matches("no quota of processor time").count(), 1, "{console}");
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}
