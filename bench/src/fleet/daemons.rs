//! How long a commit takes until it is published, and what daemons cost while nothing happens.
//!
//! The commit is of a site: no Nix is in the way, so what is measured is what Stead adds. The daemons are processes of
//! their own, joined over TLS as on real machines.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stead_fleet::api::Master;
use stead_fleet::master::{Settings, start};
use stead_fleet::publisher::{self, Ending};
use stead_fleet::store::Embedded;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::services::PublisherFile;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::sample::{median, memory_of};
use crate::shell::{binary, run, write};
use crate::table::{Table, bytes, millis};
use crate::{Effort, interrupt};

/// The bars of the contract.
const SLOWEST_PUBLISH: f64 = 0.200;
const MOST_MEMORY: f64 = 30.0 * 1024.0 * 1024.0;
const MOST_PROCESSOR: f64 = 0.005;

/// The lines about daemons.
pub(super) fn measure(effort: Effort, table: &mut Table) {
    if Command::new("git").arg("--version").stdout(Stdio::null()).status().is_err() {
        table.skipped("fleet: commit to published", "git is not installed");
    } else {
        let taken = published(effort.samples());
        table.at_most(
            "fleet: commit to published, a site",
            millis(taken),
            taken,
            millis(SLOWEST_PUBLISH),
            SLOWEST_PUBLISH,
        );
    }
    idle(effort, table);
}

/// Returns how long a commit takes from when it is seen until the master has it.
fn published(samples: usize) -> f64 {
    let directory = tempfile::tempdir().expect("a directory");
    let repo = directory.path().join("repo");
    for (path, text) in [
        ("site.yaml", "{}\n"),
        ("presets/small.yaml", "cores: 1\nmemory: 512\ndisk: 1\n"),
        ("postures/dev.yaml", "{}\n"),
        ("specs/web.yaml", "schema_version: 1\nplatform: {packages: [nginx]}\n"),
    ] {
        let path = repo.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory can be made");
        write(&path, text);
    }
    fs::create_dir_all(repo.join("manifests")).expect("a directory can be made");
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
    let running = runtime.block_on(start(settings)).expect("a master");
    // The first one is cloned.
    let taken = (0..=samples).map(|index| {
        interrupt::check();
        let nodes: String = (0..20)
            .map(|at| {
                let count = 1 + (at + index) % 3;
                format!("  - {{name: web{at}, type: vm, preset: small, spec: web, count: {count}}}\n")
            })
            .collect();
        let text = format!("schema_version: 2\nname: m\nnodes:\n{nodes}");
        write(&repo.join("manifests/m.yaml"), &text);
        git(&repo, &["add", "--all"]);
        git(&repo, &["commit", "--quiet", "--message", "next"]);
        runtime.block_on(publish_one(directory.path(), running.handle()))
    });
    let taken: Vec<u64> = taken.collect();
    let taken = median(taken.into_iter().skip(1).collect());
    runtime.block_on(running.stop());
    taken as f64 / 1e6
}

/// Publishes the head and returns how many microseconds the pipeline took, as the publisher counts it.
async fn publish_one(directory: &Path, master: Arc<dyn Master>) -> u64 {
    let (repo, blobs) = (directory.join("repo"), directory.join("blobs"));
    let text = format!("repo: {}\nartifacts: {}\n", repo.display(), blobs.display());
    let source = Source { name: "publisher.yaml".into(), text: text.into() };
    let metrics = Arc::new(publisher::Metrics::default());
    let settings = publisher::Settings {
        file: PublisherFile::read(&source, &mut Diagnostics::default()).expect("a file"),
        directory: directory.join("fleet"),
        name: "bench".to_owned(),
        commit: None,
        events: None,
        metrics: Arc::clone(&metrics),
    };
    let published = publisher::once(settings, master, CancellationToken::new()).await.expect("it publishes");
    assert_eq!(published.ending, Ending::Published, "{published:?}");
    let text = metrics.to_text();
    let seconds = text.lines().find_map(|line| line.strip_prefix("stead_fleet_publish_seconds_sum "));
    let seconds: f64 = seconds.and_then(|text| text.parse().ok()).expect("it is counted");
    (seconds * 1e6) as u64
}

fn git(repo: &Path, words: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]).args(words).current_dir(repo);
    run(git);
}

/// A daemon that ends with this.
struct Daemon(Child);

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

fn idle(effort: Effort, table: &mut Table) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let words = ["master", "--name", "m1", "--listen", "127.0.0.1:0", "--observe", "127.0.0.1:0", "--json"];
    let mut child =
        stead(place, "m", &words).stdout(Stdio::piped()).spawn().expect("a master can be started");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    let master = Daemon(child);
    BufReader::new(stdout).read_line(&mut line).expect("the master says where it is");
    let said: serde_json::Value = serde_json::from_str(&line).expect("it says it in JSON");
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

/// Returns how long processors have worked for a process, all its threads together.
fn worked(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("Linux tells a process's threads");
    let nanos = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}
