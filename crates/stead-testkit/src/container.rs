//! A throw-away machine: an OCI container, started by `runc`, whose root is an overlay over the running root.
//!
//! So `apt-get`, `useradd`, `sshd` and `visudo` are the real ones, and nothing they write reaches the test machine:
//! the upper layer is a tmpfs in a mount namespace of its own, gone with the last process. The container has no
//! network but loopback, its own processes, host name and `/tmp`, `/run`.
//!
//! ```text
//!   test ──stdin pipe──▶ unshare(mounts) ─▶ runc run ─▶ sh (pid 1) ─▶ the test binary again, or nothing
//!     └── closed, also when the test is killed ─────────────▲ ends; runc removes its cgroup and state
//! ```
//!
//! Two ways to use it: [`inside`] runs a test's body in a container of its own, where operations act on the whole
//! machine; [`Container`] stays outside and runs programs in it. Needs root and `runc`: without them a test says that
//! it was skipped, on CI it fails.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Set inside a container started by [`inside`].
const INSIDE: &str = "STEAD_TEST_INSIDE";
/// Programs are found here, in a container.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a container may take to go away by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Mounts the root where only runc and the container see it, then becomes runc. Arguments: bundle, id.
const SETUP: &str = r#"set -e
cd "$1"
mount -t tmpfs -o mode=0755 stead-rig layer
mkdir layer/upper layer/work
mount -t overlay -o lowerdir=/,upperdir=layer/upper,workdir=layer/work stead-rig rootfs
exec runc --root state run "$2""#;

/// The same with systemd as pid 1, which does not end with a pipe: it is ended from here. Outside the test's process
/// group, so that whoever kills that does not kill this.
const SETUP_SYSTEMD: &str = r#"set -e
cd "$1"
mount -t tmpfs -o mode=0755 stead-rig layer
mkdir layer/upper layer/work
mount -t overlay -o lowerdir=/,upperdir=layer/upper,workdir=layer/work stead-rig rootfs
units=rootfs/etc/systemd/system
rm -rf $units
mkdir -p $units
printf '[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\nAllowIsolate=yes\n' >$units/rig.target
set +e
runc --root state run "$2" </dev/null >console 2>&1 &
cat >/dev/null
runc --root state delete --force "$2" >/dev/null 2>&1
wait"#;

/// Pid 1: runs its arguments, ends when they do or when the test is gone.
const INIT: &str = r#"exec 3<&0
"$@" </dev/null &
child=$!
{ cat <&3 >/dev/null; kill -KILL -1; } &
wait $child"#;

/// Pid 1 of a container that waits for programs to run in it.
const IDLE: &str = "echo ready; exec 3<&0; cat <&3 >/dev/null";

/// What the container may do: what package scripts, mounts and network settings need, nothing that reaches the
/// machine below (modules, clock, reboot, raw devices). With the kernel's numbers.
const CAPABILITIES: &[(&str, u32)] = &[
    ("CAP_AUDIT_WRITE", 29),
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_FOWNER", 3),
    ("CAP_FSETID", 4),
    ("CAP_IPC_LOCK", 14),
    ("CAP_KILL", 5),
    ("CAP_LINUX_IMMUTABLE", 9),
    ("CAP_MKNOD", 27),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_RAW", 13),
    ("CAP_SETFCAP", 31),
    ("CAP_SETGID", 6),
    ("CAP_SETPCAP", 8),
    ("CAP_SETUID", 7),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_SYS_NICE", 23),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_RESOURCE", 24),
];

/// Runs the body of the calling test inside a container, as root on a machine of its own.
///
/// The test binary is started again in there with the test's name; the body must be a closure of the test itself.
///
/// # Panics
/// If the body does, with what it said.
pub fn inside<F: FnOnce()>(body: F) {
    if is_inside() {
        return body();
    }
    let Some(machine) = Machine::prepare() else { return };
    let test = test_of(std::any::type_name::<F>());
    let exe = std::env::current_exe().expect("the test binary has a path");
    let exe = exe.to_str().expect("its path is text");
    let argv = ["/bin/sh", "-c", INIT, "sh", exe, &test, "--exact", "--nocapture", "--test-threads=1"];
    let mut started = machine.start(&argv);
    let said = started.read_all();
    let status = started.finish();
    assert!(status && said.contains("1 passed"), "`{test}` inside a container failed:\n{said}");
}

/// Runs the body of the calling test like [`inside`], in a container whose pid 1 is a real systemd. It has started
/// nothing but its journal; a unit for a test has `DefaultDependencies=no`, or it pulls in all of a boot.
///
/// Returns whether there was one: where the host does not let systemd be init nothing is run, and this is said. The
/// operations are then shown with the stand-in of [`crate::stand_in`] alone.
///
/// # Panics
/// If the body does, with what it said.
pub fn inside_with_systemd<F: FnOnce()>(body: F) -> bool {
    if is_inside() {
        body();
        return true;
    }
    let Some(machine) = Machine::prepare() else { return false };
    let init = "/lib/systemd/systemd";
    let started = Path::new(init).exists().then(|| machine.start_systemd(&[init, "--unit=rig.target"]));
    let container = started.map(|started| Container { started });
    let Some(container) = container.filter(Container::has_systemd) else {
        #[expect(clippy::print_stderr, reason = "the reader of the test's output is told")]
        {
            eprintln!("skipped: systemd cannot be init of a container here; a stand-in is used");
        }
        return false;
    };
    let test = test_of(std::any::type_name::<F>());
    let exe = std::env::current_exe().expect("the test binary has a path");
    let exe = exe.to_str().expect("its path is text");
    let out = container.run(&[
        "env",
        "STEAD_TEST_INSIDE=1",
        exe,
        &test,
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(out.status.success() && said.contains("1 passed"), "`{test}` beside systemd failed:\n{said}");
    true
}

/// Whether this process runs inside a container that [`inside`] started.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Returns the name of the test whose closure is called `closure`: `it::module::test::{{closure}}`.
fn test_of(closure: &str) -> String {
    let path = closure.split_once("::").map_or(closure, |(_crate, path)| path);
    path.split("::{{closure}}").next().unwrap_or(path).to_owned()
}

/// A running container.
#[derive(Debug)]
pub struct Container {
    started: Started,
}

impl Container {
    /// Starts a container, or says why it cannot and returns nothing.
    ///
    /// # Panics
    /// If runc fails, and on CI if it is missing.
    pub fn start() -> Option<Self> {
        let mut started = Machine::prepare()?.start(&["/bin/sh", "-c", IDLE]);
        let mut line = String::new();
        started.output.read_line(&mut line).expect("a readable pipe");
        if line.trim() != "ready" {
            let rest = started.read_all();
            panic!("the container did not start: {line}{rest}");
        }
        Some(Self { started })
    }

    /// Runs a program in it, as root, to its end.
    ///
    /// # Panics
    /// If runc cannot be started.
    pub fn run(&self, argv: &[&str]) -> Output {
        let entering = self.entering();
        let (program, arguments) = entering.split_first().expect("there is a program");
        let mut command = Command::new(program);
        command.args(arguments).args(argv).stdin(Stdio::null());
        command.output().expect("runc can be started")
    }

    /// Returns what stands before the argv of a program that is to run in it, as root.
    pub fn entering(&self) -> Vec<String> {
        let state = self.started.machine.path().join("state").display().to_string();
        let words =
            ["runc", "--root", &state, "exec", "--env", PATH, "--env", "HOME=/root", "--env", "TMPDIR=/tmp"];
        words.iter().map(|word| (*word).to_owned()).chain([self.started.machine.id.clone()]).collect()
    }

    /// Waits until systemd, as its pid 1, has started what it should.
    fn has_systemd(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let asked =
                self.run(&["systemctl", "is-active", "--quiet", "rig.target", "systemd-journald.service"]);
            if asked.status.success() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// Runs a line of shell in it and returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn sh(&self, script: &str) -> String {
        let out = self.run(&["/bin/sh", "-ec", script]);
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

/// A bundle that can be started once.
#[derive(Debug)]
struct Machine {
    directory: TempDir,
    id: String,
}

impl Machine {
    fn prepare() -> Option<Self> {
        if let Some(why) = missing() {
            assert!(std::env::var_os("STEAD_CI").is_none(), "a container is needed: {why}");
            #[expect(clippy::print_stderr, reason = "the reader of the test's output is told")]
            {
                eprintln!("skipped: a container is needed: {why}");
            }
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("stead-{}-{number}", std::process::id());
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in ["rootfs", "layer", "state"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        Some(Self { directory, id })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn start(self, argv: &[&str]) -> Started {
        self.launch("unshare", &[], SETUP, &config(argv))
    }

    fn start_systemd(self, argv: &[&str]) -> Started {
        let mut config = config(argv);
        if let Some(mounts) = config["mounts"].as_array_mut() {
            mounts.push(json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
                "options": ["nosuid", "noexec", "nodev", "rw"]}));
        }
        if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
            namespaces.push(json!({"type": "cgroup"}));
        }
        if let Some(env) = config["process"]["env"].as_array_mut() {
            env.push("container=stead".into());
        }
        self.launch("setsid", &["unshare"], SETUP_SYSTEMD, &config)
    }

    fn launch(self, program: &str, arguments: &[&str], setup: &str, config: &Value) -> Started {
        let bundle = self.path();
        std::fs::write(bundle.join("config.json"), config.to_string()).expect("a writable directory");
        let mut command = Command::new(program);
        command.args(arguments).args(["--mount", "--propagation", "private", "/bin/sh", "-c", setup, "sh"]);
        command.arg(bundle).arg(&self.id).stdin(Stdio::piped());
        // One pipe for both streams, so that what was said stays in order.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(Stdio::from(writer.try_clone().expect("a pipe"))).stderr(Stdio::from(writer));
        let child = command.spawn().expect("unshare can be started");
        drop(command);
        let output = BufReader::new(ChildStdout::from(std::os::fd::OwnedFd::from(reader)));
        Started { child, output, machine: self }
    }
}

/// Returns why no container can be started here, if so.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("this account is not root");
    }
    let has = |name: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(name).exists())
    };
    if !has("runc") {
        return Some("`runc` is not installed (package runc)");
    }
    (!has("unshare")).then_some("`unshare` is not installed (package util-linux)")
}

/// A container's process tree, as seen from outside.
#[derive(Debug)]
struct Started {
    child: Child,
    output: BufReader<ChildStdout>,
    machine: Machine,
}

impl Started {
    fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).expect("a readable pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns whether pid 1 exited with 0.
    fn finish(mut self) -> bool {
        self.child.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Pid 1 ends with its standard input, and everything with pid 1.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let state = self.machine.path().join("state");
        let delete = Command::new("runc")
            .arg("--root")
            .arg(state)
            .args(["delete", "--force", &self.machine.id])
            .status();
        drop(delete);
        self.child.kill().unwrap_or(());
        drop(self.child.wait());
    }
}

fn config(argv: &[&str]) -> Value {
    let tmpfs = |path: &str, mode: &str| json!({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", mode]});
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
        tmpfs("/dev/shm", "mode=1777"),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        tmpfs("/tmp", "mode=1777"),
        tmpfs("/run", "mode=755"),
    ];
    if let Some(built) = built() {
        // The overlay has the root's own file system alone: what was built may be on another, or below /tmp.
        mounts
            .push(json!({"destination": built, "type": "bind", "source": built, "options": ["rbind", "ro"]}));
    }
    let held = held();
    let names: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| held & (1 << bit) != 0).map(|(name, _)| *name).collect();
    let capabilities: serde_json::Map<String, Value> = ["bounding", "effective", "permitted", "inheritable"]
        .into_iter()
        .map(|set| (set.to_owned(), json!(names)))
        .collect();
    let mut env = vec![
        PATH.to_owned(),
        "HOME=/root".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        "LC_ALL=C.UTF-8".to_owned(),
        format!("{INSIDE}=1"),
    ];
    for name in ["STEAD_CI", "STEAD_TEST_SUITE", "RUST_BACKTRACE"] {
        if let Some(value) = std::env::var_os(name).and_then(|value| value.into_string().ok()) {
            env.push(format!("{name}={value}"));
        }
    }
    json!({
        "ociVersion": "1.0.2",
        "process": {"terminal": false, "user": {"uid": 0, "gid": 0}, "args": argv, "env": env, "cwd": "/",
            "capabilities": capabilities, "noNewPrivileges": false},
        "root": {"path": "rootfs", "readonly": false},
        "hostname": "rig",
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}],
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            // Network settings are the container's own; the others are the test machine's.
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger", "/proc/sys/kernel",
                "/proc/sys/vm", "/proc/sys/fs", "/proc/sys/dev", "/proc/sys/debug"],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
        },
    })
}

/// Returns the capabilities this process can hand on: root in a container does not have them all.
fn held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX)
}

/// Returns the directory that cargo built into, which holds the test binary and the programs.
fn built() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?.canonicalize().ok()?;
    let directory = exe.parent()?;
    Some(if directory.ends_with("deps") { directory.parent()?.to_owned() } else { directory.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_in_a_container_stays_there() {
        let Some(container) = Container::start() else { return };
        let id = container.started.machine.id.clone();
        assert_eq!(container.sh("useradd --create-home zoe; id -un zoe; hostname").trim(), "zoe\nrig");
        assert!(!container.run(&["false"]).status.success());
        assert!(!std::fs::read_to_string("/etc/passwd").expect("readable").contains("zoe:"));
        drop(container);
        assert!(!std::fs::read_to_string("/proc/self/mounts").expect("readable").contains("stead-rig"));
        for controller in ["memory", "pids", "unified", ""] {
            assert!(!Path::new("/sys/fs/cgroup").join(controller).join(&id).exists(), "{controller}");
        }
    }

    #[test]
    fn a_body_runs_inside() {
        inside(|| {
            assert!(std::env::var_os(INSIDE).is_some());
            std::fs::write("/etc/stead-rig-was-here", "").expect("root writes anywhere");
        });
        assert_eq!(
            Path::new("/etc/stead-rig-was-here").exists(),
            std::env::var_os(INSIDE).is_some(),
            "written inside, and not outside"
        );
    }

    #[test]
    fn a_body_that_fails_inside_fails_the_test_and_leaves_nothing() {
        if missing().is_some() {
            return;
        }
        let fail = || inside(|| panic!("on purpose"));
        if std::env::var_os(INSIDE).is_some() {
            return fail();
        }
        let failed = std::panic::catch_unwind(fail);
        assert!(failed.is_err());
        assert!(!std::fs::read_to_string("/proc/self/mounts").expect("readable").contains("stead-rig"));
    }
}
