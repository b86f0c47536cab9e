//! Fleets as people use them: `stead init fleet`, `stead fleet dev`, commits, and looking at what becomes of them.

mod cable;
mod codes;
mod containers;
mod converging;
mod daemons;
mod looking;
mod planned;
mod rebuilt;
mod rollouts;
mod several;
mod silent;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cases_17_32::lab::{Ended, Lab};

/// How long a fleet may take to come to where a test wants it.
const PATIENCE: Duration = Duration::from_secs(150);

/// A fleet in the directory `fleet` of a place of its own, with `stead fleet dev` on it.
pub(crate) struct Fleet {
    pub(crate) lab: Lab,
    dev: Option<Child>,
    /// Where its page is.
    pub(crate) page: String,
}

impl Fleet {
    /// Makes a fleet and starts it.
    pub(crate) fn start() -> Self {
        let lab = Lab::new("");
        lab.run(["init", "fleet"]).exits(0).says("stead fleet dev");
        let mut fleet = Self { lab, dev: None, page: String::new() };
        fleet.dev();
        fleet
    }

    /// Makes a fleet of a flake and starts it; Nix has a store of its own.
    pub(crate) fn of_flake(flake: &str) -> Self {
        let mut fleet = Self { lab: Lab::new(""), dev: None, page: String::new() };
        fleet.lab.write("fleet/flake.nix", flake);
        fleet.git(&["init", "--quiet", "--initial-branch", "main"]);
        fleet.git(&["add", "--all"]);
        fleet.git(&["commit", "--quiet", "--message", "first"]);
        fleet.dev();
        fleet
    }

    /// Starts `stead fleet dev` and waits until it listens.
    pub(crate) fn dev(&mut self) {
        let mut command = self.lab.stead(["fleet", "dev", "fleet"]);
        command.env("HOME", self.lab.path("home")).env("NIX_REMOTE", self.lab.path("nix"));
        command.env(
            "NIX_CONFIG",
            "sandbox = false\nsubstituters =\nbuild-users-group =\nsandbox-paths = /bin /lib /lib64 /usr",
        );
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().map(Result::unwrap);
        let Some(first) = first else {
            let ended: Ended = child.wait_with_output().unwrap().into();
            panic!("it did not start: {ended:?}");
        };
        self.page = first.split_once("its page: ").unwrap().1.to_owned();
        // What it says goes on to nobody.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let errors = child.stderr.take().unwrap();
        std::thread::spawn(move || BufReader::new(errors).lines().map_while(Result::ok).for_each(drop));
        self.dev = Some(child);
    }

    /// Sends a signal to `stead fleet dev` and returns its exit code.
    pub(crate) fn end(&mut self, signal: Signal) -> Option<i32> {
        let mut dev = self.dev.take().unwrap();
        kill_process(Pid::from_child(&dev), signal).unwrap();
        dev.wait().unwrap().code()
    }

    pub(crate) fn git(&self, words: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(words);
        let output = git.current_dir(self.lab.path("fleet")).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Replaces text of a file, commits that, and returns the commit.
    pub(crate) fn commit(&self, file: &str, old: &str, new: &str) -> String {
        let path = format!("fleet/{file}");
        let text = self.lab.read(&path);
        assert!(text.contains(old), "{text}");
        self.lab.write(&path, text.replace(old, new));
        self.git(&["commit", "--quiet", "--all", "--message", "a change"]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn stead(&self, words: &[&str]) -> Ended {
        checked(words, self.lab.run(["fleet"].into_iter().chain(words.iter().copied())))
    }

    /// Returns the status.
    pub(crate) fn status(&self) -> Value {
        self.stead(&["status", "--json"]).document()
    }

    /// Waits until a status is as wanted, and returns it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.stead(&["status", "--json"]);
            let status: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {ended:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a commit is what runs, and returns the status.
    #[track_caller]
    pub(crate) fn converged(&self, commit: &str) -> Value {
        self.stead(&["wait", "--commit", commit, "--timeout", "150s"]).exits(0);
        self.status()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(mut dev) = self.dev.take() {
            kill_process(Pid::from_child(&dev), Signal::INT).ok();
            dev.wait().ok();
        }
        // What is in a store of Nix may not be written to, not even to remove it.
        Command::new("chmod").args(["-R", "u+w"]).arg(self.lab.root()).status().ok();
    }
}

/// Case 23: whenever a test asks for a status as JSON, what is answered is what the schema says, and nothing that is not
/// converged lacks a code and a sentence.
#[track_caller]
pub(crate) fn checked(words: &[&str], ended: Ended) -> Ended {
    static SCHEMA: LazyLock<jsonschema::Validator> =
        LazyLock::new(|| jsonschema::validator_for(&stead_model::schema::fleet_status_schema()).unwrap());
    let is_status = words.first() == Some(&"status") && words.contains(&"--json");
    // Without a master there is an error instead.
    if !is_status || !matches!(ended.code, 0 | 10 | 11) {
        return ended;
    }
    let status = ended.document();
    let problems: Vec<String> = SCHEMA.iter_errors(&status).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}\n{status:#}");
    for instance in status["instances"].as_array().unwrap() {
        let is_right = instance["desired_hash"] == instance["observed_hash"] && instance["ready"] == true;
        let says =
            instance["code"].is_string() && instance["message"].as_str().is_some_and(|text| text.len() > 20);
        assert!(is_right || says || instance["leaving"] == true, "{instance:#}");
    }
    ended
}

/// Returns the keys of the instances, sorted.
pub(crate) fn instances(status: &Value) -> Vec<String> {
    let all = status["instances"].as_array().cloned().unwrap_or_default();
    all.iter().map(|instance| instance["key"].as_str().unwrap().to_owned()).collect()
}

/// Returns since when an instance runs, as its uptime says; the same as long as it was not started anew.
pub(crate) fn hash_of(status: &Value, key: &str) -> String {
    let all = status["instances"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|instance| instance["key"] == key).unwrap();
    found["observed_hash"].as_str().unwrap_or_default().to_owned()
}
