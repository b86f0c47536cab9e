//! Fleets as they run on real machines: a master, a publisher of a flake and workers, each a process that has joined
//! with a token of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stead_testkit::micro_vm;

use super::cable::Cable;
use super::{PATIENCE, checked, instances};
use crate::cases_17_32::lab::{Ended, Lab, wait_until};

/// The words of a master.
const MASTER: [&str; 8] = ["m", "fleet", "master", "--name", "m1", "--observe", "127.0.0.1:0", "--json"];

/// A master, a publisher that follows the repository `repo`, and workers. Each has a state directory with its name.
pub(super) struct Daemons {
    pub(super) lab: Lab,
    pub(super) master: String,
    workers: Vec<&'static str>,
    /// Between each worker and the master.
    pub(super) cables: BTreeMap<String, Cable>,
    running: Vec<(String, Child)>,
}

impl Daemons {
    /// Starts a master alone.
    fn lonely() -> Self {
        let mut daemons = Self::nobody(&["w1"]);
        daemons.lead();
        daemons
    }

    /// Starts nobody.
    pub(super) fn nobody(workers: &[&'static str]) -> Self {
        Self {
            lab: Lab::new(""),
            master: String::new(),
            workers: workers.to_vec(),
            cables: BTreeMap::new(),
            running: Vec::new(),
        }
    }

    fn lead(&mut self) {
        let first = self.begin(&MASTER, "--listen", "127.0.0.1:0");
        self.master = first["listen"].as_str().unwrap().to_owned();
    }

    /// Starts a master where the one before listened, with further words.
    pub(super) fn lead_again(&mut self, more: &[&str]) {
        let address = self.master.clone();
        let words: Vec<&str> = MASTER.iter().chain(more).copied().collect();
        self.begin(&words, "--listen", &address);
    }

    /// Runs a master where the one before listened to its end: one that does not start.
    pub(super) fn try_to_lead(&self) -> Ended {
        self.command(&MASTER).args(["--listen", &self.master]).output().unwrap().into()
    }

    /// Kills a daemon, and waits until it is gone.
    pub(super) fn kill(&mut self, name: &str) {
        let at = self.running.iter().position(|(running, _)| running == name).unwrap();
        let (_, mut child) = self.running.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Returns the events of all workers, in the order of time.
    pub(super) fn events(&self) -> Vec<Value> {
        let mut lines: Vec<Value> = Vec::new();
        for worker in &self.workers {
            let text = self.lab.read(&format!("{worker}/fleet/events/events-001.jsonl"));
            // The last line may be in the middle of being written.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            lines.extend(whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        }
        lines.sort_by_key(|line| line["t"].as_str().unwrap().to_owned());
        lines
    }

    /// Returns what happened to instances, on all workers, in the order of time: what, and to which.
    pub(super) fn happened(&self) -> Vec<(String, String)> {
        let word = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        self.events().iter().map(|line| (word(line, "ev"), word(line, "instance"))).collect()
    }

    /// Starts them. The repository has a commit already; in the flake, `@/` is the lab's place.
    pub(super) fn start(workers: &[&'static str], drivers: &str, files: &[(&str, &[u8])]) -> Self {
        let mut daemons = Self::nobody(workers);
        for (name, content) in files {
            daemons.lab.write(&format!("repo/{name}"), content);
        }
        let flake = daemons.lab.read("repo/flake.nix");
        let place = format!("{}/", daemons.lab.root().display());
        daemons.lab.write("repo/flake.nix", flake.replace("@/", &place));
        let key = nix(&["key", "generate-secret", "--key-name", "lab-1"]);
        daemons.lab.write("secret", &key);
        daemons.git(&["init", "--quiet", "--initial-branch", "main"]);
        daemons.commit("first");
        daemons.lead();
        for worker in workers {
            daemons.count_nix(worker);
            daemons.cables.insert((*worker).to_owned(), Cable::to(&daemons.master));
            let nix = daemons.nix_of(worker);
            daemons.join("worker", worker, &worker_words(drivers, &nix));
        }
        daemons.count_nix("p1");
        let root = daemons.lab.root().display().to_string();
        let nix = format!(
            "{{binary: {root}/p1-nix, store: {root}/p1/nix, cache: 'file://{root}/cache', secret_key_file: {root}/secret, settings: {{sandbox: false, substituters: '', build-users-group: '', sandbox-paths: /bin /lib /lib64 /usr}}}}"
        );
        let repo = format!("{root}/repo");
        let words = [
            "publish",
            "--repo",
            &repo,
            "--ref",
            "refs/heads/main",
            "--poll",
            "1s",
            "--debounce",
            "0s",
            "--nix",
            &nix,
        ];
        daemons.join("publisher", "p1", &words);
        daemons
    }

    /// Returns where a worker has its Nix, and what it trusts.
    fn nix_of(&self, worker: &str) -> String {
        format!(
            "{{binary: {root}/{worker}-nix, store: {root}/{worker}/nix, caches: ['file://{root}/cache'], public_keys: ['{}']}}",
            self.public_key(),
            root = self.lab.root().display(),
        )
    }

    /// Starts the agent of a worker that has joined before.
    pub(super) fn work_again(&mut self, worker: &str, drivers: &str) {
        let nix = self.nix_of(worker);
        let mut command = self.command(&[worker, "fleet"]);
        command.args(worker_words(drivers, &nix)).args(["--masters", &self.cables[worker].address]);
        self.running.push((worker.to_owned(), command.stdout(Stdio::null()).spawn().unwrap()));
    }

    /// Writes a program that notes how it is called and then is Nix, with what that remembers below the lab.
    fn count_nix(&self, whose: &str) {
        let (program, root) = (format!("{whose}-nix"), self.lab.root().display());
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> '{root}/{whose}-nix.log'\nHOME='{root}/home' exec nix \"$@\"\n"
        );
        self.lab.write(&program, script);
        fs::set_permissions(self.lab.path(&program), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns how Nix was called.
    fn nix_calls(&self, whose: &str) -> Vec<String> {
        self.lab.read(&format!("{whose}-nix.log")).lines().map(ToOwned::to_owned).collect()
    }

    fn public_key(&self) -> String {
        let secret = fs::File::open(self.lab.path("secret")).unwrap();
        let mut convert = nix_command(&["key", "convert-secret-to-public"]);
        String::from_utf8(convert.stdin(secret).output().unwrap().stdout).unwrap().trim().to_owned()
    }

    /// Returns a command with the state directory that the first word names.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.lab.root()).stdin(Stdio::null());
        command.arg("--state-dir").arg(self.lab.path(words[0])).args(&words[1..]);
        command
    }

    /// Starts a daemon and returns the first line that it prints.
    pub(super) fn begin(&mut self, words: &[&str], flag: &str, value: &str) -> Value {
        let mut command = self.command(words);
        let mut child = command.args([flag, value]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.running.push((words[0].to_owned(), child));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Starts a daemon that joins with a token for its name; a worker does so through its cable, if it has one.
    pub(super) fn join(&mut self, role: &str, name: &str, words: &[&str]) {
        let token = self.fleet(&["token", "mint", "--role", role, "--name", name]).exits(0);
        self.lab.write(&format!("{name}.token"), token.stdout);
        let master = self.cables.get(name).map_or(&self.master, |cable| &cable.address);
        let token = format!("{name}.token");
        let mut command = self.command(&[name, "fleet"]);
        command.args(words).args(["--masters", master, "--join-file", &token]);
        self.running.push((name.to_owned(), command.stdout(Stdio::null()).spawn().unwrap()));
    }

    /// Starts a daemon with these words of `stead fleet`.
    pub(super) fn launch(&mut self, name: &str, words: &[&str]) {
        let mut command = self.command(&[name, "fleet"]);
        self.running.push((name.to_owned(), command.args(words).stdout(Stdio::null()).spawn().unwrap()));
    }

    /// Sends a signal to a daemon.
    pub(super) fn signal(&self, name: &str, signal: Signal) {
        let (_, child) = self.running.iter().find(|(running, _)| running == name).unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Asks the master, on its own account.
    pub(super) fn fleet(&self, words: &[&str]) -> Ended {
        checked(words, self.command(&["m", "fleet"]).args(words).output().unwrap().into())
    }

    pub(super) fn git(&self, words: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(words);
        let output = git.current_dir(self.lab.path("repo")).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Commits everything and returns the commit.
    pub(super) fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Replaces text of the flake, commits that, and returns the status once it is what runs.
    pub(super) fn change(&self, old: &str, new: &str) -> Value {
        let text = self.lab.read("repo/flake.nix");
        assert!(text.contains(old), "{text}");
        self.lab.write("repo/flake.nix", text.replace(old, new));
        self.converged(&self.commit("a change"))
    }

    /// Waits until a commit is what runs, and returns the status.
    pub(super) fn converged(&self, commit: &str) -> Value {
        let patience = format!("{}s", PATIENCE.as_secs());
        self.fleet(&["wait", "--commit", commit, "--timeout", &patience]).exits(0);
        self.fleet(&["status", "--json"]).exits(0).document()
    }
}

/// Returns the words of a worker that looks at what it runs every second.
fn worker_words<'a>(drivers: &'a str, nix: &'a str) -> [&'a str; 7] {
    ["worker", "--drivers", drivers, "--drift-interval", "1s", "--nix", nix]
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            // Whoever is paused does not hear that it is to end.
            kill_process(Pid::from_child(child), Signal::CONT).ok();
            kill_process(Pid::from_child(child), Signal::TERM).ok();
            child.wait().ok();
        }
        for worker in &self.workers {
            let mut stop = self.command(&[worker, "fleet", "worker", "--stop-all"]);
            stop.stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
        }
        // What is in a store of Nix may not be written to, not even to remove it.
        Command::new("chmod").args(["-R", "u+w"]).arg(self.lab.root()).status().ok();
    }
}

fn nix_command(words: &[&str]) -> Command {
    let mut command = Command::new("nix");
    command.args(["--extra-experimental-features", "nix-command flakes"]).args(words);
    command
}

fn nix(words: &[&str]) -> String {
    let output = nix_command(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether Nix is there; says so if not.
#[expect(clippy::print_stdout, reason = "what is skipped says why")]
pub(super) fn has_nix() -> bool {
    let is_there = Command::new("nix").arg("--version").output().is_ok_and(|said| said.status.success());
    if !is_there {
        assert!(std::env::var_os("STEAD_CI").is_none(), "there is no nix");
        println!("skipped: no nix here");
    }
    is_there
}

pub(super) const SANDBOXES: &str = r#"{
  outputs = { self }: let
    image = name: text: derivation {
      inherit name; system = "x86_64-linux"; builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; echo '${text}' > $out/text" ];
    };
    web = image "vm-web" "web-one";
    db = image "vm-db" "db-one";
    vm = image: replicas: {
      inherit replicas;
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = {
        driver = "sandbox"; artifacts = [ "${image}/text" ];
        argv = [ "/bin/sh" "-c" "echo $(cat $0) $$ >> @/starts; exec sleep 100000" "${image}/text" ];
      };
    };
  in {
    orchestrator.vms = { web = vm web 2; db = vm db 1; };
    orchestrator.vmImages = { inherit web db; };
  };
}
"#;

/// Returns the text of the image and the process of every start so far.
pub(super) fn starts(daemons: &Daemons) -> Vec<(String, u32)> {
    let text = daemons.lab.read("starts");
    let words = text.lines().map(|line| line.split_once(' ').unwrap());
    words.map(|(image, pid)| (image.to_owned(), pid.parse().unwrap())).collect()
}

pub(super) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Case 2 and case 3: a flake on three workers; commits that change nothing, a count, an image and a VM.
#[test]
fn a_flake_runs_on_three_workers() {
    if !has_nix() {
        return;
    }
    let daemons =
        Daemons::start(&["w1", "w2", "w3"], "{sandbox: {}}", &[("flake.nix", SANDBOXES.as_bytes())]);
    let status = daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    assert_eq!(instances(&status), ["db/0", "web/0", "web/1"]);
    assert_eq!((&status["generation"], &status["convergence_percent"]), (&1.into(), &100.into()));
    let first = starts(&daemons);
    assert_eq!(first.len(), 3, "{first:?}");

    // Nothing that any VM is made of has changed.
    let hash = |status: &Value| status["groups"][0]["active"]["specsHash"].as_str().unwrap().to_owned();
    let (before, happened) = (hash(&status), daemons.happened());
    daemons.lab.write("repo/README", "hello");
    let status = daemons.converged(&daemons.commit("readme"));
    assert_eq!((&status["generation"], hash(&status)), (&2.into(), before));
    assert_eq!((starts(&daemons), daemons.happened()), (first.clone(), happened));
    let calls = daemons.nix_calls("p1").len();
    for _ in 0..2 {
        let polled = || daemons.fleet(&["status", "--json"]).document()["watcher"]["last_poll"].clone();
        let before = polled();
        wait_until("another poll", || polled() != before);
    }
    assert_eq!(daemons.nix_calls("p1").len(), calls, "a poll without change starts no Nix");
    // Section 5: what is evaluated and built is the commit, with its own lock file, and nothing of the publisher's machine.
    let asked = |call: &&String| call.contains("orchestrator.");
    let calls = daemons.nix_calls("p1");
    assert!(calls.iter().filter(asked).count() >= 4, "{calls:?}");
    for call in calls.iter().filter(asked) {
        let is_pure = !call.contains("--impure");
        let is_frozen = call.contains("--no-update-lock-file") && call.contains("--no-write-lock-file");
        let is_commit = call.contains("git+file://") && call.contains("ref=") && call.contains("&rev=");
        assert!(is_pure && is_frozen && is_commit, "{call}");
    }

    let status = daemons.change("web = vm web 2", "web = vm web 4");
    assert_eq!(instances(&status), ["db/0", "web/0", "web/1", "web/2", "web/3"]);
    assert_eq!(starts(&daemons).len(), 5);
    let status = daemons.change("web = vm web 4", "web = vm web 1");
    assert_eq!(instances(&status), ["db/0", "web/0"]);
    let alive: Vec<u32> = starts(&daemons).iter().map(|start| start.1).filter(|pid| is_alive(*pid)).collect();
    assert_eq!(alive.len(), 2);
    assert!(alive.iter().all(|pid| first.iter().any(|start| start.1 == *pid)), "those of before: {alive:?}");

    daemons.change("\"web-one\"", "\"web-two\"");
    let after = starts(&daemons);
    assert_eq!(after[5..].iter().map(|start| start.0.as_str()).collect::<Vec<_>>(), ["web-two"]);
    let db = first.iter().find(|start| start.0 == "db-one").unwrap().1;
    assert!(is_alive(db), "what did not change runs on");
    let happened = daemons.happened();
    let last = |ev: &str| happened.iter().rposition(|(what, of)| what == ev && of == "web/0").unwrap();
    assert!(last("fetched") < last("stopped") && last("stopped") < last("started"), "{happened:?}");

    let status = daemons.change("; db = vm db 1", "");
    assert_eq!(instances(&status), ["web/0"]);
    assert!(!is_alive(db));
}

/// Case 20, section 12: a token is good for its role and once; whoever may look changes nothing.
#[test]
fn tokens_are_good_for_their_role() {
    let mut daemons = Daemons::lonely();
    daemons.join("worker", "w1", &["worker", "--drivers", "{sandbox: {}}"]);
    wait_until("the worker is there", || {
        daemons.fleet(&["status", "--json"]).document()["workers"][0]["state"] == "ready"
    });
    daemons
        .fleet(&["token", "mint", "--role", "worker", "--name", "bad name"])
        .exits(2)
        .says("no name of a worker");
    daemons.fleet(&["token", "mint", "--role", "worker", "--ttl", "0s"]).exits(2);
    let token = daemons.fleet(&["token", "mint", "--role", "observer", "--name", "ann"]).exits(0);
    daemons.lab.write("ann.token", token.stdout);
    let ask = |words: &[&str]| -> Ended {
        let mut command = daemons.command(&["ann", "fleet"]);
        command
            .args(words)
            .args(["--masters", &daemons.master, "--join-file", "ann.token"])
            .output()
            .unwrap()
            .into()
    };
    // Nothing is published yet.
    ask(&["status"]).exits(10).says("w1  ready");
    let before = daemons.fleet(&["status", "--json"]).document();
    for verb in [
        ["hold", "worker/w1", "--for", "1h", "--reason", "x"].as_slice(),
        &["release", "h1"],
        &["token", "mint", "--role", "observer"],
        &["token", "revoke", "w1"],
    ] {
        ask(verb).exits(1).says("forbidden");
    }
    let after = daemons.fleet(&["status", "--json"]).document();
    assert_eq!(
        (&before["holds"], &before["workers"][0]["state"]),
        (&after["holds"], &after["workers"][0]["state"])
    );
    // Used up: another state directory has to bring a token of its own.
    let mut again = daemons.command(&["bob", "fleet", "status", "--masters", &daemons.master]);
    Ended::from(again.args(["--join-file", "ann.token"]).output().unwrap()).exits(1).says("join-used");
    let mut other = daemons.command(&["ann", "fleet", "worker", "--masters", &daemons.master]);
    Ended::from(other.output().unwrap())
        .exits(3)
        .says("the certificate of the observer ann, not of a worker");
    let mut nobody = daemons.command(&["carl", "fleet", "worker", "--masters", &daemons.master]);
    Ended::from(nobody.output().unwrap()).exits(7).says("--join-file");
}

/// Case 17, section 14: a token with times or an id that are given is made by a master that runs, for its account and for
/// operators; an expired one is refused as such.
#[test]
fn tokens_are_minted_with_times_and_ids_by_a_master_that_runs() {
    let daemons = Daemons::lonely();
    let mint = ["token", "mint", "--role", "observer", "--name", "ann", "--json"];
    let old = ["--iat", "1738800000", "--exp", "1738803600", "--jti", "AAECAwQFBgcICQoLDA0ODw"];
    let made = daemons.fleet(&[&mint[..], &old].concat()).exits(0).document();
    daemons.lab.write("old.token", made["token"].as_str().unwrap());
    let listed = daemons.fleet(&["token", "list"]).exits(0);
    listed.says("AAECAwQFBgcICQoLDA0ODw");
    daemons.fleet(&[&mint[..], &["--jti", "AAECAwQFBgcICQoLDA0ODw"]].concat()).exits(1);
    let join = |who: &str, file: &str, words: &[&str]| -> Ended {
        let mut command = daemons.command(&[who, "fleet"]);
        command.args(words).args(["--masters", &daemons.master, "--join-file", file]);
        command.output().unwrap().into()
    };
    join("ann", "old.token", &["status"]).exits(1).says("join-expired");

    let token = daemons.fleet(&["token", "mint", "--role", "operator", "--name", "olga"]).exits(0);
    daemons.lab.write("olga.token", token.stdout);
    let made =
        join("olga", "olga.token", &["token", "mint", "--role", "observer", "--jti", "given", "--json"]);
    let made = made.exits(0).document();
    daemons.lab.write("new.token", made["token"].as_str().unwrap());
    join("ann", "new.token", &["status"]).exits(10);
    join("bob", "new.token", &["status"]).exits(1).says("join-used");
}

/// Section 14: a master says what happens as lines of JSON, the first one included.
#[test]
fn a_master_logs_lines_of_json() {
    let mut daemons = Daemons::nobody(&[]);
    let mut master = daemons.command(&["m", "fleet", "master", "--name", "m1", "--observe", "127.0.0.1:0"]);
    let mut child = master.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    daemons.running.push(("m".to_owned(), child));
    let mut seen = Vec::new();
    while !(seen.iter().any(|line: &Value| line["ev"] == "leader")
        && seen.iter().any(|line| line["message"].as_str().is_some_and(|said| said.contains("its page at"))))
    {
        let line = lines.next().unwrap().unwrap();
        seen.push(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")));
    }
}

const GUESTS: &str = r#"{
  outputs = { self }: let
    guest = derivation {
      name = "vm-guest"; system = "x86_64-linux"; builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; /bin/cp ${./bios.bin} $out/bios.bin; /bin/cp ${./disk.raw} $out/disk.raw; echo one > $out/text" ];
    };
  in {
    orchestrator.vms.guest = {
      replicas = 2;
      resources = { cpuMilli = 500; memMiB = 32; };
      runtime = { driver = "qemu"; firmware = "${guest}/bios.bin"; disks = [ { image = "${guest}/disk.raw"; } ]; };
      ready = { kind = "serial"; match = "up\r\n"; };
      stopSeconds = 20;
    };
    orchestrator.vmImages = { inherit guest; };
  };
}
"#;

/// Case 25: guests of QEMU from a flake: ready by their console, replaced by another image, and back without download.
#[test]
fn guests_of_a_flake_are_replaced_and_come_back() {
    let firmware = ["/usr/share/seabios/bios-256k.bin", "/usr/share/qemu/bios-256k.bin"];
    let Some(firmware) = firmware.into_iter().find(|path| fs::exists(path).unwrap()) else {
        assert!(std::env::var_os("STEAD_CI").is_none(), "there is no firmware of QEMU");
        eprintln!("left out: there is no firmware of QEMU (package seabios)");
        return;
    };
    if !has_nix() {
        return;
    }
    let (bios, disk) = (fs::read(firmware).unwrap(), micro_vm::boot_disk());
    let daemons = Daemons::start(
        &["w1"],
        "{qemu: {accel: tcg}}",
        &[("flake.nix", GUESTS.as_bytes()), ("bios.bin", &bios), ("disk.raw", &disk)],
    );
    let hashes = |status: &Value| -> Vec<String> {
        let all = status["instances"].as_array().unwrap();
        all.iter().map(|instance| instance["observed_hash"].as_str().unwrap().to_owned()).collect()
    };
    let first = daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    assert_eq!(instances(&first), ["guest/0", "guest/1"]);
    let second = daemons.change("echo one", "echo two");
    assert_eq!(instances(&second), ["guest/0", "guest/1"]);
    assert!(hashes(&first)[0] != hashes(&second)[0] && hashes(&second)[0] == hashes(&second)[1]);
    let downloads = || daemons.nix_calls("w1").iter().filter(|call| call.contains("copy")).count();
    let before = downloads();
    assert!(before > 1, "{:?}", daemons.nix_calls("w1"));
    daemons.git(&["revert", "--no-edit", "HEAD"]);
    let third = daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    assert_eq!(hashes(&third), hashes(&first));
    assert!(third["generation"].as_u64() > second["generation"].as_u64());
    assert_eq!(downloads(), before, "what was here is not fetched again");
}

/// Section 2: every key of a daemon's file is a flag, spelled as flags are or as the key is; what is no key is not under
/// their heading.
#[test]
fn flags_of_keys_have_two_spellings() {
    let daemons = Daemons::nobody(&[]);
    let stead = |words: &[&str]| -> Ended { daemons.command(words).output().unwrap().into() };
    for flag in ["--fetch-timeout", "--fetch_timeout"] {
        stead(&["p", "fleet", "publish", "--once", "--repo", "/none", flag, "soon"])
            .exits(3)
            .says("fetch_timeout");
    }
    for (daemon, flag) in
        [("publish", "--allowed-signers"), ("master", "--history"), ("worker", "--drift-interval")]
    {
        let help = stead(&["p", "fleet", daemon, "--help"]).exits(0).stdout;
        let (before, after) = help.split_once("Keys of the file").unwrap();
        let keys = after.split("Global options").next().unwrap();
        let is_old = |line: &str| {
            line.split_whitespace().next().is_some_and(|word| word.starts_with("--") && word.contains('_'))
        };
        assert!(keys.contains(flag) && !help.lines().any(is_old), "{help}");
        for other in ["--json", "--masters", "--identity", "--join-file", "--config"] {
            assert!(
                !keys.contains(&format!("{other} ")) && !keys.contains(&format!("{other}\n")),
                "{other}: {help}"
            );
        }
        assert!(before.contains("--json"), "{help}");
    }
}

/// Section 14: why a daemon does not begin is its exit code: 3 its file, 5 somebody who is there, 7 no master, 1 a refusal.
#[test]
fn daemons_that_do_not_begin_say_why() {
    let daemons = Daemons::lonely();
    let worker = |more: &[&str]| -> Ended {
        let words = ["w1", "fleet", "worker", "--drivers", "{sandbox: {}}"];
        daemons.command(&words).args(more).output().unwrap().into()
    };
    daemons.try_to_lead().exits(5).says("in use by another master");
    daemons.lab.write("worker.yaml", "nam: w1\n");
    worker(&["--config", "worker.yaml"]).exits(3).says("fleet/unknown-key").says("worker.yaml:1:1");
    daemons.lab.write("master.yaml", "history: 0\n");
    let master: Ended =
        daemons.command(&["m2", "fleet", "master", "--config", "master.yaml"]).output().unwrap().into();
    master.exits(3).says("history");
    let token = daemons.fleet(&["token", "mint", "--role", "worker", "--name", "w1"]).exits(0).stdout;
    daemons.lab.write("w1.token", &token);
    worker(&["--masters", "127.0.0.1:1", "--join-file", "w1.token"]).exits(7).says("no master answers");
    daemons.lab.write("flipped.token", token.replacen("sj1.eyJ", "sj1.eyK", 1));
    worker(&["--masters", &daemons.master, "--join-file", "flipped.token"]).exits(1).says("join-");
    // Nothing of that has used up the token: a worker joins with it, and a second one in its place does not begin.
    let mut first = daemons.command(&["w1", "fleet", "worker", "--name", "w1", "--drivers", "{sandbox: {}}"]);
    first.args(["--masters", &daemons.master, "--join-file", "w1.token"]);
    let mut first = first.stdout(Stdio::null()).spawn().unwrap();
    wait_until("it joins", || daemons.fleet(&["status"]).stdout.contains("w1  ready"));
    worker(&["--name", "w1", "--masters", &daemons.master]).exits(5).says("another worker agent");
    kill_process(Pid::from_child(&first), Signal::TERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0));
}
