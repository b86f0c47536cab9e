//! A target without SSH: programs are started here, in a process group of their own, with a home of their own.
//!
//! What the protocol promises does not hang on what carries it, and this carries it fast.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal as Number, kill_process_group};
use stead_drivers::Drivers;
use stead_model::inventory::{Host, Inventory};
use stead_model::plan::Digest;
use stead_model::transport::{SshSpec, TransportSpec};
use stead_model::{HostName, Report};
use stead_runner::author::{Op, Plan};
use stead_runner::remote::Reach;
use stead_runner::transport::{
    Command, Connect, Exit, FileMeta, Forward, Forwarded, Process, Running, Signal, Source, Stdin, Transport,
    TransportError, TransportErrorKind,
};
use stead_runner::{CheckedPlan, Runner};
use tokio::io::AsyncWriteExt as _;

/// Returns the program under test without what only a debugger needs: it is brought to targets again and again.
pub(crate) fn stead() -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    static SMALL: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let make = || {
        let whole = Path::new(env!("CARGO_BIN_EXE_stead"));
        let found = whole.metadata().unwrap();
        let name = format!("stead-{}-{}-{}", found.size(), found.mtime(), found.mtime_nsec());
        // In a container only what was built is there, and that cannot be written to.
        let inside = stead_testkit::container::is_inside();
        let place = Path::new(if inside { "/srv" } else { env!("CARGO_TARGET_TMPDIR") });
        let small = place.join(name);
        if !small.exists() {
            let part = small.with_extension(std::process::id().to_string());
            let stripped = std::process::Command::new("strip").arg("-o").arg(&part).arg(whole).status();
            if !stripped.is_ok_and(|status| status.success()) {
                std::fs::copy(whole, &part).unwrap();
            }
            std::fs::rename(&part, &small).unwrap();
        }
        small
    };
    SMALL.get_or_init(make).clone()
}

/// What a target is like.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Variables of its login environment.
    pub(super) environment: BTreeMap<OsString, OsString>,
    /// Every argv that was started there.
    pub(super) started: Mutex<Vec<Vec<String>>>,
    /// Process groups that were started there.
    pub(super) groups: Mutex<Vec<u32>>,
    /// Whether connecting fails.
    pub(super) unreachable: std::sync::atomic::AtomicBool,
    /// From where on everything that is said there arrives as nonsense.
    pub(super) nonsense_from: Mutex<Option<&'static str>>,
}

/// Starts programs here.
#[derive(Clone)]
pub(super) struct Direct(pub(super) Arc<World>);

struct Connection(TransportSpec, Arc<World>);

#[async_trait::async_trait]
impl Connect for Direct {
    async fn connect(&self, spec: &TransportSpec) -> Result<Arc<dyn Transport>, TransportError> {
        if self.0.unreachable.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(TransportError::new(TransportErrorKind::Refused, "nobody is there"));
        }
        Ok(Arc::new(Connection(spec.clone(), Arc::clone(&self.0))))
    }
}

fn lost(error: impl std::fmt::Display) -> TransportError {
    TransportError::new(TransportErrorKind::Failed, error.to_string())
}

#[async_trait::async_trait]
impl Transport for Connection {
    fn spec(&self) -> &TransportSpec {
        &self.0
    }

    async fn exec(&self, command: Command) -> Result<Running, TransportError> {
        let mut started = tokio::process::Command::new(&command.argv[0]);
        started.args(&command.argv[1..]).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        started.envs(&self.1.environment).envs(&command.env).process_group(0);
        started.current_dir(command.cwd.as_deref().unwrap_or(Path::new("/")));
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let words = command.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        self.1.started.lock().unwrap().push(words);
        let mut child = started.spawn().map_err(lost)?;
        self.1.groups.lock().unwrap().push(child.id().unwrap());
        let mut stdin = child.stdin.take().unwrap();
        let given: Option<stead_runner::transport::Writer> = match command.stdin {
            Stdin::Piped => Some(Box::pin(stdin)),
            Stdin::Bytes(bytes) => {
                stdin.write_all(&bytes).await.map_err(lost)?;
                None
            }
            Stdin::Empty => None,
        };
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Ok(Running {
            stdin: given,
            stdout: Box::pin(Garbled {
                stdout,
                from: *self.1.nonsense_from.lock().unwrap(),
                has_begun: false,
            }),
            stderr: Box::pin(stderr),
            process: Box::new(Started(child)),
        })
    }

    async fn put(&self, _: Source, _: &Path, _: FileMeta) -> Result<Digest, TransportError> {
        Err(lost("not needed"))
    }

    async fn get(&self, _: &Path, _: &Path) -> Result<Digest, TransportError> {
        Err(lost("not needed"))
    }

    async fn forward(&self, _: Forward) -> Result<Forwarded, TransportError> {
        Err(lost("not needed"))
    }
}

/// What a program says, as it arrives.
struct Garbled {
    stdout: tokio::process::ChildStdout,
    from: Option<&'static str>,
    has_begun: bool,
}

impl tokio::io::AsyncRead for Garbled {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = std::pin::Pin::new(&mut self.stdout).poll_read(cx, buffer);
        let new = &mut buffer.filled_mut()[before..];
        let begins = |from: &str| new.windows(from.len()).any(|bytes| bytes == from.as_bytes());
        let begins = self.from.is_some_and(begins);
        self.has_begun |= begins;
        if self.has_begun {
            new.fill(0xff);
        }
        polled
    }
}

struct Started(tokio::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pid) = self.0.id().and_then(|id| Pid::from_raw(id as i32)) {
            kill_process_group(pid, Number::KILL).ok();
        }
    }
}

#[async_trait::async_trait]
impl Process for Started {
    async fn signal(&mut self, signal: Signal) -> Result<(), TransportError> {
        let number = match signal {
            Signal::Interrupt => Number::INT,
            Signal::Terminate => Number::TERM,
            Signal::Kill => Number::KILL,
        };
        let pid = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        pid.map_or(Ok(()), |pid| kill_process_group(pid, number)).map_err(lost)
    }

    async fn wait(&mut self) -> Result<Exit, TransportError> {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.0.wait().await.map_err(lost)?;
        Ok(status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or(0)), Exit::Code))
    }
}

/// A target in a directory of its own.
pub(super) struct Place {
    pub(super) dir: tempfile::TempDir,
    pub(super) world: Arc<World>,
    pub(super) lease: std::time::Duration,
}

impl Place {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "state", "target"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let environment = BTreeMap::from([("HOME".into(), dir.path().join("home").into_os_string())]);
        let world = Arc::new(World { environment, ..World::default() });
        Self { dir, world, lease: std::time::Duration::from_secs(15) }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn base(&self) -> PathBuf {
        self.path("base")
    }

    pub(super) fn host(&self) -> Host {
        let spec = SshSpec { host: "target".to_owned(), ..SshSpec::default() };
        let workdir = Some(self.base().display().to_string());
        let executor = stead_model::inventory::ExecutorMode::Always;
        Host { workdir, executor, ..Host::reached_by(TransportSpec::Ssh(Box::new(spec))) }
    }

    /// Returns a runner that reaches `hosts` here.
    pub(super) fn runner_for(&self, hosts: &[(&str, Host)]) -> Runner {
        self.runner_to(hosts, |_| {})
    }

    /// Returns a runner that reaches `web1` as `change` says.
    pub(super) fn runner_with(&self, change: impl FnOnce(&mut Reach)) -> Runner {
        self.runner_to(&[("web1", self.host())], change)
    }

    fn runner_to(&self, hosts: &[(&str, Host)], change: impl FnOnce(&mut Reach)) -> Runner {
        let mut inventory = Inventory::default();
        for (name, host) in hosts {
            inventory.hosts.insert(HostName::parse(name).unwrap(), host.clone());
        }
        let mut reach = Reach::new(Arc::new(Direct(Arc::clone(&self.world))), stead());
        (reach.user, reach.driver, reach.lease) = ("ann".to_owned(), "laptop".to_owned(), self.lease);
        change(&mut reach);
        let environment = BTreeMap::from([("TOKEN".to_owned(), "s3cret-value".to_owned())]);
        Runner::new(Drivers::standard())
            .inventory(inventory)
            .reach(reach)
            .record_in(self.path("state"))
            .environment(environment)
    }

    pub(super) fn runner(&self) -> Runner {
        self.runner_for(&[("web1", self.host())])
    }

    pub(super) async fn run(&self, build: impl FnOnce(&mut stead_runner::author::PlanBuilder)) -> Report {
        self.runner().run(self.plan(build)).await
    }

    pub(super) fn plan(&self, build: impl FnOnce(&mut stead_runner::author::PlanBuilder)) -> CheckedPlan {
        let mut plan = Plan::builder("p");
        plan.operations(&Drivers::standard());
        build(&mut plan);
        plan.build().unwrap().with_base_dir(self.dir.path().to_owned())
    }

    /// Returns a file of the target.
    pub(super) fn target(&self, name: &str) -> String {
        self.path("target").join(name).display().to_string()
    }

    /// Waits until something is so.
    #[track_caller]
    pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_so() {
            assert!(std::time::Instant::now() < deadline, "never: {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// How often a program was brought to the target.
    pub(super) fn uploads(&self) -> usize {
        let started = self.world.started.lock().unwrap();
        started
            .iter()
            .filter(|argv| argv.iter().any(|word| word.contains("Takes the program from its input")))
            .count()
    }

    /// Brings the program there, so that a test of something else does not wait for it.
    pub(super) async fn warm(&self) {
        let path = self.target("warm");
        let report = self
            .run(|plan| {
                plan.op("warm", op("file.present", serde_json::json!({"path": path}))).on("web1");
            })
            .await;
        assert_eq!(report.exit_code, stead_model::ExitCode::Success, "{report:#?}");
        self.world.groups.lock().unwrap().clear();
    }

    /// Kills every channel to the target. Returns how many there were since the last time.
    pub(super) fn cut(&self) -> usize {
        let groups = std::mem::take(&mut *self.world.groups.lock().unwrap());
        for &group in &groups {
            if let Some(pid) = Pid::from_raw(group as i32) {
                kill_process_group(pid, Number::KILL).ok();
            }
        }
        groups.len()
    }

    /// Writes a program that stands in for one of the system's.
    pub(super) fn stand_in(&mut self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let bin = self.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join(name), script).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
        let world = Arc::get_mut(&mut self.world).unwrap();
        world.environment.insert("PATH".into(), path.into());
    }

    /// Whether a session's directory is left on the target.
    pub(super) fn sessions_left(&self) -> usize {
        std::fs::read_dir(self.base().join("run"))
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
    }
}

/// Returns the processes whose environment holds `mark`.
pub(super) fn processes_with(mark: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    })
    .collect()
}

/// Returns an operation with these parameters.
pub(super) fn op(name: &str, params: serde_json::Value) -> Op {
    let mut op = Op::new(name);
    for (name, value) in params.as_object().unwrap() {
        op = match value.as_str().filter(|text| text.contains("{{")) {
            Some(template) => op.template(name, template),
            None => op.param(name.as_str(), value.clone()),
        };
    }
    op
}
