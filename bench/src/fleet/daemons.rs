//! How long a commit takes until it is published, and what daemons cost while nothing happens.
//!
//! A commit is measured from when it is there until its publisher has the master's word: looking, fetching, evaluating,
//! publishing. A site needs no Nix; of a flake the time that Nix itself takes is taken off, as a program between the two
//! counts it. The daemons are processes of their own, joined over TLS as on real machines.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stead_fleet::api::Master;
use stead_fleet::master::{Running, Settings, start};
use stead_fleet::publisher::{self, Ending};
use stead_fleet::store::Embedded;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::services::PublisherFile;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::sample::{median, memory_of};
use crate::shell::{binary, is_installed, run, write};
use crate::table::{Table, bytes, millis};
use crate::{Effort, interrupt};

/// The bars of the contract.
const SLOWEST_PUBLISH: f64 = 0.200;
const SLOWEST_START: f64 = 5.0;
const MOST_MEMORY: f64 = 30.0 * 1024.0 * 1024.0;
const MOST_PROCESSOR: f64 = 0.005;
/// What Linux tells the time of processes in, on every machine it runs on today: hundredths of a second.
const TICK: u64 = 10;

/// The lines about daemons.
pub(super) fn measure(effort: Effort, table: &mut Table) {
    let (site, flake) =
        ("fleet: commit to published, a site", "fleet: commit to published, a flake, over Nix's own time");
    let line = |table: &mut Table, what: &str, taken: Duration| {
        let taken = taken.as_secs_f64();
        table.at_most(what, millis(taken), taken, millis(SLOWEST_PUBLISH), SLOWEST_PUBLISH);
    };
    let new = "fleet: `init fleet` and `fleet dev` to 100 %";
    if is_installed("git") {
        let taken = of_new(effort.samples()).as_secs_f64();
        table.at_most(new, millis(taken), taken, millis(SLOWEST_START), SLOWEST_START);
        line(table, site, of_site(effort.samples()));
        if is_installed("nix") {
            line(table, flake, of_flake(effort.samples()));
        } else {
            table.skipped(flake, "nix is not installed (Debian: nix-bin)");
        }
    } else {
        table.skipped(new, "git is not installed");
        table.skipped(site, "git is not installed");
        table.skipped(flake, "git is not installed");
    }
    idle(effort, table);
}

/// A repository, a master, and what a publisher keeps.
struct Yard {
    directory: TempDir,
    runtime: Runtime,
    master: Running,
}

impl Yard {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let repo = directory.path().join("repo");
        fs::create_dir(&repo).expect("a directory can be made");
        git(&repo, &["init", "--quiet", "--initial-branch", "main"]);
        let runtime = Runtime::new().expect("a runtime");
        let settings = Settings {
            name: "bench".to_owned(),
            address: String::new(),
            store: Arc::new(Embedded::open(&directory.path().join("master.db")).expect("a store")),
            history: 100,
            events: None,
            peers: None,
            rebuild: None,
        };
        let master = runtime.block_on(start(settings)).expect("a master");
        Self { directory, runtime, master }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory can be made");
        write(&path, text);
    }

    fn commit(&self) {
        let repo = self.path("repo");
        git(&repo, &["add", "--all"]);
        git(&repo, &["commit", "--quiet", "--message", "next"]);
    }

    /// Publishes the head and returns how long that took.
    fn publish(&self, more: &str) -> Duration {
        interrupt::check();
        let (repo, blobs) = (self.path("repo"), self.path("blobs"));
        let text = format!("repo: {}\nartifacts: {}\n{more}", repo.display(), blobs.display());
        let source = Source { name: "publisher.yaml".into(), text: text.into() };
        let settings = publisher::Settings {
            file: PublisherFile::read(&source, &mut Diagnostics::default()).expect("a file"),
            directory: self.path("fleet"),
            name: "bench".to_owned(),
            commit: None,
            events: None,
            metrics: Arc::default(),
        };
        let master: Arc<dyn Master> = self.master.handle();
        let began = Instant::now();
        let published = self.runtime.block_on(publisher::once(settings, master, CancellationToken::new()));
        let taken = began.elapsed();
        let published = published.expect("it publishes");
        assert_eq!(published.ending, Ending::Published, "{published:?}");
        taken
    }

    fn end(self) {
        self.runtime.block_on(self.master.stop());
        // What is in a store of Nix may not be written to, not even to remove it.
        Command::new("chmod").args(["-R", "u+w"]).arg(self.directory.path()).status().ok();
    }
}

/// Returns how long it takes from nothing until everything of a new fleet runs, with every program that is started for it.
fn of_new(samples: usize) -> Duration {
    let taken = (0..samples).map(|_| {
        interrupt::check();
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path();
        let began = Instant::now();
        let mut init = Command::new(binary());
        init.args(["init", "fleet"]).current_dir(place);
        run(init);
        let repo = place.join("fleet").display().to_string();
        let mut dev = stead(place, "state", &["dev", &repo]);
        let dev = dev.stdout(Stdio::null()).spawn().expect("a fleet can be started");
        let dev = Dev(dev);
        let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&repo).output();
        let head = String::from_utf8(head.expect("a commit").stdout).expect("a commit is text");
        let end = began + Duration::from_secs(60);
        let words = ["wait", "--commit", head.trim(), "--timeout", "60s"];
        // Until there is a master, nobody answers.
        while !stead(place, "state", &words).stdout(Stdio::null()).status().is_ok_and(|ended| ended.success())
        {
            assert!(Instant::now() < end, "the fleet does not converge");
            std::thread::sleep(Duration::from_millis(10));
        }
        let taken = began.elapsed();
        drop(dev);
        taken
    });
    median(taken.collect())
}

/// A fleet on this machine, which takes its machines along when it is asked to end.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).ok();
        self.0.wait().ok();
    }
}

/// Returns how long a commit of a site takes.
fn of_site(samples: usize) -> Duration {
    let yard = Yard::new();
    yard.write("repo/site.yaml", "{}\n");
    yard.write("repo/presets/small.yaml", "cores: 1\nmemory: 512\ndisk: 1\n");
    yard.write("repo/postures/dev.yaml", "{}\n");
    yard.write("repo/specs/web.yaml", "schema_version: 1\nplatform: {packages: [nginx]}\n");
    // The first one is cloned.
    let taken = (0..=samples).map(|index| {
        let nodes: String = (0..20)
            .map(|at| {
                let count = 1 + (at + index) % 3;
                format!("  - {{name: web{at}, type: vm, preset: small, spec: web, count: {count}}}\n")
            })
            .collect();
        yard.write("repo/manifests/m.yaml", &format!("schema_version: 2\nname: m\nnodes:\n{nodes}"));
        yard.commit();
        yard.publish("")
    });
    let taken: Vec<Duration> = taken.collect();
    yard.end();
    median(taken.into_iter().skip(1).collect())
}

/// Returns how long a commit of a flake takes beyond what Nix itself does: two images, of which one changes.
fn of_flake(samples: usize) -> Duration {
    let yard = Yard::new();
    let place = yard.directory.path().display().to_string();
    let script = format!(
        "#!/bin/sh\nbegan=$(date +%s%N)\nHOME='{place}/home' nix \"$@\"\ncode=$?\nended=$(date +%s%N)\necho $((ended - began)) >>'{place}/taken'\nexit $code\n"
    );
    yard.write("timed-nix", &script);
    fs::set_permissions(yard.path("timed-nix"), fs::Permissions::from_mode(0o755))
        .expect("it can be started");
    let key = Command::new("nix")
        .args(["--extra-experimental-features", "nix-command", "key", "generate-secret"])
        .args(["--key-name", "bench-1"])
        .output();
    fs::write(yard.path("secret"), key.expect("a key").stdout).expect("it can be written");
    let nix = format!(
        "nix:\n  binary: {place}/timed-nix\n  store: {place}/store\n  cache: file://{place}/cache\n  secret_key_file: {place}/secret\n  settings: {{sandbox: false, substituters: '', build-users-group: '', sandbox-paths: /bin /lib /lib64 /usr}}\n"
    );
    let taken = (0..=samples).map(|index| {
        yard.write("repo/flake.nix", &FLAKE.replace("NUMBER", &index.to_string()));
        yard.commit();
        write(&yard.path("taken"), "");
        let whole = yard.publish(&nix);
        let nanos = fs::read_to_string(yard.path("taken")).expect("it was counted");
        let nanos = nanos.lines().map(|line| line.parse::<u64>().expect("a number")).sum();
        assert!(nanos > 0, "Nix was called");
        whole.saturating_sub(Duration::from_nanos(nanos))
    });
    let taken: Vec<Duration> = taken.collect();
    yard.end();
    median(taken.into_iter().skip(1).collect())
}

const FLAKE: &str = r#"{
  outputs = { self }: let
    image = name: text: derivation {
      inherit name; system = "x86_64-linux"; builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; echo '${text}' > $out/text" ];
    };
    vm = image: {
      replicas = 2; resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; artifacts = [ "${image}/text" ]; argv = [ "/bin/sleep" "1000" ]; };
    };
    web = image "vm-web" "NUMBER";
    db = image "vm-db" "one";
  in {
    orchestrator.vms = { web = vm web; db = vm db; };
    orchestrator.vmImages = { inherit web db; };
  };
}
"#;

fn git(repo: &Path, words: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]).args(words).current_dir(repo);
    run(git);
}

/// A daemon that ends with this.
pub(super) struct Daemon(pub(super) Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn stead(directory: &Path, state: &str, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("--state-dir").arg(directory.join(state)).arg("fleet").args(words);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a master and returns it with what it says when it listens.
pub(super) fn begin_master(directory: &Path, state: &str, words: &[&str]) -> (Daemon, serde_json::Value) {
    let mut child =
        stead(directory, state, words).stdout(Stdio::piped()).spawn().expect("a master can be started");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    let master = Daemon(child);
    BufReader::new(stdout).read_line(&mut line).expect("the master says where it is");
    (master, serde_json::from_str(&line).expect("it says it in JSON"))
}

fn idle(effort: Effort, table: &mut Table) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let words = ["master", "--name", "m1", "--listen", "127.0.0.1:0", "--observe", "127.0.0.1:0", "--json"];
    let (master, said) = begin_master(place, "m", &words);
    let address = said["listen"].as_str().expect("an address").to_owned();
    let token = stead(place, "m", &["token", "mint", "--role", "worker", "--name", "w1"]).output();
    let file = place.join("token");
    fs::write(&file, token.expect("a token").stdout).expect("it can be written");
    let file = file.display().to_string();
    let words = ["worker", "--drivers", "{sandbox: {}}", "--masters", &address, "--join-file", &file];
    let worker = stead(place, "w", &words).stdout(Stdio::null()).spawn().expect("a worker can be started");
    let worker = Daemon(worker);
    let is_ready = || {
        let shown = stead(place, "m", &["status", "--json"]).output().expect("a status");
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown["workers"][0]["state"] == "ready"
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !is_ready() {
        assert!(Instant::now() < end, "the worker does not join");
        std::thread::sleep(Duration::from_millis(100));
    }
    // What it found out when it began is behind it.
    std::thread::sleep(Duration::from_secs(5));
    let length = match effort {
        Effort::Quick => Duration::from_secs(15),
        Effort::Full => Duration::from_secs(60),
    };
    let (began, before) = (Instant::now(), [&worker, &master].map(|daemon| worked(daemon.0.id())));
    std::thread::sleep(length);
    interrupt::check();
    let (passed, after) = (began.elapsed(), [&worker, &master].map(|daemon| worked(daemon.0.id())));
    let [of_worker, of_master] =
        [0, 1].map(|at| after[at].saturating_sub(before[at]).as_secs_f64() / passed.as_secs_f64());
    let resident = memory_of(worker.0.id(), "VmRSS:") as f64;
    table.at_most(
        "fleet: an idle worker's memory",
        bytes(resident),
        resident,
        bytes(MOST_MEMORY),
        MOST_MEMORY,
    );
    table.at_most(
        "fleet: an idle worker's processor time",
        percent(of_worker),
        of_worker,
        percent(MOST_PROCESSOR),
        MOST_PROCESSOR,
    );
    let resident = memory_of(master.0.id(), "VmRSS:") as f64;
    table.note("fleet: an idle master's memory, one worker", bytes(resident));
    table.note("fleet: an idle master's processor time, one worker", percent(of_master));
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Returns how long processors have worked for a process: for all its threads, also those that have ended, and for the
/// programs it has waited for.
fn worked(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux tells of a process");
    let rest = stat.rsplit_once(") ").expect("its name is in brackets").1;
    // Behind the name: its state is the third field, utime, stime, cutime and cstime are from the fourteenth on.
    let ticks: u64 = rest
        .split_ascii_whitespace()
        .skip(11)
        .take(4)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * TICK)
}
