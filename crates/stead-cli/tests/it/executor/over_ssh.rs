//! The command against a real SSH server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stead_testkit::container::inside;
use stead_testkit::sshd::{self, Sshd};

use super::direct::Place;

/// A server, an inventory that names it `web1`, and a place for plans and targets.
pub(super) struct Site {
    pub(super) sshd: Sshd,
    dir: tempfile::TempDir,
}

impl Site {
    /// Nothing where there is no server to start; the test command installs one where it may.
    pub(super) fn new() -> Option<Self> {
        sshd::available().then(|| Self::with(Sshd::start()))
    }

    pub(super) fn with(sshd: Sshd) -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap(), sshd };
        site.inventory("");
        site
    }

    pub(super) fn inventory(&self, more: &str) {
        let text = format!(
            "api_version: v1\nhosts:\n  web1: {{transport: \"{}\", workdir: {}{more}}}\n",
            self.sshd.spec_text(),
            self.sshd.workdir().display()
        );
        fs::write(self.path("inventory.yaml"), text).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn plan(&self, tasks: &str) {
        let tasks = tasks.replace("@/", &format!("{}/", self.dir.path().display()));
        let text =
            format!("api_version: v1\nname: p\ngrace: 1s\ndefaults: {{target: web1}}\ntasks:\n{tasks}");
        fs::write(self.path("p.yaml"), text).unwrap();
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(super::direct::stead());
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("STEAD_DIR").env("HOME", self.path("driver-home"));
        command
    }

    pub(super) fn run(&self, more: &[&str]) -> (i32, Value) {
        self.report(&[&["plan", "run", "p.yaml", "--json"], more].concat())
    }

    /// Runs the command to its end; returns its exit code and the report it prints.
    pub(super) fn report(&self, args: &[&str]) -> (i32, Value) {
        let output = self.command(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let report = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), report)
    }

    pub(super) fn uploaded(&self) -> bool {
        self.sshd.workdir().join("bin").exists()
    }

    pub(super) fn sessions_left(&self) -> usize {
        fs::read_dir(self.sshd.workdir().join("run"))
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
    }
}

/// A driver that is killed and reaped when dropped.
pub(super) struct Driver(pub(super) Child);

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn is_running(pid_file: &Path) -> bool {
    let Ok(pid) = fs::read_to_string(pid_file) else { return false };
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_plan_runs_on_a_host_behind_ssh() {
    let Some(site) = Site::new() else { return };
    site.plan(
        "  - {name: file, op: file.present, params: {path: @/made, content: hello}}\n\
         \x20 - {name: say, depends_on: file, shell: \"cat made\", params: {cwd: @/}}\n",
    );
    let (code, report) = site.run(&[]);
    assert_eq!((code, &report["tasks"][1]["data"]["stdout"]), (0, &Value::from("hello")), "{report:#}");
    let (code, report) = site.run(&["--dry-run"]);
    assert_eq!((code, &report["tasks"][0]["status"]), (0, &Value::from("unchanged")), "{report:#}");
    assert_eq!(site.sshd.logins(), 2, "one connection per host and run");
    assert_eq!(site.sessions_left(), 0);
}

/// Case 9.
#[test]
fn what_a_login_prints_is_skipped_and_said() {
    if !sshd::available() {
        return;
    }
    let site = Site::with(Sshd::start());
    fs::write(site.sshd.home().join(".bashrc"), "i=0; while [ $i -lt 200 ]; do echo 'welcome to this machine, be nice to it, please'; i=$((i+1)); done\n").unwrap();
    site.plan("  - {name: file, op: file.present, params: {path: @/made, content: hello}}\n");
    let (code, report) = site.run(&[]);
    assert_eq!(code, 0, "{report:#}");
    let warnings = report["warnings"].to_string();
    // Only a login shell that reads it prints it.
    let shell = fs::read_to_string("/etc/passwd").unwrap();
    if shell
        .lines()
        .any(|line| line.starts_with(&format!("{}:", site.sshd.user())) && line.ends_with("/bash"))
    {
        assert!(warnings.contains("reach/noise"), "{report:#}");
    }
}

/// Case 9: commands alone bring nothing to the host, and mean the same with and without the executor.
#[test]
fn commands_alone_bring_nothing_and_mean_the_same() {
    let Some(site) = Site::new() else { return };
    fs::write(site.path("there"), "").unwrap();
    site.plan(
        "  - {name: exec, op: command.exec, params: {command: printf, args: ['%s|', 'a b', \"it's\", '$(x)'], cwd: @/}}\n\
         \x20 - {name: shell, shell: 'read a; echo $a $B $PWD; echo err >&2; exit 4', \
         params: {stdin: 'in', env: {B: 'b c'}, cwd: @/, ok_exit: [4]}}\n\
         \x20 - {name: creates, exec: ['false'], params: {creates: there, cwd: @/}}\n\
         \x20 - {name: unless, exec: ['false'], params: {unless: 'test -e there', cwd: @/}}\n\
         \x20 - {name: fails, exec: ['false'], on_error: continue}\n\
         \x20 - {name: missing, exec: [no-such-program], on_error: continue}\n\
         \x20 - {name: slow, depends_on: exec, shell: 'sleep 600', timeout: 1s, on_error: continue}\n\
         \x20 - {name: killed, shell: 'kill -9 $$', on_error: continue}\n\
         \x20 - {name: home, shell: 'echo $STEAD_TASK $STEAD_HOST $STEAD_ATTEMPT'}\n",
    );
    let mut seen = Vec::new();
    for mode in ["auto", "never", "always"] {
        site.inventory(&format!(", executor: {mode}"));
        if mode == "always" {
            // The first attempt would spend its time on bringing the program.
            site.run(&["--dry-run"]);
        }
        let (_, before) = site.run(&["--dry-run"]);
        let (code, report) = site.run(&[]);
        assert_eq!(code, 1, "{report:#}");
        assert_eq!(site.uploaded(), mode == "always", "{mode}");
        let rows = |report: &Value| -> Vec<Value> {
            let tasks = report["tasks"].as_array().unwrap().iter();
            tasks
                .map(|task| {
                    let keys =
                        ["name", "status", "changed", "class", "reason", "error", "data", "prediction"];
                    let mut row: Value =
                        keys.iter().map(|key| ((*key).to_owned(), task[*key].clone())).collect();
                    // Who looks for a program says in its own words where.
                    if task["name"] == "missing" {
                        assert!(
                            task["status"] != "failed"
                                || task["error"].to_string().contains("no-such-program"),
                            "{task}"
                        );
                        row["error"] = Value::Null;
                        if row["data"].is_object() {
                            row["data"]["stderr"] = Value::Null;
                        }
                    }
                    row
                })
                .collect()
        };
        seen.push((rows(&before), rows(&report)));
    }
    for other in &seen[1..] {
        for (row, same) in seen[0].0.iter().chain(&seen[0].1).zip(other.0.iter().chain(&other.1)) {
            assert_eq!(row, same);
        }
    }
    site.inventory(", executor: never");
    site.plan("  - {name: file, op: file.present, params: {path: @/made}}\n");
    let (code, report) = site.run(&[]);
    let row = &report["tasks"][0];
    assert_eq!((code, &row["class"]), (1, &Value::from("invalid")), "{report:#}");
    assert!(row["error"].as_str().unwrap().contains("executor: never"), "{row}");
    assert!(!site.path("made").exists());

    // Without the executor nothing would change the account.
    site.inventory(", executor: never, become: sudo");
    site.plan("  - {name: who, shell: 'touch @/made'}\n");
    let (code, report) = site.run(&[]);
    assert_eq!(code, 3, "{report:#}");
    let problem = &report["diagnostics"][0];
    assert_eq!((&problem["line"], &problem["code"]), (&Value::from(3), &Value::from("reach/bad-value")));
    assert!(!site.path("made").exists());
}

/// Case 11.
#[test]
fn a_killed_driver_leaves_nothing_on_the_target() {
    let Some(site) = Site::new() else { return };
    site.plan(
        "  - {name: lock, op: file.present, params: {path: @/x}}\n\
         \x20 - {name: sleep, depends_on: lock, shell: \"echo $$ > @/pid; exec sleep 600\"}\n",
    );
    let mut command = site.command(&["plan", "run", "p.yaml", "--run-id", "killed"]);
    let mut driver = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    Place::until("the command runs", || is_running(&site.path("pid")));
    driver.0.kill().unwrap();
    driver.0.wait().unwrap();
    assert!(is_running(&site.path("pid")));
    // Both end with the lease of 15 s, by themselves: nobody comes back.
    Place::until("the command is gone", || !is_running(&site.path("pid")));
    Place::until("the session is gone", || site.sessions_left() == 0);
    // The lock is free: another run has the target.
    site.plan("  - {name: file, op: file.present, params: {path: @/y}}\n");
    let (code, report) = site.run(&[]);
    assert_eq!(code, 0, "{report:#}");
}

/// Case 11, without the executor: the end of the connection ends the command.
#[test]
fn a_killed_driver_leaves_no_command_where_there_is_no_executor() {
    let Some(site) = Site::new() else { return };
    for mode in ["never", "auto"] {
        site.inventory(&format!(", executor: {mode}"));
        site.plan("  - {name: sleep, shell: \"sleep 600 & echo $! > @/child; echo $$ > @/pid; wait\"}\n");
        let mut command = site.command(&["plan", "run", "p.yaml"]);
        let mut driver = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        Place::until("the command runs", || is_running(&site.path("pid")));
        driver.0.kill().unwrap();
        driver.0.wait().unwrap();
        Place::until("the command is gone", || !is_running(&site.path("pid")));
        Place::until("its child is gone", || !is_running(&site.path("child")));
        assert!(!site.uploaded(), "{mode}: there was an executor");
        fs::remove_file(site.path("pid")).unwrap();
    }
}

/// A driver that is killed and resumed at once: what it left there is ended first, the task is said to be interrupted.
#[test]
fn a_resumed_run_ends_what_the_killed_driver_left() {
    let Some(site) = Site::new() else { return };
    site.plan(
        "  - {name: first, op: file.present, params: {path: @/x, content: x}}\n\
         \x20 - {name: sleep, depends_on: first, interrupted: retry, \
         shell: \"if [ -e @/pid ]; then exit 0; fi; echo $$ > @/pid; exec sleep 600\"}\n",
    );
    let mut command = site.command(&["plan", "run", "p.yaml", "--run-id", "again"]);
    let mut driver = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    Place::until("the command runs", || is_running(&site.path("pid")));
    driver.0.kill().unwrap();
    driver.0.wait().unwrap();
    let (code, report) = site.report(&["resume", "again", "--json"]);
    assert_eq!(code, 0, "{report:#}");
    assert!(!is_running(&site.path("pid")));
    assert_eq!(site.sessions_left(), 0);
}

/// Case 13: a second driver waits for the lock as long as it is told to.
#[test]
fn the_lock_of_a_target_is_waited_for() {
    let Some(site) = Site::new() else { return };
    site.plan(
        "  - {name: lock, op: file.present, params: {path: @/x}}\n\
         \x20 - {name: hold, depends_on: lock, shell: \"touch @/held; while [ ! -e @/go ]; do sleep 0.05; done\"}\n",
    );
    let mut command = site.command(&["plan", "run", "p.yaml", "--run-id", "holder"]);
    let mut holder = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    Place::until("the lock is held", || site.path("held").exists());
    site.plan("  - {name: file, op: file.present, params: {path: @/y}}\n");
    // Its own state directory: only the target's lock is between the two.
    let elsewhere = |more: &[&str]| {
        let mut command = site.command(&[&["plan", "run", "p.yaml", "--json"], more].concat());
        command.env("STEAD_DIR", site.path("other-state"));
        command
    };
    let refused = elsewhere(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(["web1", "holder", "since 2"].iter().all(|word| said.contains(word)), "{said}");
    let waiting = elsewhere(&["--wait-lock", "30s"]).stdout(Stdio::piped()).spawn().unwrap();
    Place::until("it is there and waits", || site.sessions_left() == 2);
    assert!(!site.path("y").exists());
    fs::write(site.path("go"), "").unwrap();
    let waited = waiting.wait_with_output().unwrap();
    assert_eq!(waited.status.code(), Some(0), "{}", String::from_utf8_lossy(&waited.stdout));
    assert!(holder.0.wait().unwrap().success());
    assert!(site.path("y").exists());
}

/// Case 13: two hosts of one run that are one machine share its lock.
#[test]
fn two_hosts_that_are_one_machine_share_its_lock() {
    let Some(site) = Site::new() else { return };
    let (spec, workdir) = (site.sshd.spec_text(), site.sshd.workdir().display().to_string());
    let host = |name: &str| format!("  {name}: {{transport: \"{spec}\", workdir: {workdir}}}\n");
    let inventory = format!("api_version: v1\nhosts:\n{}{}", host("web1"), host("web2"));
    fs::write(site.path("inventory.yaml"), inventory).unwrap();
    // Each waits for what the other has made, so both hold it at the same time.
    site.plan(
        "  - {name: one, op: file.present, params: {path: @/one}}\n\
         \x20 - {name: two, target: web2, op: file.present, params: {path: @/two}}\n\
         \x20 - {name: see-two, depends_on: one, op: wait.file, params: {path: @/two, timeout: 30s}}\n\
         \x20 - {name: see-one, target: web2, depends_on: two, op: wait.file, params: {path: @/one, timeout: 30s}}\n\
         \x20 - {name: again, depends_on: [see-one, see-two], target: [web1, web2], \
         op: file.present, params: {path: '@/{{ host.name }}', content: x}}\n",
    );
    let (code, report) = site.run(&[]);
    assert_eq!(code, 0, "{report:#}");
    assert!(site.path("web1").exists() && site.path("web2").exists());
    assert_eq!(site.sessions_left(), 0);
}

/// Case 16, behind SSH: custom facts come from the target, below its root.
#[test]
fn custom_facts_come_from_the_target() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(site) = Site::new() else { return };
    let facts = site.path("root/etc/stead/facts.d");
    fs::create_dir_all(&facts).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&facts, 0o755);
    fs::write(facts.join("rack.json"), "{\"row\": 7}").unwrap();
    fs::write(facts.join("said"), "#!/bin/sh\necho \"\\\"$SSH_CONNECTION\\\"\"\n").unwrap();
    mode(&facts.join("said"), 0o755);
    fs::write(facts.join("broken.json"), "{").unwrap();
    fs::write(facts.join("open.json"), "1").unwrap();
    mode(&facts.join("open.json"), 0o666);
    site.inventory(&format!(", root: {}", site.path("root").display()));
    site.plan(
        "  - {name: look, op: facts, params: {only: [custom]}}\n\
         \x20 - {name: use, depends_on: look, op: file.present, \
         params: {path: /row, content: 'row {{ fact.custom.rack.row }}'}}\n",
    );
    let (code, report) = site.run(&[]);
    assert_eq!(code, 0, "{report:#}");
    let custom = &report["tasks"][0]["data"]["custom"];
    assert_eq!(custom["rack"]["row"], 7, "{report:#}");
    assert_eq!(custom.as_object().unwrap().len(), 2, "{report:#}");
    assert!(custom["said"].as_str().is_some_and(|said| said.starts_with("127.0.0.1 ")), "{report:#}");
    assert_eq!(fs::read_to_string(site.path("root/row")).unwrap(), "row 7");
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("broken.json") && warnings.contains("open.json"), "{warnings}");
}

/// Connections that are killed again and again under a command.
#[test]
fn a_killed_connection_is_found_again() {
    let Some(site) = Site::new() else { return };
    site.plan(
        "  - {name: file, op: file.present, params: {path: @/made, content: hello}}\n\
         \x20 - {name: talk, depends_on: file, shell: \"touch @/begun; \
         i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.03; done; \
         until [ -e @/go ]; do sleep 0.05; done\"}\n",
    );
    let mut command = site.command(&["plan", "run", "p.yaml", "--json"]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Place::until("the command runs", || site.path("begun").exists());
    for _ in 0..2 {
        let before = site.sshd.logins();
        site.sshd.drop_connections();
        Place::until("it connects anew", || site.sshd.logins() > before);
        std::thread::sleep(Duration::from_millis(300));
    }
    fs::write(site.path("go"), "").unwrap();
    let output = running.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let wanted: String = (0..100).map(|number| format!("line {number}\n")).collect();
    assert_eq!(report["tasks"][1]["data"]["stdout"], wanted.as_str(), "{report:#}");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(site.sessions_left(), 0);
    assert!(site.uploaded());
}

/// Case 12, on this machine: another account is a child executor.
#[test]
fn another_account_of_this_machine_runs_in_a_child() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("bin")).unwrap();
    fs::write(
        path("bin/sudo"),
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift; AS_ROOT=yes exec \"$@\"\n",
    )
    .unwrap();
    fs::set_permissions(path("bin/sudo"), fs::Permissions::from_mode(0o755)).unwrap();
    let inventory = format!(
        "api_version: v1\nhosts:\n  local: {{transport: local, become: sudo, workdir: {}}}\n",
        path("base").display()
    );
    fs::write(path("inventory.yaml"), inventory).unwrap();
    let plan = "api_version: v1\nname: p\ntasks:\n  - {name: who, shell: 'echo root: $AS_ROOT'}\n";
    fs::write(path("p.yaml"), plan).unwrap();
    let mut command = Command::new(super::direct::stead());
    command.args(["plan", "run", "p.yaml", "--json"]).current_dir(dir.path()).stdin(Stdio::null());
    command.env_remove("STEAD_DIR").env("PATH", format!("{}:/usr/bin:/bin", path("bin").display()));
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tasks"][0]["data"]["stdout"], "root: yes\n", "{report:#}");
    assert_eq!(
        fs::read_dir(path("base/run")).unwrap().flatten().filter(|entry| entry.path().is_dir()).count(),
        0
    );
}

/// Section 3: the real `sudo` asks again when a password is wrong. That is its refusal, and nothing is waited for.
#[test]
fn a_wrong_password_is_refused_by_the_real_sudo() {
    inside(|| {
        let account = "useradd --shell /bin/sh --password \"$(openssl passwd -6 'open sesame')\" zoe
            echo 'zoe ALL=(ALL) ALL' >/etc/sudoers.d/zoe; chmod 440 /etc/sudoers.d/zoe";
        assert!(Command::new("/bin/sh").args(["-ec", account]).status().unwrap().success());
        let zoe = sshd::Account { user: Some("zoe".to_owned()), ..sshd::Account::default() };
        let site = Site::with(Sshd::builder().account(zoe).start());
        let inventory = format!(
            "api_version: v1\nhosts:\n  web1: {{transport: \"{}\", workdir: /srv/base, become: sudo, \
             become_password: {{env: PASSWORD}}}}\n",
            site.sshd.spec_text()
        );
        fs::write(site.path("inventory.yaml"), inventory).unwrap();
        site.plan("  - {name: who, shell: 'id -u; cat'}\n");
        let run = |password: &str| {
            let mut command = site.command(&["plan", "run", "p.yaml", "--json"]);
            let output = command.env("PASSWORD", password).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            report["tasks"][0].clone()
        };
        let row = run("open sesame");
        assert_eq!(row["data"]["stdout"], "0\n", "{row:#}");
        let row = run("close sesame");
        assert_eq!(row["class"], "permanent", "{row:#}");
        let error = row["error"].as_str().unwrap();
        assert!(error.contains("sudo refuses") && error.contains("`become_password`"), "{error}");
        assert!(!error.contains("sesame") && !error.contains("stead:"), "{error}");
    });
}
